"""Float64 NumPy that streaming agents are checked against, from arXiv:2410.14606,
with gradients by differences.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.networks import parameters_of
from rljax.training import agent_state
from rljax.training.agent_state import AgentState
from tests.agents import reference

LEAK = 0.01


def transitions(seed: int, number: int, spec: EnvSpec, **extras: Any) -> Transition:
    """A stream [T, ...] of three episodes, in which each observation follows on the one before."""
    generator = np.random.default_rng(seed)
    seen = (3.0 + 2.0 * generator.normal(size=(number + 3, *spec.observation_shape))).astype(
        np.float32
    )
    ends = {number // 3: "terminated", number // 2: "truncated"}  # the third goes on
    rows = {name: [] for name in ("observation", "next_observation")}
    index = 0
    for t in range(number):
        rows["observation"].append(seen[index])
        rows["next_observation"].append(seen[index + 1])
        index += 2 if t in ends else 1
    size = (number,) if spec.discrete else (number, spec.action_size)
    action = (
        generator.integers(spec.action_size, size=size)
        if spec.discrete
        else np.tanh(generator.normal(size=size))
    )
    fields: dict[str, Any] = dict(
        observation=np.stack(rows["observation"]),
        next_observation=np.stack(rows["next_observation"]),
        action=action.astype(spec.action_dtype),
        reward=(5.0 * generator.normal(size=number)).astype(np.float32),
        terminated=np.array([ends.get(t) == "terminated" for t in range(number)]),
        truncated=np.array([ends.get(t) == "truncated" for t in range(number)]),
        extras=extras,
    )
    return Transition(**fields)


def state(module: Any, spec: EnvSpec, config: Any) -> Any:
    """A State as `init` makes it, but for its networks: no parameter is 0."""
    generator = np.random.default_rng(0)
    fresh = jax.jit(lambda key: module.init(key, spec, config))(jax.random.key(0))
    drawn = {}
    for name in ("actor", "critic"):
        if hasattr(fresh, name):
            trained = getattr(fresh, name)
            parameters = jax.tree.map(
                lambda x: jnp.asarray(generator.normal(0.0, 0.3, size=x.shape), x.dtype),
                trained.parameters,
            )
            drawn[name] = trained.replace(parameters=parameters)
    return fresh.replace(**drawn)


def follow_agent(module: Any, state: Any, stream: Transition, config: Any) -> list[AgentState]:
    """The agent after each transition of a stream, with the moments of its observations."""
    update = jax.jit(functools.partial(agent_state.update, module))
    perceive = jax.jit(functools.partial(agent_state.perceive, module))
    inputs = module.experience(config).inputs
    spec = EnvSpec("test/Stream-v0", stream.observation.shape[1:], 1)
    agent = AgentState(state, inputs.create(spec), inputs)
    agents, first = [], True
    for t in range(len(stream.reward)):
        row = jax.tree.map(lambda x, t=t: jnp.asarray(x[t]), stream)
        agent = perceive(agent, row.observation[None], jnp.asarray([first]), config)
        agent, _ = update(agent, row, jax.random.key(t), t, config)
        first = bool(row.terminated | row.truncated)
        agents.append(agent)
    return agents


def follow(module: Any, state: Any, stream: Transition, config: Any) -> list[Any]:
    """The States after each transition of a stream, seen as drivers show them."""
    return [agent.state for agent in follow_agent(module, state, stream, config)]


class Network:
    """Dense layers, each hidden one normalised and then leaky."""

    def __init__(self, network: Any) -> None:
        self.parameters = reference.layers(parameters_of(network).params)

    def __call__(self, x: np.ndarray, parameters: Any = None) -> np.ndarray:
        """Outputs for one input."""
        parameters = self.parameters if parameters is None else parameters
        for i in range(0, len(parameters), 2):
            x = x @ parameters[i] + parameters[i + 1]
            if i + 2 < len(parameters):
                x = (x - x.mean()) / np.sqrt(x.var() + 1e-5)
                x = np.where(x > 0, x, LEAK * x)
        return x


class Exact(Network):
    """A `Network` with gradients by PyTorch's rules: the leaky ReLU's slope is 0.01 at exactly 0,
    too.
    """

    def gradient(self, x: np.ndarray, slope: np.ndarray) -> list[np.ndarray]:
        """The gradient by each parameter of a quantity whose gradient by the outputs for input `x`
        is `slope`.
        """
        layers = list(zip(self.parameters[::2], self.parameters[1::2], strict=True))
        seen, scores, deviations = [], [], []
        for kernel, bias in layers:
            seen.append(x)
            x = x @ kernel + bias
            deviations.append(np.sqrt(x.var() + 1e-5))
            scores.append((x - x.mean()) / deviations[-1])
            x = np.where(scores[-1] > 0, scores[-1], LEAK * scores[-1])
        found: list[np.ndarray] = []
        for i in reversed(range(len(layers))):
            if i < len(layers) - 1:
                slope = slope * np.where(scores[i] > 0, 1.0, LEAK)
                slope = (
                    slope - slope.mean() - scores[i] * (slope * scores[i]).mean()
                ) / deviations[i]
            found = [np.outer(seen[i], slope), slope, *found]
            slope = layers[i][0] @ slope
        return found


class ObGD:
    """Optimiser of a `Network` with traces; moves its parameters in place."""

    def __init__(self, network: Network, kappa: float, config: Any) -> None:
        self.network, self.kappa, self.config = network, kappa, config
        self.trace = [np.zeros_like(p) for p in network.parameters]

    def step(self, gain: Callable[[Any], float], error: float, reset: bool) -> None:
        """`gain(parameters)` is what a positive error raises."""
        self.move(reference.differences(gain, self.network.parameters), error, reset)

    def move(self, gradient: list[np.ndarray], error: float, reset: bool) -> None:
        """`gradient` is that of what a positive error raises."""
        decay = self.config.discount * self.config.trace_decay
        self.trace = [decay * e + g for e, g in zip(self.trace, gradient, strict=True)]
        bound = (
            self.config.learning_rate
            * self.kappa
            * max(abs(error), 1.0)
            * sum(np.abs(e).sum() for e in self.trace)
        )
        size = self.config.learning_rate / max(bound, 1.0)
        self.network.parameters = [
            p + size * error * e for p, e in zip(self.network.parameters, self.trace, strict=True)
        ]
        if reset:
            self.trace = [np.zeros_like(e) for e in self.trace]


class Inputs:
    """Observations and rewards as networks see them:
    by all that was seen so far, kept in a list.
    """

    def __init__(self, config: Any) -> None:
        self.config, self.seen, self.sums, self.running = config, [], [], 0.0

    def observe(self, observation: np.ndarray) -> np.ndarray:
        """Count an observation, and scale it, but for the time."""
        self.seen.append(np.asarray(observation, np.float64))
        variance = np.var(self.seen, axis=0, ddof=1) if len(self.seen) > 1 else 1.0
        score = (self.seen[-1] - np.mean(self.seen, axis=0)) / np.sqrt(variance + 1e-8)
        return np.append(score[:-1], self.seen[-1][-1]) if self.config.time_feature else score

    def reward(self, reward: float, done: bool) -> float:
        """Count a reward, and scale it."""
        self.running = self.config.discount * (1.0 - done) * self.running + reward
        self.sums.append(self.running)
        variance = np.var(self.sums, ddof=1) if len(self.sums) > 1 else 1.0
        return reward / np.sqrt(variance + 1e-8)


def rows(stream: Transition, config: Any) -> Any:
    """Each transition as (s, a, r, s', done, row): scaled and in float64."""
    inputs, first, observation = Inputs(config), True, np.zeros(0)
    for t in range(len(stream.reward)):
        row: Any = jax.tree.map(lambda x, t=t: x[t], stream)
        done = bool(row.terminated or row.truncated)
        if first:
            observation = inputs.observe(row.observation)
        following = inputs.observe(row.next_observation)
        yield observation, row.action, inputs.reward(float(row.reward), done), following, done, row
        observation, first = following, done


def assert_network(found: Any, expected: Network) -> None:
    """Parameters of a network equal those of its float64 counterpart."""
    for actual, known in zip(
        reference.layers(parameters_of(found).params), expected.parameters, strict=True
    ):
        np.testing.assert_allclose(actual, known, rtol=2e-3, atol=2e-5)
