"""Parts of arrays by their indices."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from rljax.runs.export.graph import Graph, Tensor, is_static, product
from rljax.runs.export.lowering.operands import UnsupportedOperation, known_array, wholes


def _slice(graph: Graph, equation: Any, x: Tensor) -> Tensor:
    (x,), parameters = wholes(graph, equation, [x]), equation.params
    starts, ends = parameters["start_indices"], parameters["limit_indices"]
    return graph.slice(x, starts, ends, parameters["strides"])


def _dynamic_slice(graph: Graph, equation: Any, x: Tensor, *starts: Tensor) -> Tensor:
    (x,) = wholes(graph, equation, [x, *starts])[:1]
    places = [known_array(start) for start in starts]
    if any(place is None for place in places):
        raise UnsupportedOperation(
            "the policy cuts out a part whose place depends on the observation."
        )
    sizes = equation.params["slice_sizes"]
    return _cut(graph, x, [int(place) for place in places], sizes)


def _gather(graph: Graph, equation: Any, x: Tensor, indices: Tensor) -> Tensor:
    numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
    x, indices = wholes(graph, equation, [x, indices])
    mapped, dropped = numbers.start_index_map, numbers.collapsed_slice_dims
    batch = numbers.operand_batching_dims
    if indices.array is not None and indices.array.ndim == 1 and not batch:
        starts = [0] * len(x.shape)
        for axis, start in zip(mapped, indices.array.tolist(), strict=True):
            starts[axis] = start
        part = _cut(graph, x, starts, sizes)
        kept = [size for axis, size in enumerate(part.shape) if axis not in dropped]
        return graph.reshape(part, tuple(kept))
    offsets = [axis for axis in range(len(x.shape)) if axis not in (*dropped, *batch)]
    whole = all(sizes[axis] == x.shape[axis] for axis in offsets)
    if len(mapped) != 1 or tuple(dropped) != tuple(mapped) or not whole:
        raise UnsupportedOperation(
            "the policy reads an array at places that exported files cannot."
        )
    (axis,) = mapped
    indices = graph.reshape(indices, indices.shape[:-1])
    if not batch:
        shape = (*x.shape[:axis], *indices.shape, *x.shape[axis + 1 :])
        result = graph.add("take", x, indices, shape=shape, axis=axis)
        moved = [*range(axis, axis + len(indices.shape))]
        others = [i for i in range(len(shape)) if i not in moved]
    else:
        if tuple(numbers.start_indices_batching_dims) != tuple(range(len(batch))):
            raise UnsupportedOperation(
                "the policy reads an array at places that exported files cannot."
            )
        x = graph.transpose(x, [*batch, axis, *offsets])
        rank, places = len(batch), indices.shape[len(batch) :]
        flat = graph.reshape(indices, (*indices.shape[:rank], product(places), *[1] * len(offsets)))
        rows = (*x.shape[:rank], product(places), *x.shape[rank + 1 :])
        result = graph.add("take_along_axis", x, flat, shape=rows, axis=rank)
        shape = (*x.shape[:rank], *places, *x.shape[rank + 1 :])
        result = graph.reshape(result, shape)
        moved = [*range(rank + len(places))]
        others = [*range(len(moved), len(shape))]
    behind = [i for i in range(len(shape)) if i not in numbers.offset_dims]
    order = [0] * len(shape)
    for place, source in zip((*numbers.offset_dims, *behind), (*others, *moved), strict=True):
        order[place] = source
    return graph.transpose(result, order)


def _scatter(graph: Graph, equation: Any, x: Tensor, indices: Tensor, update: Tensor) -> Tensor:
    return _written(graph, equation, x, indices, update, add=False)


def _scatter_add(graph: Graph, equation: Any, x: Tensor, indices: Tensor, update: Tensor) -> Tensor:
    return _written(graph, equation, x, indices, update, add=True)


def _cut(graph: Graph, x: Tensor, starts: Sequence[int], sizes: Sequence[Any]) -> Tensor:
    # As JAX does with places beyond the ends.
    starts = [
        min(max(start, 0), whole - size) if is_static((whole, size)) else start
        for start, whole, size in zip(starts, x.shape, sizes, strict=True)
    ]
    ends = [start + size for start, size in zip(starts, sizes, strict=True)]
    return graph.slice(x, starts, ends)


def _written(
    graph: Graph, equation: Any, x: Tensor, indices: Tensor, update: Tensor, add: bool
) -> Tensor:
    """An array with another part along one axis, at a known place."""
    numbers = equation.params["dimension_numbers"]
    x, indices, update = wholes(graph, equation, [x, indices, update])
    axes = numbers.scatter_dims_to_operand_dims
    place, is_simple = indices.array, len(axes) == 1 and not numbers.operand_batching_dims
    if place is None or place.size != 1 or not is_simple:
        raise UnsupportedOperation("the policy writes into an array at a place that is not known.")
    (axis,), start = axes, int(place.item())
    shape = list(update.shape)
    for inserted in numbers.inserted_window_dims:
        shape.insert(inserted, 1)
    update = graph.reshape(update, tuple(shape))
    sides = []
    for first, last in ((0, start), (start, start + shape[axis]), (start + shape[axis], None)):
        starts, ends = [0] * len(x.shape), list(x.shape)
        starts[axis], ends[axis] = first, ends[axis] if last is None else last
        sides.append((starts, ends))
    before, middle, after = (
        None if ends[axis] - starts[axis] == 0 else graph.slice(x, starts, ends)
        for starts, ends in sides
    )
    if add and middle is not None:
        update = graph.elements("add", middle, update)
    parts = [part for part in (before, update, after) if part is not None]
    return graph.concatenate(parts, axis)


RULES = {
    "slice": _slice,
    "dynamic_slice": _dynamic_slice,
    "gather": _gather,
    "scatter": _scatter,
    "scatter-add": _scatter_add,
}
