"""Signals: numbers besides the reward, such as a cost.

In the prefix `signals-A,B/` a full stop stands for a slash, which names of signals cannot have.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Part
from rljax.envs.environment import Environment, EnvironmentFailed, StepResult

# with another meaning in metrics, in evaluations or in the extras of transitions
TAKEN = (
    "return",
    "length",
    "count",
    "success",
    "score",
    "memory",
    "first",
    "time",
    "row",
    "weight",
)

Signals = tuple[Part, ...]


def declared(metadata: Any, name: str) -> Signals:
    """The signals in `metadata["signals"]` of the environment called `name`, checked by `check`."""
    try:
        if isinstance(metadata, str):
            raise TypeError
        shapes = dict(metadata) if isinstance(metadata, Mapping) else dict.fromkeys(metadata, ())
        signals = _sorted(Part(name, tuple(map(int, shape))) for name, shape in shapes.items())
    except (TypeError, ValueError):
        raise ValueError(
            f"metadata['signals'] of '{name}' is {metadata!r}, it must be a list of names, such as "
            "['cost'], or a dictionary of names and shapes, such as {'objectives': (2,)}."
        ) from None
    check(signals, name)
    return signals


def _sorted(parts: Iterable[Part]) -> Signals:
    return tuple(sorted(parts, key=lambda part: part.name))


def check(signals: Signals, name: str) -> None:
    """Raise `ValueError` for signals whose names cannot be used, or that are not float32."""
    names = [part.name for part in signals]
    for part in signals:
        if not part.name or part.name in TAKEN or "/" in part.name or names.count(part.name) > 1:
            raise ValueError(
                f"'{name}' has a signal called '{part.name}'. Choose another name: one without "
                f"'/', once, and none of {', '.join(TAKEN)}."
            )
        if part.dtype != "float32":
            raise ValueError(
                f"the signal '{part.name}' of '{name}' is {part.dtype}, signals are float32."
            )
    if names != sorted(names):
        raise ValueError(f"the signals of '{name}' are {', '.join(names)}: order them by name.")


def require(
    signal_names: Iterable[str], signals: Signals, agent: str, name: str, data: bool = False
) -> None:
    """Raise `ValueError` for a signal that the agent needs and the environment, or the `data`,
    called `name` lacks.
    """
    has = [part.name for part in signals]
    for missing in (signal for signal in signal_names if signal not in has):
        raise ValueError(
            f"agent '{agent}' learns from the signal '{missing}', and '{name}' gives "
            + (f"only {', '.join(has)}. " if has else "none. ")
            + (
                f"Columns of data sets are called signals/{missing}."
                if data
                else f"If its info has '{missing}': --env {_with_signal(missing, name)}. Or let "
                f"the class declare it, by metadata = {{'signals': ['{missing}']}} in Gymnasium: "
                "docs/environments.md. Others: velocity/HalfCheetah-v5, rljax/PointHazards."
            )
        )


def _with_signal(signal: str, name: str) -> str:
    from rljax import envs

    parts = envs.split(name)
    names = ",".join([*filter(None, parts.signal_names), signal])
    return f"{parts.shown}signals-{names}/{parts.last_step}{parts.hidden}{parts.rest}"


def zeros(signals: Signals, number: int, kind: Any = jnp) -> dict[str, Any]:
    """Signals [N, K...] that are 0, of JAX or of another `kind`."""
    return {part.name: kind.zeros((number, *part.shape)) for part in signals}


def of_info(info: Mapping[str, Any], signals: Signals, name: str) -> dict[str, Array]:
    """The signals [K...] in a compiled environment's `info`. Raises `ValueError`."""
    values = {}
    for part in signals:
        if part.name not in info or jnp.shape(info[part.name]) != part.shape:
            present = f"one of shape {jnp.shape(info[part.name])}" if part.name in info else "none"
            raise ValueError(
                f"'{name}' declares the signal '{part.name}' of shape {part.shape}, and its "
                f"info has {present}."
            )
        values[part.name] = jnp.asarray(info[part.name], jnp.float32)
    return values


def of_step(info: Mapping[str, Any], part: Part, environment: str) -> Any:
    """The value [K...] of one signal in one environment's `info`. Raises `EnvironmentFailed`."""
    if part.name not in info:
        raise EnvironmentFailed(
            f"{environment} returned an info without the signal '{part.name}'. The info of every "
            "step must have it, 0 where there is none."
        )
    value = info[part.name]
    if type(value) is float and part.shape == ():
        return value
    try:
        array = np.asarray(value)
        array = array.astype(np.float64) if array.dtype.kind in "fiub" else None
    except (TypeError, ValueError):
        array = None
    if array is None or array.shape != part.shape:
        kind = "one real number" if part.shape == () else f"numbers of shape {part.shape}"
        raise EnvironmentFailed(
            f"{environment} returned the signal '{part.name}' = {value!r}, it must be {kind}."
        )
    return array


def of_batch(
    info: Mapping[str, Any], signals: Signals, ended: np.ndarray, name: str
) -> dict[str, np.ndarray]:
    """The signals [N, K...] float64 in the `info` of a vector environment.

    Of episodes that `ended` [N], they may be in "final_info".
    """
    values = zeros(signals, len(ended), np)
    for part in signals:
        for row in range(len(ended)):
            whole = info["final_info"] if ended[row] and "final_info" in info else info
            mask = whole.get(f"_{part.name}")
            known = part.name in whole and (mask is None or bool(mask[row]))
            row_info = {part.name: whole[part.name][row]} if known else {}
            values[part.name][row] = of_step(row_info, part, f"environment {row} of '{name}'")
    return values


def names(signals: Signals) -> list[str]:
    """The names of all numbers: "cost", or "objectives/0" for the first of several."""
    return list(numbers(zeros(signals, 1, np), 1))


def numbers(values: Mapping[str, Any], leading: int) -> dict[str, Any]:
    """Signals [..., K...] with this number of `leading` axes as single numbers [...] by name."""
    columns = {}
    for name, value in values.items():
        if value.ndim == leading:
            columns[name] = value
            continue
        rows = value.reshape(*value.shape[:leading], -1)
        columns |= {f"{name}/{index}": rows[..., index] for index in range(rows.shape[-1])}
    return columns


def packed(values: Mapping[str, Any]) -> list[Any]:
    """Signals [N, K...] as columns [N], for `unpacked`."""
    return list(numbers(values, 1).values())


def unpacked(columns: Array, signals: Signals) -> dict[str, Array]:
    """The signals [N, K...] in columns [N, numbers of all signals]."""
    values, begin = {}, 0
    for part in signals:
        size = int(np.prod(part.shape))
        values[part.name] = columns[:, begin : begin + size].reshape(-1, *part.shape)
        begin += size
    return values


def from_info(
    signal_names: Iterable[str], info: Mapping[str, Any], declared: Signals, name: str
) -> Signals:
    """The `declared` signals, and those called `signal_names`, with their shapes in the `info` of a
    step. Raises `ValueError` if `info` lacks real numbers for one.
    """
    numbers = {key: shape for key, value in info.items() if (shape := _shape(value)) is not None}
    parts = list(declared)
    for signal in signal_names:
        shape = numbers.get(_key(signal, numbers))
        if shape is None:
            has = ", ".join(sorted(numbers)) or "no numbers"
            raise ValueError(
                f"'{name}' is to give the signal '{signal}', and the info of its first step has "
                f"{has}. Every step must give it, 0 where there is none."
            )
        if signal not in [part.name for part in declared]:
            parts.append(Part(signal, shape))
    signals = _sorted(parts)
    check(signals, name)
    return signals


def renamed(signal_names: Iterable[str], info: Mapping[str, Any]) -> dict[str, Any]:
    """The entries of `info`, and the signals under their names."""
    keys = {name: _key(name, info) for name in signal_names}
    return {**info, **{name: info[key] for name, key in keys.items() if key in info}}


def _key(signal: str, info: Mapping[str, Any]) -> str:
    return signal if signal in info else signal.replace(".", "/")


def _shape(value: Any) -> tuple[int, ...] | None:
    try:
        kind = np.dtype(value.dtype if hasattr(value, "dtype") else np.asarray(value).dtype).kind
        return tuple(np.shape(value)) if kind in "fiub" else None
    except (TypeError, ValueError):
        return None


class Signalling:
    """A compiled environment whose signals are numbers in its `info`."""

    def __init__(self, environment: Environment, signal_names: tuple[str, ...]) -> None:
        """Raises `ValueError` for signals that `from_info` refuses."""
        self.environment = environment
        self.params = environment.params
        self._signal_names = signal_names
        spec = environment.spec

        def info(key: Array) -> Any:
            state = environment.reset(key, environment.params)[1]
            action = jnp.zeros(spec.action_shape, spec.action_dtype)
            signals = environment.step(key, state, action, environment.params)[5]
            return {name: value for name, value in signals.items() if _shape(value) is not None}

        example = jax.eval_shape(info, jax.random.key(0))
        signals = from_info(signal_names, example, spec.signals, spec.name)
        name = f"signals-{','.join(signal_names)}/{spec.name}"
        self.spec = dataclasses.replace(spec, name=name, signals=signals)

    def reset(self, key: Array, params: Any) -> tuple[Any, Any]:
        """Begin an episode."""
        return self.environment.reset(key, params)

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        *others, info = self.environment.step(key, state, action, params)
        return (*others, renamed(self._signal_names, info))  # type: ignore[return-value]
