"""A program as a list of operations that NumPy and ONNX share.

Arrays are NumPy's: operations of elements broadcast, and an array that a program repeats along new
axes stays as small as it is until an operation needs it whole. `OPERATIONS` says what each means.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

Shape = tuple[Any, ...]  # whole numbers, and sizes that depend on the number of observations

# Those of elements, as NumPy calls them; outputs of the second kind are truth values.
ARITHMETIC = (
    *("add", "subtract", "multiply", "divide", "maximum", "minimum", "power", "fmod"),
    *("negative", "abs", "exp", "log", "sqrt", "tanh", "sin", "cos", "sign", "floor", "ceil"),
    *("rint", "sigmoid", "erf", "round_to_bfloat16"),
)
COMPARISONS = (
    *("less", "less_equal", "greater", "greater_equal", "equal", "not_equal", "isfinite"),
    *("logical_and", "logical_or", "logical_xor", "logical_not"),
)
NEUTRAL = {"add": 0, "multiply": 1, "maximum": -np.inf, "minimum": np.inf}
# Others, with their attributes.
OPERATIONS = {
    "where": (),
    "cast": (),  # to the output's dtype
    "matmul": (),
    "reshape": (),  # to the output's shape
    "expand": (),  # np.broadcast_to
    "transpose": ("axes",),
    "slice": ("starts", "ends", "steps"),  # one for each axis
    "concatenate": ("axis",),
    "pad": ("before", "after", "value"),  # the first two for each axis
    "sum": ("axes",),  # as the next four, which drop the axes
    "max": ("axes",),
    "min": ("axes",),
    "prod": ("axes",),
    "any": ("axes",),
    "all": ("axes",),
    "argmax": ("axis",),  # the first one, int64
    "argmin": ("axis",),
    "take": ("axis",),  # np.take
    "take_along_axis": ("axis",),
    # Pictures [N, H, W, K]: `padding` is ((before, after), (before, after)).
    "max_pool": ("window", "strides", "padding"),
    "convolve": ("strides", "padding"),  # with a kernel [h, w, K, M]
}


@dataclasses.dataclass(eq=False)
class Tensor:
    """An array of a program; a constant has its `array`, and learnt ones a name."""

    shape: Shape
    dtype: np.dtype[Any]
    array: np.ndarray | None = None
    name: str = ""
    node: Node | None = None


@dataclasses.dataclass(eq=False)
class Node:
    """One operation."""

    operation: str
    inputs: tuple[Tensor, ...]
    attributes: dict[str, Any]
    output: Tensor


@dataclasses.dataclass
class Graph:
    """Operations from inputs to outputs, in order."""

    inputs: list[Tensor] = dataclasses.field(default_factory=list)
    outputs: list[Tensor] = dataclasses.field(default_factory=list)
    nodes: list[Node] = dataclasses.field(default_factory=list)

    def add(
        self, operation: str, *inputs: Tensor, shape: Shape, dtype: Any = None, **attributes: Any
    ) -> Tensor:
        """The output of a new operation; its dtype is by default that of the first input."""
        assert set(attributes) == set(OPERATIONS.get(operation, ())), operation
        output = Tensor(shape, np.dtype(dtype or inputs[0].dtype))
        output.node = Node(operation, inputs, attributes, output)
        self.nodes.append(output.node)
        return output

    def elements(self, operation: str, *inputs: Tensor) -> Tensor:
        """An operation of elements."""
        for x, y in (inputs, inputs[::-1]) if len(inputs) == 2 else ():
            number = y.array.item() if y.array is not None and y.shape == () else None
            if number is not None and number == NEUTRAL.get(operation):
                return x
        shape = broadcast(*(x.shape for x in inputs))
        dtype = inputs[-1].dtype if operation in ARITHMETIC else np.dtype(bool)
        return self.add(operation, *inputs, shape=shape, dtype=dtype)

    def where(self, condition: Tensor, x: Tensor, y: Tensor) -> Tensor:
        """Elements of `x` where the condition is true, else of `y`."""
        if condition.array is not None and condition.array.size == 1:
            return x if condition.array.item() else y
        shape = broadcast(condition.shape, x.shape, y.shape)
        return self.add("where", condition, x, y, shape=shape, dtype=x.dtype)

    def cast(self, x: Tensor, dtype: Any) -> Tensor:
        """`x` in another dtype."""
        if x.dtype == dtype:
            return x
        if x.array is not None:
            return constant(x.array.astype(dtype), x.name)
        return self.add("cast", x, shape=x.shape, dtype=dtype)

    def reshape(self, x: Tensor, shape: Shape) -> Tensor:
        """`x` in another shape."""
        if x.shape == shape:
            return x
        if x.array is not None and is_static(shape):
            return constant(x.array.reshape(shape), x.name)
        if x.node is not None and x.node.operation == "reshape":
            return self.reshape(x.node.inputs[0], shape)
        return self.add("reshape", x, shape=shape)

    def transpose(self, x: Tensor, axes: Sequence[int]) -> Tensor:
        """`x` with its axes in another order."""
        axes = tuple(axes)
        if axes == tuple(range(len(axes))):
            return x
        if x.array is not None:
            return constant(np.ascontiguousarray(x.array.transpose(axes)), x.name)
        return self.add("transpose", x, shape=tuple(x.shape[axis] for axis in axes), axes=axes)

    def expand(self, x: Tensor, shape: Shape) -> Tensor:
        """`x` repeated to a whole shape."""
        if x.shape == shape:
            return x
        if x.array is not None and is_static(shape):
            return constant(np.broadcast_to(x.array, shape), x.name)
        return self.add("expand", x, shape=shape)

    def slice(
        self,
        x: Tensor,
        starts: Sequence[Any],
        ends: Sequence[Any],
        steps: Sequence[int] | None = None,
    ) -> Tensor:
        """A part of each axis."""
        steps = tuple(steps or [1] * len(x.shape))
        bounds = zip(x.shape, starts, ends, steps, strict=True)
        if all(start == 0 and end == size and step == 1 for size, start, end, step in bounds):
            return x
        shape = tuple(
            end - start if step == 1 else -((start - end) // step)
            for start, end, step in zip(starts, ends, steps, strict=True)
        )
        return self.add(
            "slice", x, shape=shape, starts=tuple(starts), ends=tuple(ends), steps=steps
        )

    def concatenate(self, parts: Sequence[Tensor], axis: int) -> Tensor:
        """Arrays side by side."""
        parts = [part for part in parts if part.shape[axis] != 0]
        if len(parts) == 1:
            return parts[0]
        shape = list(parts[0].shape)
        shape[axis] = sum(part.shape[axis] for part in parts)
        return self.add("concatenate", *parts, shape=tuple(shape), axis=axis)

    def finished(self) -> Graph:
        """Without the operations that no output needs."""
        needed, nodes = {id(x) for x in self.outputs}, []
        for node in reversed(self.nodes):
            if id(node.output) in needed:
                needed |= {id(x) for x in node.inputs}
                nodes.append(node)
        return Graph(self.inputs, self.outputs, nodes[::-1])

    def constants(self) -> Iterator[Tensor]:
        """The constants, in their order."""
        everything = [x for node in self.nodes for x in node.inputs] + self.outputs
        yield from {id(x): x for x in everything if x.array is not None}.values()


def constant(array: Any, name: str = "") -> Tensor:
    """A constant."""
    array = np.asarray(array)
    return Tensor(array.shape, array.dtype, array, name)


def is_static(shape: Shape) -> bool:
    """Whether no size depends on the number of observations."""
    return all(isinstance(size, (int, np.integer)) for size in shape)


def broadcast(*shapes: Shape) -> Shape:
    """The shape of an operation of elements."""
    rank = max(map(len, shapes))
    sizes = []
    for axis in range(-rank, 0):
        present = [shape[axis] for shape in shapes if len(shape) >= -axis]
        sizes.append(next((size for size in present if not _is_one(size)), 1))
    return tuple(sizes)


def _is_one(size: Any) -> bool:
    return isinstance(size, (int, np.integer)) and size == 1


def product(sizes: Sequence[Any]) -> Any:
    """The number of elements."""
    return math.prod(sizes)
