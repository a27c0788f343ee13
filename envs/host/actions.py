"""Gymnasium's action spaces as agents see them: continuous actions in [-1, 1], or choices that count from 0.

A Box is continuous. Discrete, MultiDiscrete and MultiBinary are choices. A Tuple or a Dict may hold several spaces of
one of these two sorts: agents see one vector of all dimensions, or all choices side by side.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from gymnasium import spaces

CORRECT = "Correct the space, or what step and reset return."
MOST_CHOICES = 100_000  # all choices of an action together, and those of a discrete observation


class Actions:
    """The action space of the environment `name`, and its translation.

    Attributes:
        space: Gymnasium's space of one environment.
        discrete: whether actions are choices.
        size: dimensions of a continuous action, or the number of all choices.
        choices: of several discrete actions, how many choices each has; () for one discrete action.
        bounds: low [A] and high [A] of the environment's own continuous actions; None where they are discrete.
    """

    def __init__(self, space: spaces.Space, name: str) -> None:
        """Raises `TypeError` for spaces of other kinds, and `ValueError` for spaces with nothing to choose."""
        self.space, self.name = space, name
        self._leaves = _leaves(space, name, space)
        kinds = {isinstance(leaf, spaces.Box) for leaf in self._leaves}
        if len(kinds) > 1:
            raise TypeError(
                f"'{name}' acts in {space}: a part is continuous and another is not. Agents choose either numbers or "
                "choices. Wrap the environment in a gymnasium.ActionWrapper that offers one of them."
            )
        self.discrete = kinds == {False}
        self.bounds: tuple[np.ndarray, np.ndarray] | None = None
        self.choices: tuple[int, ...] = ()
        if self.discrete:
            each = [_numbers(leaf) for leaf in self._leaves]
            self._starts = np.concatenate([start for _, start in each])
            numbers = np.concatenate([number for number, _ in each])
            if len(numbers) == 0 or numbers.max() <= 1:
                raise ValueError(f"'{name}' acts in {space}: there is nothing to choose. Give it two actions or more.")
            self.size = int(numbers.sum())
            if self.size > MOST_CHOICES:
                raise TypeError(
                    f"'{name}' acts in {space}, which has {self.size:,} choices: agents take up to {MOST_CHOICES:,}."
                )
            self._single = isinstance(space, spaces.Discrete)
            self.choices = () if self._single else tuple(int(number) for number in numbers)
        else:
            bounds = [box_bounds(leaf, name) for leaf in self._leaves]
            low, high = (np.concatenate([bound[side] for bound in bounds]) for side in (0, 1))
            self.bounds = low, high
            self._center, self._half = (low + high) / 2, (high - low) / 2
            self.size = low.size

    def act(self, action: np.ndarray) -> Any:
        """Agents' actions as the environment takes them: its bounds, start, structure, shapes and dtypes.

        `action` is [..., A] in [-1, 1], [...] from 0 for one choice, or [..., K] for several.
        """
        if self.bounds is not None:
            low, high = self.bounds
            # One clip serves both: [-1, 1], and the bounds, which rounding could exceed.
            action = np.minimum(np.maximum(self._center + self._half * action, low), high)
        elif self._single:
            return action + int(self._starts[0])
        else:
            action = action + self._starts
        return self._placed(self.space, action, 0)[0]

    def _placed(self, space: spaces.Space, action: np.ndarray, first: int) -> tuple[Any, int]:
        """The part of `action` from column `first` on that belongs to `space`, and the column behind it."""
        if isinstance(space, (spaces.Tuple, spaces.Dict)):
            keys = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
            parts = []
            for key in keys:
                part, first = self._placed(space[key], action, first)  # pyright: ignore[reportArgumentType, reportCallIssue]
                parts.append(part)
            return (dict(zip(keys, parts, strict=True)) if isinstance(space, spaces.Dict) else tuple(parts)), first
        shape: Any = space.shape
        behind = first + max(1, math.prod(shape))
        part = action[..., first:behind].reshape((*action.shape[:-1], *shape))
        return part.astype(space.dtype), behind


def box_bounds(space: spaces.Space, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest action of the environment `name`, [A] each.

    Raises `TypeError` where actions are not a Box of floats, and `ValueError` where they have no finite bounds or no
    dimension.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise _unknown(name, space)
    low, high = space.low.ravel(), space.high.ravel()
    if not low.size:
        raise ValueError(f"'{name}' acts in {space}, which has no dimension: there is nothing to choose. {CORRECT}")
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.isfinite(high - low)  # also where the bounds are finite and their distance is not
    for dim in np.flatnonzero(~usable)[:1]:
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}, agents need finite bounds, because "
            "[-1, 1] is rescaled to them. Give its action_space bounds. If the environment needs it, wrap it in "
            "gymnasium.wrappers.RescaleAction or ClipAction."
        )
    for dim in np.flatnonzero(low > high)[:1]:
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}: the lower bound is above the upper "
            f"one. {CORRECT}"
        )
    return low, high


def _leaves(space: spaces.Space, name: str, whole: spaces.Space) -> list[Any]:
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return [leaf for part in parts for leaf in _leaves(part, name, whole)]
    is_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if is_box or isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return [space]
    raise _unknown(name, whole)


def _numbers(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """How many choices each action of a space has, and the first of them."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.n], np.int64), np.array([space.start], np.int64)
    if isinstance(space, spaces.MultiBinary):
        number = math.prod(space.shape)
        return np.full(number, 2), np.zeros(number, np.int64)
    return space.nvec.ravel().astype(np.int64), np.asarray(space.start, np.int64).ravel()


def _unknown(name: str, space: spaces.Space) -> TypeError:
    return TypeError(
        f"'{name}' acts in {space}, agents act in a Box of floats, in Discrete, MultiDiscrete or MultiBinary spaces, "
        "or in a Tuple or Dict of one of these sorts. Wrap the environment in a gymnasium.ActionWrapper that offers "
        "one of them."
    )
