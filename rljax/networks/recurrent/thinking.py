"""Layers whose parameters are applied T times; see `rljax.networks.torsos`."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax import networks
from rljax.agent import Array
from rljax.networks import ACTIVATIONS, Activation, Dense, Initialisation, initialisers, joined
from rljax.networks.layers import LayerNorm, Module

UNROLLED = 3  # steps up to which unrolling is faster than a loop on the CPU
SEGMENT_FROM = 16  # steps from which on gradients store some and recompute the others
DRC_FEATURES = 256  # of the dense layer after a DRC's ticks; arXiv:1901.03559


class Span(NamedTuple):
    """A part of the thinking steps: gradients flow from `start` on, steps from `stop` on are
    skipped.
    """

    start: Array  # [] int32
    stop: Array  # [] int32


def think(step: Callable[[Any], Any], state: Any, compute: int, span: Span | None = None) -> Any:
    """`state` after `compute` steps, or after those of `span`."""

    def body(state: Any, t: Array) -> tuple[Any, None]:
        if span is None:
            return step(state), None
        cut, stop = (t == span.start) & (t > 0), span.stop
        state = jax.tree.map(lambda x: jnp.where(cut, jax.lax.stop_gradient(x), x), state)
        return jax.tree.map(lambda x, y: jnp.where(t < stop, x, y), step(state), state), None

    def steps(state: Any, times: Array) -> tuple[Any, None]:
        return jax.lax.scan(body, state, times, unroll=compute <= UNROLLED)

    times = jnp.arange(compute)
    if compute < SEGMENT_FROM:
        return steps(state, times)[0]
    segment = math.isqrt(compute)
    rest = compute % segment
    state, _ = jax.checkpoint(steps)(state, times[:rest])
    return jax.lax.scan(jax.checkpoint(steps), state, times[rest:].reshape(-1, segment))[0]


class ProjectedInputs(NamedTuple):
    """What depends on an IRU's input x alone."""

    gates: tuple[Array, ...]  # per cell, [..., 2 m]
    mean: Array  # [..., 1]
    spread: Array  # [..., 1]


class ThinkingIRU(Module):
    """The interpolation recurrent unit, to h [..., m]."""

    hidden: tuple[int, ...]  # the width m, once per cell
    compute: int  # T
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        projected, weights = self.prepared(joined(inputs))
        cells = tuple(jnp.zeros_like(gates[..., : self.hidden[0]]) for gates in projected.gates)
        return self.thought(projected, weights, cells, span)[0]

    def prepared(self, inputs: Array) -> tuple[ProjectedInputs, list[Any]]:
        """What the steps need of inputs [..., I], and the weights of all cells."""
        x = LayerNorm(name="norm")(Dense(self.hidden[0], self.initialisation, name="input")(inputs))
        gates, *weights = zip(*[self._cell(i, x) for i in range(len(self.hidden))], strict=True)
        return ProjectedInputs(gates, *spread(x)), list(zip(*weights, strict=True))

    def thought(
        self,
        projected: ProjectedInputs,
        weights: list[Any],
        cells: tuple[Array, ...],
        span: Span | None = None,
    ) -> Any:
        """h [..., m] and the cells c [..., m] after T steps from h = 0 and `cells`."""
        width = self.hidden[0]

        def step(state: tuple[Array, tuple[Array, ...]]) -> tuple[Array, tuple[Array, ...]]:
            h, memory = state
            below, after = h, []
            parts = zip(projected.gates, weights, memory, strict=True)
            for of_x, (kernel, total, bias), c in parts:
                h_mean, h_spread = spread(below)
                mean = 0.5 * (projected.mean + h_mean)
                variance = (projected.spread + h_spread) / (2 * width)
                variance += jnp.square(0.5 * (projected.mean - h_mean))
                scale = jax.lax.rsqrt(variance + 1e-5)
                gates = scale * (of_x + below @ kernel - mean * total) + bias
                f, i = jax.nn.sigmoid(gates[..., :width]), jnp.tanh(gates[..., width:])
                after.append(f * c + (1.0 - f) * i)
                below = jnp.tanh(after[-1])
            return h + below, tuple(after)

        return think(step, (jnp.zeros_like(cells[0]), cells), self.compute, span)

    @nn.nowrap
    def forget_bias(self) -> Callable[..., Array]:
        """The bias of f at the start."""
        return nn.initializers.ones_init()

    def _cell(self, index: int, x: Array) -> tuple[Array, Array, Array, Array]:
        """Of a cell's f and then its i: the product of x [..., 2 m], the kernel of h [m, 2 m], its
        sums, the bias.

        Normalisation comes after the product: LN(z) W = (z W' - mean(z) 1 W') / std(z) + shift W,
        with W' the rows of W scaled.
        """
        width = x.shape[-1]
        kernel_init, bias_init = initialisers(self.initialisation, 2 * width, 1.0)
        shape, ones = (2 * width, width), nn.initializers.ones_init()
        names = ("forget", "input")
        kernel = [self.param(f"{name}_kernel_{index}", kernel_init, shape) for name in names]
        bias = [
            self.param(f"forget_bias_{index}", self.forget_bias(), (width,)),
            self.param(f"input_bias_{index}", bias_init, (width,)),
        ]
        scale = self.param(f"scale_{index}", ones, (2 * width,))
        shift = self.param(f"shift_{index}", nn.initializers.zeros_init(), (2 * width,))
        both = jnp.concatenate(kernel, axis=1)
        scaled = scale[:, None] * both
        product, kernel, total = x @ scaled[:width], scaled[width:], scaled.sum(axis=0)
        return product, kernel, total, shift @ both + jnp.concatenate(bias)


def spread(x: Array) -> tuple[Array, Array]:
    """The mean of x [..., m] and the sum of squared distances from it, [..., 1] each."""
    mean = x.mean(axis=-1, keepdims=True)
    return mean, jnp.square(x - mean).sum(axis=-1, keepdims=True)


class Recall(Module):
    """Deep Thinking's blocks, which see the input again in every step, to h [..., m]."""

    hidden: tuple[int, ...]  # the width m, once per residual block
    compute: int  # T
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        width, act = self.hidden[0], ACTIVATIONS[self.activation]
        observed = joined(inputs)
        first = act(Dense(width, self.initialisation, math.sqrt(2.0), name="input")(observed))
        recall = dense(self, "recall", width + observed.shape[-1], width, 1.0)
        names = [f"hidden_{i}" for i in range(len(self.hidden))]
        blocks = [[dense(self, f"{name}_{j}", width, width) for j in (0, 1)] for name in names]

        def step(h: Array) -> Array:
            h = recall(jnp.concatenate([h, observed], axis=-1))
            for one, two in blocks:
                h = act(h + two(act(one(h))))
            return h

        return think(step, first, self.compute, span)


class DRC(Module):
    """Stacked convolutional LSTMs that tick T times."""

    hidden: tuple[int, ...]  # channels of each layer
    compute: int  # T
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"
    # rows and columns of pictures in vectors, channel by channel
    grid: tuple[int, int] | None = None

    @nn.compact
    def __call__(self, observation: Array, *, span: Span | None = None) -> Array:
        """Map pictures [..., H, W, K], or vectors [..., K H W] with a `grid`, to [...,
        `DRC_FEATURES`].
        """
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
        outside = jnp.pad(jnp.zeros(size[1:]), 1, constant_values=1.0)[None, :, :, None]
        edge = jnp.broadcast_to(networks.patches(outside, 3, 1), (*size, 9))
        gates = []
        for d in layers:
            channels = self.hidden[0] + self.hidden[d - 1] + 2 * self.hidden[d]
            gates.append(dense(self, f"gates_{d}", 9 * (channels + 1), 4 * self.hidden[d]))
        pools = [dense(self, f"pool_{d}", 2 * self.hidden[d], self.hidden[d]) for d in layers]

        def step(state: tuple[tuple[Array, ...], tuple[Array, ...]]) -> Any:
            hidden, memory = list(state[0]), list(state[1])
            for d in layers:
                cell = hidden[d]
                largest = networks.largest(cell.reshape(len(cell), -1, cell.shape[-1]), axis=1)
                pooled = pools[d](jnp.concatenate([cell.mean(axis=(1, 2)), largest], axis=-1))
                pooled = jnp.broadcast_to(pooled[:, None, None], cell.shape)
                z = around(jnp.concatenate([encoded, hidden[d - 1], cell, pooled], axis=-1))
                z = gates[d](jnp.concatenate([z, edge], axis=-1))
                f, i, j, o = jnp.split(z, 4, axis=-1)
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
    """A dense layer of `module`, a `Recall` or `DRC`, that can be called inside a loop."""
    kernel_init, bias_init = initialisers(module.initialisation, inputs, scale)  # type: ignore[attr-defined]
    kernel = module.param(f"{name}_kernel", kernel_init, (inputs, features))
    bias = module.param(f"{name}_bias", bias_init, (features,))
    return lambda x: x @ kernel + bias


def around(pictures: Array) -> Array:
    """The 3x3 patch around each cell, [N, H, W, K] to [N, H, W, 9 K]; outside are zeros."""
    return networks.patches(jnp.pad(pictures, ((0, 0), (1, 1), (1, 1), (0, 0))), 3, 1)
