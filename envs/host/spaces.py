"""Gymnasium's spaces as agents see them: observations are arrays of float32, actions lie in [-1, 1] or count from 0.

`Spaces` translates in both directions. A run keeps its description, so that a policy can act on an environment's own
observations and return its own actions, also where the environment is not installed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import numpy as np
from gymnasium import spaces

LEAST_PIXELS = 16  # height and width from which a Box of floats with three axes counts as a picture
MOST_CHOICES = 100_000  # choices of a discrete observation: each becomes one number


class Spaces:
    """The spaces of the environment `name`, and their translation.

    Attributes:
        observation, action: Gymnasium's spaces of one environment.
        observation_shape: of one observation as agents see it, float32.
        action_size: dimensions of a continuous action, or the number of discrete actions.
        discrete: whether actions are discrete.
        bounds: low [A] and high [A] of the environment's own actions; None where they are discrete.
        note: how agents see other observations than the environment shows; None where they see the same.
    """

    def __init__(self, observation: spaces.Space, action: spaces.Space, name: str) -> None:
        """Vectors stay vectors, and pictures stay pictures, with their channels last.

        Dictionaries, tuples, discrete observations (one number for each choice) and other shapes become vectors.
        Raises `TypeError` for spaces of other kinds, and `ValueError` for actions without finite bounds and for spaces
        that hold no number.
        """
        self.observation, self.action, self.name = observation, action, name
        self.observation_shape, self._channels, self.note = _seen(observation, name)
        self.discrete = isinstance(action, spaces.Discrete)
        self.bounds: tuple[np.ndarray, np.ndarray] | None = None
        if isinstance(action, spaces.Discrete):
            self._start, self.action_size = int(action.start), int(action.n)
            if self.action_size == 1:
                raise ValueError(f"'{name}' acts in {action}: there is nothing to choose. Give it two actions or more.")
        else:
            self.bounds = low, high = action_bounds(action, name)
            self._center, self._half = (low + high) / 2, (high - low) / 2
            self.action_size = low.size

    def observe(self, observation: Any, leading: tuple[int, ...]) -> np.ndarray:
        """The environment's own observations with these leading axes, as a new array [*leading, O...] float32.

        Raises `ValueError` for what does not belong to the space; the message continues "'NAME' returned".
        """
        if self._channels is None:
            return flattened(self.observation, observation, leading)
        array = as_array(self.observation, observation, leading)
        if self._channels == "first":
            array = np.moveaxis(array, -3, -1)
        with np.errstate(over="ignore"):  # what float32 cannot hold is reported as not finite
            return array.astype(np.float32)

    def leading(self, observation: Any) -> tuple[int, ...]:
        """The leading axes of the environment's own observations: () for one, (N,) for N; () where it is not clear."""
        space: Any = self.observation
        while isinstance(space, (spaces.Dict, spaces.Tuple)):
            keys: Any = list(space.spaces) if isinstance(space, spaces.Dict) else range(len(space.spaces))
            key: Any = next((key for key in keys if _holds_numbers(space[key])), None)
            try:
                observation, space = observation[key], space[key]  # pyright: ignore[reportArgumentType, reportCallIssue]
            except (TypeError, KeyError, IndexError):
                return ()
        shape = np.shape(observation)
        own = space.shape or ()
        return shape[:1] if len(shape) == len(own) + 1 else ()

    def act(self, action: np.ndarray) -> np.ndarray:
        """Actions [..., A] in [-1, 1], or [...] from 0, as the environment takes them: its bounds, shape and dtype."""
        if self.bounds is None:
            return action + self._start
        low, high = self.bounds
        # One clip serves both: [-1, 1], and the bounds, which rounding could exceed.
        action = np.minimum(np.maximum(self._center + self._half * action, low), high)
        space: Any = self.action
        return action.astype(space.dtype).reshape((*action.shape[:-1], *space.shape))

    def described(self) -> dict[str, Any]:
        """Both spaces, ready for JSON."""
        return {"observation": _described(self.observation), "action": _described(self.action)}

    @classmethod
    def read(cls, described: Mapping[str, Any], name: str) -> Spaces:
        """The spaces of which `described` is the description."""
        return cls(_space(described["observation"]), _space(described["action"]), name)


def box_spaces(observation_size: int, action_bounds: tuple[Any, Any], name: str) -> Spaces:
    """The spaces of a data set that names no environment: vectors, and continuous actions within bounds [A]."""
    low, high = (np.asarray(bound, np.float32) for bound in action_bounds)
    observation = spaces.Box(-np.inf, np.inf, (observation_size,), np.float32)
    return Spaces(observation, spaces.Box(low, high, dtype=np.float32), name)


def action_bounds(space: spaces.Space, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest action of the environment `name`, [A] each.

    Raises `TypeError` where actions are not a Box of floats, and `ValueError` where they have no finite bounds or no
    dimension.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise TypeError(
            f"'{name}' acts in {space}, agents act in a Box of floats or in a Discrete space. "
            "Wrap the environment in a gymnasium.ActionWrapper that offers one of them."
        )
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


def as_array(space: spaces.Space, value: Any, leading: tuple[int, ...] = (), part: str = "") -> np.ndarray:
    """Observations of a space that is no dictionary and no tuple, as an array [*leading, *space.shape] of numbers.

    Raises `ValueError` for another shape, and for values that the space's dtype cannot hold. `part` says where in the
    whole observation the value stands.
    """
    try:
        array = np.asarray(value)
    except ValueError:  # nested lists of different lengths
        array = np.asarray(None)
    if array.dtype.kind not in "fiub":
        shown = "None" if value is None else f"dtype {array.dtype}" if isinstance(value, np.ndarray) else repr(value)
        raise ValueError(f"{_called(part, leading)} that holds no real numbers ({shown[:80]}), {_promise(space)}")
    expected = (*leading, *(space.shape or ()))
    if array.shape != expected:
        raise ValueError(
            f"{_called(part, leading)} of shape {array.shape}, its observation_space promises {expected}. {CORRECT}"
        )
    dtype: Any = space.dtype
    if array.dtype != dtype and not np.can_cast(array.dtype, dtype, "same_kind"):
        with np.errstate(invalid="ignore"):
            held = array.astype(dtype)
        if not np.array_equal(held, array):
            example = array[held != array].flat[0]
            raise ValueError(
                f"{_called(part, leading)} with the value {example} of dtype {array.dtype}, {_promise(space)}"
            )
    return array


def flattened(space: spaces.Space, value: Any, leading: tuple[int, ...] = (), part: str = "") -> np.ndarray:
    """Observations of any supported space as vectors [*leading, K] float32, in the order of `gymnasium.spaces.flatten`.

    Raises `ValueError` for what does not belong to the space.
    """
    if isinstance(space, spaces.Dict):
        if not isinstance(value, Mapping) or not set(space.spaces) <= set(value):
            shown = f"the keys {list(value)}" if isinstance(value, Mapping) else f"a {type(value).__name__}"
            raise ValueError(f"{_called(part, leading)} with {shown}, {_promise(space)}")
        parts = [flattened(own, value[key], leading, f"{part}[{key!r}]") for key, own in space.spaces.items()]
        return np.concatenate(parts, axis=-1) if parts else np.zeros((*leading, 0), np.float32)
    if isinstance(space, spaces.Tuple):
        if not isinstance(value, (tuple, list)) or len(value) != len(space.spaces):
            shown = f"{len(value)} parts" if isinstance(value, (tuple, list)) else f"a {type(value).__name__}"
            raise ValueError(f"{_called(part, leading)} with {shown}, {_promise(space)}")
        parts = [flattened(own, value[i], leading, f"{part}[{i}]") for i, own in enumerate(space.spaces)]
        return np.concatenate(parts, axis=-1) if parts else np.zeros((*leading, 0), np.float32)
    array = as_array(space, value, leading, part)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        return _chosen(space, array, leading, part)
    with np.errstate(over="ignore"):
        return array.reshape(*leading, -1).astype(np.float32)


def cast(space: spaces.Space, value: Any) -> Any:
    """A copy of one observation in the dtypes of its space."""
    if isinstance(space, spaces.Dict):
        return {key: cast(own, value[key]) for key, own in space.spaces.items()}
    if isinstance(space, spaces.Tuple):
        return tuple(cast(own, part) for own, part in zip(space.spaces, value, strict=True))
    return np.array(value, space.dtype)


CORRECT = "Correct the space, or what step and reset return."


def _seen(space: spaces.Space, name: str) -> tuple[tuple[int, ...], Literal["first", "last"] | None, str | None]:
    """The shape of observations as agents see them, where channels are (None: observations are flattened), a note.

    For a vector "last" says that it stays as it is.
    """
    size = _flat_size(space, name)
    if size == 0:
        raise ValueError(
            f"'{name}' observes {space}, which holds no number: agents need at least one. A constant such as 0 will "
            "do for an environment without observations."
        )
    if isinstance(space, spaces.Box) and len(space.shape) == 1:
        return space.shape, "last", None
    channels = _place_of_channels(space)
    if channels is None:
        kind = f"a Box of shape {space.shape}" if isinstance(space, spaces.Box) else f"a {type(space).__name__}"
        return (size,), None, f"'{name}' observes {kind}: it is flattened to {size} numbers."
    shape: Any = space.shape
    first, second, third = shape
    if channels == "first":
        note = f"'{name}' observes pictures of shape {space.shape}, channels first: agents see {(second, third, first)}"
        return (second, third, first), "first", f"{note}, channels last."
    note = None
    if channels == "unclear":
        note = (
            f"'{name}' observes pictures of shape {space.shape}, which do not show where the channels are: they are "
            f"read as height {first}, width {second}, {third} channels. If that is wrong, transpose them with "
            "gymnasium.wrappers.TransformObservation."
        )
    return space.shape, "last", note  # type: ignore[return-value]


def _place_of_channels(space: spaces.Space) -> Literal["first", "last", "unclear"] | None:
    """Where the channels of pictures are: on an axis much shorter than height and width. None: these are no pictures.

    A Box of uint8 with three axes is always a picture. A Box of floats is one where its axes leave no doubt.
    """
    if not isinstance(space, spaces.Box) or len(space.shape) != 3:
        return None
    first, second, third = space.shape
    comes_first, comes_last = 2 * first <= min(second, third), 2 * third <= min(first, second)
    if space.dtype == np.uint8:
        return "first" if comes_first else "last" if third < min(first, second) else "unclear"
    if not np.issubdtype(space.dtype, np.floating) or sorted(space.shape)[1] < LEAST_PIXELS:
        return None
    return "first" if comes_first else "last" if comes_last else None


def _flat_size(space: spaces.Space, name: str) -> int:
    """The number of numbers in one observation as a vector. Raises `TypeError` where there is no fixed number."""
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return sum(_flat_size(part, name) for part in parts)
    if isinstance(space, (spaces.Discrete, spaces.MultiDiscrete)):
        choices = int(space.n) if isinstance(space, spaces.Discrete) else int(space.nvec.sum())
        if choices > MOST_CHOICES:
            raise TypeError(
                f"'{name}' observes {space}, each choice of which would be one number: that is more than "
                f"{MOST_CHOICES:,}. Wrap the environment so that it observes a few numbers instead."
            )
        return choices
    if isinstance(space, (spaces.Box, spaces.MultiBinary)):
        return math.prod(space.shape)
    raise TypeError(
        f"'{name}' observes {space}, agents need a vector of fixed size. Leave that part out with "
        "gymnasium.wrappers.FilterObservation, or wrap the environment so that it observes numbers."
    )


def _holds_numbers(space: spaces.Space) -> bool:
    if isinstance(space, (spaces.Dict, spaces.Tuple)):
        parts = space.spaces.values() if isinstance(space, spaces.Dict) else space.spaces
        return any(_holds_numbers(part) for part in parts)
    return True


def _chosen(space: Any, value: np.ndarray, leading: tuple[int, ...], part: str) -> np.ndarray:
    """Choices as vectors [*leading, K] float32: for each choice 1 where it was made, and 0 where not."""
    sizes = np.atleast_1d(space.n if isinstance(space, spaces.Discrete) else space.nvec).ravel()
    choice = (value.astype(np.int64) - np.asarray(space.start)).reshape(*leading, len(sizes))
    if ((choice < 0) | (choice >= sizes)).any():
        wrong = value.reshape(choice.shape)[(choice < 0) | (choice >= sizes)].flat[0]
        raise ValueError(f"{_called(part, leading)} with the choice {wrong}, {_promise(space)}")
    result = np.zeros((*leading, int(sizes.sum())), np.float32)
    starts = np.concatenate([[0], np.cumsum(sizes)[:-1]])
    np.put_along_axis(result, choice + starts, 1.0, axis=-1)
    return result


def _called(part: str, leading: tuple[int, ...]) -> str:
    return f"observation{part}" if part else "observations" if leading else "an observation"


def _promise(space: spaces.Space) -> str:
    return f"its observation_space promises {space}. {CORRECT}"


def _described(space: spaces.Space) -> dict[str, Any]:
    if isinstance(space, spaces.Dict):
        return {"kind": "Dict", "spaces": [[key, _described(part)] for key, part in space.spaces.items()]}
    if isinstance(space, spaces.Tuple):
        return {"kind": "Tuple", "spaces": [_described(part) for part in space.spaces]}
    if isinstance(space, spaces.Discrete):
        return {"kind": "Discrete", "n": int(space.n), "start": int(space.start)}
    if isinstance(space, spaces.MultiDiscrete):
        return {"kind": "MultiDiscrete", "nvec": space.nvec.tolist(), "start": space.start.tolist()}
    if isinstance(space, spaces.MultiBinary):
        return {"kind": "MultiBinary", "shape": list(space.shape)}
    assert isinstance(space, spaces.Box), "other kinds are refused"
    bounds = {"low": _bound(space.low), "high": _bound(space.high)}
    return {"kind": "Box", **bounds, "shape": list(space.shape), "dtype": str(space.dtype)}


def _bound(bound: np.ndarray) -> Any:
    """A bound as a number where it is the same everywhere, otherwise as a list. JSON has no infinity: it is text."""
    values = [value if math.isfinite(value) else str(value) for value in bound.ravel().tolist()]
    return values[0] if len(set(values)) == 1 else values


def _space(described: Mapping[str, Any]) -> spaces.Space:
    kind = described["kind"]
    if kind == "Dict":
        return spaces.Dict([(key, _space(part)) for key, part in described["spaces"]])
    if kind == "Tuple":
        return spaces.Tuple([_space(part) for part in described["spaces"]])
    if kind == "Discrete":
        return spaces.Discrete(described["n"], start=described["start"])
    if kind == "MultiDiscrete":
        return spaces.MultiDiscrete(np.array(described["nvec"]), start=np.array(described["start"]))
    if kind == "MultiBinary":
        shape = described["shape"]
        return spaces.MultiBinary(shape[0] if len(shape) == 1 else shape)
    shape, dtype = tuple(described["shape"]), np.dtype(described["dtype"])
    low, high = (_read_bound(described[side], shape, dtype) for side in ("low", "high"))
    return spaces.Box(low, high, shape, dtype.type)


def _read_bound(value: Any, shape: tuple[int, ...], dtype: np.dtype) -> np.ndarray:
    values = [float(x) if isinstance(x, str) else x for x in (value if isinstance(value, list) else [value])]
    each = np.array(values, dtype)
    return np.full(shape, each[0]) if len(values) == 1 else each.reshape(shape)
