"""Gymnasium's environments stepped one after another, in this process."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import gymnasium
import numpy as np
from gymnasium.vector import AutoresetMode, VectorEnv

SUCCESS = ("success", "is_success")  # keys of `info` by which environments report success


class Serial(VectorEnv):
    """Environments stepped one after another: `SyncVectorEnv` without autoreset, for Box observations.

    `SyncVectorEnv` gathers the whole `info` of every step, which can take as long as the simulation. This class keeps
    only what `Hosted` reads of `info`, and only where an episode ends.
    """

    def __init__(self, environments: Sequence[gymnasium.Env], name: str) -> None:
        self.envs, self.name = list(environments), name
        first = self.envs[0]
        self.num_envs = len(self.envs)
        self.metadata = {**first.metadata, "autoreset_mode": AutoresetMode.DISABLED}
        self.render_mode, self.spec = first.render_mode, first.spec
        self.single_observation_space, self.single_action_space = first.observation_space, first.action_space
        self.observation_space = gymnasium.vector.utils.batch_space(first.observation_space, self.num_envs)
        self.action_space = gymnasium.vector.utils.batch_space(first.action_space, self.num_envs)
        self._observations = np.zeros(self.observation_space.shape, first.observation_space.dtype)  # pyright: ignore

    def reset(self, *, seed: Any = None, options: dict[str, Any] | None = None) -> tuple[np.ndarray, dict[str, Any]]:
        """Begin an episode in all environments, or only in those of `options["reset_mask"]`."""
        which = (options or {}).get("reset_mask")
        for index, environment in enumerate(self.envs):
            if which is None or which[index]:
                self._require_spaces(index, environment)
                observation, _ = environment.reset(seed=None if seed is None else seed[index])
                self._put(index, observation)
        return self._observations, {}

    def step(self, actions: Any) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray, dict[str, Any]]:
        """Apply one action to each environment. The next call overwrites the observations."""
        reward = np.empty(self.num_envs)
        terminated = np.empty(self.num_envs, np.bool_)
        truncated = np.empty(self.num_envs, np.bool_)
        infos: dict[str, Any] = {}
        for index, environment in enumerate(self.envs):
            observation, reward[index], terminated[index], truncated[index], info = environment.step(actions[index])
            self._put(index, observation)
            if terminated[index] or truncated[index]:
                infos = self._add_info(infos, {key: info[key] for key in SUCCESS if key in info}, index)
        return self._observations, reward, terminated, truncated, infos

    def render(self) -> tuple[Any, ...]:
        """A picture of each environment."""
        return tuple(environment.render() for environment in self.envs)

    def close_extras(self, **kwargs: Any) -> None:
        """Close the environments."""
        for environment in self.envs:
            environment.close()

    def _require_spaces(self, index: int, environment: gymnasium.Env) -> None:
        for space in ("observation_space", "action_space"):
            found, expected = getattr(environment, space), getattr(self, f"single_{space}")
            if found != expected:
                raise ValueError(
                    f"the {space} of environment {index} of '{self.name}' is {found}, it was {expected} when the first "
                    "was made. Agents need spaces that do not change: set them in the environment's __init__."
                )

    def _put(self, index: int, observation: Any) -> None:
        row = self._observations[index]
        if np.shape(observation) != row.shape:  # NumPy would broadcast some shapes
            raise ValueError(
                f"environment {index} of '{self.name}' returned an observation of shape {np.shape(observation)}, its "
                f"observation_space promises {row.shape}. Correct the space, or what step and reset return."
            )
        row[...] = observation
