"""Reductions, products, convolutions."""

from __future__ import annotations

from typing import Any

import numpy as np

from rljax.runs.export.graph import Graph, Tensor, product
from rljax.runs.export.lowering.operands import UnsupportedOperation, wholes

REDUCTIONS = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_or": "any",
    "reduce_and": "all",
}


def reduce(graph: Graph, operation: str, equation: Any, x: Tensor) -> Tensor:
    """An operation over axes."""
    (x,), axes = wholes(graph, equation, [x]), tuple(equation.params["axes"])
    shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
    return graph.add(operation, x, shape=shape, axes=axes) if axes else x


def _argmax(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return _place(graph, equation, x, "argmax")


def _argmin(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    return _place(graph, equation, x, "argmin")


def _dot_general(graph: Graph, equation: Any, x: Tensor, y: Tensor) -> Tensor:
    (over_x, over_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
    x, y = wholes(graph, equation, [x, y])
    free_x = [i for i in range(len(x.shape)) if i not in (*over_x, *batch_x)]
    free_y = [i for i in range(len(y.shape)) if i not in (*over_y, *batch_y)]
    x = graph.transpose(x, [*batch_x, *free_x, *over_x])
    y = graph.transpose(y, [*batch_y, *over_y, *free_y])
    batch, rank = x.shape[: len(batch_x)], len(batch_x)
    rows, columns = x.shape[rank : rank + len(free_x)], y.shape[rank + len(over_y) :]
    inside = product(x.shape[rank + len(free_x) :])
    # A matrix serves any number of rows' axes.
    flat_rows = rows if not batch and rows else (product(rows),)
    x = graph.reshape(x, (*batch, *flat_rows, inside))
    y = graph.reshape(y, (*batch, inside, product(columns)))
    shape = (*batch, *flat_rows, product(columns))
    result = graph.add("matmul", x, y, shape=shape, dtype=np.float32)
    return graph.reshape(result, (*batch, *rows, *columns))


def _conv_general_dilated(graph: Graph, equation: Any, x: Tensor, kernel: Tensor) -> Tensor:
    parameters, numbers = equation.params, equation.params["dimension_numbers"]
    dilations = (*parameters["lhs_dilation"], *parameters["rhs_dilation"])
    groups = (parameters["feature_group_count"], parameters["batch_group_count"])
    if any(number != 1 for number in (*dilations, *groups)) or len(x.shape) != 4:
        raise UnsupportedOperation(
            "exported policies have no dilated, grouped or other convolutions."
        )
    x, kernel = wholes(graph, equation, [x, kernel])
    first, second, *spatial = numbers.lhs_spec
    x = graph.transpose(x, [first, *spatial, second])
    outside, inside, *spatial = numbers.rhs_spec
    kernel = graph.transpose(kernel, [*spatial, inside, outside])
    whole = equation.outvars[0].aval.shape
    order = numbers.out_spec
    shape = tuple(whole[order[i]] for i in (0, 2, 3, 1))
    result = graph.add(
        "convolve",
        x,
        kernel,
        shape=shape,
        strides=tuple(parameters["window_strides"]),
        padding=tuple(map(tuple, parameters["padding"])),
    )
    places = (order[0], order[2], order[3], order[1])
    return graph.transpose(result, np.argsort(places).tolist())


def _reduce_window_max(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    (x,), parameters = wholes(graph, equation, [x]), equation.params
    window, strides = parameters["window_dimensions"], parameters["window_strides"]
    padding = parameters["padding"]
    dilations = (*parameters["base_dilation"], *parameters["window_dilation"])
    outer = (
        [(window[i], strides[i], tuple(padding[i])) for i in (0, 3)] if (len(window) == 4) else []
    )
    if outer != [(1, 1, (0, 0))] * 2 or any(number != 1 for number in dilations):
        raise UnsupportedOperation(
            "exported policies pool over the height and width of pictures only."
        )
    return graph.add(
        "max_pool",
        x,
        shape=tuple(equation.outvars[0].aval.shape),
        window=tuple(window[1:3]),
        strides=tuple(strides[1:3]),
        padding=tuple(map(tuple, padding[1:3])),
    )


def _place(graph: Graph, equation: Any, x: Tensor, operation: str) -> Tensor:
    (x,), (axis,) = wholes(graph, equation, [x]), equation.params["axes"]
    shape = x.shape[:axis] + x.shape[axis + 1 :]
    place = graph.add(operation, x, shape=shape, dtype=np.int64, axis=axis)
    return graph.cast(place, np.dtype(equation.params["index_dtype"]))


RULES = {
    "argmax": _argmax,
    "argmin": _argmin,
    "dot_general": _dot_general,
    "conv_general_dilated": _conv_general_dilated,
    "reduce_window_max": _reduce_window_max,
}
