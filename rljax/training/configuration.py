"""Operations on a Config: find settings by name, read them from text and JSON, write JSON, stack over learners."""

from __future__ import annotations

import dataclasses
import difflib
import os
import types
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from numbers import Real
from typing import Any

INT32 = 2**31 - 1  # the largest integer of a setting: compiled programs count in int32
MOST_DIGITS = 18  # of a number with an exponent: 1e999999999 would fill the memory

# Names of settings in Stable-Baselines3 and CleanRL, and the settings here that each may mean.
ELSEWHERE = {
    "tau": ("target_rate", "expectile"),
    "gamma": ("discount",),
    "gae_lambda": ("trace_decay",),
    "buffer_size": ("replay_size",),
    "learning_starts": ("warmup_steps",),
    "n_envs": ("num_envs",),
    "n_steps": ("num_steps", "n_step"),
    "n_epochs": ("num_epochs",),
    "update_epochs": ("num_epochs",),
    "clip_range": ("clip_ratio",),
    "clip_coef": ("clip_ratio",),
    "vf_coef": ("value_cost",),
    "ent_coef": ("entropy_cost",),
}


def flag(name: str) -> str:
    """The command line's flag of a setting of an agent's Config: --config.actor-lr for `actor_lr`."""
    return f"--config.{name.replace('_', '-')}"


def nearest(name: str, known: Sequence[str]) -> str:
    """ "Nearest: 'a', 'b'. ", or an empty text where no known name is similar."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Nearest: {', '.join(repr(x) for x in close)}. " if close else ""


def whole_number(text: str) -> int:
    """Read an integer from a text such as 1000000, 1_000_000, 1e6 or 2.5e5.

    Raises `ValueError` for other texts, such as 1.5, and for exponents beyond `MOST_DIGITS`.
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

    Raises `TypeError` for other values, such as 1.5, and `ValueError` for numbers beyond `most`.
    """
    value = native(value)
    if not _is_whole(value):
        raise TypeError(f"{what} is {value!r}, it must be int: a whole number, such as 300000 or 3e5.")
    if abs(value) > most:
        raise ValueError(f"{what} is {value:,}, it must be {'at most ' if value > 0 else 'at least -'}{most:,}.")
    return int(value)


def _is_whole(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool) and value == value // 1


def require_integers(config: Any) -> None:
    """Raise `ValueError` for integers of a Config that compiled programs cannot count to."""
    for field in dataclasses.fields(config):
        _require_small(getattr(config, field.name), flag(field.name))


def _require_small(value: Any, flag: str) -> None:
    if isinstance(value, tuple):
        for part in value:
            _require_small(part, flag)
    elif isinstance(value, int):
        integer(int(value), flag)


def setting(config: Any, name: str) -> str:
    """Translate another suite's name of a setting: "tau" is `target_rate`, "gamma" is `discount`.

    Three kinds of names are returned unchanged: fields of `config`, unknown names, and names that could mean two fields
    of `config`.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    meant = [other for other in ELSEWHERE.get(name, ()) if other in fields]
    return meant[0] if len(meant) == 1 and name not in fields else name


def replace(config: Any, values: Mapping[str, Any], origin: str) -> Any:
    """`config` with `values`. Lists become tuples and whole numbers become floats where the field's type asks for it.

    Raises `ValueError` for a name that is no field (the message suggests similar names), and `TypeError` for a value of
    the wrong type.
    """
    hints = typing.get_type_hints(type(config))
    fields = [field.name for field in dataclasses.fields(config)]
    changes = {}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"{origin}: no setting '{name}'. {nearest(name, fields)}All of them: {', '.join(fields)}")
        changes[name] = _convert(name, value, hints[name], origin)
    return dataclasses.replace(config, **changes)


def parse(config: Any, name: str, text: str, origin: str) -> Any:
    """Read a value of the setting `name` from the command line's text: "3e-4", "true", "none", "256x256".

    Raises `ValueError` for a name that is no setting of `config`, and for a text that is no value of the setting.
    """
    hints = typing.get_type_hints(type(config))
    if name not in hints:
        replace(config, {name: text}, origin)  # raises an error that lists all settings
    hint = hints[name]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if text.lower() == "none" and type(None) in kinds:
        return None
    hint = _given(hint)
    readers: dict[Any, Any] = {float: float, int: whole_number, bool: {"true": True, "false": False}.__getitem__}
    try:
        for kind in kinds:
            if kind in readers:
                return readers[kind](text)
        if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is int:
            return tuple(whole_number(part) for part in text.split("x"))
    except (ValueError, KeyError) as error:
        why = f" ({error})" if "too large" in str(error) else ""
        raise ValueError(f"{origin}: '{text}' is no value of '{name}', which is {_described(hint)}{why}.") from None
    if typing.get_origin(hint) is tuple:
        raise ValueError(f"{origin}: '{name}' is a list of lists, which cannot be written here.")
    replace(config, {name: text}, origin)
    return text


def _given(hint: Any) -> Any:
    """The tuple type of a hint such as `tuple[int, ...] | None`; any other hint unchanged."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    return next((kind for kind in kinds if typing.get_origin(kind) is tuple), hint)


def _described(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "integers such as 256x256"
    return getattr(hint, "__name__", str(hint))


def _convert(name: str, value: Any, hint: Any, origin: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return None
    hint = _given(hint)
    if float in kinds:
        several = value if isinstance(value, list | tuple) else (value,)  # one per learner
        if not hasattr(value, "dtype") and any(isinstance(x, bool) or not isinstance(x, Real) for x in several):
            raise TypeError(f"{origin}: '{name}' is {value!r}, it must be a number.")
        return float(value) if isinstance(value, Real) else value
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ValueError(f"{origin}: '{name}' is {value!r}, it must be one of {', '.join(map(str, choices))}.")
        return value
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        length = len(typing.get_args(inner)) or None  # of each inner tuple, in a tuple of tuples
        rows: Any = [value] if length is None else value
        if not isinstance(value, list | tuple) or not all(_are_integers(row, length) for row in rows or ()):
            what = "integers" if length is None else f"lists of {length} integers"
            raise TypeError(f"{origin}: '{name}' is {value!r}, it must be a list of {what}.")
        read = [tuple(integer(x, f"{origin}: '{name}'") for x in row) for row in rows or ()]
        return read[0] if length is None else tuple(read)
    if hint is int:
        return integer(value, f"{origin}: '{name}'")
    if hint in (bool, str) and type(value) is not hint:
        raise TypeError(f"{origin}: '{name}' is {value!r}, it must be {hint.__name__}.")
    return value


def _are_integers(value: Any, length: int | None) -> bool:
    return isinstance(value, list | tuple) and all(map(_is_whole, value)) and (length is None or len(value) == length)


def stack(config: Any, num_learners: int) -> Any:
    """`config` with every float as an array [P]. A field may hold one number for all learners, or one per learner.

    Raises `ValueError` for a sequence whose length is not P.
    """
    import jax.numpy as jnp
    import numpy as np

    from rljax.agent import float_fields

    changes = {}
    for name in float_fields(type(config)):
        value = getattr(config, name)
        if value is None:
            continue
        values = np.asarray(value, np.float32)
        if values.ndim == 1 and values.shape[0] != num_learners:
            raise ValueError(f"config.{name} has {values.shape[0]} values for {num_learners} learners.")
        changes[name] = jnp.asarray(np.broadcast_to(values, (num_learners,)))
    return dataclasses.replace(config, **changes)


def varied(config: Any) -> dict[str, tuple[float, ...]]:
    """The settings that differ between learners: their names, and one value per learner."""
    from rljax.agent import float_fields

    values = {name: getattr(config, name) for name in float_fields(type(config))}
    return {name: tuple(map(float, value)) for name, value in values.items() if hasattr(value, "__len__")}


def as_json(config: Any) -> dict[str, Any]:
    """A Config's fields, ready for JSON: arrays and tuples become lists."""
    return {field.name: _listed(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_listed(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value


# Arguments of Python's callers


def native(value: Any) -> Any:
    """Python's numbers, tuples and mappings in place of those of NumPy and JAX, at any depth."""
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
    found = os.fspath(value)
    if isinstance(found, bytes) or "\0" in found:
        raise TypeError(f"{name} is {value!r}, it must be text without null bytes.")
    return found
