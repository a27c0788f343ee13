"""The arrays of an equation."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.runs.export.graph import Graph, Tensor, constant


class Complex(NamedTuple):
    """A complex array by its parts."""

    real: Tensor
    imaginary: Tensor


class UnsupportedOperation(ValueError):
    """An operation that exported files do not have."""


def of_array(x: Any, name: str = "") -> Any:
    """A constant; keys of random numbers and complex arrays stay what they are."""
    if jax.numpy.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key):
        return x
    array: Any = np.asarray(x)
    if array.dtype.kind == "c":
        return Complex(constant(array.real, name), constant(array.imag, name))
    if array.dtype == jax.numpy.bfloat16:
        array = array.astype(np.float32)
    return constant(array, name)


def shrunk(x: Any) -> Any:
    """One number in place of a constant without a name that repeats it."""
    array = x.array if isinstance(x, Tensor) and not x.name else None
    if array is None or array.size == 0 or (array != array.flat[0]).any():
        return x
    return constant(array.flat[0])


def known_array(x: Any) -> Any:
    """The array of a constant, or None."""
    if isinstance(x, Complex):
        real, imaginary = x.real.array, x.imaginary.array
        return None if real is None or imaginary is None else real + 1j * imaginary
    return x.array if isinstance(x, Tensor) else x


def expand(graph: Graph, x: Tensor, shape: Sequence[Any]) -> Tensor:
    """`x` in the shape that the program says."""
    return graph.expand(ranked(graph, x, len(shape)), tuple(shape))


def ranked(graph: Graph, x: Tensor, rank: int) -> Tensor:
    """With axes of size 1 in front."""
    return graph.reshape(x, (1,) * (rank - len(x.shape)) + x.shape)


def wholes(graph: Graph, equation: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
    """The inputs of an equation in the shapes that the program says."""
    pairs = zip(inputs, equation.invars, strict=True)
    return [expand(graph, x, variable.aval.shape) for x, variable in pairs]


def scalar(value: float, like: Tensor) -> Tensor:
    """A number of the dtype of another array."""
    return constant(np.asarray(value, like.dtype))
