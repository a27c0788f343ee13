"""Spaces in the metadata of Minari's data sets: checked, and as Gymnasium's spaces.

All functions except `checked` take a checked description.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from rljax.agent import MASK
from rljax.datasets.formats.schema import (
    DEEPEST,
    INT32,
    MOST_CHOICES,
    is_count,
    is_numbers,
    mapping,
    wrong,
)

DTYPES = ("bool", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))
DTYPES += ("float16", "float32", "float64")  # of a Box
SEVERAL = ("MultiDiscrete", "MultiBinary")
CHOICES = ("Discrete", *SEVERAL)
KINDS = ("Box", *CHOICES, "Dict", "Tuple", "Text")


def checked(value: Any, file: str, key: str, depth: int = 0) -> Mapping[str, Any] | None:
    """A space in a file's JSON, or None. Raises `ValueError` for anything else."""
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in KINDS or depth > DEEPEST:
        raise wrong(file, key, value, f"a space: its 'type' is one of {', '.join(KINDS)}")
    value = mapping(value, file, key)
    right = None
    if kind == "Box":
        shape = value.get("shape", [])
        if not all(is_numbers(value.get(name)) for name in ("low", "high")):
            right = "a Box with numbers as 'low' and 'high'"
        elif (
            not isinstance(shape, list)
            or len(shape) > DEEPEST
            or not all(size == 0 or is_count(size) for size in shape)
        ):
            right = "a Box whose 'shape' is a list of whole numbers"
        elif value.get("dtype", "float32") not in DTYPES:
            right = f"a Box whose 'dtype' is one of {', '.join(DTYPES)}"
    elif kind in SEVERAL and not _has_choices(value):
        name = "nvec" if kind == "MultiDiscrete" else "n"
        choices = f"whole numbers as '{name}', with at most {MOST_CHOICES:,} choices"
        right = f"a {kind} space with {choices}"
    elif kind == "Discrete":
        if not is_count(value.get("n")) or not isinstance(value.get("start", 0), int):
            right = "a Discrete space with a whole number 'n' of at least 1"
    elif kind in ("Dict", "Tuple"):
        parts = value.get("subspaces")
        if not isinstance(parts, Mapping if kind == "Dict" else list) or not parts:
            raise wrong(file, key, value, "a space with 'subspaces'")
        for name, part in parts.items() if isinstance(parts, Mapping) else enumerate(parts):
            checked(part, file, f"{key}/{name}", depth + 1)
    if right is not None:
        raise wrong(file, key, value, right)
    return value


def _has_choices(value: Mapping[str, Any]) -> bool:
    several = value["type"] == "MultiDiscrete"
    numbers = value.get("nvec" if several else "n"), value.get("start", 0)
    if not all(map(is_numbers, numbers)):
        return False
    sizes, start = map(np.asarray, numbers)
    if not sizes.size or {sizes.dtype.kind, start.dtype.kind} != {"i"} or sizes.min() < 1:
        return False
    total = (np.sum if several else np.prod)(sizes, dtype=np.float64)
    return bool(
        max(total, sizes.max()) <= MOST_CHOICES
        and (several or sizes.ndim < 2)
        and start.shape in ((), sizes.shape)
        and (np.abs(start) < INT32.max // 2).all()
    )


def choices(space: Any) -> tuple[int, ...]:
    """The choices of several discrete actions; () for other actions."""
    if space is None or space["type"] not in SEVERAL:
        return ()
    if space["type"] == "MultiDiscrete":
        return tuple(int(number) for number in np.ravel(space["nvec"]))
    return (2,) * math.prod(np.ravel(space["n"]).tolist())


def needs_translation(observation: Any, action: Any, masked: bool) -> bool:
    """Whether spaces may hold pictures, masks, or choices."""
    is_discrete = action is not None and action["type"] in CHOICES
    has_mask = is_discrete and (masked or MASK in set(_paths(observation)))
    has_pictures = any(
        len(box.get("shape", ())) == 3 for box in simple_spaces(observation) if box["type"] == "Box"
    )
    return has_mask or has_pictures or has_kind(observation, "MultiDiscrete")


def part_names(space: Any) -> list[str]:
    """The names of a dictionary's parts, or the numbers of a tuple's."""
    parts = space["subspaces"]
    return sorted(parts) if isinstance(parts, dict) else [str(i) for i in range(len(parts))]


def simple_spaces(space: Any) -> Iterator[Any]:
    """The spaces within a space but for dictionaries and tuples."""
    if space["type"] not in ("Dict", "Tuple"):
        yield space
        return
    below = space["subspaces"]
    for part in below.values() if isinstance(below, Mapping) else below:
        yield from simple_spaces(part)


def has_kind(space: Any, kind: str) -> bool:
    """Whether a space contains one of this kind."""
    return any(part["type"] == kind for part in simple_spaces(space))


def _paths(space: Any) -> Iterator[str]:
    if space["type"] == "Dict":
        for part, below in space["subspaces"].items():
            yield part
            yield from _paths(below)


def gymnasium_space(space: Any) -> Any:
    """Gymnasium's space, with the bounds of the dtype."""
    from gymnasium import spaces

    kind = space["type"]
    if kind in ("Dict", "Tuple"):
        below = space["subspaces"]
        if kind == "Tuple":
            return spaces.Tuple([gymnasium_space(part) for part in below])
        return spaces.Dict({part: gymnasium_space(one) for part, one in below.items()})
    if kind == "Box":
        shape, dtype = tuple(space.get("shape", ())), np.dtype(space.get("dtype", "float32"))
        limits = (0, 1) if dtype.kind == "b" else (-np.inf, np.inf)
        if dtype.kind in "iu":
            limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        return spaces.Box(*limits, shape, dtype)  # type: ignore[arg-type]
    if kind == "Text":
        return spaces.Text(1)
    return gymnasium_actions(space)


def gymnasium_actions(space: Any) -> Any:
    """Gymnasium's space; one Box for all continuous actions."""
    from gymnasium import spaces

    if space is None or space["type"] == "Box":
        return spaces.Box(-1.0, 1.0, (1,), np.float32)
    if space["type"] == "Discrete":
        return spaces.Discrete(int(space["n"]), start=int(space.get("start", 0)))
    numbers = np.array(choices(space), np.int64)
    if len(numbers) > MOST_CHOICES or numbers.sum() > MOST_CHOICES:
        raise ValueError(f"more than {MOST_CHOICES:,} choices.")
    if space["type"] == "MultiBinary":
        return spaces.MultiBinary(space["n"])
    shape = np.shape(space["nvec"])
    start = np.broadcast_to(np.asarray(space.get("start", 0), np.int64), shape)
    return spaces.MultiDiscrete(numbers.reshape(shape), start=start)
