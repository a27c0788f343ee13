"""Operations on each element, and on shapes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import jax
import numpy as np

from rljax.runs.export.graph import Graph, Tensor, broadcast, is_static
from rljax.runs.export.lowering.operands import UnsupportedOperation, ranked, scalar, wholes

ELEMENTS = {
    "add": "add",
    "add_any": "add",
    "sub": "subtract",
    "mul": "multiply",
    "div": "divide",
    "max": "maximum",
    "min": "minimum",
    "pow": "power",
    "rem": "fmod",
    "neg": "negative",
    "abs": "abs",
    "exp": "exp",
    "log": "log",
    "sqrt": "sqrt",
    "tanh": "tanh",
    "sin": "sin",
    "cos": "cos",
    "sign": "sign",
    "floor": "floor",
    "ceil": "ceil",
    "logistic": "sigmoid",
    "erf": "erf",
    "lt": "less",
    "le": "less_equal",
    "gt": "greater",
    "ge": "greater_equal",
    "eq": "equal",
    "ne": "not_equal",
    "is_finite": "isfinite",
}
TRUTH = {"and": "logical_and", "or": "logical_or", "xor": "logical_xor", "not": "logical_not"}


def _rsqrt(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    root = graph.elements("sqrt", x)
    return graph.elements("divide", scalar(1, x), root)


def _square(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return graph.elements("multiply", x, x)


def _integer_pow(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    exponent = equation.params["y"]
    if exponent not in (2, 3, 4):
        return graph.elements("power", x, scalar(exponent, x))
    square = graph.elements("multiply", x, x)
    if exponent == 2:
        return square
    return graph.elements("multiply", square, x if exponent == 3 else square)


def _exp2(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    scaled = graph.elements("multiply", x, scalar(math.log(2.0), x))
    return graph.elements("exp", scaled)


def _expm1(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    exponential = graph.elements("exp", x)
    return graph.elements("subtract", exponential, scalar(1, x))


def _log1p(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return graph.elements("log", graph.elements("add", x, scalar(1, x)))


def _erfc(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return graph.elements("subtract", scalar(1, x), graph.elements("erf", x))


def _round(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    if "EVEN" not in str(equation.params["rounding_method"]):
        raise UnsupportedOperation("exported policies round halves to even numbers only.")
    return graph.elements("rint", x)


def _clamp(graph: Graph, equation: Any, low: Tensor, x: Tensor, high: Tensor) -> Tensor:
    above = graph.add("maximum", x, low, shape=broadcast(x.shape, low.shape))
    return graph.add("minimum", above, high, shape=broadcast(above.shape, high.shape))


def _select_n(graph: Graph, equation: Any, which: Tensor, *cases: Tensor) -> Tensor:
    if which.dtype == bool:
        return graph.where(which, cases[1], cases[0])
    return choose_case(graph, which, cases)


def choose_case(graph: Graph, which: Tensor, cases: Sequence[Tensor]) -> Tensor:
    """The case whose index is `which`, element by element."""
    result = cases[-1]
    for index in range(len(cases) - 2, -1, -1):
        is_it = graph.elements("equal", which, scalar(index, which))
        result = graph.where(is_it, cases[index], result)
    return result


def _convert_element_type(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    dtype = equation.params["new_dtype"]
    if dtype == jax.numpy.bfloat16:
        return graph.elements("round_to_bfloat16", graph.cast(x, np.float32))
    return graph.cast(x, np.dtype(dtype))


def _broadcast_in_dim(graph: Graph, equation: Any, x: Tensor, *_: Any) -> Tensor:
    shape = equation.params["shape"]
    places = equation.params["broadcast_dimensions"]
    x = ranked(graph, x, len(places))
    sizes: list[Any] = [1] * len(shape)
    for place, size in zip(places, x.shape, strict=True):
        sizes[place] = size
    first = next((i for i, place in enumerate(range(len(shape))) if place in places), 0)
    return graph.reshape(x, tuple(sizes[first:] if places else ()))


def _reshape(graph: Graph, equation: Any, x: Tensor, *_: Any) -> Tensor:
    (x,) = wholes(graph, equation, [x])
    return graph.reshape(x, tuple(equation.params["new_sizes"]))


def _squeeze(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    shape = equation.outvars[0].aval.shape
    (x,) = wholes(graph, equation, [x])
    return graph.reshape(x, tuple(shape))


def _transpose(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    axes = equation.params["permutation"]
    return graph.transpose(ranked(graph, x, len(axes)), axes)


def _split(graph: Graph, equation: Any, x: Tensor) -> list[Tensor]:
    (x,), axis, start = wholes(graph, equation, [x]), equation.params["axis"], 0
    parts = []
    for size in map(int, equation.params["sizes"]):
        starts, ends = [0] * len(x.shape), list(x.shape)
        starts[axis], ends[axis] = start, start + size
        parts.append(graph.slice(x, starts, ends))
        start += size
    return parts


def _concatenate(graph: Graph, equation: Any, *parts: Tensor) -> Tensor:
    return graph.concatenate(wholes(graph, equation, parts), equation.params["dimension"])


def _stack(graph: Graph, equation: Any, *parts: Tensor) -> Tensor:
    axis, whole = equation.params["axis"], wholes(graph, equation, parts)
    axis %= len(whole[0].shape) + 1
    shape = (*whole[0].shape[:axis], 1, *whole[0].shape[axis:])
    return graph.concatenate([graph.reshape(x, shape) for x in whole], axis)


def _pad(graph: Graph, equation: Any, x: Tensor, value: Tensor) -> Tensor:
    (x,), padding = wholes(graph, equation, [x, value])[:1], equation.params["padding_config"]
    low, high = [before for before, _, _ in padding], [after for _, after, _ in padding]
    if value.array is None or min(*low, *high, 0) < 0 or any(gap for _, _, gap in padding):
        raise UnsupportedOperation(
            "the policy pads an array in a way that exported files do not have."
        )
    shape = tuple(equation.outvars[0].aval.shape)
    number = value.array.item()
    return graph.add("pad", x, shape=shape, before=low, after=high, value=number)


def _cummax(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return _accumulated(graph, equation, x, "maximum")


def _cumsum(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return _accumulated(graph, equation, x, "add")


def _accumulated(graph: Graph, equation: Any, x: Tensor, operation: str) -> Tensor:
    """The results so far of an operation along an axis."""
    (x,), axis = wholes(graph, equation, [x]), equation.params["axis"]
    size = x.shape[axis]
    if not is_static((size,)) or equation.params["reverse"]:
        raise UnsupportedOperation("the policy accumulates along an axis of unknown length.")
    parts: list[Tensor] = []
    for i in range(size):
        starts, ends = [0] * len(x.shape), list(x.shape)
        starts[axis], ends[axis] = i, i + 1
        part = graph.slice(x, starts, ends)
        parts.append(graph.elements(operation, parts[-1], part) if parts else part)
    return graph.concatenate(parts, axis)


RULES = {
    "rsqrt": _rsqrt,
    "square": _square,
    "integer_pow": _integer_pow,
    "exp2": _exp2,
    "expm1": _expm1,
    "log1p": _log1p,
    "erfc": _erfc,
    "round": _round,
    "clamp": _clamp,
    "select_n": _select_n,
    "convert_element_type": _convert_element_type,
    "broadcast_in_dim": _broadcast_in_dim,
    "reshape": _reshape,
    "squeeze": _squeeze,
    "transpose": _transpose,
    "split": _split,
    "concatenate": _concatenate,
    "stack": _stack,
    "pad": _pad,
    "cummax": _cummax,
    "cumsum": _cumsum,
    "expand_dims": _squeeze,
}
