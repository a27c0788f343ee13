"""Spaces in the metadata of Minari's data sets: checked, and as Gymnasium's spaces.

Minari describes a space in JSON, such as {"type": "Box", "shape": [3], "dtype": "float32", "low":
..., "high": ...}. `checked` checks a description. All other functions take a checked one. Runs
describe spaces in another form, see `rljax.envs.host.space_descriptions`.
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
KINDS = ("Box", "Discrete", "MultiDiscrete", "MultiBinary", "Dict", "Tuple", "Text")


def checked(value: Any, file: str, key: str, depth: int = 0) -> Mapping[str, Any] | None:
    """A space in a file's JSON; None for None.

    Raises `ValueError` for anything that does not describe a space.
    """
    if value is None:
        return None
    kind = value.get("type") if isinstance(value, Mapping) else None
    if kind not in KINDS or depth > DEEPEST:
        raise wrong(file, key, value, f"a space: its 'type' is one of {', '.join(KINDS)}")
    value = mapping(value, file, key)
    if kind == "Box" and not all(is_numbers(value.get(name)) for name in ("low", "high")):
        raise wrong(file, key, value, "a Box with numbers as 'low' and 'high'")
    if kind == "Box":
        shape = value.get("shape", [])
        if not isinstance(shape, list) or len(shape) > DEEPEST or not all(map(_is_size, shape)):
            raise wrong(file, key, value, "a Box whose 'shape' is a list of whole numbers")
        if value.get("dtype", "float32") not in DTYPES:
            raise wrong(file, key, value, f"a Box whose 'dtype' is one of {', '.join(DTYPES)}")
    if kind in ("MultiDiscrete", "MultiBinary"):
        _require_choices_of(value, file, key)
    if kind == "Discrete" and not (
        is_count(value.get("n")) and isinstance(value.get("start", 0), int)
    ):
        raise wrong(file, key, value, "a Discrete space with a whole number 'n' of at least 1")
    if kind in ("Dict", "Tuple"):
        parts = value.get("subspaces")
        if not isinstance(parts, Mapping if kind == "Dict" else list) or not parts:
            raise wrong(file, key, value, "a space with 'subspaces'")
        named = parts.items() if isinstance(parts, Mapping) else enumerate(parts)
        for name, part in named:
            checked(part, file, f"{key}/{name}", depth + 1)
    return value


def _require_choices_of(value: Mapping[str, Any], file: str, key: str) -> None:
    """Raise `ValueError` unless a space of several choices says how many there are,
    and they are few enough.
    """
    name = "nvec" if value["type"] == "MultiDiscrete" else "n"
    right = all(map(is_numbers, (value.get(name), value.get("start", 0))))
    if right:
        sizes, start = np.asarray(value[name]), np.asarray(value.get("start", 0))
        total = sizes.sum(dtype=np.float64) if name == "nvec" else sizes.prod(dtype=np.float64)
        right = (
            sizes.size > 0 and {sizes.dtype.kind, start.dtype.kind} <= {"i"} and sizes.min() >= 1
        )
        right = (
            right
            and total <= MOST_CHOICES
            and sizes.max() <= MOST_CHOICES
            and (name == "nvec" or sizes.ndim < 2)
        )
        right = (
            right
            and start.shape in ((), sizes.shape)
            and bool((np.abs(start) < INT32.max // 2).all())
        )
    if not right:
        what = f"whole numbers as '{name}', with at most {MOST_CHOICES:,} choices"
        raise wrong(file, key, value, f"a {value['type']} space with {what}")


def _is_size(value: Any) -> bool:
    return value == 0 or is_count(value)


def choices(space: Any) -> tuple[int, ...]:
    """The number of choices of each of several discrete actions;
    () for a single or a continuous action.
    """
    if space is None or space["type"] not in ("MultiDiscrete", "MultiBinary"):
        return ()
    if space["type"] == "MultiDiscrete":
        return tuple(int(number) for number in np.ravel(space["nvec"]))
    return (2,) * math.prod(np.ravel(space["n"]).tolist())


def needs_translation(observation: Any, action: Any, masked: bool) -> bool:
    """Whether spaces may hold what a vector cannot: pictures, masks, or choices."""
    is_discrete = action is not None and action["type"] in (
        "Discrete",
        "MultiDiscrete",
        "MultiBinary",
    )
    has_mask = is_discrete and (masked or MASK in set(_paths(observation)))
    has_pictures = any(
        len(box.get("shape", ())) == 3 for box in simple_spaces(observation) if box["type"] == "Box"
    )
    return has_mask or has_pictures or has_kind(observation, "MultiDiscrete")


def part_names(space: Any) -> list[str]:
    """The names of the parts of a dictionary, or the numbers of those of a tuple."""
    subspaces = space["subspaces"]
    return (
        sorted(subspaces)
        if isinstance(subspaces, dict)
        else [str(index) for index in range(len(subspaces))]
    )


def simple_spaces(space: Any) -> Iterator[Any]:
    """The spaces within a space that are neither dictionaries nor tuples."""
    if space["type"] not in ("Dict", "Tuple"):
        yield space
        return
    below = space["subspaces"]
    for part in below.values() if isinstance(below, Mapping) else below:
        yield from simple_spaces(part)


def has_kind(space: Any, kind: str) -> bool:
    """Whether a space contains a simple space of this kind, such as "MultiDiscrete"."""
    return any(part["type"] == kind for part in simple_spaces(space))


def _paths(space: Any) -> Iterator[str]:
    if space["type"] == "Dict":
        for part, below in space["subspaces"].items():
            yield part
            yield from _paths(below)


def gymnasium_space(space: Any, name: str) -> Any:
    """Gymnasium's space. Bounds of observations do not count: they are those of the dtype."""
    from gymnasium import spaces

    kind = space["type"]
    if kind in ("Dict", "Tuple"):
        below = space["subspaces"]
        if kind == "Tuple":
            return spaces.Tuple([gymnasium_space(part, name) for part in below])
        return spaces.Dict({part: gymnasium_space(one, name) for part, one in below.items()})
    if kind == "Box":
        shape, dtype = tuple(space.get("shape", ())), np.dtype(space.get("dtype", "float32"))
        limits = (0, 255) if dtype == np.uint8 else (-np.inf, np.inf)
        if dtype.kind in "iu" and dtype != np.uint8:
            limits = (np.iinfo(dtype).min, np.iinfo(dtype).max)
        if dtype.kind == "b":
            limits = (0, 1)
        return spaces.Box(*limits, shape, dtype)  # type: ignore[arg-type]
    if kind == "Text":
        return spaces.Text(1)
    return gymnasium_actions(space)


def gymnasium_actions(space: Any) -> Any:
    """Gymnasium's space of choices.

    A Box stands for all continuous actions, whose bounds do not matter here.
    """
    from gymnasium import spaces

    if space is None or space["type"] == "Box":
        return spaces.Box(-1.0, 1.0, (1,), np.float32)
    if space["type"] == "Discrete":
        return spaces.Discrete(int(space["n"]), start=int(space.get("start", 0)))
    numbers = np.array(choices(space), np.int64)
    if len(numbers) > MOST_CHOICES or numbers.sum() > MOST_CHOICES:
        raise ValueError(f"more than {MOST_CHOICES:,} choices.")
    if space["type"] == "MultiBinary":
        shape = space["n"]
        return spaces.MultiBinary(shape)
    shape = np.shape(space["nvec"])
    start = np.broadcast_to(np.asarray(space.get("start", 0), np.int64), shape)
    return spaces.MultiDiscrete(numbers.reshape(shape), start=start)
