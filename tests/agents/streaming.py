"""Streaming agents in float64 NumPy, from arXiv:2410.14606, with gradients by differences."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.learning import agent_state
from rljax.learning.agent_state import AgentState
from rljax.networks import parameters_of
from tests.agents import reference

LEAK = 0.01


def transitions(seed: int, number: int, spec: EnvSpec, **extras: Any) -> Transition:
    """Three episodes [T, ...], in which each observation follows on the one before."""
    generator = np.random.default_rng(seed)
    seen = 3.0 + 2.0 * generator.normal(size=(number + 3, *spec.observation_shape))
    t = np.arange(number)
    terminated, truncated = t == number // 3, t == number // 2  # the third episode goes on
    index = t + np.concatenate([[0], np.cumsum(terminated | truncated)[:-1]])
    size = (number,) if spec.discrete else (number, spec.action_size)
    action = (
        generator.integers(spec.action_size, size=size)
        if spec.discrete
        else np.tanh(generator.normal(size=size))
    )
    arrays: Any = (
        seen[index].astype(np.float32),
        action.astype(spec.action_dtype),
        (5.0 * generator.normal(size=number)).astype(np.float32),
        terminated,
        truncated,
        seen[index + 1].astype(np.float32),
    )
    return Transition(*arrays, extras=extras)


def state(module: Any, spec: EnvSpec, config: Any) -> Any:
    """A State as `init` makes it, but for its networks: no parameter is 0."""
    generator = np.random.default_rng(0)
    fresh = jax.jit(lambda key: module.init(key, spec, config))(jax.random.key(0))

    def draw(x: jax.Array) -> jax.Array:
        return jnp.asarray(generator.normal(0.0, 0.3, size=x.shape), x.dtype)

    trained = {name: getattr(fresh, name) for name in ("actor", "critic") if hasattr(fresh, name)}
    return fresh.replace(
        **{
            name: x.replace(parameters=jax.tree.map(draw, x.parameters))
            for name, x in trained.items()
        }
    )


def follow_agent(module: Any, state: Any, stream: Transition, config: Any) -> list[AgentState]:
    """The agent after each transition, with the moments of its observations."""
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
    """The States after each transition."""
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
    """With gradients by PyTorch's rules: the leaky ReLU's slope is 0.01 at exactly 0, too."""

    def gradient(self, x: np.ndarray, slope: np.ndarray) -> list[np.ndarray]:
        """The parameters' gradient of what has the gradient `slope` by the outputs for `x`."""
        layers = list(zip(self.parameters[::2], self.parameters[1::2], strict=True))
        seen, scores, deviations = [], [], []
        for kernel, bias in layers:
            seen.append(x)
            x = x @ kernel + bias
            deviations.append(np.sqrt(x.var() + 1e-5))
            scores.append(score := (x - x.mean()) / deviations[-1])
            x = np.where(score > 0, score, LEAK * score)
        gradient: list[np.ndarray] = []
        for i, (kernel, _) in reversed(list(enumerate(layers))):
            if i < len(layers) - 1:
                score, slope = scores[i], slope * np.where(scores[i] > 0, 1.0, LEAK)
                slope = slope - slope.mean() - score * (slope * score).mean()
                slope = slope / deviations[i]
            gradient = [np.outer(seen[i], slope), slope, *gradient]
            slope = kernel @ slope
        return gradient


class ObGD:
    """With traces; moves the parameters of a `Network` in place."""

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
        size = sum(np.abs(e).sum() for e in self.trace)
        bound = self.config.learning_rate * self.kappa * max(abs(error), 1.0) * size
        step = self.config.learning_rate / max(bound, 1.0) * error
        pairs = zip(self.network.parameters, self.trace, strict=True)
        self.network.parameters = [p + step * e for p, e in pairs]
        if reset:
            self.trace = [np.zeros_like(e) for e in self.trace]


class Inputs:
    """Observations and rewards, scaled by all that was seen so far."""

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


def assert_network(actual: Any, expected: Network) -> None:
    layers = reference.layers(parameters_of(actual).params)
    for left, right in zip(layers, expected.parameters, strict=True):
        np.testing.assert_allclose(left, right, rtol=2e-3, atol=2e-5)


def first(stream: Transition) -> Transition:
    """The first transition of a stream."""
    return jax.tree.map(lambda x: jnp.asarray(x[0]), stream)


def assert_equals(module: Any, spec: EnvSpec, config: Any, stream: Transition) -> None:
    """The critic follows Q(lambda), or TD(lambda) where actions do not matter."""
    fresh = state(module, spec, config)
    critic = Network(fresh.critic)
    optimiser = ObGD(critic, config.critic_kappa, config)
    found = follow(module, fresh, stream, config)
    for t, (observation, action, reward, following, done, row) in enumerate(rows(stream, config)):
        chosen = action if spec.discrete else 0
        target = reward + config.discount * (1 - done) * critic(following).max()
        optimiser.step(
            lambda parameters, x=observation, chosen=chosen: critic(x, parameters)[chosen],
            target - critic(observation)[chosen],
            done or not row.extras.get("greedy", True),
        )
        assert_network(found[t].critic, critic)
