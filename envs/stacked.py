"""Environments that show their newest observations at once, by the prefix `stacked-4/`.

Vectors stand one after another, pictures beside each other in the channels, the newest last. An
episode begins with copies of its first observation. Masks of allowed actions are shown once.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
from gymnasium import spaces

from rljax.agent import MASK, Array, EnvSpec, Part, shown
from rljax.envs.environment import Environment, StepResult
from rljax.envs.host.spaces import place_of_channels


def number_of(prefix: str) -> int:
    """The frames of a prefix such as "stacked-4/". Raises `ValueError` for less than 2."""
    number = int(prefix.removeprefix("stacked-").removesuffix("/"))
    if number < 2:
        raise ValueError(f"'{prefix}' shows {number} frames at once, it must be at least 2.")
    return number


def spec_with_frames(spec: EnvSpec, number: int) -> EnvSpec:
    """`spec` with `number` frames at once.

    Raises `ValueError` for observations that are no vectors, pictures, or dictionaries of both, and
    for stacked ones.
    """
    parts = spec.parts or (Part("", spec.observation_shape, spec.observation_dtype),)
    if spec.stack > 1 or any(len(x.shape) not in (1, 3) for x in parts if x.name != MASK):
        what = "stacked pictures" if spec.stack > 1 else shown(spec)
        raise ValueError(f"'{spec.name}' shows {what}: only vectors and pictures can be stacked.")
    parts = tuple(
        x if x.name == MASK else dataclasses.replace(x, shape=(*x.shape[:-1], number * x.shape[-1]))
        for x in parts
    )
    named = dataclasses.replace(spec, name=f"stacked-{number}/{spec.name}")
    if spec.parts:
        return dataclasses.replace(named, parts=parts)
    stack = number if len(parts[0].shape) == 3 else 1
    return dataclasses.replace(named, observation_shape=parts[0].shape, stack=stack)


class Stacked:
    """A compiled environment that shows its newest observations."""

    def __init__(self, environment: Environment, prefix: str) -> None:
        """Raises `ValueError`, also for what `spec_with_frames` refuses."""
        self.environment, self.params = environment, environment.params
        self.number = number_of(prefix)
        self.spec = spec_with_frames(environment.spec, self.number)

    def reset(self, key: Array, params: Any) -> tuple[Any, Any]:
        """Begin an episode."""
        observation, state = self.environment.reset(key, params)
        observation = self.environment.spec.cast(observation)
        earlier = _without_mask(observation)
        return _joined([earlier] * self.number, observation), (state, [earlier] * (self.number - 1))

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        state, earlier = state
        observation, state, *others = self.environment.step(key, state, action, params)
        observation = self.environment.spec.cast(observation)
        frames = [*earlier, _without_mask(observation)]
        return (_joined(frames, observation), (state, frames[1:]), *others)  # type: ignore[return-value]


class FrameStack(gymnasium.Wrapper):
    """An environment of Gymnasium that shows its newest observations, pictures channels last."""

    def __init__(self, env: gymnasium.Env, number: int) -> None:
        """Raises `ValueError` for other observations than vectors, pictures, and dictionaries of
        both.
        """
        super().__init__(env)
        self._earlier: list[Any] = []
        self._number, self._first = number, {}
        space: Any = env.observation_space
        if isinstance(space, spaces.Dict):
            stacked = {name: self._stacked(part, name) for name, part in space.items()}
            self.observation_space = spaces.Dict(stacked)
        else:
            self.observation_space = self._stacked(space, "")

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode; see `gymnasium.Env.reset`."""
        observation, info = self.env.reset(seed=seed, options=options)
        observation = self._moved(observation)
        first = jax.tree.map(np.array, _without_mask(observation))  # the environment may change it
        self._earlier = [first] * (self._number - 1)
        return self._with_earlier(observation), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply one action."""
        observation, *others = self.env.step(action)
        return (self._with_earlier(self._moved(observation)), *others)  # type: ignore[return-value]

    def _with_earlier(self, observation: Any) -> Any:
        frames = [*self._earlier, jax.tree.map(np.array, _without_mask(observation))]
        self._earlier = frames[1:]
        return _joined(frames, observation, np)

    def _stacked(self, space: Any, name: str) -> spaces.Space:
        if name == MASK:
            return space
        channels = place_of_channels(space)
        if not isinstance(space, spaces.Box) or (len(space.shape) != 1 and channels is None):
            where = f" as {name!r}" if name else ""
            raise ValueError(
                f"'{self.env}' observes {space}{where}: only vectors and pictures can be stacked. "
                "Use a wrapper before: --wrap FILE:CLASS"
            )
        self._first[name] = channels == "first"
        bounds = [self._moved_part(x, name) for x in (space.low, space.high)]
        low, high = (np.concatenate([x] * self._number, axis=-1) for x in bounds)
        stacked = spaces.Box(low, high, dtype=space.dtype.type)
        if channels is not None and place_of_channels(stacked) not in ("last", "unclear"):
            raise ValueError(
                f"'{self.env}' observes pictures {space.shape}: {self._number} of them do not show "
                "where their channels are. Use bytes (uint8), or fewer frames."
            )
        return stacked

    def _moved(self, observation: Any) -> Any:
        """The observation with channels last."""
        if not isinstance(self.observation_space, spaces.Dict):
            return self._moved_part(observation, "")
        return {name: self._moved_part(part, name) for name, part in observation.items()}

    def _moved_part(self, part: Any, name: str) -> Any:
        return np.moveaxis(part, 0, -1) if self._first.get(name) else part


def _without_mask(observation: Any) -> Any:
    if not isinstance(observation, dict):
        return observation
    return {name: part for name, part in observation.items() if name != MASK}


def _joined(frames: list[Any], newest: Any, xp: Any = jnp) -> Any:
    """Frames side by side, with the mask of the newest one."""
    joined = jax.tree.map(lambda *parts: xp.concatenate(parts, axis=-1), *frames)
    mask = {MASK: newest[MASK]} if isinstance(newest, dict) and MASK in newest else None
    return joined if mask is None else {**joined, **mask}
