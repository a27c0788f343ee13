"""Gymnasium's action spaces as agents see them: continuous actions in [-1, 1],
or choices that count from 0.

A Box is continuous. Discrete, MultiDiscrete and MultiBinary are choices. A Tuple or a Dict may hold
several spaces: agents see one vector of all dimensions, or all choices, or the dimensions followed
by the choices.
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
        discrete: whether actions consist of choices only.
        size: dimensions of the continuous part and the number of all choices.
        choices: of several discrete actions, how many choices each has; () for one discrete action.
        bounds: low [A] and high [A] of the environment's own continuous actions; None where there
            are choices.
    """

    def __init__(self, space: spaces.Space, name: str) -> None:
        """Raises `TypeError` for spaces of other kinds,
        and `ValueError` for spaces with nothing to choose.
        """
        self.space, self.name = space, name
        self._leaves = _leaves(space, name, space)
        boxes = [box_bounds(leaf, name) for leaf in self._leaves if isinstance(leaf, spaces.Box)]
        each = [_numbers(leaf) for leaf in self._leaves if not isinstance(leaf, spaces.Box)]
        self._low, self._high = (
            np.concatenate([np.empty(0, np.float32), *(x[side] for x in boxes)]) for side in (0, 1)
        )
        self._center, self._half = (self._low + self._high) / 2, (self._high - self._low) / 2
        numbers, self._starts = (
            np.concatenate([np.empty(0, np.int64), *(x[side] for x in each)]) for side in (0, 1)
        )
        if not boxes and numbers.max(initial=1) <= 1:
            raise ValueError(
                f"'{name}' acts in {space}: there is nothing to choose. Give it two actions "
                "or more."
            )
        if numbers.sum() > MOST_CHOICES:
            raise TypeError(
                f"'{name}' acts in {space}, which has {numbers.sum():,} choices: agents take up "
                f"to {MOST_CHOICES:,}."
            )
        self.discrete, self.size = not boxes, self._low.size + int(numbers.sum())
        self._single = isinstance(space, spaces.Discrete)
        self.choices: tuple[int, ...] = (
            () if self._single else tuple(int(number) for number in numbers)
        )
        self.bounds = None if len(numbers) else (self._low, self._high)
        self._order = self._places() if boxes and len(numbers) else None

    def act(self, action: np.ndarray) -> Any:
        """Agents' actions as the environment takes them:
        its bounds, start, structure, shapes and dtypes.

        `action` is [..., A] in [-1, 1], [...] from 0 for one choice, or [..., K] for several;
        [..., A + K] of both.
        """
        if self._single:
            return action + int(self._starts[0])
        if self.discrete:
            return self._placed(self.space, action + self._starts, 0)[0]
        size = self._low.size
        # One clip serves both: [-1, 1], and the bounds, which rounding could exceed.
        scaled = np.minimum(
            np.maximum(self._center + self._half * action[..., :size], self._low), self._high
        )
        if self._order is not None:
            scaled = np.concatenate([scaled, action[..., size:] + self._starts], axis=-1)[
                ..., self._order
            ]
        return self._placed(self.space, scaled, 0)[0]

    def _places(self) -> np.ndarray:
        """For each column of the environment's action, the column of the agent's action,
        if both kinds are mixed.
        """
        number, choice, order = 0, self._low.size, []
        for leaf in self._leaves:
            width = max(1, math.prod(leaf.shape))
            first = number if isinstance(leaf, spaces.Box) else choice
            order += range(first, first + width)
            number, choice = (
                (first + width, choice) if isinstance(leaf, spaces.Box) else (number, first + width)
            )
        return np.array(order)

    def _placed(self, space: spaces.Space, action: np.ndarray, first: int) -> tuple[Any, int]:
        """The part of `action` from column `first` on that belongs to `space`,
        and the next column.
        """
        if isinstance(space, (spaces.Tuple, spaces.Dict)):
            keys = (
                list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
            )
            parts = []
            for key in keys:
                part, first = self._placed(space[key], action, first)  # pyright: ignore[reportArgumentType, reportCallIssue]
                parts.append(part)
            return (
                dict(zip(keys, parts, strict=True))
                if isinstance(space, spaces.Dict)
                else tuple(parts)
            ), first
        shape: Any = space.shape
        behind = first + max(1, math.prod(shape))
        part = action[..., first:behind].reshape((*action.shape[:-1], *shape))
        return part.astype(space.dtype), behind


def box_bounds(space: spaces.Space, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest action of the environment `name`, [A] each.

    Raises `TypeError` if actions are not a Box of floats, and `ValueError` if they have no finite
    bounds or no dimension.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise _unknown(name, space)
    low, high = space.low.ravel(), space.high.ravel()
    if not low.size:
        raise ValueError(
            f"'{name}' acts in {space}, which has no dimension: there is nothing to "
            f"choose. {CORRECT}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        # Also where the bounds are finite and their distance is not.
        usable = np.isfinite(high - low)
    for dim in np.flatnonzero(~usable)[:1]:
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}, agents need "
            "finite bounds, because [-1, 1] is rescaled to them. Give its action_space bounds. If "
            "the environment needs it, wrap it in gymnasium.wrappers.RescaleAction or ClipAction."
        )
    for dim in np.flatnonzero(low > high)[:1]:
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}: the lower bound "
            f"is above the upper one. {CORRECT}"
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
    """The number of choices of each action of a space, and its first choice."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.n], np.int64), np.array([space.start], np.int64)
    if isinstance(space, spaces.MultiBinary):
        number = math.prod(space.shape)
        return np.full(number, 2), np.zeros(number, np.int64)
    return space.nvec.ravel().astype(np.int64), np.asarray(space.start, np.int64).ravel()


def _unknown(name: str, space: spaces.Space) -> TypeError:
    return TypeError(
        f"'{name}' acts in {space}, agents act in a Box of floats, in Discrete, MultiDiscrete or "
        "MultiBinary spaces, or in a Tuple or Dict of them. Wrap the environment in a "
        "gymnasium.ActionWrapper that offers one of these."
    )
