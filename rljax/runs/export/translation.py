"""Gymnasium's spaces inside an exported policy.

What `Spaces.observe` and `Actions.act` do for NumPy's arrays, with checks, is here for traced ones.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces as gym

from rljax.agent import MASK, Array, EnvSpec
from rljax.envs.host.space_descriptions import is_text
from rljax.envs.host.space_values import Path
from rljax.envs.host.spaces import ONLY, Spaces, walk

BATCH = "N"  # the number of observations, in shapes


@dataclasses.dataclass(frozen=True)
class NamedArray:
    """An input or an output of an exported policy."""

    name: str
    shape: tuple[Any, ...]  # with `BATCH`, or a multiple of it such as "50*N"
    dtype: str  # of the environment
    inner: str  # in the program: float32, int32, uint8 or bool
    path: Path = ()  # in a dictionary or tuple
    space: Any = None  # Gymnasium's
    distribution: str | None = None  # of an input that is drawn


def observations(
    spec: EnvSpec, spaces: Spaces | None, without: Sequence[str] = ()
) -> list[NamedArray]:
    """The inputs that are an environment's own observations, `without` some parts inside the
    program.
    """
    if spaces is None:
        parts = [part for part in spec.parts if part.name not in without] or (None,)
        return [_part(spec, part) for part in parts]
    values = []
    for path, leaf in walk(spaces.observation):
        if is_text(leaf):
            continue
        key, _ = spaces.named.get(path, ("", None))
        is_picture = spaces.observation_dtype == "uint8" or bool(key)
        if key == MASK:
            inner = "bool"
        elif isinstance(leaf, (gym.Discrete, gym.MultiDiscrete)):
            inner = "int32"
        else:
            inner = "uint8" if is_picture and leaf.dtype == np.uint8 else "float32"
        name = _name("observation", path)
        values.append(_of_space(name, leaf, inner, path))
    return values


def _part(spec: EnvSpec, part: Any) -> NamedArray:
    if part is None:
        shape, dtype = spec.observation_shape, spec.observation_dtype
        return NamedArray("observation", (BATCH, *shape), dtype, dtype)
    name = _name("observation", (part.name,))
    return NamedArray(name, (BATCH, *part.shape), part.dtype, part.dtype, (part.name,))


def _name(kind: str, path: Path) -> str:
    return "/".join([kind, *map(str, path)])


def _of_space(name: str, leaf: Any, inner: str, path: Path) -> NamedArray:
    return NamedArray(name, (BATCH, *leaf.shape), str(leaf.dtype), inner, path, leaf)


def observed(spaces: Spaces, arrays: Mapping[Path, Array], mask: Array | None) -> Any:
    """Observations [N, O...] as agents see them, from arrays [N, ...] by their paths."""
    seen: dict[str, Array] = {}
    for path, (key, channels) in spaces.named.items():
        array = arrays[path]
        is_mask = key == MASK
        seen[key] = array.reshape(array.shape[0], -1) if is_mask else _last(array, channels)
    others = {path: array for path, array in arrays.items() if path not in spaces.named}
    leaves = dict(walk(spaces.observation))
    if not spaces.named and spaces.channels is not None:
        (array,) = others.values()
        result: Any = _last(array, spaces.channels)
    else:
        flat = [_flat(leaves[path], array) for path, array in others.items()]
        flat = [part for part in flat if part.shape[-1]]
        rest = jnp.concatenate(flat, axis=-1) if flat else None
        result = seen | ({} if rest is None else {spaces.rest: rest}) if spaces.named else rest
    if mask is None:
        return result
    return {**(result if spaces.named else {ONLY: result}), MASK: mask}


def _last(array: Array, channels: Any) -> Array:
    return jnp.moveaxis(array, -3, -1) if channels == "first" else array


def _flat(space: Any, array: Array) -> Array:
    if not isinstance(space, (gym.Discrete, gym.MultiDiscrete)):
        return array.reshape(array.shape[0], -1).astype(jnp.float32)
    sizes = space.n if isinstance(space, gym.Discrete) else space.nvec
    sizes, starts = np.ravel(sizes), np.ravel(space.start)
    choice = array.reshape(array.shape[0], len(sizes))
    columns = [
        jax.nn.one_hot(choice[:, i] - int(start), int(size))
        for i, (size, start) in enumerate(zip(sizes, starts, strict=True))
    ]
    return jnp.concatenate(columns, axis=-1)


def actions(spec: EnvSpec, spaces: Spaces | None) -> list[NamedArray]:
    """The outputs that are an environment's own actions."""
    if spaces is None or isinstance(spaces.action, gym.Discrete):
        dtype = "int32" if spec.discrete else "float32"
        return [NamedArray("action", (BATCH, *spec.action_shape), dtype, dtype)]
    mixes = not spaces.discrete
    return [
        _of_space(_name("action", path), leaf, "float32" if mixes else "int32", path)
        for path, leaf in walk(spaces.action)
    ]


def acted(spaces: Spaces | None, action: Array) -> Sequence[Array]:
    """The arrays of `actions`, from an agent's actions [N, ...]."""
    return [action] if spaces is None else spaces.actions.parts(action, jnp)


def nested(leaves: Mapping[Any, Any]) -> Any:
    """Dictionaries and tuples of parts by their paths."""
    if () in leaves:
        return leaves[()]
    groups: dict[Any, dict[Any, Any]] = {}
    for (key, *rest), leaf in leaves.items():
        groups.setdefault(key, {})[tuple(rest)] = leaf
    return {key: nested(group) for key, group in groups.items()}
