"""Gymnasium's action spaces as agents see them: continuous actions in [-1, 1], or choices that
count from 0.

Of a Tuple or a Dict, agents see one vector: all dimensions, followed by all choices.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from gymnasium import spaces

from rljax.agent import MASK

CORRECT = "Correct the space, or what step and reset return."
MOST_CHOICES = 100_000  # all choices of an action together, and those of a discrete observation


class Actions:
    """The action space of the environment `name`, and its translation.

    Attributes:
        discrete: whether actions consist of choices only.
        size: number of dimensions and of all choices.
        choices: how many choices each of several discrete actions has; else ().
        bounds: low [A] and high [A] of the environment's actions; None where there are choices.
    """

    def __init__(self, space: spaces.Space, name: str) -> None:
        """Raises `TypeError` for other spaces, and `ValueError` where there is nothing to
        choose.
        """
        self.space, self.name = space, name
        self._leaves = _leaves(space, name, space)
        boxes = [_bounds(leaf, name) for leaf in self._leaves if isinstance(leaf, spaces.Box)]
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
        self.choices: tuple[int, ...] = () if self._single else tuple(numbers.tolist())
        self._first_choices = np.cumsum([0, *self.choices[:-1]])  # of each action, in a mask
        self.bounds = None if len(numbers) else (self._low, self._high)
        self._order = self._places() if boxes and len(numbers) else None

    def act(self, action: np.ndarray) -> Any:
        """Agents' actions as the environment takes them.

        `action` is [..., A] in [-1, 1], [...] from 0 for one choice, [..., K] for several, or [...,
        A + K].
        """
        parts = self.parts(action)
        if self._single:
            return parts[0]
        leaves = zip(parts, self._leaves, strict=True)
        return self._nested(self.space, iter([part.astype(leaf.dtype) for part, leaf in leaves]))

    def parts(self, action: Any, arrays: Any = np) -> list[Any]:
        """The same as an array for each part that is neither dictionary nor tuple, in their order,
        and not yet in its dtype.

        `arrays` is the module of `action`: NumPy, or `jax.numpy`.
        """
        if self._single:
            return [action + int(self._starts[0])]
        if self.discrete:
            return self._split(action + self._starts)
        size = self._low.size
        # One clip serves both: [-1, 1], and the bounds, which rounding could exceed.
        scaled = arrays.maximum(self._center + self._half * action[..., :size], self._low)
        scaled = arrays.minimum(scaled, self._high)
        if self._order is not None:
            choices = action[..., size:] + self._starts
            scaled = arrays.concatenate([scaled, choices], axis=-1)[..., self._order]
        return self._split(scaled)

    def read(self, action: Any, number: int) -> np.ndarray:
        """`number` actions of the environment [N, ...] as agents have them: the inverse of `act`.

        Numbers beyond the bounds are clipped. Raises `ValueError` for another shape, numbers that
        are not finite and choices that there are not; the message continues "NAME returned".
        """
        shape = (number, *(self.space.shape or ()))
        with contextlib.suppress(TypeError, ValueError):  # rows of different lengths
            action = np.asarray(action)
        if not isinstance(action, np.ndarray) or action.dtype.kind not in "biuf":
            raise ValueError(f"{_kind(action)}, it must return an array of numbers {list(shape)}.")
        if action.shape != shape:
            raise ValueError(
                f"an array {list(action.shape)} for {number} observations, it must return "
                f"{list(shape)}, one of {self.space} for each."
            )
        numbers = action.astype(np.float64).reshape(number, -1)
        if not np.isfinite(numbers).all():
            raise ValueError(f"{numbers[~np.isfinite(numbers)][0]}, actions must be finite.")
        if not self.discrete:
            half = np.where(self._half > 0, self._half, 1.0)
            return np.clip((numbers - self._center) / half, -1.0, 1.0).astype(np.float32)
        choices = numbers - self._starts
        most = self.choices or (self.size,)
        is_choice = (choices == np.round(choices)) & (choices >= 0) & (choices < most)
        if not is_choice.all():
            raise ValueError(f"{numbers[~is_choice][0]:g}, which is not in {self.space}.")
        return choices.astype(np.int32).reshape(number, *(() if self._single else (-1,)))

    def mask(self, mask: Any, leading: tuple[int, ...] = (), last: Any = False) -> np.ndarray:
        """Truth values [*leading, A] of the allowed actions, also of masks as Gymnasium's `sample`
        takes them: a tuple or dictionary with one for each choice.

        `last` [*leading] marks ends of episodes, where everything is allowed if nothing is. Raises
        `ValueError` for another shape or other values, and where a choice has no allowed action
        elsewhere; the message continues "NAME returned".
        """
        array = self.joined(mask, leading)
        if array.shape != (*leading, self.size) or array.dtype.kind not in "biuf":
            shown = f" of shape {array.shape} and dtype {array.dtype}" if array.shape else ""
            raise ValueError(
                f"info[{MASK!r}]{shown}, it must hold a truth value for each of the {self.size} "
                "actions, those of all choices side by side."
            )
        if array.dtype.kind != "b" and not ((array == 0) | (array == 1)).all():
            wrong = array[(array != 0) & (array != 1)].flat[0]
            raise ValueError(
                f"info[{MASK!r}] with the value {wrong}: it must be 1 where an action is allowed, "
                "and 0 where it is not."
            )
        allowed = array != 0
        possible = np.logical_or.reduceat(allowed, self._first_choices, axis=-1)
        wrong = ~possible & ~np.asarray(last, np.bool_)[..., None]
        if wrong.any():
            which = f" of choice {np.argwhere(wrong)[0][-1]}" if self.choices else ""
            raise ValueError(f"an {MASK} that allows nothing{which}: it must allow an action.")
        return allowed | ~possible.all(axis=-1, keepdims=True)

    def joined(self, mask: Any, leading: tuple[int, ...] = ()) -> np.ndarray:
        """A mask as one array, those of all choices side by side; unchecked."""
        array = np.asarray(None)
        with contextlib.suppress(ValueError):  # parts of different lengths
            array = np.asarray(mask)
        if array.shape == (*leading, self.size) or not isinstance(mask, (tuple, list, Mapping)):
            return array
        with contextlib.suppress(KeyError, ValueError):
            parts = [np.asarray(part) for part in _parts_of_mask(mask, self.space)]
            return np.concatenate(parts, axis=-1)
        return array

    def _places(self) -> np.ndarray:
        """The columns of agents' mixed actions in the environment's order."""
        after, order = {True: 0, False: self._low.size}, []  # whether continuous -> next column
        for leaf in self._leaves:
            kind = isinstance(leaf, spaces.Box)
            first, after[kind] = after[kind], after[kind] + max(1, math.prod(leaf.shape))
            order += range(first, after[kind])
        return np.array(order)

    def _split(self, columns: Any) -> list[Any]:
        """The columns [..., K] of each part, in its shape."""
        parts, first = [], 0
        for leaf in self._leaves:
            behind = first + max(1, math.prod(leaf.shape))
            shape = (*columns.shape[:-1], *leaf.shape)
            parts.append(columns[..., first:behind].reshape(shape))
            first = behind
        return parts

    def _nested(self, space: spaces.Space, parts: Iterator[Any]) -> Any:
        """The next of `parts`, in the structure of a space."""
        if not isinstance(space, (spaces.Tuple, spaces.Dict)):
            return next(parts)
        below = {key: self._nested(part, parts) for key, part in items(space)}
        return below if isinstance(space, spaces.Dict) else tuple(below.values())


def _kind(value: Any) -> str:
    """What is no array of numbers, in words."""
    if isinstance(value, np.ndarray) and value.dtype != object:
        return f"an array of {value.dtype}"
    return "no array"


def _bounds(space: spaces.Box, name: str) -> tuple[np.ndarray, np.ndarray]:
    low, high = space.low.ravel(), space.high.ravel()
    if not low.size:
        raise ValueError(
            f"'{name}' acts in {space}, which has no dimension: there is nothing to "
            f"choose. {CORRECT}"
        )
    with np.errstate(over="ignore", invalid="ignore"):
        usable = np.isfinite(high - low)  # finite bounds can have an infinite distance
    for dim in np.flatnonzero(~usable)[:1]:
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}, agents need "
            "finite bounds, because [-1, 1] is rescaled to them. Give its action_space bounds. If "
            "the environment needs it, wrap it in gymnasium.wrappers.RescaleAction."
        )
    for dim in np.flatnonzero(low > high)[:1]:
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}: the lower bound "
            f"is above the upper one. {CORRECT}"
        )
    return low, high


def sounds_like_mask(name: Any) -> bool:
    """Whether something of this name may say which actions are allowed."""
    return any(word in str(name).lower() for word in ("mask", "legal", "avail", "valid_act"))


def items(space: Any) -> list[tuple[Any, Any]]:
    """The keys and spaces of a dictionary or tuple."""
    pairs = space.spaces.items() if isinstance(space, spaces.Dict) else enumerate(space.spaces)
    return list(pairs)


def _parts_of_mask(mask: Any, space: Any) -> list[Any]:
    """The masks of single choices, in the order of the space."""
    if isinstance(mask, Mapping):
        pairs = [(mask[key], below) for key, below in items(space)]
    elif isinstance(mask, (tuple, list)):
        below = space.spaces if isinstance(space, spaces.Tuple) else [space] * len(mask)
        pairs = list(zip(mask, below, strict=True))
    else:
        return [mask]
    return [part for pair in pairs for part in _parts_of_mask(*pair)]


def _leaves(space: spaces.Space, name: str, whole: spaces.Space) -> list[Any]:
    if isinstance(space, (spaces.Tuple, spaces.Dict)):
        return [leaf for _, part in items(space) for leaf in _leaves(part, name, whole)]
    is_box = isinstance(space, spaces.Box) and np.issubdtype(space.dtype, np.floating)
    if is_box or isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        return [space]
    raise TypeError(
        f"'{name}' acts in {whole}, agents act in a Box of floats, in Discrete, MultiDiscrete or "
        "MultiBinary spaces, or in a Tuple or Dict of them. Wrap the environment in a "
        "gymnasium.ActionWrapper that offers one of these."
    )


def _numbers(space: Any) -> tuple[np.ndarray, np.ndarray]:
    """The number of choices of each action of a space, and its first choice."""
    if isinstance(space, spaces.Discrete):
        return np.array([space.n], np.int64), np.array([space.start], np.int64)
    if isinstance(space, spaces.MultiBinary):
        number = math.prod(space.shape)
        return np.full(number, 2), np.zeros(number, np.int64)
    return space.nvec.ravel().astype(np.int64), np.asarray(space.start, np.int64).ravel()
