"""Float64 NumPy that agents are checked against: multilayer perceptrons with gradients by hand,
and Adam; and how agents are compared with it.

Nothing here comes from JAX but the parameters to start from and the noise, which is drawn as the
agents draw it. An MLP is a list of arrays [W_0, b_0, W_1, b_1, ...]; critics are a list of MLPs.
"""

from __future__ import annotations

import dataclasses
import functools
import importlib
from collections.abc import Callable, Sequence
from dataclasses import fields
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import MASK, EnvSpec, Part, Transition, Weighted
from rljax.networks.layers import uniform_hash

MLP = list[np.ndarray]


def cases(changes: dict[str, Any], quick: int = 1) -> pytest.MarkDecorator:
    """Parameters `changes`, named. Each compiles a program: all but the first take long."""
    values = [
        pytest.param(x, id=name, marks=[pytest.mark.learn] if i >= quick else [])
        for i, (name, x) in enumerate(changes.items())
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


def masked_spec(number: int) -> EnvSpec:
    """Vectors, and masks of so many discrete actions."""
    parts = (Part(MASK, (number,), "bool"), Part("vector", (3,)))
    return EnvSpec("test/Masked-v0", (), number, discrete=True, parts=parts)


def masked(batch: Transition, now: Any, later: Any) -> Transition:
    """A batch whose observations hold masks."""
    observation = {"vector": batch.observation, MASK: jnp.asarray(now)}
    following = {"vector": batch.next_observation, MASK: jnp.asarray(later)}
    return batch.replace(observation=observation, next_observation=following)


def two_sources(seed: int = 0, offline: Any = ()) -> Transition:
    """A batch whose rows are of a data set, or of new experience."""
    return transitions(seed, len(offline)).replace(extras={"offline": jnp.asarray(offline)})


def two_rows(**changes: Any) -> Transition:
    """Two rows for sums by hand: rewards 1 and 2, and the second ends its episode."""
    rewards, ends = jnp.asarray([1.0, 2.0]), jnp.asarray([False, True])
    rows = jax.tree.map(lambda x: x[:2], transitions())
    return rows.replace(reward=rewards, terminated=ends, **changes)


def observed() -> np.ndarray:
    """Observations [12, 3]."""
    return np.random.default_rng(1).normal(0.3, 0.1, size=(12, 3)).astype(np.float32)


def float64(tree: Any) -> Any:
    """A batch in NumPy, with its float32 numbers in float64."""
    return jax.tree.map(
        lambda x: np.asarray(x, np.float64 if x.dtype == np.float32 else None), tree
    )


def noise(key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Standard normal noise in float64."""
    return np.asarray(jax.random.normal(key, shape), np.float64)


def uniform(key: jax.Array, shape: tuple[int, ...]) -> np.ndarray:
    """Uniform noise from -1 to 1 in float64."""
    return np.asarray(jax.random.uniform(key, shape, minval=-1.0, maxval=1.0), np.float64)


def state(agent: Any, spec: EnvSpec, config: Any, **known: Any) -> Any:
    """A State as `agent.init` makes it, but for its networks: NumPy draws them, and targets apart
    from what they follow, so that no two can be confused. JAX takes seconds to compile that.

    `known` are the values of other fields, which are 0 but for a temperature and a multiplier.
    """
    generator = np.random.default_rng(0)
    for name in ("temperature", "multiplier"):
        if hasattr(config, f"init_{name}"):
            start = getattr(config, f"init_{name}")
            known = {f"log_{name}": jnp.log(jnp.float32(start)), **known}

    def draw(x: Any) -> jax.Array:
        return jnp.asarray(generator.normal(0.0, 0.3, size=x.shape), x.dtype)

    def zeros(shapes: Any) -> Any:
        return jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def part(name: str, shapes: Any) -> Any:
        if isinstance(shapes, networks.Trained):
            parameters = known[name] if name in known else jax.tree.map(draw, shapes.parameters)
            return networks.Trained(parameters, zeros(shapes.optimiser_state))
        # An actor may be more than a network.
        if isinstance(shapes, networks.Network | networks.Actor) or name == "actor":
            return jax.tree.map(draw, shapes)
        return known[name] if name in known else zeros(shapes)

    shapes = jax.eval_shape(lambda key: agent.init(key, spec, config), jax.random.key(0))
    names = [field.name for field in fields(shapes) if field.metadata.get("pytree_node", True)]
    parts = {name: getattr(shapes, name) for name in names}
    return shapes.replace(**{name: part(name, x) for name, x in parts.items() if x is not None})


def layers(params: Any) -> MLP:
    """The parameters of an MLP by their names, in float64."""
    hidden = sum(name.startswith("hidden_") for name in params)
    return [
        np.asarray(params[name][part], np.float64)
        for name in [*(f"hidden_{i}" for i in range(hidden)), "output"]
        for part in ("kernel", "bias")
    ]


def exact(part: Any) -> Any:
    """A part of a State in float64: nested lists of its arrays, an ensemble's member by member; of
    one with a memory the body's, the GRU's four and the head's.
    """
    part = networks.parameters_of(part)
    if isinstance(part, networks.Actor):
        return actor(part)
    if isinstance(part, dict):
        return [exact(each) for each in part.values()]
    if not isinstance(part, networks.Network):
        return parts(part) if dataclasses.is_dataclass(part) else np.asarray(part, np.float64)
    params = part.params
    if "head" in params:
        (core,) = (layer for name, layer in params.items() if name not in ("body", "head"))
        names = [f"{name}_0" for name in ("input", "memory", "bias", "inner")]
        *body, kernel, bias = layers({**params["body"], **params["head"]})
        return [*body, *(np.asarray(core[name], np.float64) for name in names), kernel, bias]
    if list(params) == ["body"]:  # behind an encoder without parameters
        params = params["body"]
    if "members" in params:
        return [list(arrays) for arrays in zip(*layers(params["members"]), strict=True)]
    return layers(params)


mlp = critics = exact  # of one network, of an ensemble


def parts(several: Any) -> list[Any]:
    """Networks and arrays side by side, each as `exact`; without those that are None."""
    names = [field.name for field in fields(several) if field.metadata.get("pytree_node", True)]
    values = (getattr(several, name) for name in names)
    return [exact(value) for value in values if value is not None]


def gru(cell: list[np.ndarray], x: np.ndarray, h: np.ndarray) -> np.ndarray:
    """The next memory: r and z = sigmoid(x W + b + h U), n = tanh(x W + b + r (h U + c)),
    (1 - z) n + z h.
    """
    w, u, b = (np.split(part, 3, axis=-1) for part in cell[:3])
    r, z = (1.0 / (1.0 + np.exp(-(x @ w[i] + b[i] + h @ u[i]))) for i in (0, 1))
    return (1.0 - z) * np.tanh(x @ w[2] + b[2] + r * (h @ u[2] + cell[3])) + z * h


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


def forward_norms(layers: list[MLP], x: np.ndarray, kept: Sequence[Any] = ()) -> np.ndarray:
    """Outputs [B, K] of the layers of `norms`: relu stands behind the normalisation, which
    is that of Ba et al., arXiv:1607.06450, with Flax's epsilon. Dropout multiplies the units of
    hidden layer i by `kept[i]` before it.
    """
    masks = iter(kept)
    for i, (first, second) in enumerate(layers):
        if first.ndim == 2:
            x = (x @ first + second) * next(masks, 1.0)
        else:
            centred = x - x.mean(axis=1, keepdims=True)
            x = centred / np.sqrt((centred**2).mean(axis=1, keepdims=True) + 1e-6) * first + second
        if i + 1 < len(layers) and layers[i + 1][0].ndim == 2:
            x = np.maximum(x, 0.0)
    return x


def field(network: networks.AnyNetwork) -> list[MLP]:
    """The parameters of a `generative.Field`: its body, and what embeds each time, if any, by its
    layers; and alone the frequencies of each time that are learnt.
    """
    params = networks.parameters_of(network).params
    parts = [layers(params[name]) for name in ("body", "time_0", "time_1") if name in params]
    learnt = [name for name in ("frequencies_0", "frequencies_1") if name in params]
    return [*parts, *([np.asarray(params[name], np.float64)] for name in learnt)]


def of_field(
    parts: list[MLP], action: np.ndarray, observation: np.ndarray, *times: np.ndarray
) -> np.ndarray:
    """Outputs [B, A] of a field for actions [B, A], observations [B, O] and times [B] each."""
    body, *others = parts
    embeddings = [part for part in others if len(part) > 1]
    frequencies = [part[0] for part in others if len(part) == 1]
    inputs = [action]
    for i, time in enumerate(times):
        features = time[:, None]
        if embeddings:
            half = len(embeddings[i][0]) // 2
            if frequencies:
                angle = 2.0 * np.pi * features * frequencies[i]
                waves = np.concatenate([np.cos(angle), np.sin(angle)], axis=1)
            else:
                angle = features * 10_000.0 ** (-np.arange(half) / (half - 1))
                waves = np.concatenate([np.sin(angle), np.cos(angle)], axis=1)
            features = forward(embeddings[i], waves)[0]
        inputs.append(features)
    return forward(body, np.concatenate([*inputs, observation], axis=1))[0]


def differences(loss: Any, parameters: Any, width: float = 1e-6) -> Any:
    """The gradient of `loss(parameters)`, nested lists of arrays, by central differences."""
    if isinstance(parameters, list):

        def of_part(i: int) -> Any:
            before, after = parameters[:i], parameters[i + 1 :]
            return differences(lambda x: loss([*before, x, *after]), parameters[i], width)

        return [of_part(i) for i in range(len(parameters))]
    gradient = np.zeros_like(parameters)
    for index in np.ndindex(np.shape(parameters)):
        up, down = np.array(parameters), np.array(parameters)
        up[index] += width
        down[index] -= width
        gradient[index] = (loss(up) - loss(down)) / (2.0 * width)
    return gradient


def limited(gradient: Any, limit: float | None) -> Any:
    """A gradient scaled down to a norm over all its arrays of at most `limit`."""
    norm = np.sqrt(sum(np.square(array).sum() for array in jax.tree.leaves(gradient)))
    factor = 1.0 if limit is None else min(1.0, limit / norm)
    return zip_map(lambda x: factor * x, gradient)


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


def values(critics: Sequence[MLP], observation: np.ndarray, action: np.ndarray) -> np.ndarray:
    """Q_c(s, a) [C, B]."""
    return np.stack([value(critic, observation, action)[0] for critic in critics])


def smallest(
    critics: Sequence[MLP], observation: np.ndarray, action: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """min_c Q_c(s, a) [B], and the gradient of the smallest one in the action [B, A]."""
    pairs = [value(critic, observation, action) for critic in critics]
    q, slope = (np.stack(parts) for parts in zip(*pairs, strict=True))
    return q.min(axis=0), slope[q.argmin(axis=0), np.arange(len(observation))]


def chunk_return(batch: Transition, discount: float) -> tuple[int, np.ndarray, np.ndarray]:
    """h, sum_i discount^i r_i [B] over the steps of each row's episode, and 1 where these are h,
    else 0; arXiv:2507.07969.
    """
    if "valid" not in batch.extras:
        return 1, np.asarray(batch.reward, np.float64), np.ones(len(batch.reward))
    valid = np.asarray(batch.extras["valid"], np.float64)
    rewards, total = np.asarray(batch.extras["rewards"], np.float64), np.zeros(len(valid))
    for i in range(valid.shape[1]):
        total += discount**i * rewards[:, i] * valid[:, i]
    return valid.shape[1], total, valid[:, -1]


def squared_errors(
    critics: Sequence[MLP], observation: Any, action: Any, target: np.ndarray, weight: Any = 1.0
) -> tuple[float, Any, Any]:
    """sum_c mean w (Q_c - y)^2, all values [C, B], and each critic's gradient:
    dQ = 2 w (Q - y) / B; w is `weight` [B].
    """
    values, gradients = [], []
    weight = np.broadcast_to(weight, target.shape)
    for critic in critics:
        q, inputs = forward(critic, np.concatenate([observation, action], axis=-1))
        values.append(q[:, 0])
        change = 2.0 * weight[:, None] * (q - target[:, None]) / len(target)
        gradients.append(backward(critic, inputs, change)[0])
    q = np.stack(values)
    return float((weight * np.square(q - target)).mean(axis=1).sum()), q, gradients


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
            share, key_units = 1.0 - config.dropout, jax.random.fold_in(key, i)
            units = uniform_hash(key_units, (size, len(bias))) < share
            kept.append(np.asarray(units, np.float64) / share)
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


# Of an actor's parameters: the imitation's loss, and actions to judge instead of `sampled` ones.
Imitation = Callable[[Any], tuple[float, np.ndarray | None]]


class Guided:
    """What Diffusion-QL and OFQL share: equations 3 and 4 of arXiv:2208.06193, and its code."""

    def __init__(self, state: Any, config: Any) -> None:
        self.config = config
        self.actor, self.average = field(state.actor), field(state.average_actor)
        self.critics, self.targets = critics(state.critic), critics(state.target_critic)
        self.actor_adam, self.critic_adam = Adam(config.actor_lr), Adam(config.critic_lr)

    def noise(self, key: jax.Array, *rows: int) -> np.ndarray:
        """What `sampled` makes actions of, for so many rows."""
        raise NotImplementedError

    def sampled(self, actor: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions [B, A] of an actor."""
        raise NotImplementedError

    def imitation(self, observation: np.ndarray, action: np.ndarray, key: jax.Array) -> Imitation:
        """The loss of imitating the data's actions [B, A]."""
        raise NotImplementedError

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        """One update, and its metrics."""
        batch, config, size = float64(batch), self.config, len(batch.reward)
        observation, number = batch.observation, config.max_q_backup
        key_critic, key_actor = jax.random.split(key)

        successor = np.repeat(batch.next_observation, number, axis=0)
        next_action = self.sampled(self.average, successor, self.noise(key_critic, size, number))
        q = values(self.targets, successor, next_action).reshape(2, size, number)
        alive = 1.0 - batch.terminated
        y = batch.reward + config.discount * alive * q.max(axis=2).min(axis=0)
        loss, q, gradient = squared_errors(self.critics, observation, batch.action, y)
        gradient = limited(gradient, config.max_grad_norm)
        self.critics = self.critic_adam.step(self.critics, gradient)
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        key_imitation, key_policy, key_coin = jax.random.split(key_actor, 3)
        noise = self.noise(key_policy, size)
        imitation = self.imitation(observation, batch.action, key_imitation)
        followed = 0 if jax.random.bernoulli(key_coin) else 1
        sizes: list[float] = []  # of the other critic's values, at the actor as it is

        def parts(actor: Any) -> dict[str, float]:
            distance, action = imitation(actor)
            action = self.sampled(actor, observation, noise) if action is None else action
            q = values(self.critics, observation, action)
            sizes.append(np.abs(q[1 - followed]).mean())
            loss = distance - config.value_weight * q[followed].mean() / sizes[0]
            return {"actor/loss": loss, "actor/imitation": distance, "actor/q": q[followed].mean()}

        metrics |= parts(self.actor)
        gradient = differences(lambda actor: parts(actor)["actor/loss"], self.actor)
        self.actor = self.actor_adam.step(self.actor, limited(gradient, config.max_grad_norm))
        if step >= config.average_from and step % config.average_every == 0:
            self.average = towards(self.actor, self.average, config.average_rate)
        self.targets = towards(self.critics, self.targets, config.target_rate)
        return metrics


def actor(parts: Any) -> list[Any]:
    """The parameters of an actor with a mean and maybe a log std, in float64."""
    parts = networks.parameters_of(parts)
    log_std = [] if parts.log_std is None else [np.asarray(parts.log_std, np.float64)]
    return [mlp(parts.mean), *log_std]


def cosine(rate: float, step: int, steps: float | None) -> float:
    """A learning rate that falls to 0 as half a cosine, arXiv:1608.03983, eq. 5."""
    return rate if steps is None else rate * 0.5 * (1.0 + np.cos(np.pi * min(step / steps, 1.0)))


@dataclasses.dataclass
class Adam:
    """Kingma and Ba, arXiv:1412.6980, algorithm 1, with its default for the first moment."""

    rate: float
    epsilon: float = 1e-8
    decay: float = 0.999  # beta_2
    count: int = 0
    first: Any = 0.0
    second: Any = 0.0

    def step(self, parameter: Any, gradient: Any) -> Any:
        """The parameters (an array, or lists of them) after one step down the gradient."""
        if self.count == 0:
            self.first = self.second = zip_map(lambda x: 0.0 * x, gradient)
        self.count += 1
        self.first = zip_map(lambda m, g: 0.9 * m + 0.1 * g, self.first, gradient)
        self.second = zip_map(
            lambda v, g: self.decay * v + (1 - self.decay) * g**2, self.second, gradient
        )

        def moved(x: Any, m: Any, v: Any) -> Any:
            return x - self.rate * (m / (1 - 0.9**self.count)) / (
                np.sqrt(v / (1 - self.decay**self.count)) + self.epsilon
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


def assert_updates(
    update: Any,
    state: Any,
    config: Any,
    reference: Callable[[Any, Any], Any],
    batches: Callable[[int], Transition] = transitions,
    steps: Sequence[int] = range(4),
) -> tuple[Any, Any]:
    """An agent's updates equal those of `reference(state, config)` in their metrics, and then in
    the State: networks and targets equal attributes of the same names. Returns both.

    `update` is compiled once for a file of tests: a Config's floats are traced.
    """
    expected = reference(state, config)
    for step in steps:
        batch, key = batches(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        assert_metrics(metrics, expected.update(float64(batch), key, step))
    for name in (field.name for field in fields(state)):
        part = getattr(state, name)
        if isinstance(part, networks.Trained | networks.Network | networks.Actor):
            assert_same(exact(part), getattr(expected, name), name)
    return state, expected


def assert_only_termination_cuts_the_bootstrap(
    update: Any, state: Any, config: Any, batch: Transition | None = None
) -> None:
    """A truncated step's target looks beyond it; that of a terminated one is its reward."""
    batch = transitions() if batch is None else batch
    never, always = np.zeros(batch.reward.shape, bool), np.ones(batch.reward.shape, bool)

    def target(terminated: np.ndarray, truncated: np.ndarray) -> Any:
        rows = batch.replace(terminated=terminated, truncated=truncated)
        return update(state, rows, jax.random.key(0), 0, config)[1]["critic/target"]

    assert target(never, always) == target(never, never)
    np.testing.assert_allclose(target(always, never), batch.reward.mean(), rtol=1e-6)


def assert_teaches_the_critic_alone(loss: Callable[[Any, Any], Any], state: Any) -> None:
    """`loss(critic, state)` has gradients in all parameters of the critic, and nowhere else in a
    State.
    """
    gradient = jax.jit(jax.grad(loss, argnums=(0, 1), allow_int=True))
    critic, rest = gradient(state.critic.parameters, state)
    assert all(np.any(leaf) for leaf in jax.tree.leaves(critic))
    assert not any(np.any(x) for x in jax.tree.leaves(rest) if x.dtype != jax.dtypes.float0)


def assert_takes_pictures(agent: Any, spec: EnvSpec, config: Any, batch: Transition) -> None:
    """It learns from pictures [10, 10, 4], which are too small for another encoder."""
    agent.check(spec, config)
    picture = np.zeros((5, 10, 10, 4), np.uint8)
    batch = batch.replace(observation=picture, next_observation=picture)
    key = jax.random.key(0)
    state = jax.eval_shape(lambda: agent.init(key, spec, config))
    new = jax.eval_shape(agent.update, state, batch, key, 0, config)[0]
    assert jax.tree.structure(new) == jax.tree.structure(state)
    for network in (state.actor, state.critic):
        encoder = network.parameters.params["encoder"]
        assert encoder["pictures"]["dense"]["bias"].shape == (128,)
    message = r"^--config\.encoder nature needs pictures of at least 36 x 36"
    with pytest.raises(ValueError, match=message):
        agent.check(spec, dataclasses.replace(config, encoder="nature"))


@functools.partial(jax.jit, static_argnums=0)
def learnt(agent: Any, state: Any, batch: Transition, config: Any) -> Any:
    """The State after a hundred updates on one batch."""
    key = jax.random.key(0)
    return jax.lax.fori_loop(
        0, 100, lambda i, state: agent.update(state, batch, key, i, config)[0], state
    )


def moved(old: Any, new: Any) -> bool:
    """Whether any number differs."""
    pairs = zip(*map(jax.tree.leaves, (old, new)), strict=True)
    return any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs)


def assert_delayed(update: Any, state: Any, config: Any, delayed: Sequence[str]) -> None:
    """With a delay of 2, the critic moves in each update and the parts `delayed` in every second;
    only there do the actor's metrics count.
    """
    for step in range(4):
        new, metrics = update(state, transitions(), jax.random.key(0), step, config)
        for part in ("critic", *delayed):
            is_due = part == "critic" or step % 2 == 1
            assert moved(getattr(state, part), getattr(new, part)) == is_due, part
        assert isinstance(metrics["actor/loss"], Weighted)
        assert metrics["actor/loss"].weight == step % 2


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """The leaves of two trees agree one by one."""
    for left, right in zip(*map(jax.tree.leaves, (actual, expected)), strict=True):
        np.testing.assert_allclose(left, right, rtol=rtol, atol=atol)


def own_constant(agent: str, name: str, default: Any) -> Any:
    """A constant of an agent's test module, which tests that all agents share look up."""
    return getattr(importlib.import_module(f"tests.agents.test_{agent}"), name, default)
