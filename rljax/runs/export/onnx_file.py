"""A policy as an ONNX model."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.runs.export.graph import Graph, Node, Tensor, is_static
from rljax.runs.export.program import Program
from rljax.runs.export.translation import BATCH, NamedArray
from rljax.system.packages import install_command

OPSET, FORMAT = 18, 9  # read by onnxruntime from 1.16 on
SIMPLE = {
    "add": "Add",
    "subtract": "Sub",
    "multiply": "Mul",
    "divide": "Div",
    "maximum": "Max",
    "minimum": "Min",
    "power": "Pow",
    "negative": "Neg",
    "abs": "Abs",
    "exp": "Exp",
    "log": "Log",
    "sqrt": "Sqrt",
    "tanh": "Tanh",
    "sin": "Sin",
    "cos": "Cos",
    "sign": "Sign",
    "floor": "Floor",
    "ceil": "Ceil",
    "rint": "Round",
    "sigmoid": "Sigmoid",
    "erf": "Erf",
    "less": "Less",
    "less_equal": "LessOrEqual",
    "greater": "Greater",
    "greater_equal": "GreaterOrEqual",
    "equal": "Equal",
    "logical_and": "And",
    "logical_or": "Or",
    "logical_xor": "Xor",
    "logical_not": "Not",
    "matmul": "MatMul",
}
REDUCTIONS = {"sum": "ReduceSum", "max": "ReduceMax", "min": "ReduceMin", "prod": "ReduceProd"}


def require_onnx() -> None:
    """Raise `ValueError` where a package is missing."""
    try:
        import onnx  # noqa: F401
        import onnxruntime  # noqa: F401
    except ImportError as error:
        raise ValueError(
            f"ONNX needs a package that is not installed ({error.name}): "
            f"{install_command('export')}"
        ) from None


def written(program: Program, graph: Graph) -> bytes:
    """The model. Its metadata `rljax` has the program's description."""
    import onnx
    from onnx import helper

    writer = _Writer(graph)
    inputs = [_declared(helper, value) for value in program.inputs]
    for value, tensor in zip(program.inputs, graph.inputs, strict=True):
        writer.names[id(tensor)] = writer.cast(value.name, value.dtype, value.inner)
    writer.count(program.inputs)
    for node in graph.nodes:
        writer.add(node)
    for value, tensor in zip(program.outputs, graph.outputs, strict=True):
        name = writer.cast(writer.name(tensor), str(tensor.dtype), value.dtype)
        if value.space is not None and value.dtype == "float64":
            name = writer.emit("Max", name, writer.constant(value.space.low))
            name = writer.emit("Min", name, writer.constant(value.space.high))
        writer.emit("Identity", name, output=value.name)
    outputs = [_declared(helper, value) for value in program.outputs]
    made = helper.make_graph(
        writer.nodes, "policy", inputs, outputs, list(writer.constants.values())
    )
    model = helper.make_model(
        made,
        opset_imports=[helper.make_opsetid("", OPSET)],
        ir_version=FORMAT,
        producer_name="rljax",
        producer_version=program.description()["rljax"],
    )
    helper.set_model_props(model, {"rljax": json.dumps(program.description())})
    onnx.checker.check_model(model, full_check=True)
    return model.SerializeToString()


def _declared(helper: Any, value: NamedArray) -> Any:
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(value.dtype))
    return helper.make_tensor_value_info(value.name, kind, value.shape)


class _Writer:
    def __init__(self, graph: Graph) -> None:
        self.nodes: list[Any] = []
        self.constants: dict[str, Any] = {}
        self.names: dict[int, str] = {}  # of tensors
        self._stored: dict[Any, str] = {}
        self._number = 0
        self._size = ""  # the name of the number of observations [1]

    def emit(
        self, operation: str, *inputs: str, output: str | None = None, **attributes: Any
    ) -> str:
        """The name of a new node's output."""
        from onnx import helper

        self._number += 1
        output = output or f"x{self._number}"
        self.nodes.append(helper.make_node(operation, list(inputs), [output], **attributes))
        return output

    def constant(self, array: Any, name: str = "constant") -> str:
        """The name of a constant."""
        from onnx import numpy_helper

        array = np.ascontiguousarray(array).reshape(np.shape(array))
        key = (array.dtype.str, array.shape, array.tobytes())
        if key not in self._stored:
            while name in self.constants:
                base, _, number = name.partition("-")
                name = f"{base}-{int(number or 1) + 1}"
            self.constants[name] = numpy_helper.from_array(array, name)
            self._stored[key] = name
        return self._stored[key]

    def cast(self, name: str, before: str, after: str) -> str:
        """An array in another dtype."""
        from onnx import helper

        if before == after:
            return name
        if after == "bool":  # any number but 0
            return self.emit(
                "Not", self.emit("Equal", self._plain(name, before), self.constant(np.int32(0)))
            )
        return self.emit("Cast", name, to=helper.np_dtype_to_tensor_dtype(np.dtype(after)))

    def _plain(self, name: str, dtype: str) -> str:
        return name if dtype == "int32" else self.cast(name, dtype, "int32")

    def count(self, inputs: Sequence[NamedArray]) -> None:
        """Read the number of observations from the first input."""
        self._size = self.emit("Shape", inputs[0].name, start=0, end=1)

    def name(self, tensor: Tensor) -> str:
        """The name of an array."""
        if tensor.array is not None and id(tensor) not in self.names:
            name = re.sub(r"-\d+$", "", tensor.name) or "constant"
            self.names[id(tensor)] = self.constant(tensor.array, name)
        return self.names[id(tensor)]

    def _sizes(self, shape: Sequence[Any], free: bool) -> str:
        """The name of a shape; with `free`, the size that depends on N follows from the others."""
        unknown = [size for size in shape if not is_static((size,))]
        if not unknown or (free and len(unknown) == 1 and 0 not in shape):
            known = [int(size) if is_static((size,)) else -1 for size in shape]
            return self.constant(np.array(known, np.int64), "shape")
        parts = []
        for size in shape:
            if is_static((size,)):
                parts.append(self.constant(np.array([size], np.int64), "size"))
                continue
            factor = int(str(size).removesuffix(BATCH).removesuffix("*") or 1)
            scaled = self.constant(np.array([factor], np.int64), "size")
            parts.append(self._size if factor == 1 else self.emit("Mul", self._size, scaled))
        return self.emit("Concat", *parts, axis=0)

    def add(self, node: Node) -> None:
        """Add an operation's nodes."""
        inputs = [self.name(x) for x in node.inputs]
        self.names[id(node.output)] = self._operation(node, inputs, **node.attributes)

    def _operation(self, node: Node, inputs: list[str], **attributes: Any) -> str:
        operation = node.operation
        if operation in SIMPLE:
            return self.emit(SIMPLE[operation], *inputs)
        if operation in REDUCTIONS:
            axes = self.constant(np.array(attributes["axes"], np.int64), "axes")
            return self.emit(REDUCTIONS[operation], inputs[0], axes, keepdims=0)
        return getattr(self, f"_{operation}")(node, *inputs, **attributes)

    def _not_equal(self, node: Node, x: str, y: str) -> str:
        return self.emit("Not", self.emit("Equal", x, y))

    def _fmod(self, node: Node, x: str, y: str) -> str:
        return self.emit("Mod", x, y, fmod=1)

    def _isfinite(self, node: Node, x: str) -> str:
        return self.emit("Not", self.emit("Or", self.emit("IsInf", x), self.emit("IsNaN", x)))

    def _round_to_bfloat16(self, node: Node, x: str) -> str:
        from onnx import TensorProto

        return self.emit(
            "Cast", self.emit("Cast", x, to=TensorProto.BFLOAT16), to=TensorProto.FLOAT
        )

    def _where(self, node: Node, condition: str, x: str, y: str) -> str:
        if node.output.dtype != bool:
            return self.emit("Where", condition, x, y)
        other = self.emit("And", self.emit("Not", condition), y)
        return self.emit("Or", self.emit("And", condition, x), other)

    def _cast(self, node: Node, x: str) -> str:
        return self.cast(x, str(node.inputs[0].dtype), str(node.output.dtype))

    def _reshape(self, node: Node, x: str) -> str:
        return self.emit("Reshape", x, self._sizes(node.output.shape, free=True))

    def _expand(self, node: Node, x: str) -> str:
        return self.emit("Expand", x, self._sizes(node.output.shape, free=False))

    def _transpose(self, node: Node, x: str, axes: Sequence[int]) -> str:
        return self.emit("Transpose", x, perm=list(axes))

    def _slice(self, node: Node, x: str, starts: Any, ends: Any, steps: Any) -> str:
        sizes = node.inputs[0].shape
        rows = [
            (axis, start, end, step)
            for axis, (size, start, end, step) in enumerate(
                zip(sizes, starts, ends, steps, strict=True)
            )
            if not (start == 0 and end == size and step == 1)
        ]
        axes, *bounds = (np.array(column, np.int64) for column in zip(*rows, strict=True))
        starts, ends, steps = (self.constant(x, "bounds") for x in bounds)
        return self.emit("Slice", x, starts, ends, self.constant(axes, "axes"), steps)

    def _concatenate(self, node: Node, *parts: str, axis: int) -> str:
        return self.emit("Concat", *parts, axis=axis)

    def _pad(self, node: Node, x: str, before: Any, after: Any, value: Any) -> str:
        sizes = self.constant(np.array([*before, *after], np.int64), "padding")
        return self.emit("Pad", x, sizes, self.constant(np.asarray(value, node.output.dtype)))

    def _any(self, node: Node, x: str, axes: Any) -> str:
        return self._over_truth("ReduceMax", x, axes)

    def _all(self, node: Node, x: str, axes: Any) -> str:
        return self._over_truth("ReduceMin", x, axes)

    def _over_truth(self, operation: str, x: str, axes: Any) -> str:
        number = self.cast(x, "bool", "int32")
        over = self.constant(np.array(axes, np.int64), "axes")
        return self.cast(self.emit(operation, number, over, keepdims=0), "int32", "bool")

    def _argmax(self, node: Node, x: str, axis: int) -> str:
        return self.emit("ArgMax", x, axis=axis, keepdims=0)

    def _argmin(self, node: Node, x: str, axis: int) -> str:
        return self.emit("ArgMin", x, axis=axis, keepdims=0)

    def _take(self, node: Node, x: str, indices: str, axis: int) -> str:
        return self.emit("Gather", x, indices, axis=axis)

    def _take_along_axis(self, node: Node, x: str, indices: str, axis: int) -> str:
        whole = self.emit("Expand", indices, self._sizes(node.output.shape, free=False))
        return self.emit("GatherElements", x, whole, axis=axis)

    def _max_pool(self, node: Node, x: str, window: Any, strides: Any, padding: Any) -> str:
        pads = [pair[0] for pair in padding] + [pair[1] for pair in padding]
        first = self.emit("Transpose", x, perm=[0, 3, 1, 2])
        pooled = self.emit("MaxPool", first, kernel_shape=window, strides=strides, pads=pads)
        return self.emit("Transpose", pooled, perm=[0, 2, 3, 1])

    def _convolve(self, node: Node, x: str, kernel: str, strides: Any, padding: Any) -> str:
        pads = [pair[0] for pair in padding] + [pair[1] for pair in padding]
        first = self.emit("Transpose", x, perm=[0, 3, 1, 2])
        weights = self.emit("Transpose", kernel, perm=[3, 2, 0, 1])
        result = self.emit("Conv", first, weights, strides=strides, pads=pads)
        return self.emit("Transpose", result, perm=[0, 2, 3, 1])
