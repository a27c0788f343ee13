"""From JAX's programs to the operations of `graph`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.runs.export import draws
from rljax.runs.export.graph import Graph, Tensor, broadcast, constant, is_static, product

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
REDUCTIONS = {
    "reduce_sum": "sum",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_prod": "prod",
    "reduce_or": "any",
    "reduce_and": "all",
}
SAME = ("stop_gradient", "copy", "copy_p", "optimization_barrier", "reduce_precision", "pvary")


class Complex(NamedTuple):
    """A complex array by its parts."""

    real: Tensor
    imaginary: Tensor


class UnsupportedOperation(ValueError):
    """An operation that exported files do not have."""


def lowered(closed: Any, learnt: Mapping[str, Any], inputs: Sequence[str]) -> Graph:
    """The graph of a program, whose first inputs are `learnt`, and the others called `inputs`.

    What depends on no input is computed here. Raises `UnsupportedOperation`.
    """
    graph = Graph()
    arrays: list[Any] = [_of_array(x, name) for name, x in learnt.items()]
    for variable, name in zip(closed.jaxpr.invars[len(arrays) :], inputs, strict=True):
        tensor = Tensor(variable.aval.shape, np.dtype(variable.aval.dtype), name=name)
        graph.inputs.append(tensor)
        arrays.append(tensor)
    outputs = _Lowering(graph).run(closed, arrays)
    for variable, x in zip(closed.jaxpr.outvars, outputs, strict=True):
        whole = _Lowering(graph).whole(x, variable.aval.shape)
        graph.outputs.append(whole)
    return graph.finished()


def _of_array(x: Any, name: str = "") -> Any:
    """A constant; keys of random numbers and complex arrays stay what they are."""
    if jax.numpy.issubdtype(getattr(x, "dtype", np.float32), jax.dtypes.prng_key):
        return x
    array: Any = np.asarray(x)
    if array.dtype.kind == "c":
        return Complex(constant(array.real, name), constant(array.imag, name))
    if array.dtype == jax.numpy.bfloat16:
        array = array.astype(np.float32)
    return constant(array, name)


def _shrunk(x: Any) -> Any:
    """One number in place of a constant without a name that repeats it."""
    array = x.array if isinstance(x, Tensor) and not x.name else None
    if array is None or array.size == 0 or (array != array.flat[0]).any():
        return x
    return constant(array.flat[0])


def _known(x: Any) -> Any:
    """The array of a constant, or None."""
    if isinstance(x, Complex):
        real, imaginary = x.real.array, x.imaginary.array
        return None if real is None or imaginary is None else real + 1j * imaginary
    return x.array if isinstance(x, Tensor) else x


class _Lowering:
    def __init__(self, graph: Graph) -> None:
        self.graph = graph

    def run(self, closed: Any, arrays: Sequence[Any]) -> list[Any]:
        """The outputs of a program."""
        values: dict[Any, Any] = dict(zip(closed.jaxpr.invars, arrays, strict=True))
        for variable, x in zip(closed.jaxpr.constvars, closed.consts, strict=True):
            values[variable] = _of_array(x)

        def read(variable: Any) -> Any:
            return _of_array(variable.val) if hasattr(variable, "val") else values[variable]

        for equation in closed.jaxpr.eqns:
            outputs = self.equation(equation, [read(variable) for variable in equation.invars])
            values.update(zip(equation.outvars, outputs, strict=True))
        return [read(variable) for variable in closed.jaxpr.outvars]

    def equation(self, equation: Any, inputs: list[Any]) -> Sequence[Any]:
        """The outputs of one equation."""
        name, body = equation.primitive.name, draws.body_of(equation)
        if body is not None:
            return self.run(body, inputs)
        if name in ("scan", "cond"):
            return getattr(self, f"_{name}")(equation, inputs)
        outputs = self._computed(equation, inputs)
        if outputs is not None:
            return outputs
        inputs = [_shrunk(x) for x in inputs]
        if any(isinstance(x, Complex) for x in inputs) or name == "complex":
            return [self._of_complex(equation, inputs)]
        output = self._apply(equation, name, inputs)
        return output if isinstance(output, list) else [output]

    def _computed(self, equation: Any, inputs: list[Any]) -> list[Any] | None:
        """The outputs, where they depend on no input."""
        arrays = [_known(x) for x in inputs]
        shapes = [variable.aval.shape for variable in equation.outvars]
        known = all(x is not None for x in arrays)
        if not known or not all(map(is_static, shapes)):
            return None
        if not all(is_static(variable.aval.shape) for variable in equation.invars):
            return None
        whole = []
        for variable, x in zip(equation.invars, arrays, strict=True):
            is_key = jax.numpy.issubdtype(variable.aval.dtype, jax.dtypes.prng_key)
            same = x if is_key else np.broadcast_to(x, variable.aval.shape)
            whole.append(same if is_key else jax.numpy.asarray(same, variable.aval.dtype))
        names = [x.name for x in inputs if isinstance(x, Tensor) and x.name]
        name = f"{names[0]}/{equation.primitive.name}" if names else ""
        name = names[0] if names and equation.primitive.name in _REARRANGING else name
        return [_of_array(x, name) for x in draws.bound(equation, whole)]

    def whole(self, x: Tensor, shape: Sequence[Any]) -> Tensor:
        """`x` in the shape that the program says."""
        return self.graph.expand(self._ranked(x, len(shape)), tuple(shape))

    def _ranked(self, x: Tensor, rank: int) -> Tensor:
        """With axes of size 1 in front."""
        return self.graph.reshape(x, (1,) * (rank - len(x.shape)) + x.shape)

    def _wholes(self, equation: Any, inputs: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(inputs, equation.invars, strict=True)
        return [self.whole(x, variable.aval.shape) for x, variable in pairs]

    def _apply(self, equation: Any, name: str, inputs: list[Any]) -> Any:
        if name in _REARRANGING and inputs[0].array is not None and inputs[0].shape == ():
            return inputs[0]
        if name in SAME:
            return list(inputs) if len(equation.outvars) > 1 else inputs[0]
        if name == "div" and inputs[0].dtype.kind != "f":
            raise UnsupportedOperation("exported policies cannot divide whole numbers.")
        if name in ELEMENTS:
            return self.graph.elements(ELEMENTS[name], *inputs)
        if name in TRUTH:
            if any(x.dtype != bool for x in inputs):
                raise UnsupportedOperation(f"exported policies cannot combine bits ('{name}').")
            return self.graph.elements(TRUTH[name], *inputs)
        if name in REDUCTIONS:
            return self._reduce(REDUCTIONS[name], equation, inputs[0])
        method = getattr(self, f"_{name.replace('-', '_')}", None)
        if method is None:
            raise UnsupportedOperation(
                f"the policy uses JAX's operation '{name}', which exported files do not have. "
                "StableHLO has all of them: --to stablehlo"
            )
        return method(equation, *inputs)

    # Elements.

    def _scalar(self, value: float, like: Tensor) -> Tensor:
        return constant(np.asarray(value, like.dtype))

    def _rsqrt(self, equation: Any, x: Tensor) -> Tensor:
        root = self.graph.elements("sqrt", x)
        return self.graph.elements("divide", self._scalar(1, x), root)

    def _square(self, equation: Any, x: Tensor) -> Tensor:
        return self.graph.elements("multiply", x, x)

    def _integer_pow(self, equation: Any, x: Tensor) -> Tensor:
        exponent = equation.params["y"]
        if exponent not in (2, 3, 4):
            return self.graph.elements("power", x, self._scalar(exponent, x))
        square = self.graph.elements("multiply", x, x)
        if exponent == 2:
            return square
        return self.graph.elements("multiply", square, x if exponent == 3 else square)

    def _exp2(self, equation: Any, x: Tensor) -> Tensor:
        scaled = self.graph.elements("multiply", x, self._scalar(math.log(2.0), x))
        return self.graph.elements("exp", scaled)

    def _expm1(self, equation: Any, x: Tensor) -> Tensor:
        exponential = self.graph.elements("exp", x)
        return self.graph.elements("subtract", exponential, self._scalar(1, x))

    def _log1p(self, equation: Any, x: Tensor) -> Tensor:
        return self.graph.elements("log", self.graph.elements("add", x, self._scalar(1, x)))

    def _erfc(self, equation: Any, x: Tensor) -> Tensor:
        return self.graph.elements("subtract", self._scalar(1, x), self.graph.elements("erf", x))

    def _round(self, equation: Any, x: Tensor) -> Tensor:
        if "EVEN" not in str(equation.params["rounding_method"]):
            raise UnsupportedOperation("exported policies round halves to even numbers only.")
        return self.graph.elements("rint", x)

    def _clamp(self, equation: Any, low: Tensor, x: Tensor, high: Tensor) -> Tensor:
        above = self.graph.add("maximum", x, low, shape=broadcast(x.shape, low.shape))
        return self.graph.add("minimum", above, high, shape=broadcast(above.shape, high.shape))

    def _select_n(self, equation: Any, which: Tensor, *cases: Tensor) -> Tensor:
        if which.dtype == bool:
            return self.graph.where(which, cases[1], cases[0])
        return self._chosen(which, cases)

    def _chosen(self, which: Tensor, cases: Sequence[Tensor]) -> Tensor:
        result = cases[-1]
        for index in range(len(cases) - 2, -1, -1):
            is_it = self.graph.elements("equal", which, self._scalar(index, which))
            result = self.graph.where(is_it, cases[index], result)
        return result

    def _convert_element_type(self, equation: Any, x: Tensor) -> Tensor:
        dtype = equation.params["new_dtype"]
        if dtype == jax.numpy.bfloat16:
            return self.graph.elements("round_to_bfloat16", self.graph.cast(x, np.float32))
        return self.graph.cast(x, np.dtype(dtype))

    # Shapes.

    def _broadcast_in_dim(self, equation: Any, x: Tensor, *_: Any) -> Tensor:
        shape = equation.params["shape"]
        places = equation.params["broadcast_dimensions"]
        x = self._ranked(x, len(places))
        sizes: list[Any] = [1] * len(shape)
        for place, size in zip(places, x.shape, strict=True):
            sizes[place] = size
        first = next((i for i, place in enumerate(range(len(shape))) if place in places), 0)
        return self.graph.reshape(x, tuple(sizes[first:] if places else ()))

    def _reshape(self, equation: Any, x: Tensor, *_: Any) -> Tensor:
        (x,) = self._wholes(equation, [x])
        return self.graph.reshape(x, tuple(equation.params["new_sizes"]))

    def _squeeze(self, equation: Any, x: Tensor) -> Tensor:
        shape = equation.outvars[0].aval.shape
        (x,) = self._wholes(equation, [x])
        return self.graph.reshape(x, tuple(shape))

    _expand_dims = _squeeze

    def _transpose(self, equation: Any, x: Tensor) -> Tensor:
        axes = equation.params["permutation"]
        return self.graph.transpose(self._ranked(x, len(axes)), axes)

    def _slice(self, equation: Any, x: Tensor) -> Tensor:
        (x,), parameters = self._wholes(equation, [x]), equation.params
        starts, ends = parameters["start_indices"], parameters["limit_indices"]
        return self.graph.slice(x, starts, ends, parameters["strides"])

    def _dynamic_slice(self, equation: Any, x: Tensor, *starts: Tensor) -> Tensor:
        (x,) = self._wholes(equation, [x, *starts])[:1]
        places = [_known(start) for start in starts]
        if any(place is None for place in places):
            raise UnsupportedOperation(
                "the policy cuts out a part whose place depends on the observation."
            )
        sizes = equation.params["slice_sizes"]
        return self._cut(x, [int(place) for place in places], sizes)

    def _cut(self, x: Tensor, starts: Sequence[int], sizes: Sequence[Any]) -> Tensor:
        # As JAX does with places beyond the ends.
        starts = [
            min(max(start, 0), whole - size) if is_static((whole, size)) else start
            for start, whole, size in zip(starts, x.shape, sizes, strict=True)
        ]
        ends = [start + size for start, size in zip(starts, sizes, strict=True)]
        return self.graph.slice(x, starts, ends)

    def _split(self, equation: Any, x: Tensor) -> list[Tensor]:
        (x,), axis, start = self._wholes(equation, [x]), equation.params["axis"], 0
        parts = []
        for size in map(int, equation.params["sizes"]):
            starts, ends = [0] * len(x.shape), list(x.shape)
            starts[axis], ends[axis] = start, start + size
            parts.append(self.graph.slice(x, starts, ends))
            start += size
        return parts

    def _concatenate(self, equation: Any, *parts: Tensor) -> Tensor:
        return self.graph.concatenate(self._wholes(equation, parts), equation.params["dimension"])

    def _stack(self, equation: Any, *parts: Tensor) -> Tensor:
        axis, whole = equation.params["axis"], self._wholes(equation, parts)
        axis %= len(whole[0].shape) + 1
        shape = (*whole[0].shape[:axis], 1, *whole[0].shape[axis:])
        return self.graph.concatenate([self.graph.reshape(x, shape) for x in whole], axis)

    def _pad(self, equation: Any, x: Tensor, value: Tensor) -> Tensor:
        (x,), padding = self._wholes(equation, [x, value])[:1], equation.params["padding_config"]
        low, high = [before for before, _, _ in padding], [after for _, after, _ in padding]
        if value.array is None or min(*low, *high, 0) < 0 or any(gap for _, _, gap in padding):
            raise UnsupportedOperation(
                "the policy pads an array in a way that exported files do not have."
            )
        shape = tuple(equation.outvars[0].aval.shape)
        number = value.array.item()
        return self.graph.add("pad", x, shape=shape, before=low, after=high, value=number)

    def _cummax(self, equation: Any, x: Tensor) -> Tensor:
        return self._along(equation, x, "maximum")

    def _cumsum(self, equation: Any, x: Tensor) -> Tensor:
        return self._along(equation, x, "add")

    def _along(self, equation: Any, x: Tensor, operation: str) -> Tensor:
        """The results so far of an operation along an axis."""
        (x,), axis = self._wholes(equation, [x]), equation.params["axis"]
        size = x.shape[axis]
        if not is_static((size,)) or equation.params["reverse"]:
            raise UnsupportedOperation("the policy accumulates along an axis of unknown length.")
        parts: list[Tensor] = []
        for i in range(size):
            starts, ends = [0] * len(x.shape), list(x.shape)
            starts[axis], ends[axis] = i, i + 1
            part = self.graph.slice(x, starts, ends)
            parts.append(self.graph.elements(operation, parts[-1], part) if parts else part)
        return self.graph.concatenate(parts, axis)

    # Reductions and products.

    def _reduce(self, operation: str, equation: Any, x: Tensor) -> Tensor:
        (x,), axes = self._wholes(equation, [x]), tuple(equation.params["axes"])
        shape = tuple(size for axis, size in enumerate(x.shape) if axis not in axes)
        return self.graph.add(operation, x, shape=shape, axes=axes) if axes else x

    def _argmax(self, equation: Any, x: Tensor) -> Tensor:
        return self._place(equation, x, "argmax")

    def _argmin(self, equation: Any, x: Tensor) -> Tensor:
        return self._place(equation, x, "argmin")

    def _place(self, equation: Any, x: Tensor, operation: str) -> Tensor:
        (x,), (axis,) = self._wholes(equation, [x]), equation.params["axes"]
        shape = x.shape[:axis] + x.shape[axis + 1 :]
        place = self.graph.add(operation, x, shape=shape, dtype=np.int64, axis=axis)
        return self.graph.cast(place, np.dtype(equation.params["index_dtype"]))

    def _dot_general(self, equation: Any, x: Tensor, y: Tensor) -> Tensor:
        (over_x, over_y), (batch_x, batch_y) = equation.params["dimension_numbers"]
        x, y = self._wholes(equation, [x, y])
        graph = self.graph
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

    def _conv_general_dilated(self, equation: Any, x: Tensor, kernel: Tensor) -> Tensor:
        parameters, numbers = equation.params, equation.params["dimension_numbers"]
        dilations = (*parameters["lhs_dilation"], *parameters["rhs_dilation"])
        groups = (parameters["feature_group_count"], parameters["batch_group_count"])
        if any(number != 1 for number in (*dilations, *groups)) or len(x.shape) != 4:
            raise UnsupportedOperation(
                "exported policies have no dilated, grouped or other convolutions."
            )
        x, kernel = self._wholes(equation, [x, kernel])
        first, second, *spatial = numbers.lhs_spec
        x = self.graph.transpose(x, [first, *spatial, second])
        outside, inside, *spatial = numbers.rhs_spec
        kernel = self.graph.transpose(kernel, [*spatial, inside, outside])
        whole = equation.outvars[0].aval.shape
        order = numbers.out_spec
        shape = tuple(whole[order[i]] for i in (0, 2, 3, 1))
        result = self.graph.add(
            "convolve",
            x,
            kernel,
            shape=shape,
            strides=tuple(parameters["window_strides"]),
            padding=tuple(map(tuple, parameters["padding"])),
        )
        places = (order[0], order[2], order[3], order[1])
        return self.graph.transpose(result, np.argsort(places).tolist())

    def _reduce_window_max(self, equation: Any, x: Tensor) -> Tensor:
        (x,), parameters = self._wholes(equation, [x]), equation.params
        window, strides = parameters["window_dimensions"], parameters["window_strides"]
        padding = parameters["padding"]
        dilations = (*parameters["base_dilation"], *parameters["window_dilation"])
        outer = (
            [(window[i], strides[i], tuple(padding[i])) for i in (0, 3)]
            if (len(window) == 4)
            else []
        )
        if outer != [(1, 1, (0, 0))] * 2 or any(number != 1 for number in dilations):
            raise UnsupportedOperation(
                "exported policies pool over the height and width of pictures only."
            )
        return self.graph.add(
            "max_pool",
            x,
            shape=tuple(equation.outvars[0].aval.shape),
            window=tuple(window[1:3]),
            strides=tuple(strides[1:3]),
            padding=tuple(map(tuple, padding[1:3])),
        )

    # Indices.

    def _gather(self, equation: Any, x: Tensor, indices: Tensor) -> Tensor:
        numbers, sizes = equation.params["dimension_numbers"], equation.params["slice_sizes"]
        x, indices = self._wholes(equation, [x, indices])
        mapped, dropped = numbers.start_index_map, numbers.collapsed_slice_dims
        batch, graph = numbers.operand_batching_dims, self.graph
        if indices.array is not None and indices.array.ndim == 1 and not batch:
            starts = [0] * len(x.shape)
            for axis, start in zip(mapped, indices.array.tolist(), strict=True):
                starts[axis] = start
            part = self._cut(x, starts, sizes)
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
            flat = graph.reshape(
                indices, (*indices.shape[:rank], product(places), *[1] * len(offsets))
            )
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

    def _scatter(self, equation: Any, x: Tensor, indices: Tensor, update: Tensor) -> Tensor:
        return self._written(equation, x, indices, update, add=False)

    def _scatter_add(self, equation: Any, x: Tensor, indices: Tensor, update: Tensor) -> Tensor:
        return self._written(equation, x, indices, update, add=True)

    def _written(
        self, equation: Any, x: Tensor, indices: Tensor, update: Tensor, add: bool
    ) -> Tensor:
        """An array with another part along one axis, at a known place."""
        numbers, graph = equation.params["dimension_numbers"], self.graph
        x, indices, update = self._wholes(equation, [x, indices, update])
        axes = numbers.scatter_dims_to_operand_dims
        place, is_simple = indices.array, len(axes) == 1 and not numbers.operand_batching_dims
        if place is None or place.size != 1 or not is_simple:
            raise UnsupportedOperation(
                "the policy writes into an array at a place that is not known."
            )
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

    # Branches and loops.

    def _cond(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """All branches, and the outputs of the right one."""
        which, *others = inputs
        branches = equation.params["branches"]
        if _known(which) is not None:
            return self.run(branches[int(_known(which))], others)
        outputs = [self.run(branch, others) for branch in branches]
        return [self._chosen(which, cases) for cases in zip(*outputs, strict=True)]

    def _scan(self, equation: Any, inputs: list[Any]) -> list[Any]:
        """All rounds, one after another."""
        parameters = equation.params
        consts, carried = _sizes_of_scan(parameters)
        constants, carry = inputs[:consts], inputs[consts : consts + carried]
        rows = [_shrunk(x) for x in inputs[consts + carried :]]
        avals = [variable.aval for variable in equation.invars[consts + carried :]]
        body, length = parameters["jaxpr"], parameters["length"]
        order = range(length)[:: -1 if parameters["reverse"] else 1]
        stacked: dict[int, list[Any]] = {}
        for i in order:
            row = [self._row(x, aval, i) for x, aval in zip(rows, avals, strict=True)]
            outputs = self.run(body, [*constants, *carry, *row])
            carry, stacked[i] = outputs[:carried], outputs[carried:]
        shapes = [variable.aval.shape for variable in equation.outvars[carried:]]
        results = []
        for k, shape in enumerate(shapes):
            parts = [self.whole(stacked[i][k], shape[1:]) for i in range(length)]
            expanded = [self.graph.reshape(x, (1, *shape[1:])) for x in parts]
            results.append(self.graph.concatenate(expanded, 0))
        return [*carry, *results]

    def _row(self, x: Any, aval: Any, index: int) -> Any:
        if isinstance(x, Complex):
            return Complex(*(self._row(part, aval, index) for part in x))
        if x.array is not None and x.shape == ():
            return x
        whole = self.whole(x, aval.shape)
        if whole.array is not None:
            return constant(whole.array[index], whole.name)
        starts, ends = [0] * len(whole.shape), list(whole.shape)
        starts[0], ends[0] = index, index + 1
        return self.graph.reshape(self.graph.slice(whole, starts, ends), tuple(aval.shape[1:]))

    # Complex numbers.

    def _of_complex(self, equation: Any, inputs: list[Any]) -> Any:
        name, graph = equation.primitive.name, self.graph
        if name == "complex":
            return Complex(*inputs)
        if name in ("real", "imag"):
            return inputs[0][name == "imag"]
        if name == "mul":
            (a, b), (c, d) = (x if isinstance(x, Complex) else (x, None) for x in inputs)

            def times(x: Any, y: Any) -> Any:
                return None if x is None or y is None else graph.elements("multiply", x, y)

            real, imaginary = times(a, c), times(b, d)
            both = [part for part in (times(a, d), times(b, c)) if part is not None]
            real = real if imaginary is None else graph.elements("subtract", real, imaginary)
            return Complex(real, both[0] if len(both) == 1 else graph.elements("add", *both))
        if name not in _LINEAR:
            raise UnsupportedOperation(f"exported policies have no '{name}' of complex numbers.")
        parts = []
        for side in (0, 1):
            each = [x[side] if isinstance(x, Complex) else x for x in inputs]
            parts.append(self._apply(equation, name, each))
        return Complex(*parts)


def _sizes_of_scan(parameters: Mapping[str, Any]) -> tuple[int, int]:
    """The numbers of a scan's constants and of its carried arrays."""
    if "num_consts" in parameters:  # before JAX 0.12
        return parameters["num_consts"], parameters["num_carry"]
    constants, carry, _ = parameters["ft_in"].unpack()
    return len(constants.vals), len(carry.vals)


_REARRANGING = ("reshape", "transpose", "broadcast_in_dim", "squeeze", "copy", "expand_dims")
# Complex arrays' parts go through these side by side.
_LINEAR = (
    *("add", "sub", "neg", "reduce_sum", "slice", "gather", "scatter", "scatter-add"),
    *("concatenate", "stack", "select_n", "reshape", "transpose", "broadcast_in_dim", "squeeze"),
    *("expand_dims", "dynamic_slice", "copy", "stop_gradient", "pad"),
)
