"""Values of Python, JSON and text as fields of a Config or of a run's `Settings`.

Only functions import JAX.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from numbers import Real
from pathlib import Path
from typing import Any

from rljax.system.user_files import FileClass, is_class_name
from rljax.trust import nearest

INT32 = 2**31 - 1  # the largest integer: compiled programs count in int32
MOST_DIGITS = 18  # of a number with an exponent: 1e999999999 would fill the memory


def flag(name: str) -> str:
    """The flag of a Config's setting: --config.actor-lr for `actor_lr`."""
    return f"--config.{name.replace('_', '-')}"


def whole_number(text: str) -> int:
    """Read an integer from a text such as 1000000, 1_000_000, 1e6 or 2.5e5.

    Raises `ValueError` for other texts, and for exponents beyond `MOST_DIGITS`.
    """
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if number.is_finite() and number.adjusted() >= MOST_DIGITS:
        raise ValueError(f"'{text}' is too large: it has more than {MOST_DIGITS} digits.")
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError(f"'{text}' is not a whole number, such as 300000, 300_000 or 3e5.")
    return int(number)


def integer(value: Any, what: str, most: int = INT32) -> int:
    """A whole number of any type, such as 1e6 or NumPy's, as an int. `what` names it in errors.

    Raises `TypeError` for other values, and `ValueError` for numbers beyond `most`.
    """
    value = native(value)
    if not _is_whole(value):
        raise _wrong(what, value, (int,))
    if abs(value) > most:
        raise ValueError(
            f"{what} is {value:,}, it must be {'at most ' if value > 0 else 'at least -'}{most:,}."
        )
    return int(value)


def _is_number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: Any) -> bool:
    return _is_number(value) and value == value // 1


def require_integers(config: Any) -> None:
    """Raise `ValueError` for a Config's integers beyond those of compiled programs."""

    def require(value: Any, flag: str) -> None:
        for part in value if isinstance(value, tuple) else ():
            require(part, flag)
        if isinstance(value, int):
            integer(int(value), flag)

    for field in dataclasses.fields(config):
        require(getattr(config, field.name), flag(field.name))


@functools.cache
def elsewhere() -> dict[str, dict[str, Any]]:
    """Names of settings in other libraries: of the same meaning, of a near one, of a run, and with
    a sentence.
    """
    return tomllib.loads((Path(__file__).parent / "elsewhere.toml").read_text())


def setting(config: Any, name: str) -> str:
    """Translate another library's name of a setting: "gamma" is `discount`.

    Fields of `config`, unknown and ambiguous names are returned unchanged.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    meant = [other for other in elsewhere()["same"].get(name, ()) if other in fields]
    return meant[0] if len(meant) == 1 and name not in fields else name


def hint(config: Any, name: str) -> str:
    """A sentence that says what another library's setting is called for this agent, or "".

    It begins with a space, as that of `nearest`.
    """
    fields = [field.name for field in dataclasses.fields(config)]
    same = elsewhere()["same"].get(name, [])
    near = elsewhere()["near"].get(name, {"settings": []})
    for settings, remark in ((same, ""), (near["settings"], f": {near.get('remark')}")):
        flags = [flag(other) for other in settings if other in fields]
        if flags:
            return f" Here it is {' or '.join(flags) if not remark else ', '.join(flags)}{remark}."
    return " This agent has no such setting." if same or near["settings"] else run_hint(name)


def run_hint(name: str) -> str:
    """A sentence that says what another library's setting of a run is here, or ""."""
    option, sentence = elsewhere()["run"].get(name), elsewhere()["said"].get(name)
    if sentence is not None:
        return f" {sentence}"
    return f" Here it is --{option.replace('_', '-')}, in Python {option}=." if option else ""


def replace(config: Any, values: Mapping[str, Any], origin: str) -> Any:
    """`config` with `values`, each coerced to its field's type, or one value per learner for a
    float.

    `origin` begins messages. Raises `ValueError` for a name that is no field, and the errors of
    `coerce`.
    """
    hints = typing.get_type_hints(type(config))
    fields = [field.name for field in dataclasses.fields(config)]
    changes = {}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(
                f"{origin}: no setting '{name}'."
                f"{hint(config, name) or nearest(name, fields)} All of them: {', '.join(fields)}"
            )
        label, is_float = f"{origin}: '{name}'", float in _kinds(hints[name])
        if is_float and isinstance(value, list | tuple):
            if not all(map(_is_number, value)):
                raise TypeError(f"{label} is {value!r}, it must be a number.")
        elif not is_float or isinstance(value, Real) or not hasattr(value, "dtype"):
            value = coerce(label, value, hints[name])
        changes[name] = value
    return dataclasses.replace(config, **changes)


def parse(config: Any, name: str, text: str, origin: str) -> Any:
    """A value of the setting `name` from text: "3e-4", "true", "none", "256x256".

    Raises `ValueError` for a name or a value that does not exist.
    """
    hints = typing.get_type_hints(type(config))
    if name not in hints:
        replace(config, {name: text}, origin)  # raises an error that lists all settings
    kinds = _kinds(hints[name])
    if text.lower() == "none" and type(None) in kinds:
        return None
    choices = [kind for kind in kinds if typing.get_origin(kind) is typing.Literal]
    if any(text in typing.get_args(kind) for kind in choices):
        return text
    readers: dict[Any, Any] = {
        float: float,
        int: whole_number,
        bool: {"true": True, "false": False}.__getitem__,
    }
    main = next((kind for kind in kinds if typing.get_origin(kind) is tuple), kinds[0])
    try:
        for kind in kinds:
            if kind in readers:
                return readers[kind](text)
        if typing.get_origin(main) is tuple and typing.get_args(main)[0] is int:
            return tuple(whole_number(part) for part in text.split("x"))
    except (ValueError, KeyError) as error:
        why = f" ({error})" if "too large" in str(error) else ""
        raise ValueError(
            f"{origin}: '{text}' is no value of '{name}', which is {_described(main)}{why}."
        ) from None
    if typing.get_origin(main) is tuple:
        raise ValueError(f"{origin}: '{name}' is a list of lists, which cannot be written here.")
    return coerce(f"{origin}: '{name}'", text, hints[name])


def _described(kind: Any) -> str:
    if typing.get_origin(kind) is tuple:
        return "integers such as 256x256"
    return getattr(kind, "__name__", str(kind))


def _kinds(hint: Any) -> tuple[Any, ...]:
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def coerce(label: str, value: Any, hint: Any, most: int = INT32) -> Any:
    """`value`, of Python, presets or JSON, as the type `hint` of a field; `label` names it.

    Hints are bool, int, float, str, `FileClass`, `Literal`, `Mapping`, tuples of names or integers,
    tuples of tuples of integers, and unions of these with None.

    Raises `TypeError` for another type, and `ValueError` for an integer beyond `most` or a text
    that is no choice of a `Literal`.
    """
    native_value = native(value)
    kinds = _kinds(hint)
    for kind in kinds:
        origin, arguments = typing.get_origin(kind), typing.get_args(kind)
        if kind is type(None) and value is None:
            return None
        if kind is bool and isinstance(native_value, bool):
            return native_value
        if kind is int and _is_whole(native_value):
            return integer(native_value, label, most)
        if kind is float and _is_number(native_value):
            return float(native_value)
        if kind is str and isinstance(value, str | os.PathLike):
            return text(label, value)
        if kind is FileClass and is_class_name(value):
            return FileClass(value)
        if origin is typing.Literal and value in arguments:
            return value
        if origin is tuple and isinstance(native_value, list | tuple):
            return _tuple(label, native_value, arguments[0], most)
        if origin is Mapping and isinstance(value, Mapping):
            return native_value
    raise _wrong(label, value, kinds)


def _tuple(label: str, value: Sequence[Any], kind: Any, most: int) -> tuple[Any, ...]:
    """A tuple of names, of integers, or of tuples of integers, by `kind`."""
    if kind is str:
        return tuple(text(label, part) for part in value)
    length = len(typing.get_args(kind)) or None  # of each inner tuple, in a tuple of tuples
    rows: Any = [value] if length is None else value
    if not all(
        isinstance(row, list | tuple) and length in (None, len(row)) and all(map(_is_whole, row))
        for row in rows
    ):
        raise _wrong(label, value, (tuple[kind, ...],))
    integers = [tuple(integer(x, label, most) for x in row) for row in rows]
    return integers[0] if length is None else tuple(integers)


def _wrong(label: str, value: Any, kinds: Sequence[Any]) -> Exception:
    is_choice = any(typing.get_origin(kind) is typing.Literal for kind in kinds)
    error = ValueError if is_choice else TypeError
    return error(f"{label} is {value!r}, it must be {' or '.join(map(_name, kinds))}.")


def _name(kind: Any) -> str:
    if typing.get_origin(kind) is typing.Literal:
        return f"one of {', '.join(map(str, typing.get_args(kind)))}"
    if typing.get_origin(kind) is tuple:
        inner = typing.get_args(kind)[0]
        if inner is str:
            return "a sequence of names"
        length = len(typing.get_args(inner))
        return f"a list of lists of {length} integers" if length else "a list of integers"
    return _WORDS.get(kind, "a mapping")


_WORDS = {
    int: "int: a whole number, such as 300000 or 3e5",
    float: "a number",
    bool: "True or False",
    str: "text",
    FileClass: "a class of your own, FILE.py:CLASS",
    type(None): "None",
}


def _floats(config: Any) -> Sequence[str]:
    from rljax.agent import float_fields

    return float_fields(type(config))


def stack(config: Any, num_learners: int) -> Any:
    """`config` with every float, a number or one per learner, as an array [P].

    Raises `ValueError` for a sequence whose length is not P.
    """
    import jax.numpy as jnp
    import numpy as np

    require_lengths(config, num_learners)
    changes = {}
    for name in _floats(config):
        value = getattr(config, name)
        if value is None:
            continue
        values = np.asarray(value, np.float32)
        changes[name] = jnp.asarray(np.broadcast_to(values, (num_learners,)))
    return dataclasses.replace(config, **changes)


def varied(config: Any) -> dict[str, tuple[float, ...]]:
    """The settings that differ between learners, with one value per learner."""
    values = {name: getattr(config, name) for name in _floats(config)}
    return {
        name: tuple(map(float, value))
        for name, value in values.items()
        if hasattr(value, "__len__")
    }


def require_lengths(config: Any, num_learners: int, origin: str = "") -> None:
    """Raise `ValueError` for settings whose values are not one per learner; `origin` begins it."""
    import numpy as np

    for name in _floats(config):
        shape = np.shape(getattr(config, name))
        if len(shape) == 1 and shape[0] != num_learners:
            raise ValueError(
                f"{origin}config.{name} has {shape[0]} values for {num_learners} learners."
            )


def flags_behind(module: Any, config: Any, name: str) -> str:
    """The flags, as text, of the numbers in the Config whose change changes the declaration's field
    `name`.
    """
    import numpy as np

    def declared(config: Any) -> Any:
        return np.asarray(getattr(module.experience(config), name))

    floats, before, names = _floats(config), declared(config), []
    for field in dataclasses.fields(config):
        value: Any = getattr(config, field.name)
        if field.name in floats and value is not None:
            other = np.add(value, 1.0).tolist()
        elif isinstance(value, int) and not isinstance(value, bool):
            other = value + 1
        else:
            continue
        if np.any(declared(dataclasses.replace(config, **{field.name: other})) != before):
            names.append(field.name)
    return " and ".join(map(flag, names)) or "a setting of the agent"


def as_json(config: Any) -> dict[str, Any]:
    """A Config's fields, ready for JSON: arrays and tuples become lists."""
    return {
        field.name: _listed(getattr(config, field.name)) for field in dataclasses.fields(config)
    }


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_listed(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value


def native(value: Any) -> Any:
    """Python's numbers, tuples and mappings for those of NumPy and JAX, at any depth."""
    if isinstance(value, Mapping):
        return {name: native(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return type(value)(map(native, value)) if type(value) in (list, tuple) else value
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        return native(tuple(value.tolist())) if value.ndim else value.item()
    return value


def text(name: str, value: Any) -> str:
    """A text, or a path as text. Raises `TypeError` for other values, and for null bytes."""
    if not isinstance(value, str | os.PathLike):
        raise TypeError(f"{name} is {value!r}, it must be text or a path.")
    path = os.fspath(value)
    if isinstance(path, bytes) or "\0" in path:
        raise TypeError(f"{name} is {value!r}, it must be text without null bytes.")
    return path
