"""Torsos: the layers between observations and the last layer, with a fixed or an adjustable amount of computation.

An agent's settings `torso` and `compute` choose one. `hidden` has one number per part:

    mlp     dense layers, one per number, which is the layer's width
    resnet  an input layer and residual blocks, one per number, all of the same width
    iru     interpolation recurrent unit [1]: cells, one per number, all of the same width m, applied T times
    recall  Deep Thinking's residual blocks with recall [2], all of the same width, applied T times
    drc     DRC [3]: layers of convolutional LSTMs, one per number, which is its channels, for T ticks

T is `compute`. The last three have the same parameters for every T, and their cost is proportional to T. Acting may use
another T than training. They have no memory: nothing is kept from one observation to the next.

iru, with x computed once from the input o, and c = h = 0 at the start. In each of T steps, for each cell:

    x  = LN(W_x o + b_x)
    u  = LN([x; h])
    f  = sigmoid(W_f u + b_f)      b_f starts at 1
    i  = tanh(W_i u + b_i)
    c <- f c + (1 - f) i
    h <- h + tanh(c)               with several cells, the next cell uses tanh(c) as h; the last tanh(c) is added

recall, with e the input's projection. In each of T steps, for all blocks:

    h <- W_r [h; o] + b_r,  then for each block  h <- act(h + W_2 act(W_1 h + b_1) + b_2)          h starts as e

drc, with e the encoded picture, and h_d and c_d of layer d. In each of T ticks, for each layer:

    z   = [e; h_{d-1}; h_d; pooled(h_d); edge]              h_{d-1} of the first layer: the last layer's, one tick ago
    c_d <- sigmoid(f) c_d + sigmoid(i) tanh(j),  h_d <- sigmoid(o) tanh(c_d)       f, i, j, o: 3x3 convolutions of z

At the end follows a dense layer over [h_D; e]. For pictures that are given as vectors, `grid` has rows and columns.

From `SEGMENT_FROM` steps on, the memory of gradients grows with the square root of T: other steps are recomputed.

[1] Ghugare et al., On (the Role of Iterative) Computation and Reinforcement Learning, arXiv:2602.05999
[2] Bansal et al., End-to-end Algorithm Synthesis with Recurrent Networks, arXiv:2202.05826
[3] Guez et al., An Investigation of Model-Free Planning, arXiv:1901.03559
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax import agent, networks
from rljax.agent import Array, EnvSpec
from rljax.networks import ACTIVATIONS, Activation, Dense, Initialisation, encoders, initialisers, joined

Kind = Literal["mlp", "resnet", "iru", "recall", "drc"]
THINKING = ("iru", "recall", "drc")  # torsos that use `compute`

UNROLLED = 3  # steps: up to here they are unrolled, which is faster than a loop on the CPU; beyond, it is slower
MOST_STEPS = 100_000  # of thinking
SEGMENT_FROM = 16  # steps: from here on gradients store some steps and recompute the others
DRC_FEATURES = 256  # of the dense layer after the ticks of a DRC; [3]


class Span(NamedTuple):
    """A part of the thinking steps. Gradients flow from step `start` on, and steps from `stop` on are skipped."""

    start: Array  # [] int32
    stop: Array  # [] int32


class Settings(NamedTuple):
    """What an agent chooses for its torsos. Error messages name a field as the flag `--config.FIELD`."""

    torso: Kind  # which one
    compute: int  # T, thinking steps of torsos that take any number of them
    progressive: Any  # float or None: weight of the loss after a part of the thinking steps
    activation: Activation  # of the hidden layers
    initialisation: Initialisation  # of all layers
    layer_norm: Any = False  # of an mlp: `networks.Norm`
    grid: tuple[int, int] | None = None  # rows and columns of pictures that a DRC sees in vectors
    encoder: encoders.Kind = "auto"  # convolutions of pictures, before all torsos but a DRC

    def before(self, spec: EnvSpec, body: nn.Module) -> nn.Module:
        """`body` behind the encoder of an environment's observations. A DRC takes the pictures themselves."""
        if self.torso == "drc":
            return body
        style = (self.activation, self.initialisation, self.layer_norm)
        return encoders.encoded(spec, encoders.Settings(self.encoder, *style), body)


def check(spec: EnvSpec, settings: Settings, *hidden: tuple[int, ...]) -> None:
    """Raise `ValueError` for settings that fit no torso. `hidden` has the parts of each network."""
    kind, compute, grid = settings.torso, settings.compute, settings.grid
    if compute < 1:
        raise ValueError(f"--config.compute is {compute}, it must be at least 1.")
    if compute > MOST_STEPS:
        raise ValueError(f"--config.compute is {compute:,}, it must be at most {MOST_STEPS:,}.")
    if compute > 1 and kind not in THINKING:
        raise ValueError(
            f"--config.compute is {compute}, --config.torso {kind} has nothing to do more than once. "
            f"Choose one that has: --config.torso {' or '.join(THINKING)}"
        )
    if settings.progressive is not None:
        agent.require_range(settings, progressive=(0, 1))
        if kind not in THINKING:
            raise ValueError(f"--config.progressive is for torsos that think ({', '.join(THINKING)}), not for {kind}.")
    for parts in hidden:
        if kind != "mlp" and not parts:
            raise ValueError(f"--config.torso {kind} needs at least one number for its hidden layers.")
        if kind in ("resnet", "iru", "recall") and len(set(parts)) > 1:
            raise ValueError(
                f"all parts of a torso '{kind}' must have the same width, not {' '.join(map(str, parts))}."
            )
    shape = spec.observation_shape
    if kind != "drc":
        if grid is not None:
            raise ValueError(f"--config.grid is for --config.torso drc, not {kind}.")
        encoders.check(spec, encoders.Settings(settings.encoder))
    elif spec.parts:
        raise ValueError(
            f"--config.torso drc takes one picture, '{spec.name}' shows {agent.shown(spec)}. Use: --config.torso mlp"
        )
    elif grid is None and len(shape) != 3:
        raise ValueError(
            f"observations have shape {shape}, a DRC is for pictures: give their rows and columns, for example "
            "--config.grid 5 5"
        )
    elif grid is not None and (len(shape) != 1 or shape[0] % math.prod(grid)):
        raise ValueError(f"observations of shape {shape} hold no pictures of --config.grid {grid[0]} {grid[1]} cells.")


def torso(spec: EnvSpec, settings: Settings, hidden: tuple[int, ...]) -> nn.Module:
    """The torso alone, behind an encoder: observations [..., O...] to features [..., m]."""
    return settings.before(spec, _torso(settings, hidden))


def _torso(settings: Settings, hidden: tuple[int, ...]) -> nn.Module:
    style = (settings.activation, settings.initialisation)
    match settings.torso:
        case "mlp":
            return networks.MLP(hidden, None, *style, layer_norm=settings.layer_norm)
        case "resnet":
            return ResNet(hidden, *style)
        case "iru":
            return IRU(hidden, settings.compute, settings.initialisation)
        case "recall":
            return Recall(hidden, settings.compute, *style)
        case "drc":
            return DRC(hidden, settings.compute, *style, grid=settings.grid)
    raise ValueError(f"no torso '{settings.torso}'.")


def network(
    spec: EnvSpec, settings: Settings, hidden: tuple[int, ...], features: int, output_scale: float = 1.0
) -> nn.Module:
    """An encoder, a torso and a dense layer: observations [..., O...] to [..., features]."""
    return settings.before(spec, _network(settings, hidden, features, output_scale))


def _network(settings: Settings, hidden: tuple[int, ...], features: int, output_scale: float) -> nn.Module:
    if settings.torso == "mlp":
        return _torso(settings, hidden).clone(features=features, output_scale=output_scale)
    return Headed(_torso(settings, hidden), features, settings.initialisation, output_scale)


def ensemble(
    spec: EnvSpec, settings: Settings, size: int, hidden: tuple[int, ...], features: int, output_scale: float = 1.0
) -> nn.Module:
    """`size` copies of `network` with one encoder, to [C, ...], or [C, ..., K] with K > 1 features."""
    if settings.torso == "mlp":
        style = (settings.activation, settings.initialisation, settings.layer_norm, features, output_scale)
        return settings.before(spec, networks.Ensemble(size, hidden, *style))
    return settings.before(spec, Ensemble(size, _network(settings, hidden, features, output_scale)))


def last(settings: Settings, features: int, output_scale: float = 1.0) -> nn.Module:
    """The dense layer after a torso that several networks share: [..., m] to [..., features]."""
    return networks.MLP((), features, initialisation=settings.initialisation, output_scale=output_scale)


class Headed(nn.Module):
    """A torso with a dense layer after it."""

    torso: nn.Module
    features: int
    initialisation: Initialisation = "torch"
    output_scale: float = 1.0  # gain of the last layer's orthogonal initialisation

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        """Map inputs [..., I_1], [..., I_2], ... to [..., features]."""
        options = {} if span is None else {"span": span}
        output = Dense(self.features, self.initialisation, self.output_scale, last=True, name="output")
        return output(self.torso(*inputs, **options))


class Ensemble(nn.Module):
    """`size` independent copies of a network as one batched product."""

    size: int
    member: nn.Module

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        """Map inputs [..., I_1], [..., I_2], ... to [C, ...], or [C, ..., K] with K > 1 outputs."""
        shared: Any = None  # all copies have the same inputs
        call: Any = nn.vmap(
            lambda member, x: member(x, span=span),
            variable_axes={"params": 0},
            split_rngs={"params": True},
            in_axes=shared,
            axis_size=self.size,
        )
        outputs = call(self.member, joined(inputs))
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs


def think(step: Callable[[Any], Any], state: Any, compute: int, span: Span | None = None) -> Any:
    """`state` after `compute` steps, or after the steps of `span` if one is given."""

    def whole(state: Any, t: Array) -> tuple[Any, None]:
        del t
        return step(state), None

    def part(span: Span, state: Any, t: Array) -> tuple[Any, None]:
        cut = (t == span.start) & (t > 0)
        state = jax.tree.map(lambda x: jnp.where(cut, jax.lax.stop_gradient(x), x), state)
        return jax.tree.map(lambda new, old: jnp.where(t < span.stop, new, old), step(state), state), None

    body = whole if span is None else functools.partial(part, span)

    def steps(state: Any, times: Array) -> tuple[Any, None]:
        return jax.lax.scan(body, state, times, unroll=compute <= UNROLLED)

    times = jnp.arange(compute)
    if compute < SEGMENT_FROM:
        return steps(state, times)[0]
    segment = math.isqrt(compute)
    rest = compute % segment
    state, _ = jax.checkpoint(steps)(state, times[:rest])
    return jax.lax.scan(jax.checkpoint(steps), state, times[rest:].reshape(-1, segment))[0]


class ResNet(nn.Module):
    """Residual blocks of two layers, with normalisation and activation before each layer and at the end."""

    hidden: tuple[int, ...]
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        """Map inputs [..., I_1], [..., I_2], ... to [..., m]."""
        width, act, gain = self.hidden[0], ACTIVATIONS[self.activation], math.sqrt(2.0)
        x = Dense(width, self.initialisation, gain, name="input")(joined(inputs))
        for block in range(len(self.hidden)):
            y = x
            for layer in range(2):
                y = act(nn.LayerNorm(name=f"norm_{block}_{layer}")(y))
                y = Dense(width, self.initialisation, gain, name=f"hidden_{block}_{layer}")(y)
            x = x + y
        return act(nn.LayerNorm(name="norm")(x))


class IRU(nn.Module):
    """The interpolation recurrent unit; see the top of this file."""

    hidden: tuple[int, ...]  # the width m, once per cell
    compute: int  # T
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        """Map inputs [..., I_1], [..., I_2], ... to h [..., m]."""
        width = self.hidden[0]
        x = nn.LayerNorm(name="norm")(Dense(width, self.initialisation, name="input")(joined(inputs)))
        cells = [self._cell(i, x) for i in range(len(self.hidden))]
        x_mean, x_spread = spread(x)

        def step(state: tuple[Array, tuple[Array, ...]]) -> tuple[Array, tuple[Array, ...]]:
            h, memory = state
            seen, after = h, []
            for (of_x, kernel, total, bias), c in zip(cells, memory, strict=True):
                h_mean, h_spread = spread(seen)
                mean = 0.5 * (x_mean + h_mean)
                variance = (x_spread + h_spread) / (2 * width) + jnp.square(0.5 * (x_mean - h_mean))
                gates = jax.lax.rsqrt(variance + 1e-5) * (of_x + seen @ kernel - mean * total) + bias
                f, i = jax.nn.sigmoid(gates[..., :width]), jnp.tanh(gates[..., width:])
                after.append(f * c + (1.0 - f) * i)
                seen = jnp.tanh(after[-1])
            return h + seen, tuple(after)

        zero = jnp.zeros_like(x)
        return think(step, (zero, (zero,) * len(cells)), self.compute, span)[0]

    def _cell(self, index: int, x: Array) -> tuple[Array, Array, Array, Array]:
        """The constant terms of a cell, for its f and then its i, [..., 2 m] each; the kernel of h is [m, 2 m].

        Normalisation comes after the product, by the product's sums over rows. So x is multiplied once, not in every
        step: LN(z) W = (z W' - mean(z) 1 W') / std(z) + shift W, with W' the rows of W times their scale.
        """
        width = x.shape[-1]
        kernel_init, bias_init = initialisers(self.initialisation, 2 * width, 1.0)
        shape, ones = (2 * width, width), nn.initializers.ones_init()
        kernel = [self.param(f"{name}_kernel_{index}", kernel_init, shape) for name in ("forget", "input")]
        bias = [
            self.param(f"forget_bias_{index}", ones, (width,)),
            self.param(f"input_bias_{index}", bias_init, (width,)),
        ]
        scale = self.param(f"scale_{index}", ones, (2 * width,))
        shift = self.param(f"shift_{index}", nn.initializers.zeros_init(), (2 * width,))
        both = jnp.concatenate(kernel, axis=1)
        scaled = scale[:, None] * both
        return x @ scaled[:width], scaled[width:], scaled.sum(axis=0), shift @ both + jnp.concatenate(bias)


def spread(x: Array) -> tuple[Array, Array]:
    """The mean of x [..., m], and the sum of squared distances from it, [..., 1] each."""
    mean = x.mean(axis=-1, keepdims=True)
    return mean, jnp.square(x - mean).sum(axis=-1, keepdims=True)


class Recall(nn.Module):
    """Deep Thinking's blocks, which receive the input again in every step; see the top of this file."""

    hidden: tuple[int, ...]  # the width m, once per residual block
    compute: int  # T
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        """Map inputs [..., I_1], [..., I_2], ... to h [..., m]."""
        width, act = self.hidden[0], ACTIVATIONS[self.activation]
        seen = joined(inputs)
        first = act(Dense(width, self.initialisation, math.sqrt(2.0), name="input")(seen))
        recall = dense(self, "recall", width + seen.shape[-1], width, 1.0)
        blocks = [[dense(self, f"hidden_{i}_{j}", width, width) for j in range(2)] for i in range(len(self.hidden))]

        def step(h: Array) -> Array:
            h = recall(jnp.concatenate([h, seen], axis=-1))
            for one, two in blocks:
                h = act(h + two(act(one(h))))
            return h

        return think(step, first, self.compute, span)


class DRC(nn.Module):
    """Stacked convolutional LSTMs that tick T times; see the top of this file."""

    hidden: tuple[int, ...]  # channels of each layer
    compute: int  # T
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"
    grid: tuple[int, int] | None = None  # rows and columns of pictures that are given as vectors, channel by channel

    @nn.compact
    def __call__(self, observation: Array, *, span: Span | None = None) -> Array:
        """Map pictures [..., H, W, K], or vectors [..., K H W] with a `grid`, to [..., `DRC_FEATURES`]."""
        act, layers = ACTIVATIONS[self.activation], range(len(self.hidden))
        if self.grid is not None:
            planes = observation.reshape(*observation.shape[:-1], -1, *self.grid)
            observation = jnp.moveaxis(planes, -3, -1)
        leading, pictures = observation.shape[:-3], observation.reshape(-1, *observation.shape[-3:])
        if pictures.dtype == jnp.uint8:
            pictures = pictures.astype(jnp.float32) / 255.0
        size = pictures.shape[:-1]  # [N, H, W]
        encoder = dense(self, "encoder", 9 * pictures.shape[-1], self.hidden[0], math.sqrt(2.0))
        encoded = act(encoder(around(pictures)))
        inside = jnp.pad(jnp.zeros(size[1:]), 1, constant_values=1.0)[None, :, :, None]
        edge = jnp.broadcast_to(networks.patches(inside, 3, 1), (*size, 9))  # marks cells outside the picture
        below = [self.hidden[d - 1] for d in layers]
        channels = [self.hidden[0] + below[d] + 2 * self.hidden[d] for d in layers]
        gates = [dense(self, f"gates_{d}", 9 * (channels[d] + 1), 4 * self.hidden[d]) for d in layers]
        pools = [dense(self, f"pool_{d}", 2 * self.hidden[d], self.hidden[d]) for d in layers]

        def step(state: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Any:
            hidden, memory = list(state[0]), list(state[1])
            for d in layers:
                own = hidden[d]
                largest = -networks.smallest(-own.reshape(len(own), -1, own.shape[-1]), axis=1)
                pooled = pools[d](jnp.concatenate([own.mean(axis=(1, 2)), largest], axis=-1))
                pooled = jnp.broadcast_to(pooled[:, None, None], own.shape)
                seen = around(jnp.concatenate([encoded, hidden[d - 1], own, pooled], axis=-1))
                f, i, j, o = jnp.split(gates[d](jnp.concatenate([seen, edge], axis=-1)), 4, axis=-1)
                memory[d] = jax.nn.sigmoid(f) * memory[d] + jax.nn.sigmoid(i) * jnp.tanh(j)
                hidden[d] = jax.nn.sigmoid(o) * jnp.tanh(memory[d])
            return tuple(hidden), tuple(memory)

        zeros = tuple(jnp.zeros((*size, width)) for width in self.hidden)
        top = think(step, (zeros, zeros), self.compute, span)[0][-1]
        flat = jnp.concatenate([top, encoded], axis=-1).reshape(*leading, -1)
        return act(Dense(DRC_FEATURES, self.initialisation, math.sqrt(2.0), name="dense")(flat))


def dense(
    module: nn.Module, name: str, inputs: int, features: int, scale: float = math.sqrt(2.0)
) -> Callable[[Array], Array]:
    """A dense layer as a function that can be called inside a loop. Its parameters belong to `module`.

    `module` is a `Recall` or `DRC`, inside its call.
    """
    kernel_init, bias_init = initialisers(module.initialisation, inputs, scale)  # type: ignore[attr-defined]
    kernel = module.param(f"{name}_kernel", kernel_init, (inputs, features))
    bias = module.param(f"{name}_bias", bias_init, (features,))
    return lambda x: x @ kernel + bias


def around(pictures: Array) -> Array:
    """The 3x3 patch around each cell, [N, H, W, K] to [N, H, W, 9 K], with zeros outside the picture."""
    return networks.patches(jnp.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0))), 3, 1)


def spans(key: Array, compute: int) -> Span:
    """The steps of progressive training [2]: n ~ U{0, ..., T - 1} without gradient, then k ~ U{1, ..., T - n} with."""
    key_start, key_number = jax.random.split(key)
    start = jax.random.randint(key_start, (), 0, compute)
    return Span(start, start + jax.random.randint(key_number, (), 1, compute - start + 1))


def during(networks_: Any, span: Span) -> Any:
    """A tree of networks, in which networks with thinking steps take the steps of `span` only."""

    def bind(network: Any) -> Any:
        module = getattr(network, "module", None)
        for part in ("body", "member", "torso"):
            module = getattr(module, part, module)
        thinks = isinstance(module, IRU | Recall | DRC)
        return network.replace(options={"span": span}) if thinks else network

    return jax.tree.map(bind, networks_, is_leaf=lambda x: isinstance(x, networks.Network))


def progressive(loss: Callable[..., tuple[Array, Any]], settings: Settings) -> Callable[..., tuple[Array, Any]]:
    """The progressive loss [2]: (1 - alpha) `loss` after all steps + alpha `loss` after a random part of them.

    `loss(networks, ..., key)` returns a scalar and metrics, and so does the returned function. alpha is
    `settings.progressive`; if it is None, `loss` itself is returned.
    """
    if settings.progressive is None:
        return loss

    def mixed(networks_: Any, *inputs: Any) -> tuple[Array, Any]:
        whole, metrics = loss(networks_, *inputs)
        part, _ = loss(during(networks_, spans(jax.random.fold_in(inputs[-1], 1), settings.compute)), *inputs)
        return (1.0 - settings.progressive) * whole + settings.progressive * part, metrics

    return mixed
