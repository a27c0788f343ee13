"""Which arrays and facts a data set may hold.

In errors `file` is the file's name in messages, and `key` that of the array. Axes: `M` rows of a
file.
"""

from __future__ import annotations

import sys
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

from rljax.agent import Part
from rljax.datasets.formats.text import listed, shortened
from rljax.envs.signals import check as check_signals
from rljax.spec import PICTURES
from rljax.trust import RefusedFileError, note

INT32 = np.iinfo(np.int32)
SIGNALS = "signals/"  # before the name of a signal, in the key of its column
LONGEST_NAME = 10_000  # characters
DEEPEST = 8  # levels of spaces within spaces, and of groups within groups
MOST_CHOICES = 100_000  # all choices of several discrete actions together
MOST_STACK = 1_000  # frames in a picture


def stored(array: Any, dtype: Any = None) -> np.ndarray:
    """An array, or an `Array` of an HDF5 file, as an array of `dtype`."""
    if isinstance(array, np.ndarray):
        return array if dtype is None else array.astype(dtype, copy=False)
    if dtype is None or array.shape == () or 0 in array.shape:
        return np.asarray(array[()])
    return array.read(dtype)


def numbers(array: Any, file: str, key: str) -> Any:
    """The array [M, ...] of numbers or truth values.

    Raises `ValueError` for all else, and for empty rows.
    """
    if hasattr(array, "keys"):
        raise is_group(file, key, array)
    if array.dtype.kind not in "biuf":
        raise ValueError(
            f"'{file}': '{key}' is of type {array.dtype}, it must hold numbers. Store it "
            "as float32."
        )
    if not array.shape or 0 in array.shape[1:]:
        raise ValueError(
            f"'{file}': '{key}' has shape {array.shape}, it must be [rows, ...] with at least one "
            "number in each row. The file was assembled wrongly: make it again."
        )
    return array


def is_group(file: str, key: str, parts: Collection[str]) -> ValueError:
    """The error for a group in place of an array."""
    return ValueError(
        f"'{file}': '{key}' is a group ({listed(parts) if len(parts) else 'empty'}), it must "
        "be one array. Put the group's arrays side by side: np.concatenate([...], axis=1)"
    )


def require_length(file: str, key: str, length: int, reward: str, total: int) -> None:
    """Raise `ValueError` for unequal lengths."""
    if length != total:
        raise ValueError(
            f"'{file}': '{key}' has {length} rows, '{reward}' has {total}. The file was cut or "
            "assembled wrongly: make it again."
        )


def vectors(array: Any, file: str, key: str) -> np.ndarray:
    """Observations [M, ...] as float32 vectors [M, O]; arrays are flattened with a warning.

    Raises `ValueError` for images: uint8 with two axes or more in a row.
    """
    if numbers(array, file, key).ndim > 2:
        if array.dtype == np.uint8:
            raise ValueError(
                f"'{file}': '{key}' holds images {array.shape[1:]} of uint8. {PICTURES} Or choose "
                "the variant of the dataset with states."
            )
        note(f"'{file}': '{key}' of shape {array.shape[1:]} is flattened to vectors.")
    with np.errstate(over="ignore"):  # values too large for float32 are reported as not finite
        return _flat(stored(array, np.float32))


def observed(array: Any, file: str, key: str) -> np.ndarray:
    """Observations [M, ...]: pictures of uint8 with channels last, all else as `vectors`.

    Channels come first where that axis is at most half as long as the others.
    """
    if numbers(array, file, key).dtype != np.uint8 or array.ndim != 4:
        return vectors(array, file, key)
    pictures = stored(array)
    first, *sides = pictures.shape[1:]
    return (
        np.ascontiguousarray(np.moveaxis(pictures, 1, -1)) if 2 * first <= min(sides) else pictures
    )


def column(array: Any, file: str, key: str, dtype: Any) -> np.ndarray:
    """One number per row: [M] from [M] or [M, 1]."""
    if numbers(array, file, key).shape[1:] not in ((), (1,)):
        raise ValueError(
            f"'{file}': '{key}' has shape {array.shape}, it must be [rows] or [rows, 1]."
        )
    with np.errstate(over="ignore", invalid="ignore"):
        return stored(array).reshape(-1).astype(dtype, copy=False)


def marks(array: Any, file: str, key: str) -> np.ndarray:
    """Bool [M] from truth values, 0 and 1 as [M] or [M, 1]."""
    values = column(array, file, key, numbers(array, file, key).dtype)
    wrong = np.flatnonzero((values != 0) & (values != 1))
    for row in wrong[:1]:
        raise ValueError(
            f"'{file}': '{key}' is {values[row]} in row {row}, it must be 0 or 1, which "
            f"says whether an episode ended ({len(wrong)} of {len(values)} rows are neither). "
            "Correct the file."
        )
    return values.astype(np.bool_)


def lengths(array: Any, file: str, key: str, total: int) -> np.ndarray:
    """Lengths of trajectories, int64 [trajectories]: at least 1, with the sum `total`."""
    values = column(array, file, key, numbers(array, file, key).dtype)
    good = (values >= 1) & (values <= total) & (np.floor(values) == values)
    for index in np.flatnonzero(~good)[:1]:
        raise ValueError(
            f"'{file}': '{key}' is {values[index]} at index {index}; lengths of trajectories are "
            f"whole numbers from 1 to the number of rows, {total}. Correct the file."
        )
    values = values.astype(np.int64)
    if values.sum() != total:
        raise ValueError(f"'{file}': '{key}' sum up to {values.sum()}, not {total}.")
    return values


def actions(array: Any, file: str, key: str, start: int = 0) -> np.ndarray:
    """Actions: floating-point vectors [M, A], or int32 [M] from 0 of one integer per row.

    `start` is the number of the first discrete action in the file.
    """
    array = stored(numbers(array, file, key))
    if array.dtype.kind in "iub" and array.shape[1:] in ((), (1,)):
        array = array.reshape(-1)
        if len(array):
            least, most = int(array.argmin()), int(array.argmax())
            if int(array[least]) < start:
                raise ValueError(
                    f"'{file}': '{key}' is {array[least]} in row {least}; discrete actions count "
                    f"from {start}."
                )
            if int(array[most]) - start > INT32.max:
                raise ValueError(
                    f"'{file}': '{key}' is {array[most]} in row {most}, the largest number of a "
                    f"discrete action is {INT32.max + start}. If actions are continuous, store "
                    "them as float32."
                )
        if start:
            array = array.astype(np.int64) - start
        return array.astype(np.int32, copy=False)
    if array.ndim > 2:
        raise ValueError(
            f"'{file}': '{key}' has shape {array.shape}, it must be [rows, dimensions]."
        )
    array = _flat(array)
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def several_actions(array: Any, file: str, key: str) -> np.ndarray:
    """Several discrete actions in each row: int32 [M, K] from integers."""
    array = stored(numbers(array, file, key))
    if array.dtype.kind not in "iub" or array.ndim != 2 or (len(array) and array.max() > INT32.max):
        raise ValueError(
            f"'{file}': '{key}' is {array.dtype}{list(array.shape)}, several discrete actions are "
            "integers [rows, actions] up to 2^31 - 1. Correct the file."
        )
    return array.astype(np.int32, copy=False)


def require_choices(file: str, key: str, action: np.ndarray, choices: Any) -> None:
    """Raise `ValueError` unless each of `choices`, if any, exceeds the largest action [M, K]."""
    if choices is None:
        return
    number = action.shape[1]
    if not (isinstance(choices, list) and len(choices) == number and all(map(is_count, choices))):
        right = f"{number} whole numbers, one for each action of '{key}'"
        raise wrong(file, "choices", choices, right)
    if sum(choices) > MOST_CHOICES:
        raise wrong(file, "choices", choices, f"numbers with a sum of at most {MOST_CHOICES:,}")
    low, high = action.min(axis=0), action.max(axis=0)
    for i in np.flatnonzero((low < 0) | (high >= choices))[:1]:
        right = f"more than all of '{key}', which are from {low[i]} to {high[i]} at {i}"
        raise wrong(file, "choices", choices, right)


def facts(
    file: str, env: Any, reference: Any, provenance: Mapping[str, Any], most_action: int | None
) -> Any:
    """Check the facts beside the arrays; return the reference as two floats, or None.

    Args:
        env: the name of an environment, or None.
        reference: two finite numbers that differ, or None.
        provenance: its counts, `both_ends`, `stack` and `corruptions` are checked.
        most_action: the largest discrete action, or None. `num_actions` must be larger.
    """
    if env is not None and not (
        isinstance(env, str) and env.isprintable() and 0 < len(env) <= LONGEST_NAME
    ):
        raise wrong(file, "env", env, "the name of an environment, such as 'Hopper-v5'")
    if reference is not None:
        pair = reference if isinstance(reference, list | tuple) and len(reference) == 2 else ()
        right = "two finite numbers that differ: the returns of scores 0 and 100"
        if not pair or not all(map(_is_number, pair)) or pair[0] == pair[1]:
            raise wrong(file, "reference", reference, right)
        reference = (float(pair[0]), float(pair[1]))
    for name in ("max_episode_steps", "recorded_max_episode_steps", "num_actions"):
        value = provenance.get(name)
        if value is not None and not is_count(value):
            raise wrong(file, name, value, "a whole number of at least 1")
    both, stack = provenance.get("both_ends"), provenance.get("stack")
    if both is not None and both != 0 and not is_count(both):
        raise wrong(file, "both_ends", both, "a number of rows")
    if stack is not None and not (is_count(stack) and stack <= MOST_STACK):
        right = f"the number of frames in a picture, at most {MOST_STACK}"
        raise wrong(file, "stack", stack, right)
    count = provenance.get("num_actions")
    if most_action is not None and count is not None and count <= most_action:
        right = f"more than {most_action}, the largest action in the file"
        raise wrong(file, "num_actions", count, right)
    corruptions = provenance.get("corruptions") or []
    if not isinstance(corruptions, list) or not all(
        isinstance(note, Mapping) and isinstance(note.get("what"), str) for note in corruptions
    ):
        raise wrong(file, "corruptions", corruptions, "a list of mappings, each with a text 'what'")
    return reference


def mapping(value: Any, file: str, key: str) -> Mapping[str, Any]:
    """A mapping in a file's JSON; {} for None."""
    if value is None:
        return {}
    if not isinstance(value, Mapping):
        raise wrong(file, key, value, "a JSON object")
    return value


def is_count(value: Any) -> bool:
    """Whether `value` is a whole number from 1 to the largest of int32."""
    return isinstance(value, int) and not isinstance(value, bool) and 1 <= value <= INT32.max


def _is_number(value: Any) -> bool:
    number = isinstance(value, int | float) and not isinstance(value, bool)
    return number and abs(value) <= sys.float_info.max


def is_numbers(value: Any) -> bool:
    """Whether `value` is a number or an array of numbers."""
    try:
        return np.asarray(value).dtype.kind in "iuf"
    except (ValueError, OverflowError):
        return False


def wrong(file: str, key: str, value: Any, right: str) -> RefusedFileError:
    """The error for an entry of a file's metadata, which must be `right`."""
    return RefusedFileError(
        f"'{file}': '{shortened(key)}' is {shortened(repr(value), 80)}, it must be {right}. "
        "Correct the file's metadata."
    )


def _flat(array: np.ndarray) -> np.ndarray:
    # -1 would fail for an array without rows
    return array.reshape(len(array), int(np.prod(array.shape[1:])))


def signals(file: Mapping[str, Any], name: str) -> dict[str, np.ndarray]:
    """The file's signals `signals/NAME` [M, K...] as float32, in order; "cost" may also be called
    `costs` or `cost`.
    """
    group: Any = file.get(SIGNALS.removesuffix("/"))
    inside = [f"{SIGNALS}{key}" for key in group] if hasattr(group, "keys") else []
    keys = {key.removeprefix(SIGNALS): key for key in [*inside, *file] if key.startswith(SIGNALS)}
    for key in ("costs", "cost"):
        if "cost" not in keys and key in file and not hasattr(file[key], "keys"):
            keys["cost"] = key
    with np.errstate(over="ignore"):  # values too large for float32 are reported as not finite
        columns = {
            signal: stored(numbers(file[key], name, key), np.float32)
            for signal, key in sorted(keys.items())
        }
    check_signals(tuple(Part(signal, column.shape[1:]) for signal, column in columns.items()), name)
    return columns
