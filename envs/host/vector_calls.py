"""Calls of a vector environment, whose failures become one error that names it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AsyncVectorEnv, AutoresetMode, SyncVectorEnv, VectorEnv
from gymnasium.vector.async_vector_env import AsyncState

from rljax.agent import MASK
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.host import rendering, saved_simulators
from rljax.envs.host.checks import failure
from rljax.envs.host.serial import Serial
from rljax.trust import note

FINAL = ("final_obs", "final_observation")  # in `info`: now, and before Gymnasium 1.0


class VectorCalls:
    """The calls of `vector_env`, which error messages call `name`. All raise `EnvironmentFailed`.

    Attributes:
        environments: the single environments; None where they are out of reach.
        autoreset_mode: how the vector environment resets itself; None where it is unknown.
    """

    def __init__(self, vector_env: VectorEnv, name: str) -> None:
        """Raises `ValueError` for an `AsyncVectorEnv` that would reset an environment twice."""
        self.vector_env, self.name = vector_env, name
        self.environments: Sequence[Any] | None = getattr(vector_env.unwrapped, "envs", None)
        self.autoreset_mode = _autoreset_mode(vector_env, name)
        self._closed = False

    def reset(self, seeds: Sequence[int] | None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in each environment. Returns the observations and `info`."""
        try:
            return self._call("reset", self.vector_env.reset, seed=seeds)
        except EnvironmentFailed as error:
            base, refusals = self.vector_env.unwrapped, (TypeError, gymnasium.error.Error)
            takes_all = isinstance(base, (Serial, SyncVectorEnv, AsyncVectorEnv))
            if seeds is None or takes_all or not isinstance(error.__cause__, refusals):
                raise
            return self._call("reset", self.vector_env.reset, seed=seeds[0])

    def reset_ended(self, ended: np.ndarray) -> tuple[Any, dict[str, Any]]:
        """Begin an episode where one has `ended` [N], even if the next step would do so.

        Returns all observations and `info`.
        """
        return self._call("reset", self.vector_env.reset, options={"reset_mask": ended.copy()})

    def step(self, action: Any) -> tuple[Any, Any, Any, Any, dict[str, Any]]:
        """Apply the environments' own actions. Returns what their `step` returns."""
        returned = self._call("step", self.vector_env.step, action)
        if isinstance(self.vector_env, Serial):  # has checked them
            return returned
        observation, reward, *ends, info = returned
        terminated, truncated = map(self._column, ends, ("terminated", "truncated"))
        return observation, self._column(reward, "reward"), terminated, truncated, info

    def has_masks(self) -> bool:
        """Whether the `info` of the first environment, which is reset, has a mask."""
        if isinstance(self.vector_env.unwrapped, AsyncVectorEnv):  # reset only once if that fails
            return MASK in self._call("reset", self.vector_env.reset)[1]
        first: Any = self.environments[0] if self.environments else self.vector_env
        try:
            if isinstance(self.vector_env, Serial):
                return self.vector_env.masks() in ("info", "method", "unread")
            return MASK in first.reset()[1]
        except Exception:  # the first reset of the training says what is wrong
            return False

    def render(self) -> np.ndarray:
        """A picture of environment 0, uint8 [H, W, 3].

        Raises `ValueError` where it was made without `render_mode="rgb_array"`.
        """
        if self.vector_env.render_mode != "rgb_array":
            raise ValueError(
                f"'{self.name}' was made with render_mode={self.vector_env.render_mode!r}, "
                f"pictures need 'rgb_array': make_hosted('{self.name}', 1, render_mode='rgb_array')"
            )
        try:
            if self.environments is not None:
                frame: Any = self.environments[0].render()
            else:
                frame = (self.vector_env.render() or (None,))[0]
        except gymnasium.error.DependencyNotInstalled as error:
            raise ValueError(f"'{self.name}' could not be rendered: {error}.") from None
        except Exception as error:
            raise EnvironmentFailed(
                f"'{self.name}' could not be rendered, with {type(error).__name__}: {error}."
                + (rendering.HINT if self._has_mujoco() else ""),
                failure(f"'{self.name}'", "in render", error).trace,
            ) from error
        if frame is None:
            raise ValueError(
                f"'{self.name}' returned no picture for render_mode='rgb_array': it cannot "
                "be rendered."
            )
        return np.asarray(frame)

    def change(self, values: Mapping[str, Any]) -> None:
        """Set attributes of all environments, or of wrappers around them.

        Raises `ValueError` for attributes that they lack, and where they are out of reach.
        """
        base: Any = self.vector_env.unwrapped
        processes = isinstance(base, AsyncVectorEnv)
        if self.environments is None and not processes:
            raise ValueError(f"the environments of '{self.name}' are out of reach.")
        for name, value in values.items():
            if processes:
                present = self._call("change", base.call, "has_wrapper_attr", name)
            else:
                present = [each.has_wrapper_attr(name) for each in self.environments or ()]
            if not all(present):
                raise ValueError(f"'{self.name}' has no attribute '{name}' to change.")
            if processes:
                self._call("change", base.set_attr, name, [value] * self.vector_env.num_envs)
            for each in self.environments or ():
                self._call("change", each.set_wrapper_attr, name, value)

    def close(self, at_once: bool) -> None:
        """Close the environments, once. With `at_once`, end their processes, and leave others."""
        if self._closed:
            return
        self._closed = True
        base = self.vector_env.unwrapped
        if isinstance(base, AsyncVectorEnv):
            alive = all(process.is_alive() for process in base.processes)
            stuck = base._state != AsyncState.DEFAULT or not alive
            # Gymnasium would wait for the step of a process that hangs or has ended
            base._state = AsyncState.DEFAULT
            self._call("close", self.vector_env.close, terminate=stuck or at_once)
        elif not at_once:
            self._call("close", self.vector_env.close)

    def _call(self, part: str, function: Callable[..., Any], *arguments: Any, **named: Any) -> Any:
        asynchronous = isinstance(self.vector_env.unwrapped, AsyncVectorEnv)
        level = gymnasium.logger.min_level
        # Gymnasium would print the environments' errors before it raises the last one
        if asynchronous:
            gymnasium.logger.min_level = gymnasium.logger.ERROR + 1
        try:
            return function(*arguments, **named)
        except EnvironmentFailed as error:
            raise EnvironmentFailed(*error.args) from error.__cause__
        except (EOFError, ConnectionError) as error:
            if not asynchronous:
                raise failure(f"'{self.name}'", f"in {part}", error) from error
            raise EnvironmentFailed(
                f"a process of '{self.name}' has ended by itself, in {part}: it crashed, or was "
                "killed (as for lack of memory). Without processes, the name without "
                "'async/' shows more."
            ) from error
        except (Exception, SystemExit) as error:
            raise failure(f"'{self.name}'", f"in {part}", error) from error
        finally:
            if asynchronous:
                gymnasium.logger.min_level = level

    def _column(self, values: Any, name: str) -> np.ndarray:
        """Rewards [N] float64, or the marks of ends [N] bool."""
        array, number = np.asarray(values), self.vector_env.num_envs
        array = array.reshape(number) if array.shape == (number, 1) else array
        is_end, right = name != "reward", array.shape == (number,) and array.dtype.kind in "fiub"
        if not right or (is_end and not ((array == 0) | (array == 1)).all()):
            kind = "True or False" if is_end else "a real number"
            raise EnvironmentFailed(
                f"'{self.name}' returned the {name} {array.tolist()}, it must be {number} x {kind}."
            )
        return array.astype(np.bool_ if is_end else np.float64)

    def _has_mujoco(self) -> bool:
        values = vars(self.environments[0].unwrapped).values() if self.environments else ()
        return any(saved_simulators.is_native(value, "MjData") for value in values)


def _autoreset_mode(vector_env: VectorEnv, name: str) -> AutoresetMode | None:
    mode = (vector_env.metadata or {}).get("autoreset_mode")
    mode = None if mode is None else AutoresetMode(mode)
    base = vector_env.unwrapped
    if mode is None:
        note(
            f"'{name}' does not say how it resets itself: without info['{FINAL[0]}'], not in the "
            "same step. Its metadata should have an 'autoreset_mode'."
        )
    copies = isinstance(base, AsyncVectorEnv) and not base.shared_memory
    if copies and mode == AutoresetMode.NEXT_STEP:
        raise ValueError(
            f"'{name}' is an AsyncVectorEnv with shared_memory=False and autoreset_mode=NEXT_STEP, "
            "which resets an environment twice when asked to reset it. Use shared_memory=True or "
            "autoreset_mode=DISABLED."
        )
    return mode
