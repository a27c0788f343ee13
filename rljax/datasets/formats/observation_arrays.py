"""Observations that are not vectors in our own files: dictionaries, pictures and masks.

The metadata's `observation` is a list of {"name", "shape", "dtype", "once"}, one per array. For an
observation of one array the name is null, and a file holds

    observations, next_observations           [N, ...]

or, where "once" is true,

    frames/pictures                           [M, H, W, c] uint8, all different
    frames/observations, frames/successors    [N, K] int32: the K frames of each row, newest last

and for the part NAME of a dictionary, `observations/NAME`, `next_observations/NAME` and
`frames/NAME/pictures` and so on, with NAME percent-encoded.
"""

from __future__ import annotations

import urllib.parse
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from rljax.buffers.storage import frames
from rljax.datasets.formats import schema
from rljax.datasets.formats.text import listed, shortened
from rljax.trust import RefusedFileError

DTYPES = ("float32", "uint8", "bool")
# Parts of an observation, axes of one, characters of its name.
MOST_PARTS, MOST_AXES, LONGEST = 1_000, 8, 200


class ArrayDescription(NamedTuple):
    """One array of an observation, as a file's metadata describe it."""

    name: str | None
    shape: tuple[int, ...]  # without the axis of rows
    dtype: str
    once: bool

    @property
    def suffix(self) -> str:
        """The end of the array's key, after the field's name."""
        return _suffix(self.name)


def _suffix(name: str | None) -> str:
    # HDF5 would read slashes and dots as paths.
    encoded = urllib.parse.quote(name or "", safe="").replace(".", "%2E")
    return "" if name is None else f"/{encoded or '%'}"


def described(observation: Any) -> list[dict[str, Any]]:
    """The metadata's description of observations [N, ...]."""
    return [
        {"name": name, "shape": list(x.shape[1:]), "dtype": _dtype(x), "once": frames.is_frames(x)}
        for name, x in _named(observation)
    ]


def written(observation: Any, following: Any) -> dict[str, np.ndarray]:
    """The arrays of observations and successors by their keys in a file."""
    arrays = {}
    for (name, one), (_, other) in zip(_named(observation), _named(following), strict=True):
        suffix = _suffix(name)
        if frames.is_frames(one):
            arrays[f"frames{suffix}/pictures"] = np.asarray(one.pictures)
            arrays[f"frames{suffix}/observations"] = np.asarray(one.index)
            arrays[f"frames{suffix}/successors"] = np.asarray(other.index)
        else:
            arrays[f"observations{suffix}"] = np.asarray(one, _dtype(one))
            arrays[f"next_observations{suffix}"] = np.asarray(other, _dtype(other))
    return arrays


def read(
    file: str, arrays: Mapping[str, Any], description: Any, total: int, stack: int
) -> tuple[Any, Any]:
    """Observations and successors of the `total` rows of a file.

    `description` is the metadata's `observation`, and `stack` a picture's number of frames. Raises
    `ValueError` if the arrays do not match the description.
    """
    pairs = {
        column.name: _read(file, arrays, column, total, stack)
        for column in _columns(file, description)
    }
    if None in pairs:
        return pairs[None]
    return tuple({name: pair[i] for name, pair in pairs.items()} for i in (0, 1))  # pyright: ignore[reportReturnType]


def _dtype(column: Any) -> str:
    return column.dtype.name if column.dtype.name in DTYPES else "float32"


def _named(observation: Any) -> list[tuple[str | None, Any]]:
    return sorted(observation.items()) if isinstance(observation, dict) else [(None, observation)]


def _columns(file: str, description: Any) -> Iterator[ArrayDescription]:
    right = "a list of the arrays of an observation, each with 'name', 'shape', 'dtype' and 'once'"
    if not isinstance(description, list) or not 0 < len(description) <= MOST_PARTS:
        raise schema.wrong(file, "observation", description, right)
    names = []
    for entry in description:
        keys = ("name", "shape", "dtype", "once")
        is_mapping = isinstance(entry, Mapping)
        name, shape, dtype, once = map(entry.get, keys) if is_mapping else [None] * 4
        is_name = isinstance(name, str) and len(name) <= LONGEST and name.isprintable()
        if (
            not (is_name or (name is None and len(description) == 1))
            or not isinstance(shape, list)
            or len(shape) > MOST_AXES
            or not all(map(schema.is_count, shape))
            or dtype not in DTYPES
            or not isinstance(once, bool)
            or (once and (len(shape) != 3 or dtype != "uint8"))
        ):
            raise schema.wrong(file, "observation", entry, f"one entry of {right}")
        names.append(name)
        yield ArrayDescription(name, tuple(shape), dtype, once)
    if len(set(names)) < len(names):
        raise schema.wrong(file, "observation", names, "without a name that occurs twice")


def _read(
    file: str, arrays: Mapping[str, Any], column: ArrayDescription, total: int, stack: int
) -> tuple[Any, Any]:
    def array(key: str, shape: tuple[int | None, ...], dtype: str) -> np.ndarray:
        return _array(file, arrays, key, shape, dtype)

    suffix, shape = column.suffix, (total, *column.shape)
    if not column.once:
        return (
            array(f"observations{suffix}", shape, column.dtype),
            array(f"next_observations{suffix}", shape, column.dtype),
        )
    *sides, channels = column.shape
    if channels % stack:
        right = f"a divisor of the {channels} channels of the pictures"
        raise schema.wrong(file, "stack", stack, right)
    pictures = array(f"frames{suffix}/pictures", (None, *sides, channels // stack), "uint8")

    def framed(key: str) -> frames.Frames:
        index = array(key, (total, stack), "int32")
        if index.min(initial=0) < 0 or index.max(initial=0) >= len(pictures):
            raise RefusedFileError(
                f"'{file}': '{shortened(key)}' are from {index.min()} to {index.max()}, rows of "
                f"the {len(pictures)} pictures that the file holds. It is damaged: record or "
                "download it again."
            )
        return frames.Frames(pictures, index)

    return framed(f"frames{suffix}/observations"), framed(f"frames{suffix}/successors")


def _array(
    file: str, arrays: Mapping[str, Any], key: str, shape: tuple[Any, ...], dtype: str
) -> np.ndarray:
    """The array under a key; None in `shape` is any number from 1 on."""
    if key not in arrays:
        raise RefusedFileError(
            f"'{file}' has no '{shortened(key)}'; it has: {listed(arrays)}. Record it again."
        )
    array = arrays[key]
    actual = getattr(array, "shape", ())
    promised = "x".join("?" if size is None else str(size) for size in shape)
    right = len(actual) == len(shape) and all(
        size > 0 if expected is None else size == expected
        for size, expected in zip(actual, shape, strict=True)
    )
    if not right or array.dtype != dtype:
        kind = f"{array.dtype}{list(actual)}" if hasattr(array, "dtype") else "a group of arrays"
        raise RefusedFileError(
            f"'{file}': '{shortened(key)}' is {kind}, its metadata promise {dtype} of {promised}. "
            "It is damaged, or was assembled wrongly: record or download it again."
        )
    return schema.stored(array)
