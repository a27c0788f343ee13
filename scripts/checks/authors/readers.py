"""Settings in files of other people, read as text: nothing of theirs is imported or executed.

Python is read by its syntax tree. `Scope` computes what a function of settings returns: literals,
arithmetic, dictionaries, ml_collections' ConfigDict, assignments, `if` and `return`. Anything else
is `Unread`, and a comparison leaves it out.
"""

from __future__ import annotations

import ast
import json
import operator
import re
import shlex
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import yaml

Functions = Mapping[str, Callable[..., Any]]
NOTHING: Mapping[str, Any] = types.MappingProxyType({})

BINARY = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.Pow: operator.pow,
}
COMPARISONS = {
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Is: operator.is_,
    ast.IsNot: operator.is_not,
    ast.In: lambda left, right: left in right,
    ast.NotIn: lambda left, right: left not in right,
}
CASTS = {"int": int, "float": float, "str": str, "tuple": tuple, "list": list, "max": max}
NUMBERS = {"np.inf": float("inf"), "numpy.inf": float("inf"), "jnp.inf": float("inf")}


class Unread:
    """An expression that is no setting, by its text."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __repr__(self) -> str:
        return f"Unread({self.text})"


class Scope:
    """Values of names, and the functions that expressions may call."""

    def __init__(self, names: Mapping[str, Any] = NOTHING, functions: Functions = NOTHING) -> None:
        self.names = dict(names)
        self.functions = functions

    def value(self, node: ast.expr) -> Any:
        """An expression's value, or `Unread`."""
        match node:
            case ast.Constant():
                return node.value
            case ast.Name() | ast.Attribute():
                return self._reference(node)
            case ast.Tuple() | ast.List():
                kind = tuple if isinstance(node, ast.Tuple) else list
                return self._computed(node, lambda *parts: kind(parts), *node.elts)
            case ast.Dict():
                return {
                    self.value(key): self.value(value)
                    for key, value in zip(node.keys, node.values, strict=True)
                    if key is not None
                }
            case ast.UnaryOp(ast.USub() | ast.Not(), operand):
                sign = operator.neg if isinstance(node.op, ast.USub) else operator.not_
                return self._computed(node, sign, operand)
            case ast.BinOp() if type(node.op) in BINARY:
                return self._computed(node, BINARY[type(node.op)], node.left, node.right)
            case ast.BoolOp():
                every = all if isinstance(node.op, ast.And) else any
                return self._computed(node, lambda *parts: every(parts), *node.values)
            case ast.Compare(left, [comparison], [right]) if type(comparison) in COMPARISONS:
                return self._computed(node, COMPARISONS[type(comparison)], left, right)
            case ast.Subscript():
                container = self.value(node.value)
                if not isinstance(container, Unread):
                    return container[self.value(node.slice)]
            case ast.Call():
                return self._call(node)
        return Unread(ast.unparse(node))

    def run(self, body: list[ast.stmt]) -> Any:
        """What statements return; None without a return."""
        for statement in body:
            match statement:
                case ast.Assign(targets=[target]):
                    self._assign(target, self.value(statement.value))
                case ast.AnnAssign(target=target) if statement.value is not None:
                    self._assign(target, self.value(statement.value))
                case ast.If():
                    condition = self.value(statement.test)
                    if isinstance(condition, Unread):
                        raise ValueError(f"no value of the condition '{condition.text}'.")
                    returned = self.run(statement.body if condition else statement.orelse)
                    if returned is not None:
                        return returned
                case ast.Expr(ast.Call() as call):
                    self._call(call)
                case ast.Return() if statement.value is not None:
                    return self.value(statement.value)
                case ast.Raise():
                    raise ValueError(f"it raises: {ast.unparse(statement)}")
        return None

    def _computed(self, node: ast.expr, function: Any, *operands: ast.expr) -> Any:
        values = [self.value(operand) for operand in operands]
        if any(isinstance(value, Unread) for value in values):
            return Unread(ast.unparse(node))
        return function(*values)

    def _reference(self, node: ast.Name | ast.Attribute) -> Any:
        text = ast.unparse(node)
        if text in NUMBERS:
            return NUMBERS[text]
        if isinstance(node, ast.Name):
            return self.names.get(node.id, Unread(text))
        owner = self.value(node.value)
        return owner.get(node.attr, Unread(text)) if isinstance(owner, dict) else Unread(text)

    def _assign(self, target: ast.expr, value: Any) -> None:
        if isinstance(target, ast.Name):
            self.names[target.id] = value
            return
        if isinstance(target, ast.Attribute):
            owner, key = self.value(target.value), target.attr
        elif isinstance(target, ast.Subscript):
            owner, key = self.value(target.value), self.value(target.slice)
        else:
            return
        if isinstance(owner, dict):
            owner[key] = value

    def _call(self, node: ast.Call) -> Any:
        name = ast.unparse(node.func)
        last = name.rsplit(".", 1)[-1]
        values = [self.value(argument) for argument in node.args]
        named = {each.arg: self.value(each.value) for each in node.keywords if each.arg}
        if name in self.functions:
            return self.functions[name](*values, **named)
        if last == "placeholder":
            return None
        if name == "dict" or last == "ConfigDict" or name == "config_dict.create":
            return {**(values[0] if values else {}), **without(named, "type_safe")}
        if name in CASTS and not any(isinstance(value, Unread) for value in values):
            return CASTS[name](*values)
        owner = self.value(node.func.value) if isinstance(node.func, ast.Attribute) else None
        if isinstance(owner, str) and last in ("startswith", "endswith", "split", "lower"):
            return getattr(owner, last)(*values)
        if isinstance(owner, dict) and last in ("to_dict", "copy_and_resolve_references"):
            return owner
        if isinstance(owner, dict) and last == "update":
            owner.update(merged(owner, values[0]))
            return None
        return Unread(ast.unparse(node))


def without(values: Mapping[str, Any], *names: str) -> dict[str, Any]:
    """The values but for those of some names."""
    return {name: value for name, value in values.items() if name not in names}


def merged(values: Mapping[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """`values` with `changes`; dictionaries in both are merged too."""
    result = dict(values)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Nested settings under names with dots, without what was not read."""
    result: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, dict):
            result |= flat(value, f"{prefix}{name}.")
        elif not isinstance(value, Unread):
            result[f"{prefix}{name}"] = value
    return result


def yaml_file(path: Path) -> dict[str, Any]:
    """A YAML file; numbers such as 3e-4, which YAML takes for text, are numbers."""
    return _with_numbers(yaml.safe_load(path.read_text()))


def _with_numbers(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _with_numbers(each) for key, each in value.items()}
    return number(value) if isinstance(value, str) else value


def number(text: str) -> Any:
    """The Python value of a text: a number, True, None, a tuple; otherwise the text itself."""
    text = {"true": "True", "false": "False", "null": "None"}.get(text, text)
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def dataclass(path: Path, name: str) -> dict[str, Any]:
    """Defaults of a class's annotated fields."""
    scope = Scope()
    scope.run([line for line in _definition(path, name).body if isinstance(line, ast.AnnAssign)])
    return flat(scope.names)


def parameters(path: Path, name: str) -> dict[str, Any]:
    """Defaults of a function's parameters; "Class.method" names a method."""
    arguments = _definition(path, name).args
    pairs = [*zip(arguments.args[::-1], arguments.defaults[::-1], strict=False)]
    pairs += [*zip(arguments.kwonlyargs, arguments.kw_defaults, strict=True)]
    return flat({name.arg: Scope().value(value) for name, value in pairs if value is not None})


def config(
    path: Path, function: str = "get_config", functions: Functions = NOTHING, **arguments: Any
) -> dict[str, Any]:
    """What a function of settings returns for some arguments, nested. Its calls of `functions` are
    answered by ours.
    """
    definition = _definition(path, function)
    scope = Scope(functions=functions)
    missing = len(definition.args.args) - len(definition.args.defaults)
    for each, default in zip(definition.args.args[missing:], definition.args.defaults, strict=True):
        scope.names[each.arg] = scope.value(default)
    scope.names |= arguments
    returned = scope.run(definition.body)
    # RIQL's function returns nothing: it changes its argument.
    return returned if returned is not None else next(iter(arguments.values()))


def constant(path: Path, name: str) -> Any:
    """The value of a name that a module sets."""
    return Scope().value(_assigned(path, name))


def keys(path: Path, name: str) -> list[str]:
    """The keys of a dictionary that a module sets, whatever its values are."""
    value = _assigned(path, name)
    if not isinstance(value, ast.Dict):
        raise ValueError(f"'{path}' has no dictionary {name}.")
    return [Scope().value(key) for key in value.keys if key is not None]


def keywords(path: Path, function: str, index: int = 0) -> dict[str, Any]:
    """Keyword arguments of a call of `function`, as they are written there: of its first call, or
    of number `index`.
    """
    calls = _calls(path, function)
    if len(calls) <= index:
        raise ValueError(f"'{path}' does not call {function}.")
    scope = Scope()
    return flat({each.arg: scope.value(each.value) for each in calls[index].keywords if each.arg})


def arguments(path: Path) -> dict[str, Any]:
    """Defaults of the options that a script declares by argparse or by absl's flags."""
    scope = Scope()
    result: dict[str, Any] = {}
    for call in _calls(path, "add_argument"):
        values = {each.arg: scope.value(each.value) for each in call.keywords}
        value = values.get("default", False if values.get("action") == "store_true" else None)
        name = str(scope.value(call.args[-1])).lstrip("-")
        result[name] = number(value) if isinstance(value, str) else value
    for kind in ("integer", "float", "boolean", "bool", "string"):
        for call in _calls(path, f"DEFINE_{kind}"):
            name, default = (scope.value(each) for each in call.args[:2])
            result[name] = default
    return flat(result)


def commands(path: Path, script: str) -> list[dict[str, Any]]:
    """Options of each command that runs `script`, in a shell script or in a page."""
    lines = re.sub(r"\\\n", " ", path.read_text()).splitlines()
    variables: dict[str, str] = {}
    options = []
    for line in lines:
        if match := re.fullmatch(r"\s*(\w+)=([\w.\"'-]+)\s*", line):
            variables.setdefault(match[1], match[2].strip("\"'"))
        if script not in line or "python" not in line:
            continue
        line = re.sub(r"\$\{?(\w+)\}?", lambda match: variables.get(match[1], match[0]), line)
        line = re.sub(r"\$\(\((\d+) \* (\d+)\)\)", lambda x: str(int(x[1]) * int(x[2])), line)
        words = shlex.split(line.strip("` "), comments=True)
        options.append(_options(words[1 + next(i for i, x in enumerate(words) if script in x) :]))
    return options


def _options(words: list[str]) -> dict[str, Any]:
    options: dict[str, Any] = {}
    name = None
    for word in words:
        if word in ("&", "|", ">", "&&"):
            break
        if word.startswith("--"):
            name, equals, value = word[2:].partition("=")
            options[name] = number(value) if equals else True
            name = None if equals else name
        elif name is not None:
            options[name] = number(word)
            name = None
    return options


def gin(path: Path, *kinds: str) -> dict[str, Any]:
    """Parameters that a file of gin binds for some classes or functions; references are text."""
    pairs = re.findall(r"^([\w./]+)\.(\w+)\s*=\s*([^#\n]+)", path.read_text(), re.MULTILINE)
    return {name: number(value.strip()) for kind, name, value in pairs if kind in kinds}


def convolutions(path: Path) -> list[list[int]]:
    """Channels, kernel and stride of each nn.Conv2d of a file, in order."""
    scope, layers = Scope(), []
    for call in _calls(path, "Conv2d"):
        (stride,) = [scope.value(each.value) for each in call.keywords if each.arg == "stride"]
        layers.append([*map(scope.value, call.args[1:3]), stride])
    return layers


def notebook(path: Path, name: str) -> dict[str, Any]:
    """The calls in a dictionary `name = {key: call}[...]` of a notebook, by key."""
    cells = json.loads(path.read_text())["cells"]
    for cell in cells:
        text = "".join(cell["source"])
        if f"{name} = {{" not in text:
            continue
        for node in ast.parse(text).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
                value = node.value.value if isinstance(node.value, ast.Subscript) else node.value
                if isinstance(value, ast.Dict):
                    pairs = zip(value.keys, value.values, strict=True)
                    return {Scope().value(key): call for key, call in pairs if key is not None}
    raise ValueError(f"'{path}' has no dictionary {name}.")


def partial(call: ast.Call) -> tuple[str, dict[str, Any]]:
    """The function and the keyword arguments of `functools.partial(FUNCTION, ...)`."""
    scope = Scope()
    values = {each.arg: scope.value(each.value) for each in call.keywords if each.arg}
    return ast.unparse(call.args[0]), flat(values)


def says(path: Path, text: str) -> None:
    """Check that a file holds a text, spaces apart. Raises `ValueError` where it does not.

    Where a rule is code and no setting, the table writes it by hand and names the code.
    """
    if squeezed(text) not in squeezed(path.read_text()):
        raise ValueError(f"'{path}' no longer says: {text}")


def squeezed(text: str) -> str:
    """A text in which any white space is one space."""
    return " ".join(text.split())


def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


def _assigned(path: Path, name: str) -> ast.expr:
    for node in _tree(path).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == name:
            return node.value
    raise ValueError(f"'{path}' does not set {name}.")


def _calls(path: Path, function: str) -> list[ast.Call]:
    """Calls of a function or of a method of this name, in order."""
    calls = [
        node
        for node in ast.walk(_tree(path))
        if isinstance(node, ast.Call) and f".{ast.unparse(node.func)}".endswith(f".{function}")
    ]
    return sorted(calls, key=lambda node: (node.lineno, node.col_offset))


def _definition(path: Path, name: str) -> Any:
    """A class or a function of a module, or a method by "Class.method"."""
    body: Any = _tree(path)
    for part in name.split("."):
        inner = [node for node in body.body if getattr(node, "name", None) == part]
        if not inner:
            raise ValueError(f"'{path}' has no {name}.")
        body = inner[0]
    return body
