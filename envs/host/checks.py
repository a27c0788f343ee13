"""Checked calls of a user's environment: errors and wrong return values name it."""

from __future__ import annotations

import functools
import importlib
import math
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

from rljax.agent import MASK
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.host.actions import Actions, sounds_like_mask
from rljax.envs.host.space_values import as_array, flattened
from rljax.trust import note

_GYMNASIUM = Path(gymnasium.__file__).parent
_IMPORTLIB = Path(importlib.__file__).parent
_INTERFACE = (
    "Gymnasium's reset returns (observation, info) and takes seed and options; its step returns "
    "(observation, reward, terminated, truncated, info). Gym before 0.26 had another interface."
)

SUCCESS = ("success", "is_success")  # keys of `info` by which environments report success
METHOD = "action_masks"  # by which environments for SB3 give their masks
_ALL_MASKS = "Masks must be in the info of reset and of every step."


class Checks:
    """Environment `index` of those called `name`, with `length` steps in the running episode.

    All methods raise `EnvironmentFailed`. `masks` says where the masks of allowed actions are,
    by the first reset: "info", "method", "part" of the observation, "unread" where actions have
    numbers too, "none"; "" before it.
    """

    def __init__(self, environment: gymnasium.Env, name: str, index: int) -> None:
        self.environment, self.name, self.index, self.length = environment, name, index, 0
        self._space = environment.observation_space
        self._is_box = isinstance(self._space, gymnasium.spaces.Box)
        self.masks = ""

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Returns the observation and `info`."""
        returned = self._call("reset", self.environment.reset, **arguments)
        self.length = 0
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise self._wrong(f"{_what(returned)} from reset. {_INTERFACE}")
        self._check(*returned)
        self.masks = self.masks or self._place_of_masks(returned[1])
        return returned[0], self._with_mask(*returned, "reset", False)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action. Returns observation, reward, terminated, truncated, `info`."""
        returned = self._call("step", self.environment.step, action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._wrong(f"{_what(returned)} from step. {_INTERFACE}")
        observation, reward, terminated, truncated, info = returned
        self._check(observation, info)
        if type(reward) is not float:
            reward = self._number(reward, "reward")
        if terminated is not True and terminated is not False:
            terminated = self._flag(terminated, "terminated")
        if truncated is not True and truncated is not False:
            truncated = self._flag(truncated, "truncated")
        for key in SUCCESS:
            if info.get(key) is not None:
                info = {**info, key: self._number(info[key], key)}
        if self.masks != "none" or MASK in info:
            place = f"step {self.length + 1} of its episode"
            info = self._with_mask(observation, info, place, terminated or truncated)
        self.length += 1
        return observation, reward, terminated, truncated, info

    def close(self) -> None:
        """Close the environment."""
        self._call("close", self.environment.close)

    def _call(self, part: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        try:
            return function(*arguments, **named)
        except (Exception, SystemExit) as error:
            place = f"in step {self.length + 1} of its episode" if part == "step" else f"in {part}"
            raise failure(f"environment {self.index} of '{self.name}'", place, error) from error

    def _check(self, observation: Any, info: Any) -> None:
        check = as_array if self._is_box else flattened  # arrays are faster
        try:
            check(self._space, observation)
        except ValueError as error:
            raise self._wrong(str(error)) from None
        if not isinstance(info, dict):
            raise self._wrong(f"the info {_shown(info)}, it must be a dictionary.")

    @functools.cached_property
    def _actions(self) -> Actions:
        return Actions(self.environment.action_space, self.name)

    def _place_of_masks(self, info: dict[str, Any]) -> str:
        part = self._space.spaces.get(MASK) if isinstance(self._space, spaces.Dict) else None
        has_method = self.environment.has_wrapper_attr(METHOD)
        if part is None and MASK not in info and not has_method:
            size = self._actions.size if self._actions.discrete else 0
            for key, value in info.items():
                if sounds_like_mask(key) and np.size(value) == size:
                    note(f"'{self.name}' gives info[{key!r}], and masks are read from {MASK!r}.")
            return "none"
        if not self._actions.discrete:
            if not self._actions.choices:
                note(f"The masks of '{self.name}' are not read: its actions are numbers.")
            return "unread"
        if part is not None and math.prod(part.shape or ()) == self._actions.size:
            return "part"
        return "info" if MASK in info else "method" if has_method else "none"

    def _with_mask(
        self, observation: Any, info: dict[str, Any], place: str, last: bool
    ) -> dict[str, Any]:
        """`info` with the mask as truth values [A]; at the `last` step it may be missing."""
        mask = info.get(MASK)
        if self.masks in ("", "none", "unread"):
            if mask is None or self.masks == "unread":
                return info
            raise self._wrong(f"{MASK!r} in the info of {place}, and none before. {_ALL_MASKS}")
        if self.masks == "part":
            shown, mask = mask, np.ravel(observation[MASK])
            if shown is not None and not np.array_equal(self._actions.joined(shown), mask):
                raise self._wrong(f"two masks in {place}: {MASK!r} in info differs from that part.")
        elif self.masks == "method":
            mask = self._call(METHOD, self.environment.get_wrapper_attr(METHOD))
        elif mask is None:
            if not last:
                raise self._wrong(f"no {MASK!r} in the info of {place}. {_ALL_MASKS}")
            mask = np.zeros(self._actions.size)  # everything is allowed
        try:
            allowed = self._actions.mask(mask, last=last)
        except ValueError as error:
            raise self._wrong(f"in {place} {error}") from None
        return info if self.masks == "part" else {**info, MASK: allowed}

    def _number(self, value: Any, name: str) -> float:
        if isinstance(value, (int, float)) or hasattr(value, "__array__"):
            array = np.asarray(value)
            if array.size == 1 and array.dtype.kind in "fiub":
                return float(array.reshape(()))
        several = (
            " Other objectives can be signals beside it: metadata = {'signals': {'objectives': "
            f"{np.shape(value)}}}}} in the class, info['objectives'] in step."
        )
        raise self._wrong(
            f"the {name} {_shown(value)}, it must be one real number, such as 1.0."
            + (several if isinstance(value, np.ndarray) and value.size > 1 else "")
        )

    def _flag(self, value: Any, name: str) -> bool:
        array = np.asarray(value)
        if array.size == 1 and array.dtype.kind in "biuf" and array.reshape(()) in (0, 1):
            return bool(array.reshape(()))
        raise self._wrong(f"{name} = {_shown(value)}, it must be True or False.")

    def _wrong(self, what: str) -> EnvironmentFailed:
        return EnvironmentFailed(f"environment {self.index} of '{self.name}' returned {what}")


class Checked(gymnasium.Wrapper):
    """An environment with checked calls, for a process: its errors reach the training."""

    def __init__(self, environment: gymnasium.Env, name: str, index: int) -> None:
        super().__init__(environment)
        self._checks = Checks(environment, name, index)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode."""
        return self._checks.reset(**arguments)

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action."""
        return self._checks.step(action)

    def close(self) -> None:
        """Close the environment."""
        self._checks.close()


def failure(who: str, place: str, error: BaseException) -> EnvironmentFailed:
    """The error for an exception that `who` raised; `place` follows its type in the message."""
    frames = _own_frames(error)
    text = str(error).strip()
    message = f"{who} raised {type(error).__name__} {place}" + (f": {text}" if text else "")
    message += "" if message.endswith((".", "!", "?")) else "."
    if frames is None and isinstance(error, (TypeError, ValueError)):
        # A wrapper of Gymnasium could not use the environment's arguments or return values.
        message += f" {_INTERFACE}"
    trace = [] if frames is None else traceback.format_exception(type(error), error, frames)
    return EnvironmentFailed(message, "".join(trace))


def _own_frames(error: BaseException) -> Any:
    """The environment's own traceback; None if Gymnasium's wrappers raised."""
    frame = error.__traceback__
    while frame is not None and _is_wrapper(frame.tb_frame.f_code.co_filename):
        frame = frame.tb_next
    return frame


def _is_wrapper(file: str) -> bool:
    """Whether code in `file` stands between the training and an environment's own code."""
    if file.startswith("<frozen importlib") or Path(file).parent == _IMPORTLIB:
        return True
    inside, here = Path(file).parents, Path(__file__).parent
    is_gymnasium = _GYMNASIUM in inside and _GYMNASIUM / "envs" not in inside
    return Path(file).parent == here or is_gymnasium


def _what(returned: Any) -> str:
    one = f"one value of type {type(returned).__name__}"
    return f"{len(returned)} values" if isinstance(returned, tuple) else one


def _shown(value: Any) -> str:
    text = repr(value).replace("\n", " ")
    return text if len(text) <= 60 else f"{text[:57]}..."
