"""The layers of `rljax.networks.memories`; gtrxl's are in `attention`.

Each maps features `x` [T, ..., m], a memory [..., M...] and `successor` [T, ..., m] or None as
`Remembering` does, to outputs [T, ..., h].

[1] Orvieto et al., LRU, arXiv:2303.06349
[2] Tallec and Ollivier, arXiv:1804.11188
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array
from rljax.networks.layers import Dense, Initialisation, LayerNorm, Module, initialisers
from rljax.networks.recurrent import thinking

Kind = Literal["none", "gru", "lstm", "lru", "gtrxl", "iru"]

# Of lru's lambda at the start: |lambda| without a span, and its phase; [1] for long sequences.
LONGEST, SHORTEST = 0.999, 0.9
LARGEST_PHASE = math.pi / 10


def forgotten(first: Array, memory: Any) -> Any:
    """Memories [..., M] with zeros where `first` [...] is True."""
    return jax.tree.map(lambda x: jnp.where(first[..., None], 0.0, x), memory)


Gates = Callable[[Any, Any, Any], Any]  # of a memory and the products of inputs and of h


class Cell(NamedTuple):
    """A recurrent layer, whose next memory is `gates(memory, prepare(x), products(kernels, biases,
    h))`.

    Each gate has its own arrays: slices of one are slow on the CPU.
    """

    prepare: Callable[[Array], tuple[Array, ...]]  # inputs' products, for all steps at once
    kernels: tuple[Array, ...]  # of h, [m, m] per gate
    biases: tuple[Array | None, ...]  # of h's products, [m] per gate
    gates: Gates


def hidden(memory: Any) -> Array:
    """h [..., m], the last array of a layer's memory, and its output."""
    return jax.tree.leaves(memory)[-1]


def products(
    kernels: tuple[Array, ...], biases: tuple[Array | None, ...], h: Array
) -> tuple[Array, ...]:
    """One product [..., m] of h per gate."""
    pairs = zip(kernels, biases, strict=True)
    return tuple(h @ kernel if bias is None else h @ kernel + bias for kernel, bias in pairs)


@functools.partial(jax.custom_vjp, nondiff_argnums=(0,))
def recurrence(
    gates: Gates, kernels: Any, biases: Any, prepared: Any, first: Array, memory: Any
) -> tuple[Any, Any]:
    """The memory after the last of T steps, and after each, [T, ..., m]."""
    return _forwards(gates, kernels, biases, prepared, first, memory)[0]


def _forwards(
    gates: Gates, kernels: Any, biases: Any, prepared: Any, first: Array, memory: Any
) -> Any:
    def body(memory: Any, inputs: Any) -> tuple[Any, Any]:
        prepared, first = inputs
        memory = forgotten(first, memory)
        of_h = products(kernels, biases, hidden(memory))
        memory = gates(memory, prepared, of_h)
        return memory, (memory, of_h)

    last, (each, of_h) = jax.lax.scan(body, memory, (prepared, first), unroll=len(first) == 1)
    return (last, each), (kernels, biases, prepared, first, memory, each, of_h)


def _backwards(gates: Gates, forwards: Any, gradients: Any) -> Any:
    kernels, biases, prepared, first, memory, each, of_h = forwards
    before = jax.tree.map(lambda x, y: jnp.concatenate([x[None], y[:-1]]), memory, each)
    before = forgotten(first, before)

    def body(later: Any, inputs: Any) -> tuple[Any, Any]:
        of_each, before, prepared, of_h, first = inputs
        total = jax.tree.map(jnp.add, later, of_each)
        pull: Any = jax.vjp(gates, before, prepared, of_h)[1]
        of_before, of_prepared, of_products = pull(total)
        leaves, structure = jax.tree.flatten(of_before)
        leaves[-1] += sum(x @ kernel.T for x, kernel in zip(of_products, kernels, strict=True))
        of_before = jax.tree.unflatten(structure, leaves)
        return forgotten(first, of_before), (of_prepared, of_products)

    inputs = (gradients[1], before, prepared, of_h, first)
    of_memory, (of_prepared, of_products) = jax.lax.scan(body, gradients[0], inputs, reverse=True)
    rows = [x.reshape(-1, x.shape[-1]) for x in of_products]
    h = hidden(before).reshape(-1, rows[0].shape[-1])
    of_kernels = tuple(h.T @ x for x in rows)
    pairs = zip(biases, rows, strict=True)
    of_biases = tuple(None if bias is None else x.sum(0) for bias, x in pairs)
    return of_kernels, of_biases, of_prepared, None, of_memory


recurrence.defvjp(_forwards, _backwards)


class Recurrent(Module):
    """Layers of recurrent cells."""

    hidden: tuple[int, ...]
    initialisation: Initialisation = "torch"
    span: int | None = None

    def cell(self, layer: int, inputs: int) -> Cell:
        """A layer, for inputs of this size."""
        raise NotImplementedError

    @nn.compact
    def __call__(
        self, x: Array, first: Array, memory: Any, successor: Array | None = None
    ) -> tuple[Any, Any, Any]:
        after = []
        for layer, before in enumerate(memory):
            prepare, kernels, biases, gates = self.cell(layer, x.shape[-1])
            result: Any = recurrence(gates, kernels, biases, prepare(x), first, before)
            last, each = result
            after.append(last)
            x = hidden(each)
            if successor is not None:
                successor = hidden(gates(each, prepare(successor), products(kernels, biases, x)))
        return x, tuple(after), successor

    def weights(
        self, layer: int, inputs: int, signs: tuple[int, ...]
    ) -> tuple[Array, Array, Array]:
        """Of inputs [I, gates x width], of h [width, gates x width], orthogonal, and `bias`."""
        width, gates = self.hidden[layer], len(signs)
        kernel_init, _ = initialisers(self.initialisation, inputs, 1.0)
        orthogonal, _ = initialisers("orthogonal", width, 1.0)

        def draw(key: Array, shape: tuple[int, ...]) -> Array:
            parts = [orthogonal(key, (width, width)) for key in jax.random.split(key, gates)]
            return jnp.concatenate(parts, axis=1).reshape(shape)

        of_x = self.param(f"input_{layer}", kernel_init, (inputs, gates * width))
        of_h = self.param(f"memory_{layer}", draw, (width, gates * width))
        return of_x, of_h, self.bias(f"bias_{layer}", width, signs)

    def bias(self, name: str, width: int, signs: tuple[int, ...] = (0,)) -> Array:
        """Biases [gates x width]: with a span each gate's sign times the log of `time_constants`,
        else 0.
        """

        def draw(key: Array, shape: tuple[int, ...]) -> Array:
            if self.span is None:
                return jnp.zeros(shape)
            steps = time_constants(key, width, self.span)
            return jnp.outer(jnp.array(signs), jnp.log(steps)).reshape(shape)

        return self.param(name, draw, (len(signs) * width,))


def time_constants(key: Array, width: int, span: int) -> Array:
    """Steps after which units have forgotten all but 1/e: uniform from 1 to `span` - 1; [2]."""
    return jax.random.uniform(key, (width,), minval=1.0, maxval=span - 1.0)


def of_inputs(kernel: Array, bias: Array, gates: int) -> Callable[[Array], tuple[Array, ...]]:
    """Products of inputs [..., I] with weights [I, gates x m], [..., m] per gate."""
    pairs = list(zip(jnp.split(kernel, gates, axis=1), jnp.split(bias, gates), strict=True))

    def prepare(x: Array) -> tuple[Array, ...]:
        rows = x.reshape(-1, x.shape[-1])
        return tuple((rows @ kernel + bias).reshape(*x.shape[:-1], -1) for kernel, bias in pairs)

    return prepare


class GRU(Recurrent):
    """Gated recurrent units."""

    @nn.nowrap
    def cell(self, layer: int, inputs: int) -> Cell:
        of_x, of_h, bias = self.weights(layer, inputs, (0, 1, 0))
        inner = self.bias(f"inner_{layer}", self.hidden[layer])
        prepare, kernels = of_inputs(of_x, bias, 3), tuple(jnp.split(of_h, 3, axis=1))
        return Cell(prepare, kernels, (None, None, inner), gru)


def gru(h: Array, x: tuple[Array, ...], y: tuple[Array, ...]) -> Array:
    """h [..., m] after a step, from the gates' products of inputs, x, and of h, y."""
    r, z = jax.nn.sigmoid(x[0] + y[0]), jax.nn.sigmoid(x[1] + y[1])
    n = jnp.tanh(x[2] + r * y[2])
    return (1.0 - z) * n + z * h


class LSTM(Recurrent):
    """Long short-term memory. A layer's memory is (c, h)."""

    @nn.nowrap
    def cell(self, layer: int, inputs: int) -> Cell:
        of_x, of_h, bias = self.weights(layer, inputs, (1, -1, 0, 0))
        if self.span is None:
            bias += jnp.repeat(jnp.array([1.0, 0.0, 0.0, 0.0]), self.hidden[layer])
        return Cell(of_inputs(of_x, bias, 4), tuple(jnp.split(of_h, 4, axis=1)), (None,) * 4, lstm)


def lstm(
    memory: tuple[Array, Array], x: tuple[Array, ...], y: tuple[Array, ...]
) -> tuple[Array, Array]:
    """(c, h) after a step, as `gru`."""
    f, i, g, o = (x + y for x, y in zip(x, y, strict=True))
    c = jax.nn.sigmoid(f) * memory[0] + jax.nn.sigmoid(i) * jnp.tanh(g)
    return c, jax.nn.sigmoid(o) * jnp.tanh(c)


class IRU(thinking.ThinkingIRU):
    """The interpolation recurrent unit with the cells c [..., m] as its memory."""

    span: int | None = None

    @nn.nowrap
    def forget_bias(self) -> Callable[..., Array]:
        """A span is one of observations, each of which takes several thinking steps."""
        if self.span is None:
            return super().forget_bias()
        longest = self.span * self.compute
        return lambda key, shape: jnp.log(time_constants(key, shape[0], longest))

    @nn.compact
    def __call__(  # pyright: ignore[reportIncompatibleMethodOverride]
        self, x: Array, first: Array, memory: Any, successor: Array | None = None
    ) -> tuple[Any, Any, Any]:
        steps = len(x)
        x = x if successor is None else jnp.concatenate([x, successor])
        projected, weights = self.prepared(x)

        def body(cells: Any, inputs: Any) -> Any:
            projected, first = inputs
            h, cells = self.thought(projected, weights, forgotten(first, cells))
            return cells, (h, cells)

        inputs = (jax.tree.map(lambda x: x[:steps], projected), first)
        cells, (outputs, each) = jax.lax.scan(body, memory, inputs, unroll=steps == 1)
        if successor is not None:
            after = jax.tree.map(lambda x: x[steps:], projected)
            successor = self.thought(after, weights, each)[0]
        return outputs, cells, successor


class LRU(Module):
    """Residual blocks of linear recurrent units."""

    hidden: tuple[int, ...]
    initialisation: Initialisation = "torch"
    span: int | None = None

    @nn.compact
    def __call__(
        self, x: Array, first: Array, memory: Any, successor: Array | None = None
    ) -> tuple[Any, Any, Any]:
        width, last = self.hidden[0], []
        project = Dense(width, self.initialisation, name="input")
        x, successor = project(x), None if successor is None else project(successor)
        for layer, state in enumerate(memory):
            block = LRUBlock(width, self.initialisation, self.span, name=f"block_{layer}")
            x, state, successor = block(x, first, state, successor)
            last.append(state)
        return x, tuple(last), successor


class LRUBlock(Module):
    """One linear recurrent unit with its normalisation and gated output."""

    width: int
    initialisation: Initialisation
    span: int | None

    @nn.compact
    def __call__(
        self, x: Array, first: Array, memory: Array, successor: Array | None
    ) -> tuple[Array, Array, Any]:
        """`memory` [..., 2, m] has real and imaginary parts."""
        width, norm = self.width, LayerNorm(name="norm")
        rate = jnp.exp(self.param("nu", _rates, (width,), self.span))
        phase = jnp.exp(self.param("theta", _phases, (width,)))
        decay = jnp.exp(-rate + 1j * phase)

        def weights(name: str, inputs: int) -> list[Array]:
            spread = nn.initializers.normal(1.0 / math.sqrt(inputs))
            parts = ("real", "imaginary")
            return [self.param(f"{name}_{part}", spread, (width, width)) for part in parts]

        inputs, outputs = weights("input", 2 * width), weights("output", width)
        skip = self.param("skip", nn.initializers.normal(1.0), (width,))
        # 1 / std of the states of white noise, at the start [1, section 3.4]
        log_scale = self.param("gamma", lambda *_: 0.5 * jnp.log(-jnp.expm1(-2.0 * rate)), (width,))
        scale = jnp.exp(log_scale)
        value = Dense(width, self.initialisation, name="value")
        gate = Dense(width, self.initialisation, name="gate")

        def driven(x: Array) -> tuple[Array, Array]:
            z = norm(x)
            return z, scale * jax.lax.complex(z @ inputs[0], z @ inputs[1])

        def read_out(x: Array, z: Array, state: Array) -> Array:
            y = jax.nn.gelu(state.real @ outputs[0] - state.imag @ outputs[1] + skip * z)
            return x + value(y) * jax.nn.sigmoid(gate(y))

        z, drive = driven(x)
        decays = jnp.where(first[..., None], 0.0, decay)  # of the state before, [T, ..., m]
        before = jax.lax.complex(memory[..., 0, :], memory[..., 1, :])
        drive = drive.at[0].add(decays[0] * before)
        _, states = jax.lax.associative_scan(
            lambda one, two: (two[0] * one[0], two[0] * one[1] + two[1]), (decays, drive)
        )
        output = read_out(x, z, states)
        if successor is not None:
            z, drive = driven(successor)
            successor = read_out(successor, z, decay * states + drive)
        return output, jnp.stack([states[-1].real, states[-1].imag], axis=-2), successor


def _rates(key: Array, shape: tuple[int], span: int | None) -> Array:
    """nu of lru: |lambda|^2 is uniform between two squares [1, lemma 3.2], or follows the span."""
    if span is not None:
        return -jnp.log(time_constants(key, *shape, span))
    uniform = jax.random.uniform(key, shape)
    return jnp.log(-0.5 * jnp.log(uniform * (LONGEST**2 - SHORTEST**2) + SHORTEST**2))


def _phases(key: Array, shape: tuple[int, ...]) -> Array:
    return jnp.log(jax.random.uniform(key, shape, minval=1e-3, maxval=LARGEST_PHASE))
