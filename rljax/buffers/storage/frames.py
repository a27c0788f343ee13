"""Frames: pictures of a data set, each stored once.

Axes: `N` rows of a data set, `M` frames, `K` frames in a picture, `H`, `W`, `c` those of a frame.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import jax
import numpy as np
from flax import struct

LARGE = 1024  # bytes of an observation that is stored once; two copies of smaller ones are faster
BLOCK = 1 << 24  # bytes compared at a time


class Frames(struct.PyTreeNode):
    """Pictures in the place of an array [N, H, W, K c].

    `pictures` are shared with the successors; `index` says which of them each row shows, the newest
    last.
    """

    pictures: Any  # [M, H, W, c] uint8
    index: Any  # [N, K] int32: rows of `pictures`

    @property
    def stack(self) -> int:
        """K, the frames in a picture."""
        return self.index.shape[-1]

    @property
    def shape(self) -> tuple[int, ...]:
        """The shape of all pictures, (N, H, W, K c)."""
        return (len(self.index), *self.pictures.shape[1:-1], self.stack * self.pictures.shape[-1])

    @property
    def ndim(self) -> int:
        """As of an array of all pictures."""
        return len(self.shape)

    @property
    def dtype(self) -> Any:
        """The dtype of the pictures."""
        return self.pictures.dtype

    def __len__(self) -> int:
        return len(self.index)

    def __getitem__(self, rows: Any) -> Any:
        index = self.index[rows]
        if self.stack == 1:
            return self.pictures[index[..., 0]]
        frames = self.pictures[index]  # [..., K, H, W, c]
        moved = frames.swapaxes(-4, -3).swapaxes(-3, -2)
        return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        del copy  # all pictures together are always a new array
        pictures = np.asarray(self[np.arange(len(self))])
        return pictures if dtype is None else pictures.astype(dtype)


def is_frames(x: Any) -> bool:
    """Whether `x` is pictures that are stored once."""
    return isinstance(x, Frames)


def each(function: Callable[..., Any], tree: Any, *others: Any) -> Any:
    """`function` of each column of trees of arrays [N, ...] and `Frames`."""
    return jax.tree.map(function, tree, *others, is_leaf=is_frames)


def columns(tree: Any) -> list[Any]:
    """The arrays [N, ...] and `Frames` of a tree."""
    return jax.tree.leaves(tree, is_leaf=is_frames)


def is_stored_once(shape: tuple[int, ...], dtype: Any) -> bool:
    """Whether observations of this shape are pictures of `LARGE` bytes or more."""
    return len(shape) == 3 and np.dtype(dtype) == np.uint8 and math.prod(shape) >= LARGE


def stored_once(observation: Any, following: Any) -> tuple[Any, Any]:
    """Observations and successors, trees [N, ...], with large pictures as `Frames`.

    A successor is stored apart only where it is not the next row's observation.
    """
    return _both(_once, observation, following)


def _once(observation: Any, following: Any) -> tuple[Any, Any]:
    if is_frames(observation) or not is_stored_once(observation.shape[1:], observation.dtype):
        return observation, following
    number, rows = len(observation), max(1, BLOCK // math.prod(observation.shape[1:]))
    apart = np.ones(number, np.bool_)
    for start in range(0, number - 1, rows):
        stop = min(start + rows, number - 1)
        same = following[start:stop] == observation[start + 1 : stop + 1]
        apart[start:stop] = ~same.reshape(stop - start, -1).all(axis=1)
    pictures = np.concatenate([observation, following[apart]])
    index = np.arange(number, dtype=np.int32)
    after = np.where(apart, number - 1 + np.cumsum(apart), index + 1).astype(np.int32)
    return Frames(pictures, index[:, None]), Frames(pictures, after[:, None])


def compact(observation: Any, following: Any) -> tuple[Any, Any]:
    """The columns, without pictures in `Frames` that no row shows."""
    if not is_frames(observation):
        return observation, following
    used = np.zeros(len(observation.pictures), np.bool_)
    used[observation.index], used[following.index] = True, True
    if used.all():
        return observation, following
    place, pictures = (np.cumsum(used) - 1).astype(np.int32), observation.pictures[used]
    return Frames(pictures, place[observation.index]), Frames(pictures, place[following.index])


def taken(observation: Any, following: Any, rows: Any) -> tuple[Any, Any]:
    """The `rows` [n] of trees of columns, with the pictures that they show."""

    def take(one: Any, other: Any) -> tuple[Any, Any]:
        if is_frames(one):
            return compact(
                one.replace(index=one.index[rows]), other.replace(index=other.index[rows])
            )
        return one[rows], other[rows]

    return _both(take, observation, following)


def concatenated(observations: list[Any], followings: list[Any]) -> tuple[Any, Any]:
    """The columns of several data sets, one after the other."""

    def join(*parts: Any) -> tuple[Any, Any]:
        ones, others = parts[: len(observations)], parts[len(observations) :]
        if not is_frames(ones[0]):
            return np.concatenate(ones), np.concatenate(others)
        starts = np.cumsum([0, *(len(one.pictures) for one in ones[:-1])])
        pictures = np.concatenate([one.pictures for one in ones])
        index = [
            np.concatenate(
                [part.index + start for part, start in zip(side, starts, strict=True)]
            ).astype(np.int32)
            for side in (ones, others)
        ]
        return Frames(pictures, index[0]), Frames(pictures, index[1])

    first, *rest = (*observations, *followings)
    return _both(join, first, *rest)


def _both(function: Callable[..., tuple[Any, Any]], tree: Any, *others: Any) -> tuple[Any, Any]:
    structure = jax.tree.structure(tree, is_leaf=is_frames)
    results = [function(*leaves) for leaves in zip(*map(columns, (tree, *others)), strict=True)]
    return tuple(structure.unflatten([result[i] for result in results]) for i in (0, 1))  # pyright: ignore


def distinct_bytes(tree: Any) -> int:
    """Bytes of a tree, where pictures that two `Frames` share count once."""
    arrays = [x if hasattr(x, "nbytes") else np.asarray(x) for x in jax.tree.leaves(tree)]
    return sum({id(x): x.nbytes for x in arrays}.values())
