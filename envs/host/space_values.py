"""Observations in Gymnasium's spaces as arrays of numbers: checked, flattened and cast."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rljax.envs.host.actions import CORRECT, items
from rljax.envs.host.space_descriptions import is_text

Path = tuple[str | int, ...]  # of a part in a dictionary or tuple


def as_array(
    space: spaces.Space, value: Any, leading: tuple[int, ...] = (), part: str = ""
) -> np.ndarray:
    """Observations of a space that is neither dictionary nor tuple, as numbers [*leading,
    *space.shape].

    Raises `ValueError` for another shape, and for values that the dtype cannot hold. `part` is the
    value's place in the whole observation.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        shown = f"dtype {array.dtype}" if isinstance(value, np.ndarray) else repr(value)
        raise ValueError(
            f"{_called(part, leading)} that holds no real numbers ({shown[:80]}), {_promise(space)}"
        )
    expected = (*leading, *(space.shape or ()))
    if array.shape != expected:
        raise ValueError(
            f"{_called(part, leading)} of shape {array.shape}, its observation_space "
            f"promises {expected}. {CORRECT}"
        )
    dtype: Any = space.dtype
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        with np.errstate(invalid="ignore"):
            held = array.astype(dtype)
        if not np.array_equal(held, array):
            example = array[held != array].flat[0]
            raise ValueError(
                f"{_called(part, leading)} with the value {example} of dtype "
                f"{array.dtype}, {_promise(space)}"
            )
    return array


def flattened(
    space: spaces.Space,
    value: Any,
    leading: tuple[int, ...] = (),
    part: str = "",
    without: Collection[Path] = (),
    path: Path = (),
) -> np.ndarray:
    """Observations as vectors [*leading, K] float32, in the order of `gymnasium.spaces.flatten`.

    Leaves out text and the parts at the paths `without`. Raises `ValueError` for values outside the
    space.
    """
    if path in without or is_text(space):
        return np.zeros((*leading, 0), np.float32)
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        if isinstance(space, spaces.Dict):
            fits = isinstance(value, Mapping) and set(space.spaces) <= set(value)
        else:
            fits = isinstance(value, (tuple, list)) and len(value) == len(space.spaces)
        if not fits:
            raise ValueError(f"{_called(part, leading)} with {keys_of(value)}, {_promise(space)}")
        parts = [
            flattened(below, value[key], leading, f"{part}[{key!r}]", without, (*path, key))
            for key, below in items(space)
        ]
        return np.concatenate([np.zeros((*leading, 0), np.float32), *parts], axis=-1)
    array = as_array(space, value, leading, part)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _one_hot(space, array, leading, part)
    with np.errstate(over="ignore"):
        return array.reshape(*leading, -1).astype(np.float32)


def cast(space: spaces.Space, value: Any) -> Any:
    """A copy of one observation in the dtypes of its space."""
    if isinstance(space, spaces.Dict):
        return {key: cast(below, value[key]) for key, below in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(cast(below, part) for below, part in zip(space.spaces, value, strict=True))
    return value if is_text(space) else np.array(value, space.dtype)


def _one_hot(space: Any, value: np.ndarray, leading: tuple[int, ...], part: str) -> np.ndarray:
    """Choices as one-hot vectors [*leading, K] float32."""
    sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).ravel()
    choice = (value.astype(np.int64) - np.asarray(space.start)).reshape(*leading, len(sizes))
    outside = (choice < 0) | (choice >= sizes)
    if outside.any():
        wrong = value.reshape(choice.shape)[outside].flat[0]
        raise ValueError(f"{_called(part, leading)} with the choice {wrong}, {_promise(space)}")
    result = np.zeros((*leading, int(sizes.sum())), np.float32)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    np.put_along_axis(result, choice + starts, 1.0, axis=-1)
    return result


def keys_of(value: Any) -> str:
    """How messages call an observation of another structure."""
    if isinstance(value, Mapping):
        return f"the keys {list(value)}"
    return (
        f"{len(value)} parts" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
    )


def _called(part: str, leading: tuple[int, ...]) -> str:
    return f"observation{part}" if part else "observations" if leading else "an observation"


def _promise(space: spaces.Space) -> str:
    return f"its observation_space promises {space}. {CORRECT}"
