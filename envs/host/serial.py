"""Gymnasium's environments stepped one after another, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces
from gymnasium.vector import AutoresetMode, VectorEnv
from gymnasium.vector.utils import batch_space, concatenate, create_empty_array, iterate

from rljax.agent import MASK
from rljax.envs import signals
from rljax.envs.environment import EnvironmentFailed
from rljax.envs.host.checks import SUCCESS, Checks
from rljax.envs.host.space_values import cast


class Serial(VectorEnv):
    """`SyncVectorEnv` without autoreset, and checked.

    Of `info`, it gathers only signals, masks, and success at the end of an episode: gathering all
    can take as long as the simulation. Raises `EnvironmentFailed`.
    """

    def __init__(self, environments: Sequence[gymnasium.Env], name: str) -> None:
        self.envs, self.name = list(environments), name
        first = self.envs[0]
        self.num_envs = len(self.envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode, self.spec = first.render_mode, first.spec
        self.single_observation_space = first.observation_space
        self.single_action_space = first.action_space
        self.observation_space = batch_space(first.observation_space, self.num_envs)
        self.action_space = batch_space(first.action_space, self.num_envs)
        self.signals = signals.declared(self.metadata.get("signals", ()), name)
        self._checks = [Checks(each, name, index) for index, each in enumerate(self.envs)]
        self._latest: list[Any] = [None] * self.num_envs  # the environments' own observations
        self._masks: list[Any] | None = None  # the latest, where there are any
        self._is_box = isinstance(first.observation_space, spaces.Box)
        self._observations: Any = create_empty_array(first.observation_space, self.num_envs)

    def reset(
        self, *, seed: Any = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        """Begin an episode in all environments, or in those of `options["reset_mask"]`."""
        which = (options or {}).get("reset_mask")
        for index, environment in enumerate(self.envs):
            if which is None or which[index]:
                self._require_spaces(index, environment)
                own_seed = None if seed is None else seed[index]
                self._put(index, *self._checks[index].reset(seed=own_seed))
        return self._gathered(), self._masked({})

    def step(self, actions: Any) -> tuple[Any, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action to each environment. The next call overwrites the observations."""
        reward = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, np.bool_)
        truncated = np.empty(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        step_signals = signals.zeros(self.signals, self.num_envs, np)
        space = self.single_action_space
        scalar_box = isinstance(space, spaces.Box) and not space.shape
        if not isinstance(actions, np.ndarray):
            actions = iterate(self.action_space, actions)
        for index, (checks, action) in enumerate(zip(self._checks, actions, strict=True)):
            result = checks.step(np.asarray(action) if scalar_box else action)
            observation, reward[index], terminated[index], truncated[index], info = result
            self._put(index, observation, info)
            for part in self.signals:
                who = f"environment {index} of '{self.name}'"
                step_signals[part.name][index] = signals.of_step(info, part, who)
            if terminated[index] or truncated[index]:
                success = {key: info[key] for key in SUCCESS if key in info}
                infos = self._add_info(infos, success, index)
        return self._gathered(), reward, terminated, truncated, self._masked(infos) | step_signals

    def masks(self) -> str:
        """Where the environments' masks are, see `Checks.masks`; resets the first environment."""
        self._checks[0].reset()
        for checks in self._checks:
            checks.masks = self._checks[0].masks
        return self._checks[0].masks

    def continue_episodes(self, lengths: Sequence[int]) -> None:
        """Set the number of steps of the running episodes, for error messages."""
        for checks, length in zip(self._checks, lengths, strict=True):
            checks.length = int(length)

    def render(self) -> tuple[Any, ...]:
        """A picture of each environment."""
        return tuple(environment.render() for environment in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close all environments. If some raise, raise the first error at the end."""
        self.closed = True
        failures = []
        for checks in self._checks:
            try:
                checks.close()
            except EnvironmentFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]

    def _require_spaces(self, index: int, environment: gymnasium.Env) -> None:
        for space in ("observation_space", "action_space"):
            present, expected = getattr(environment, space), getattr(self, f"single_{space}")
            if present != expected:
                raise ValueError(
                    f"the {space} of environment {index} of '{self.name}' is {present}, it was "
                    f"{expected} when the first was made. Agents need spaces that do not change: "
                    "set them in the environment's __init__."
                )

    def _masked(self, infos: dict[str, Any]) -> dict[str, Any]:
        if self._masks is None or any(mask is None for mask in self._masks):
            return infos
        return {**infos, MASK: self._masks}

    def _put(self, index: int, observation: Any, info: dict[str, Any]) -> None:
        if MASK in info and self._checks[index].masks in ("info", "method"):
            self._masks = self._masks or [None] * self.num_envs
            self._masks[index] = info[MASK]
        if self._is_box:
            self._observations[index, ...] = observation
        else:
            self._latest[index] = cast(self.single_observation_space, observation)

    def _gathered(self) -> Any:
        if not self._is_box:
            space = self.single_observation_space
            self._observations = concatenate(space, self._latest, self._observations)
        return self._observations
