"""Descriptions of Gymnasium's spaces in JSON, as runs store them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from gymnasium import spaces


def is_text(space: spaces.Space) -> bool:
    """Whether a space holds text, which agents do not see."""
    return (
        isinstance(space, spaces.Text)
        or space.dtype is str
        or getattr(space.dtype, "kind", "") == "U"
    )


def described(space: spaces.Space) -> dict[str, Any]:
    """A space, ready for JSON."""
    if isinstance(space, spaces.Dict):
        parts = [[key, described(part)] for key, part in space.spaces.items()]
        return {"kind": "Dict", "spaces": parts}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [described(part) for part in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    if is_text(space):
        return {"kind": "Text"}
    assert isinstance(space, spaces.Box), "other kinds are refused"
    bounds = {"low": _bound(space.low), "high": _bound(space.high)}
    return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}


def _bound(bound: np.ndarray) -> Any:
    """A number if the bound is the same everywhere, else a list. Infinity becomes text: JSON has
    none.
    """
    values = [value if math.isfinite(value) else str(value) for value in bound.ravel().tolist()]
    return values[0] if len(set(values)) == 1 else values


def read(description: Mapping[str, Any]) -> spaces.Space:
    """The space with this description. A space of text loses its limits."""
    kind = description["kind"]
    if kind == "Dict":
        return spaces.Dict([(key, read(part)) for key, part in description["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([read(part) for part in description["spaces"]])
    if kind == "Discrete":
        return spaces.Discrete(description["n"], start=description["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(
            np.array(description["nvec"]), start=np.array(description["start"])
        )
    if kind == "MultiBinary":
        shape = description["shape"]
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    if kind == "Text":
        return spaces.Text(2**16)
    shape, dtype = tuple(description["shape"]), np.dtype(description["dtype"])
    low, high = (_read_bound(description[side], shape, dtype) for side in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _read_bound(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    values = value if isinstance(value, list) else [value]
    each = np.array([float(x) if isinstance(x, str) else x for x in values], dtype)
    return np.full(shape, each[0]) if len(values) == 1 else each.reshape(shape)
