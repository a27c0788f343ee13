"""A policy as one Python file that needs NumPy alone."""

from __future__ import annotations

import base64
import collections
import io
import json
import re
import textwrap
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.runs.export.graph import Graph, Node, Tensor
from rljax.runs.export.program import Program
from rljax.runs.export.translation import BATCH, NamedArray, nested
from rljax.trust import LINES, printable

TOGETHER = 60  # characters of an operation that is written inside another
LINE = 85  # and of one that is returned
# Python's operators, with the strength of their binding.
OPERATORS = {
    "add": ("+", 5),
    "subtract": ("-", 5),
    "multiply": ("*", 6),
    "divide": ("/", 6),
    "matmul": ("@", 6),
    "logical_and": ("&", 4),
    "logical_xor": ("^", 3),
    "logical_or": ("|", 2),
    "less": ("<", 1),
    "less_equal": ("<=", 1),
    "greater": (">", 1),
    "greater_equal": (">=", 1),
    "equal": ("==", 1),
    "not_equal": ("!=", 1),
}
ATOM = 9
HELPERS = {
    "sigmoid": """\
def sigmoid(x):
    return 0.5 + 0.5 * np.tanh(0.5 * x)
""",
    "erf": """\
erf = np.vectorize(math.erf, otypes=[np.float32])
""",
    "round_to_bfloat16": '''\
def round_to_bfloat16(x):
    """The nearest numbers of 16 bits, as float32."""
    bits = np.asarray(x, np.float32).view(np.uint32)
    return ((bits + 0x7FFF + ((bits >> 16) & 1)) & 0xFFFF0000).astype(np.uint32).view(np.float32)
''',
    "windows": '''\
def windows(x, window, strides, padding, value):
    """The windows [N, H, W, K, h, w] of pictures [N, H, W, K]."""
    x = np.pad(x, ((0, 0), *padding, (0, 0)), constant_values=value)
    view = np.lib.stride_tricks.sliding_window_view(x, window, axis=(1, 2))
    return view[:, :: strides[0], :: strides[1]]
''',
    "max_pool": """\
def max_pool(x, window, strides, padding):
    return windows(x, window, strides, padding, -np.inf).max(axis=(4, 5))
""",
    "convolve": '''\
def convolve(x, kernel, strides, padding):
    """Pictures [N, H, W, K] through a kernel [h, w, K, M]."""
    parts = windows(x, kernel.shape[:2], strides, padding, 0.0)
    return np.tensordot(parts, kernel, ((4, 5, 3), (0, 1, 2)))
''',
}
NEEDS = {"max_pool": ["windows"], "convolve": ["windows"]}
FILE = '''\
"""{title}

{usage}
"""

import base64
import io
{imports}
import numpy as np

{helpers}
def batched(name, value, shape, dtype):
    """A value with a leading axis. Raises ValueError for another shape."""
    array = np.asarray(value, dtype)
    array = array[None] if array.shape == shape else array
    if array.ndim != len(shape) + 1 or array.shape[1:] != shape:
        needed = f"{{shape}} or (N, *{{shape}})"
        raise ValueError(f"{{name}} has shape {{array.shape}}, it must be {{needed}}")
    return array

{noise}
@np.errstate(all="ignore")
def act({arguments}):
    """{summary}"""
{body}


# The learnt numbers, an .npz file in base64.
ARRAYS = """
{arrays}
"""
W = dict(np.load(io.BytesIO(base64.b64decode(ARRAYS)), allow_pickle=False))
'''


def written(program: Program, graph: Graph) -> str:
    """The file."""
    names, printer = _argument_names(program), _Printer(graph)
    operations = {node.operation for node in graph.nodes}
    helpers = [name for name in HELPERS if name in operations]
    helpers = [*{x: None for name in helpers for x in (*NEEDS.get(name, ()), name)}]
    body = [*_inputs(program), *printer.lines(), *_outputs(program, printer)]
    stored = io.BytesIO()
    np.savez_compressed(stored, allow_pickle=False, **printer.arrays)
    encoded = base64.encodebytes(stored.getvalue()).decode().strip()
    parts = "\n\n".join(HELPERS[name] for name in helpers)
    return FILE.format(
        title=_title(program),
        usage=_usage(program),
        imports="import math\n" if "erf" in operations else "",
        helpers=f"\n{parts}\n" if parts else "",
        noise=_noise(program),
        arguments=", ".join(names),
        summary=_summary(program),
        body=textwrap.indent("\n".join(body), "    "),
        arrays=encoded,
    )


def _title(program: Program) -> str:
    known = program.description()
    text = (
        f"The policy of agent {known['agent']} in {known['environment']}, after "
        f"{known['training_step']} steps (seed {known['seed']}).\n\n"
        f"Written by rljax {known['rljax']}; it needs NumPy alone."
    )
    return printable(text, keep=LINES).replace("\\", "/").replace('"""', "'''")


def _usage(program: Program) -> str:
    names = _argument_names(program)
    given = [name for name in names if "=" not in name]
    if not program.remembers:
        return f"    action = act({', '.join(given)})"
    given = ", ".join([*given, "memory", "first"])
    text = (
        "    memory, first = None, True\n"
        "    while True:\n"
        f"        action, memory = act({given})\n"
        "        ...\n"
        "        first = terminated or truncated"
    )
    return text


def _argument_names(program: Program) -> list[str]:
    names = ["observation"]
    inputs = {value.name for value in program.inputs}
    names += [name for name in ("mask", "step") if name in inputs]
    names += ["memory=None", "first=False"] if program.remembers else []
    return names + (["noise=None"] if program.noise else [])


def _summary(program: Program) -> str:
    lines = ["The action for one observation of the environment, or for N with a leading axis."]
    inputs = {value.name for value in program.inputs}
    if "mask" in inputs:
        lines.append("`mask` is true where an action is allowed: info['action_mask'].")
    if "step" in inputs:
        lines.append("`step` counts the steps since the reset.")
    if program.remembers:
        lines.append(
            "It returns the next memory too. `first` says which observations begin an episode."
        )
    if program.noise:
        lines.append("`noise` is by default drawn from GENERATOR.")
    if len(lines) == 1:
        return lines[0]
    return "\n\n    ".join([lines[0], "\n    ".join(lines[1:])]) + "\n    "


def _noise(program: Program) -> str:
    if not program.noise:
        return ""
    draws = [f"        {_drawn(value)},  # {_shape_text(value)}" for value in program.noise]
    return "\n".join(
        [
            "",
            "GENERATOR = np.random.default_rng()",
            "",
            "",
            f"def draw({BATCH}):",
            f'    """The random numbers of {BATCH} actions."""',
            "    return (",
            *draws,
            "    )",
            "",
        ]
    )


def _drawn(value: NamedArray) -> str:
    kind, *bounds = str(value.distribution).split()
    shape = _tuple(value.shape)
    if kind == "normal":
        text = f"GENERATOR.standard_normal({shape})"
    elif kind == "uniform":
        text = f"GENERATOR.uniform({', '.join(bounds)}, {shape})"
    else:
        return f"GENERATOR.integers(0, 2**32, {shape}, np.uint32)"
    return f"{text}.astype(np.{value.dtype})"


def _inputs(program: Program) -> list[str]:
    """Lines that give each input its name and a leading axis."""
    lines, checked = [], None
    identifiers = _identifiers([value.name for value in program.inputs])
    for value in program.inputs:
        if value.distribution is not None or value.name.startswith(("memory_", "first")):
            continue
        name, shape = identifiers[value.name], value.shape[1:]
        source = "observation" if value.name.startswith("observation") else value.name
        place = source + "".join(f"[{_key(key)}]" for key in value.path)
        if value.name == "step":
            lines.append(f"step = np.full({BATCH}, step, np.{value.inner})")
            continue
        if checked is None:
            lines.append(f"one = np.ndim({place}) == {len(shape)}")
        dtype = "bool" if value.inner == "bool" else f"np.{value.inner}"
        quoted = json.dumps(value.name)
        lines.append(f"{name} = batched({quoted}, {place}, {_tuple(shape)}, {dtype})")
        if checked is None:
            checked = name
            lines.append(f"{BATCH} = len({name})")
    memories = [value for value in program.inputs if value.name.startswith("memory_")]
    if memories:
        fresh = [f"np.zeros({_tuple(value.shape)}, {_dtype(value)})" for value in memories]
        lines.append(f"first = np.full({BATCH}, memory is None or first, bool)")
        names = ", ".join(identifiers[value.name] for value in memories)
        lines.append("if memory is None:")
        lines += ["    memory = (", *(f"        {text}," for text in fresh), "    )"]
        lines.append(f"({names},) = memory")
    if program.noise:
        names = ", ".join(identifiers[value.name] for value in program.noise)
        lines.append(f"({names},) = draw({BATCH}) if noise is None else noise")
    return lines


def _dtype(value: NamedArray) -> str:
    return "bool" if value.dtype == "bool" else f"np.{value.dtype}"


def _outputs(program: Program, printer: _Printer) -> list[str]:
    """Lines that return the actions as the environment takes them."""
    lines, texts = [], {}
    actions = [value for value in program.outputs if value.name.startswith("action")]
    for value, tensor in zip(actions, printer.graph.outputs, strict=False):
        text = printer.text(tensor)
        if value.dtype != value.inner or str(tensor.dtype) != value.dtype:
            text = f"{_wrapped(text)}.astype(np.{value.dtype})"
        if value.space is not None and value.dtype == "float64":
            low, high = printer.stored(value.space.low), printer.stored(value.space.high)
            text = f"np.clip({text}, {low}, {high})"
        texts[value.path] = text
    if () in texts:
        lines.append(f"action = {texts[()]}")
        result = "action[0] if one else action"
    else:
        lines += [f"place = 0 if one else slice({BATCH})"]
        parts = {path: f"{_wrapped(text)}[place]" for path, text in texts.items()}
        lines.append(f"action = {_literal(nested(parts))}")
        result = "action"
    if program.remembers:
        memories = [printer.text(x) for x in printer.graph.outputs[len(actions) :]]
        result = f"({result}), ({', '.join(memories)},)"
    return [*lines, f"return {result}"]


def _wrapped(text: str) -> str:
    return text if re.fullmatch(r"\w+", text) else f"({text})"


def _literal(tree: Any) -> str:
    """Texts by their keys as a dictionary or tuple."""
    if isinstance(tree, str):
        return tree
    if all(isinstance(key, int) for key in tree):
        return f"({', '.join(map(_literal, tree.values()))},)"
    return "{" + ", ".join(f"{_key(key)}: {_literal(part)}" for key, part in tree.items()) + "}"


def _key(key: Any) -> str:
    return str(key) if isinstance(key, int) else json.dumps(key)


def _identifiers(names: Sequence[str]) -> dict[str, str]:
    """Names of variables, each another, for the names of inputs."""
    known: dict[str, str] = {}
    for name in names:
        identifier = re.sub(r"\W", "_", name, flags=re.ASCII)
        while identifier in known.values():
            identifier += "_"
        known[name] = identifier
    return known


def _tuple(shape: Sequence[Any]) -> str:
    sizes = [str(size) for size in shape]
    return f"({sizes[0]},)" if len(sizes) == 1 else f"({', '.join(sizes)})"


def _shape_text(value: NamedArray) -> str:
    return f"[{', '.join(map(str, value.shape))}]"


class _Printer:
    """Operations as statements."""

    def __init__(self, graph: Graph) -> None:
        self.graph = graph
        self.arrays: dict[str, np.ndarray] = {}  # by the names in the file
        self._texts: dict[int, tuple[str, int]] = {}  # of tensors, with the strength of binding
        self._uses = collections.Counter(
            id(x) for node in graph.nodes for x in node.inputs
        ) + collections.Counter(id(x) for x in graph.outputs)
        self._number = 0
        identifiers = _identifiers([x.name for x in graph.inputs])
        for tensor in graph.inputs:
            self._texts[id(tensor)] = (identifiers[tensor.name], ATOM)

    def lines(self) -> list[str]:
        """One statement for each operation that is not written inside another."""
        lines, returned = [], {id(x) for x in self.graph.outputs}
        for node in self.graph.nodes:
            text, strength = self._expression(node)
            output = node.output
            most = LINE if id(output) in returned else TOGETHER
            if self._uses[id(output)] == 1 and len(text) <= most:
                self._texts[id(output)] = (text, strength)
                continue
            self._number += 1
            name = f"x{self._number}"
            self._texts[id(output)] = (name, ATOM)
            shape = ", ".join(map(str, output.shape))
            lines.append(f"{name} = {text}  # [{shape}]")
        return lines

    def text(self, tensor: Tensor, least: int = 0) -> str:
        """An operand, in parentheses if it binds less than `least`."""
        if tensor.array is not None and id(tensor) not in self._texts:
            text = self._constant(tensor)
            self._texts[id(tensor)] = (text, 7 if text.startswith("-") else ATOM)
        text, strength = self._texts[id(tensor)]
        return text if strength >= least else f"({text})"

    def stored(self, array: np.ndarray, name: str = "") -> str:
        """An array of the file, by a name of its own."""
        name = name or "constant"
        number = 1
        while name in self.arrays and not np.array_equal(self.arrays[name], array):
            number += 1
            name = f"{re.sub(r'-[0-9]+$', '', name)}-{number}"
        self.arrays[name] = np.ascontiguousarray(array)
        return f"W[{json.dumps(name)}]"

    def _constant(self, tensor: Tensor) -> str:
        array = tensor.array
        assert array is not None, "a constant"
        if array.size != 1 or array.ndim > 0:
            return self.stored(array, tensor.name)
        return _number(array)

    def _expression(self, node: Node) -> tuple[str, int]:
        operation, inputs, attributes = node.operation, node.inputs, node.attributes
        if operation in OPERATORS:
            sign, strength = OPERATORS[operation]
            # Comparisons and what stands right of an operator are put in parentheses.
            left = self.text(inputs[0], strength + (strength == 1))
            right = self.text(inputs[1], strength + 1)
            return f"{left} {sign} {right}", strength
        if operation in ("negative", "logical_not"):
            return f"{'-' if operation == 'negative' else '~'}{self.text(inputs[0], ATOM)}", 7
        first = self.text(inputs[0])
        atom = self.text(inputs[0], ATOM)
        if operation == "where":
            return f"np.where({', '.join([first, *self._typed(inputs[1:])])})", ATOM
        if operation == "cast":
            name = node.output.dtype.name
            return f"{atom}.astype({'bool' if name == 'bool' else f'np.{name}'})", ATOM
        if operation == "reshape":
            return f"np.reshape({first}, {_tuple(node.output.shape)})", ATOM
        if operation == "expand":
            return f"np.broadcast_to({first}, {_tuple(node.output.shape)})", ATOM
        if operation == "transpose":
            return f"{atom}.transpose({', '.join(map(str, attributes['axes']))})", ATOM
        if operation == "slice":
            return f"{atom}[{_slices(inputs[0].shape, **attributes)}]", ATOM
        if operation == "concatenate":
            parts = ", ".join(self._typed(inputs))
            return f"np.concatenate([{parts}], axis={attributes['axis']})", ATOM
        if operation == "pad":
            pairs = list(zip(attributes["before"], attributes["after"], strict=True))
            return f"np.pad({first}, {pairs}, constant_values={attributes['value']})", ATOM
        if operation in ("sum", "prod", "max", "min", "any", "all"):
            axes = attributes["axes"]
            axes = axes[0] if len(axes) == 1 else axes
            dtype = f", dtype=np.{node.output.dtype}" if operation in ("sum", "prod") else ""
            return f"{atom}.{operation}(axis={axes}{dtype})", ATOM
        if operation in ("argmax", "argmin"):
            return f"{atom}.{operation}(axis={attributes['axis']})", ATOM
        if operation in ("take", "take_along_axis"):
            indices = self.text(inputs[1])
            return f"np.{operation}({first}, {indices}, axis={attributes['axis']})", ATOM
        others = [self.text(x) for x in inputs[1:]]
        values = [f"{name}={value}" for name, value in attributes.items()]
        prefix = "" if operation in HELPERS else "np."
        return f"{prefix}{operation}({', '.join([first, *others, *values])})", ATOM

    def _typed(self, inputs: Sequence[Tensor]) -> list[str]:
        """Operands whose dtype the result has: Python's numbers have none."""
        texts = [self.text(x) for x in inputs]
        if all(x.array is not None and x.shape == () for x in inputs):
            return [f"np.{x.dtype}({text})" for x, text in zip(inputs, texts, strict=True)]
        return texts


def _number(array: np.ndarray) -> str:
    """A scalar as Python writes it."""
    if array.dtype.kind != "f":
        return str(array.item())
    if not np.isfinite(array):
        return "np.nan" if np.isnan(array) else "np.inf" if array > 0 else "-np.inf"
    text = str(array[()])
    return text if "." in text or "e" in text else f"{text}.0"


def _slices(shape: Sequence[Any], starts: Any, ends: Any, steps: Any) -> str:
    texts = []
    for size, start, end, step in zip(shape, starts, ends, steps, strict=True):
        first, last = "" if start == 0 else str(start), "" if end == size else str(end)
        texts.append(f"{first}:{last}" + (f":{step}" if step != 1 else ""))
    while len(texts) > 1 and texts[-1] == ":":
        texts.pop()
    if len(texts) > 2 and set(texts[:-1]) == {":"} and len(texts) == len(shape):
        return f"..., {texts[-1]}"
    return ", ".join(texts)
