"""A Config: its settings by name, from text, from JSON and to it, and stacked over learners."""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from collections.abc import Mapping, Sequence
from decimal import Decimal, InvalidOperation
from numbers import Real
from typing import Any

MOST_DIGITS = 18  # of a number with an exponent: 1e999999999 would fill the memory

# Names that Stable-Baselines3 and CleanRL have for settings, and what each may mean here.
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


def nearest(name: str, known: Sequence[str]) -> str:
    """ "Nearest: 'a', 'b'. ", or nothing where nothing is near."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Nearest: {', '.join(repr(x) for x in close)}. " if close else ""


def whole_number(text: str) -> int:
    """The integer that a text such as 1000000, 1_000_000, 1e6 or 2.5e5 says.

    Raises `ValueError` for other texts, such as 1.5, and for exponents beyond `MOST_DIGITS`.
    """
    try:
        return int(text)
    except ValueError:
        pass
    try:
        number = Decimal(text)
    except InvalidOperation:
        number = Decimal("nan")
    if number.is_finite() and number.adjusted() >= MOST_DIGITS:
        raise ValueError(f"'{text}' is too large: it has more than {MOST_DIGITS} digits.")
    if not number.is_finite() or number != number.to_integral_value():
        raise ValueError(f"'{text}' is not a whole number, such as 300000, 300_000 or 3e5.")
    return int(number)


def setting(config: Any, name: str) -> str:
    """The name here of a setting that may bear another suite's: "tau" is `target_rate`, "gamma" is `discount`.

    A name of `config`, one that is not known, and one that could mean two of its settings are returned as they are.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    meant = [other for other in ELSEWHERE.get(name, ()) if other in fields]
    return meant[0] if len(meant) == 1 and name not in fields else name


def replace(config: Any, values: Mapping[str, Any], origin: str) -> Any:
    """`config` with `values`, lists as tuples and whole numbers as floats where the field says so.

    Raises `ValueError` for a name that is no field (with the nearest), `TypeError` for a value of another kind.
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
    """A value of the setting `name` of `config` from the command line's text: "3e-4", "true", "none", "256x256".

    Raises `ValueError` for a name that is no setting and a text that is no value of it.
    """
    hints = typing.get_type_hints(type(config))
    if name not in hints:
        replace(config, {name: text}, origin)  # says what there is
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
    except (ValueError, KeyError):
        raise ValueError(f"{origin}: '{text}' is no value of '{name}', which is {_described(hint)}.") from None
    if typing.get_origin(hint) is tuple:
        raise ValueError(f"{origin}: '{name}' is a list of lists, which cannot be written here.")
    replace(config, {name: text}, origin)
    return text


def _given(hint: Any) -> Any:
    """Of a list of integers that may be None, what it is where it is given."""
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
        length = len(typing.get_args(inner)) or None  # of each in a tuple of tuples
        rows = [value] if length is None else value
        if not isinstance(value, list | tuple) or not all(_are_integers(row, length) for row in rows or ()):
            what = "integers" if length is None else f"lists of {length} integers"
            raise TypeError(f"{origin}: '{name}' is {value!r}, it must be a list of {what}.")
        return tuple(value) if length is None else tuple(map(tuple, value))
    if hint in (int, bool, str) and type(value) is not hint:
        raise TypeError(f"{origin}: '{name}' is {value!r}, it must be {hint.__name__}.")
    return value


def _are_integers(value: Any, length: int | None) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(type(x) is int for x in value)
        and (length is None or len(value) == length)
    )


def stack(config: Any, num_learners: int) -> Any:
    """`config` with every float as an array [P]: one number for all learners, or one per learner.

    Raises `ValueError` for a sequence of another length.
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
    """The settings that are not one number for all learners: their values, one per learner."""
    from rljax.agent import float_fields

    values = {name: getattr(config, name) for name in float_fields(type(config))}
    return {name: tuple(map(float, value)) for name, value in values.items() if hasattr(value, "__len__")}


def as_json(config: Any) -> dict[str, Any]:
    """A Config's fields, ready for JSON: arrays and tuples as lists."""
    return {field.name: _listed(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_listed(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value
