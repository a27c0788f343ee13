"""Float64 NumPy that agents are checked against: multilayer perceptrons with gradients by hand,
and Adam.

Nothing here comes from JAX but the parameters to start from and the noise, which is drawn as the
agents draw it. An MLP is a list of arrays [W_0, b_0, W_1, b_1, ...]; critics are a list of MLPs.
"""

from __future__ import annotations

import dataclasses
import importlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec, Transition, Weighted

MLP = list[np.ndarray]


def cases(changes: dict[str, Any], quick: int = 1) -> pytest.MarkDecorator:
    """Parameters `changes` by the names of their cases.

    Each compiles a program: all but the first take long.
    """
    marks = [[]] * quick + [[pytest.mark.learn]] * len(changes)
    values = [
        pytest.param(x, id=name, marks=mark)
        for (name, x), mark in zip(changes.items(), marks, strict=False)
    ]
    return pytest.mark.parametrize("changes", values)


def transitions(
    seed: int = 0, size: int = 5, observations: int = 3, actions: int = 2
) -> Transition:
    """A batch of every kind: terminated, truncated, both, neither."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> Any:
        return generator.normal(size=shape).astype(np.float32)

    batch = Transition(
        observation=normal(size, observations),
        action=np.tanh(normal(size, actions)),  # pyright: ignore[reportArgumentType]
        reward=normal(size),
        terminated=np.arange(size) % 4 >= 2,  # pyright: ignore[reportArgumentType]
        truncated=np.arange(size) % 2 == 1,  # pyright: ignore[reportArgumentType]
        next_observation=normal(size, observations),
    )
    return jax.tree.map(jnp.asarray, batch)


def choices(number: int, seed: int = 0, size: int = 5) -> Transition:
    """The batch of `transitions` with discrete actions, of so many."""
    action = np.random.default_rng(seed).integers(number, size=size)
    return transitions(seed, size).replace(action=jnp.asarray(action, jnp.int32))


def observed(seed: int = 1, size: int = 12, observations: int = 3) -> np.ndarray:
    """Observations so close together that those of `transitions` lie beyond the limit of +-10 here
    and there.
    """
    return (
        np.random.default_rng(seed).normal(0.3, 0.1, size=(size, observations)).astype(np.float32)
    )


def noise(key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal noise in float64, as distributions draw a single sample of it."""
    return np.asarray(jax.random.normal(key, (1, *shape)), np.float64)[0]


def state(agent: Any, spec: EnvSpec, config: Any, **known: Any) -> Any:
    """A State as `agent.init` makes it, but for its networks:
    all are drawn by NumPy, the targets too.

    Drawing them in JAX takes seconds to compile, and targets equal to the online networks would
    hide a confusion.
    """
    generator = np.random.default_rng(0)

    def draw(x: Any) -> jax.Array:
        return jnp.asarray(generator.normal(0.0, 0.3, size=x.shape), x.dtype)

    def part(name: str, shapes: Any) -> Any:
        if isinstance(shapes, networks.Trained):
            zeros = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes.optimiser_state)
            parameters = known[name] if name in known else jax.tree.map(draw, shapes.parameters)
            return networks.Trained(parameters, zeros)
        # Which may be more than a network.
        if isinstance(shapes, networks.Network | networks.Actor) or name == "actor":
            return jax.tree.map(draw, shapes)
        return (
            known[name]
            if name in known
            else jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)
        )

    shapes = jax.eval_shape(lambda key: agent.init(key, spec, config), jax.random.key(0))
    names = [field.name for field in fields(shapes) if field.metadata.get("pytree_node", True)]
    return shapes.replace(**{name: part(name, getattr(shapes, name)) for name in names})


def mlp(network: networks.AnyNetwork) -> MLP:
    """The parameters of a network with two hidden layers, in float64."""
    params = networks.parameters_of(network).params
    layers = [params[name] for name in ("hidden_0", "hidden_1", "output")]
    return [np.asarray(layer[part], np.float64) for layer in layers for part in ("kernel", "bias")]


def layers(params: Any) -> MLP:
    """The parameters of an MLP with any number of hidden layers, in float64."""
    names = [
        f"hidden_{i}" for i in range(len([name for name in params if name.startswith("hidden_")]))
    ]
    return [
        np.asarray(params[name][part], np.float64)
        for name in [*names, "output"]
        for part in ("kernel", "bias")
    ]


def norms(network: networks.AnyNetwork) -> list[MLP]:
    """The parameters of an MLP layer by layer: [W, b], and [scale, shift] behind it where the
    layer is normalised, in float64.
    """
    params = networks.parameters_of(network).params
    order = sorted((name for name in params if name != "output"), key=lambda x: x.split("_")[::-1])
    parts = {"hidden": ("kernel", "bias"), "norm": ("scale", "bias")}
    pairs = [(params[name], parts[name.split("_")[0]]) for name in order]
    pairs.append((params["output"], parts["hidden"]))
    return [[np.asarray(layer[x], np.float64) for x in names] for layer, names in pairs]


def forward_norms(layers: list[MLP], x: np.ndarray) -> np.ndarray:
    """Outputs [B, K] of the layers of `norms`: relu stands behind the normalisation, which
    is that of Ba et al., arXiv:1607.06450, with Flax's epsilon.
    """
    for i, (first, second) in enumerate(layers):
        if first.ndim == 2:
            x = x @ first + second
        else:
            centred = x - x.mean(axis=1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6) * first + second
        if i + 1 < len(layers) and layers[i + 1][0].ndim == 2:
            x = np.maximum(x, 0.0)
    return x


def field(network: networks.AnyNetwork) -> list[MLP]:
    """The parameters of a `generative.Field`: its body, and what embeds each time,
    if anything does.
    """
    params = networks.parameters_of(network).params
    return [layers(params[name]) for name in ("body", "time_0", "time_1") if name in params]


def of_field(
    parts: list[MLP], action: np.ndarray, observation: np.ndarray, *times: np.ndarray
) -> np.ndarray:
    """Outputs [B, A] of a field for actions [B, A], observations [B, O] and times [B] each."""
    body, *embeddings = parts
    inputs = [action]
    for i, time in enumerate(times):
        features = time[:, None]
        if embeddings:
            half = len(embeddings[i][0]) // 2
            angle = features * 10_000.0 ** (-np.arange(half) / (half - 1))
            features = forward(
                embeddings[i], np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
            )[0]
        inputs.append(features)
    return forward(body, np.concatenate([*inputs, observation], axis=1))[0]


def differences(loss: Any, parameters: Any, width: float = 1e-6) -> Any:
    """The gradient of `loss(parameters)`, nested lists of arrays,
    by central differences in float64.
    """
    if isinstance(parameters, list):

        def with_part(i: int, part: Any) -> Any:
            return loss([*parameters[:i], part, *parameters[i + 1 :]])

        return [
            differences(lambda part, i=i: with_part(i, part), part, width)
            for i, part in enumerate(parameters)
        ]
    gradient = np.zeros_like(parameters)
    for index in np.ndindex(parameters.shape):
        up, down = parameters.copy(), parameters.copy()
        up[index] += width
        down[index] -= width
        gradient[index] = (loss(up) - loss(down)) / (2.0 * width)
    return gradient


def limited(gradient: Any, limit: float | None) -> Any:
    """A gradient scaled down to a norm over all its arrays of at most `limit`."""
    norm = np.sqrt(sum(np.square(array).sum() for array in jax.tree.leaves(gradient)))
    return (
        gradient
        if limit is None or norm <= limit
        else zip_map(lambda x: x * limit / norm, gradient)
    )


def critics(network: networks.AnyNetwork) -> list[MLP]:
    """The parameters of each member of an ensemble."""
    parameters = networks.parameters_of(network)
    stacked = mlp(networks.Network(parameters.params["members"], parameters.module))
    return [[array[c] for array in stacked] for c in range(len(stacked[0]))]


def forward(
    mlp: MLP, x: np.ndarray, kept: Sequence[Any] = ()
) -> tuple[np.ndarray, list[np.ndarray]]:
    """Outputs [B, K] for x [B, I], and the input of each layer.

    Dropout multiplies the units of hidden layer i by `kept[i]`: 1 / (share kept), or 0.
    """
    inputs = []
    for i in range(0, len(mlp), 2):
        inputs.append(x)
        x = x @ mlp[i] + mlp[i + 1]
        if i + 2 < len(mlp):
            x = np.maximum(x, 0.0) * (kept[i // 2] if kept else 1.0)
    return x, inputs


def backward(
    mlp: MLP, inputs: list[np.ndarray], change: np.ndarray, kept: Sequence[Any] = ()
) -> tuple[MLP, np.ndarray]:
    """Gradients of the parameters and of x, where `change` [B, K] is that of the outputs.

    y = x W + b:  dW = x^T dy,  db = sum_B dy,  dx = dy W^T, which relu lets through where its
    output is positive.
    """
    gradient: MLP = []
    for i in reversed(range(len(mlp) // 2)):
        gradient = [inputs[i].T @ change, change.sum(axis=0), *gradient]
        change = change @ mlp[2 * i].T
        if i:
            change = change * (inputs[i] > 0.0) * (kept[i - 1] if kept else 1.0)
    return gradient, change


def value(
    critic: MLP, observation: np.ndarray, action: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Q(s, a) [B] and its gradient in the action [B, A], each row's own."""
    q, inputs = forward(critic, np.concatenate([observation, action], axis=-1))
    return q[:, 0], backward(critic, inputs, np.ones_like(q))[1][:, observation.shape[1] :]


def smallest(
    critics: Sequence[MLP], observation: np.ndarray, action: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """min_c Q_c(s, a) [B], and the gradient of the smallest one in the action [B, A]."""
    q, slope = map(
        np.stack, zip(*[value(critic, observation, action) for critic in critics], strict=True)
    )
    row = np.arange(len(observation))
    return q.min(axis=0), slope[q.argmin(axis=0), row]


def squared_errors(
    critics: Sequence[MLP], observation: Any, action: Any, target: np.ndarray
) -> tuple[float, Any, Any]:
    """sum_c mean (Q_c - y)^2, all values [C, B], and each critic's gradient: dQ = 2 (Q - y) / B."""
    values, gradients = [], []
    for critic in critics:
        q, inputs = forward(critic, np.concatenate([observation, action], axis=-1))
        values.append(q[:, 0])
        gradients.append(backward(critic, inputs, 2.0 * (q - target[:, None]) / len(target))[0])
    q = np.stack(values)
    return float(np.square(q - target).mean(axis=1).sum()), q, gradients


def expectile(
    value: MLP, observation: np.ndarray, q: np.ndarray, share: float
) -> tuple[float, np.ndarray, MLP]:
    """mean |tau - 1(u < 0)| u^2 for u = q - V(s), V(s) [B], and the gradient:
    dV = -2 |tau - 1(u < 0)| u / B.
    """
    v, inputs = forward(value, observation)
    error = q - v[:, 0]
    weight = np.abs(share - (error < 0.0))
    change = -2.0 * weight * error / len(error)
    return float((weight * error**2).mean()), v[:, 0], backward(value, inputs, change[:, None])[0]


def imitation(
    actor: list[Any],
    observation: Any,
    action: Any,
    weight: Any,
    config: Any,
    key: jax.Array,
    squashed: bool = True,
) -> tuple[np.ndarray, list[Any]]:
    """Distances [B] of a policy to actions, and the gradient of mean w d;
    `actor` is [MLP, log std] or [MLP].

    Deterministic: d = |m - a|^2, dd/dm = 2 (m - a). Gaussian: d = sum_i [ z_i^2 / 2 + log
    s_i + log(2 pi) / 2 ] with z = (a - m) / s, dd/dm = -z / s, dd/dlog s = 1 - z^2 within the clip.
    m = tanh(u), dm/du = 1 - m^2.
    """
    size, kept = len(observation), []
    if config.dropout is not None:
        for i, bias in enumerate(actor[0][1:-1:2]):
            units = jax.random.bernoulli(
                jax.random.fold_in(key, i), 1.0 - config.dropout, (size, len(bias))
            )
            kept.append(np.asarray(units, np.float64) / (1.0 - config.dropout))
    output, inputs = forward(actor[0], observation, kept)
    mean = np.tanh(output) if squashed else output
    each = np.asarray(weight, np.float64).reshape(-1, 1) * np.ones((size, 1)) / size  # [B, 1]
    if len(actor) == 1:
        distance, change, rest = np.square(mean - action).sum(axis=-1), 2.0 * (mean - action), []
    else:
        log_std = np.clip(actor[1], config.log_std_min, config.log_std_max)
        z = (action - mean) / np.exp(log_std)
        distance = (0.5 * z**2 + log_std + 0.5 * np.log(2.0 * np.pi)).sum(axis=-1)
        change = -z / np.exp(log_std)
        rest = [(each * (1.0 - z**2)).sum(axis=0) * (log_std == actor[1])]
    slope = 1.0 - mean**2 if squashed else 1.0
    return distance, [backward(actor[0], inputs, each * change * slope, kept)[0], *rest]


# Of an actor's parameters: the imitation's loss, and the actions that critics are to judge if not
# `sampled` ones.
Imitation = Callable[[Any], tuple[float, np.ndarray | None]]


class Guided:
    """What Diffusion-QL and OFQL have in common, in float64:
    equations 3 and 4 of arXiv:2208.06193 and its code.
    """

    def __init__(self, state: Any, config: Any) -> None:
        self.config = config
        self.actor, self.average = field(state.actor), field(state.average_actor)
        self.critics, self.targets = critics(state.critic), critics(state.target_critic)
        self.actor_adam, self.critic_adam = Adam(config.actor_lr), Adam(config.critic_lr)

    def noise(self, key: jax.Array, *rows: int) -> np.ndarray:
        """What `sampled` makes actions of, for so many rows in one axis,
        drawn as the agent draws it.
        """
        raise NotImplementedError

    def sampled(self, actor: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions [B, A] of an actor."""
        raise NotImplementedError

    def imitation(self, observation: np.ndarray, action: np.ndarray, key: jax.Array) -> Imitation:
        """The loss of imitating the data's actions [B, A]."""
        raise NotImplementedError

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        """One update, and its metrics."""
        config, size = self.config, len(batch.reward)
        observation = np.asarray(batch.observation, np.float64)
        successor = np.asarray(batch.next_observation, np.float64)
        action = np.asarray(batch.action, np.float64)
        key_critic, key_actor = jax.random.split(key)

        def judged(
            critics: Sequence[MLP], observation: np.ndarray, action: np.ndarray
        ) -> np.ndarray:
            return np.stack([value(critic, observation, action)[0] for critic in critics])  # [C, B]

        number = config.max_q_backup
        successor = np.repeat(successor, number, axis=0)
        next_action = self.sampled(self.average, successor, self.noise(key_critic, size, number))
        q = (
            judged(self.targets, successor, next_action)
            .reshape(2, size, number)
            .max(axis=2)
            .min(axis=0)
        )
        y = np.asarray(batch.reward) + config.discount * (1.0 - np.asarray(batch.terminated)) * q
        loss, q, gradient = squared_errors(self.critics, observation, action, y)
        self.critics = self.critic_adam.step(
            self.critics, limited(gradient, config.max_gradient_norm)
        )
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        key_imitation, key_policy, key_coin = jax.random.split(key_actor, 3)
        noise, imitation = (
            self.noise(key_policy, size),
            self.imitation(observation, action, key_imitation),
        )
        followed = 0 if jax.random.bernoulli(key_coin) else 1
        sizes: list[float] = []  # of the other critic's values, at the actor as it is

        def parts(actor: Any) -> dict[str, float]:
            distance, chosen = imitation(actor)
            q = judged(
                self.critics,
                observation,
                self.sampled(actor, observation, noise) if chosen is None else chosen,
            )
            sizes.append(np.abs(q[1 - followed]).mean())
            loss = distance - config.value_weight * q[followed].mean() / sizes[0]
            return {"actor/loss": loss, "actor/imitation": distance, "actor/q": q[followed].mean()}

        metrics |= parts(self.actor)
        gradient = differences(lambda actor: parts(actor)["actor/loss"], self.actor)
        self.actor = self.actor_adam.step(self.actor, limited(gradient, config.max_gradient_norm))
        if step >= config.average_from and step % config.average_every == 0:
            self.average = towards(self.actor, self.average, config.average_rate)
        self.targets = towards(self.critics, self.targets, config.target_rate)
        return metrics


def actor(parts: Any) -> list[Any]:
    """The parameters of an actor with a mean and maybe a log std, in float64."""
    parts = networks.parameters_of(parts)
    return [mlp(parts.mean)] + (
        [] if parts.log_std is None else [np.asarray(parts.log_std, np.float64)]
    )


def cosine(rate: float, step: int, steps: float | None) -> float:
    """A learning rate that falls to 0 as half a cosine, Loshchilov and Hutter, arXiv:1608.03983,
    eq. 5.
    """
    return rate if steps is None else rate * 0.5 * (1.0 + np.cos(np.pi * min(step / steps, 1.0)))


@dataclasses.dataclass
class Adam:
    """Kingma and Ba, arXiv:1412.6980, algorithm 1, with its defaults for the moments."""

    rate: float
    epsilon: float = 1e-8
    count: int = 0
    first: Any = 0.0
    second: Any = 0.0

    def step(self, parameter: Any, gradient: Any) -> Any:
        """The parameters (an array, or lists of them) after one step down the gradient."""
        if self.count == 0:
            self.first = self.second = zip_map(lambda x: 0.0 * x, gradient)
        self.count += 1
        self.first = zip_map(lambda m, g: 0.9 * m + 0.1 * g, self.first, gradient)
        self.second = zip_map(lambda v, g: 0.999 * v + 0.001 * g**2, self.second, gradient)

        def moved(x: Any, m: Any, v: Any) -> Any:
            return x - self.rate * (m / (1 - 0.9**self.count)) / (
                np.sqrt(v / (1 - 0.999**self.count)) + self.epsilon
            )

        return zip_map(moved, parameter, self.first, self.second)


def zip_map(function: Any, *trees: Any) -> Any:
    """`function` of the arrays that stand in the same place of nested lists."""
    if isinstance(trees[0], list):
        return [zip_map(function, *parts) for parts in zip(*trees, strict=True)]
    return function(*trees)


def towards(online: Any, target: Any, rate: float) -> Any:
    """(1 - rho) target + rho online."""
    return zip_map(lambda new, old: (1.0 - rate) * old + rate * new, online, target)


def normalised(seen: np.ndarray | None, observation: Any) -> np.ndarray:
    """Observations in float64, shifted and scaled by what was seen (if anything was),
    within +-10.
    """
    observation = np.asarray(observation, np.float64)
    if seen is None:
        return observation
    return np.clip(
        (observation - seen.mean(axis=0)) / np.sqrt(seen.var(axis=0) + 1e-8), -10.0, 10.0
    )


def standardised(seen: np.ndarray | None, observation: Any) -> np.ndarray:
    """Observations in float64, shifted and scaled by the mean and std (plus 1e-3) of a data set's,
    if given.
    """
    observation = np.asarray(observation, np.float64)
    if seen is None:
        return observation
    return (observation - seen.mean(axis=0)) / (seen.std(axis=0) + 1e-3)


def assert_same(actual: Any, expected: Any, name: str = "") -> None:
    """Parameters (nested lists) agree to float32, far closer than one step of Adam moves them."""
    if isinstance(expected, list):
        assert len(actual) == len(expected), name
        for i, (left, right) in enumerate(zip(actual, expected, strict=True)):
            assert_same(left, right, f"{name}[{i}]")
    else:
        np.testing.assert_allclose(np.asarray(actual), expected, rtol=1e-4, atol=1e-5, err_msg=name)


def assert_metrics(actual: dict[str, Any], expected: dict[str, float]) -> None:
    """Metrics agree; a `Weighted` one counts if, and only if, it is expected."""
    counted = {}
    for name, metric in actual.items():
        if not isinstance(metric, Weighted):
            counted[name] = metric
        elif metric.weight:
            counted[name] = metric.value
        else:
            assert metric.value == 0.0, name
    assert counted.keys() == expected.keys()
    for name in expected:
        np.testing.assert_allclose(
            counted[name], expected[name], rtol=1e-4, atol=1e-5, err_msg=name
        )


def own_constant(agent: str, name: str, default: Any) -> Any:
    """A constant in an agent's own test module by which it tells the tests that all agents share
    what they need.
    """
    return getattr(importlib.import_module(f"tests.agents.test_{agent}"), name, default)
