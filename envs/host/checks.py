"""Checked calls of a user's environment: errors and wrong return values name it."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rljax.envs.environment import EnvironmentFailed
from rljax.envs.host.space_values import as_array, flattened

_GYMNASIUM = Path(gymnasium.__file__).parent
_IMPORTLIB = Path(importlib.__file__).parent
_INTERFACE = (
    "Gymnasium's reset returns (observation, info) and takes seed and options; its step returns "
    "(observation, reward, terminated, truncated, info). Gym before 0.26 had another interface."
)


class Checks:
    """Environment `index` of those called `name`, with `length` steps in the running episode.

    All methods raise `EnvironmentFailed`.
    """

    def __init__(self, environment: gymnasium.Env, name: str, index: int) -> None:
        self.environment, self.name, self.index, self.length = environment, name, index, 0
        self._space = environment.observation_space
        self._is_box = isinstance(self._space, gymnasium.spaces.Box)

    def reset(self, **arguments: Any) -> tuple[Any, dict[str, Any]]:
        """Begin an episode. Returns the observation and `info`."""
        returned = self._call("reset", self.environment.reset, **arguments)
        self.length = 0
        if not isinstance(returned, tuple) or len(returned) != 2:
            raise self._wrong(f"{_what(returned)} from reset. {_INTERFACE}")
        self._check(*returned)
        return returned

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        """Apply one action. Returns observation, reward, terminated, truncated, `info`."""
        returned = self._call("step", self.environment.step, action)
        if not isinstance(returned, tuple) or len(returned) != 5:
            raise self._wrong(f"{_what(returned)} from step. {_INTERFACE}")
        observation, reward, terminated, truncated, info = returned
        self._check(observation, info)
        if type(reward) is not float:
            reward = self._number(reward)
        if terminated is not True and terminated is not False:
            terminated = self._flag(terminated, "terminated")
        if truncated is not True and truncated is not False:
            truncated = self._flag(truncated, "truncated")
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

    def _number(self, reward: Any) -> float:
        if isinstance(reward, (int, float)) or hasattr(reward, "__array__"):
            array = np.asarray(reward)
            if array.size == 1 and array.dtype.kind in "fiub":
                return float(array.reshape(()))
        raise self._wrong(f"the reward {_shown(reward)}, it must be one real number, such as 1.0.")

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
