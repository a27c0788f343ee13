"""Panels of every kind of observation and of action, registered as "Panels-v0". A lamp is lit in
one of three columns; the right action says which one, for a reward of 1. An episode ends
after five right actions, or at the time limit.
"""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

COLUMNS, SIDE, RIGHT, LIMIT = 3, 20, 5, 12
PICTURE = spaces.Box(0, 255, (SIDE, SIDE, 3), np.uint8)  # of 1,200 bytes: data sets store it once
ACTIONS: dict[str, Any] = {
    "continuous": spaces.Box(-2.0, 2.0, (1,), np.float32),
    "one": spaces.Discrete(COLUMNS, start=1),
    "several": spaces.MultiDiscrete([COLUMNS, 2]),
    "binary": spaces.MultiBinary(2),
    "masked": spaces.Discrete(COLUMNS),
}
SHOWN = ("vector", "picture", "small", "dictionary")


class Panels(gymnasium.Env):
    def __init__(self, shows: str = "picture", takes: str = "one") -> None:
        self.shows, self.takes = shows, takes
        vector = spaces.Box(-1.0, 1.0, (COLUMNS,), np.float32)
        kinds = {
            "vector": vector,
            "picture": PICTURE,
            "small": spaces.Box(0, 255, (4, 6, 3), np.uint8),
        }
        both = spaces.Dict(camera=spaces.Dict(left=PICTURE), vector=vector)
        self.observation_space, self.action_space = kinds.get(shows, both), ACTIONS[takes]
        self.lit, self.right = 0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.right = 0
        return self._light()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        right = self._is_right(action)
        self.right += right
        observation, info = self._light()
        return observation, float(right), self.right >= RIGHT, False, info

    def _is_right(self, action: Any) -> bool:
        assert self.action_space.contains(action), action
        if self.takes == "continuous":
            return abs(float(action[0]) - (self.lit - 1)) < 0.5
        if self.takes == "binary":
            return tuple(action) == (self.lit == 0, self.lit == 1)
        return int(np.ravel(action)[0]) - (self.takes == "one") == self.lit

    def _light(self) -> tuple[Any, dict[str, Any]]:
        self.lit = int(self.np_random.integers(COLUMNS))
        allowed = np.ones(COLUMNS, np.int8)
        allowed[(self.lit + 1) % COLUMNS] = self.np_random.random() < 0.5
        noise = self.np_random.integers(0, 50, PICTURE.shape, np.uint8)
        return self._shown(noise), {"action_mask": allowed} if self.takes == "masked" else {}

    def _shown(self, picture: np.ndarray) -> Any:
        vector = np.eye(COLUMNS, dtype=np.float32)[self.lit]
        if self.shows == "small":
            picture = picture[:4, :6]
        width = picture.shape[1] // COLUMNS
        picture[:, self.lit * width : (self.lit + 1) * width] = 255
        if self.shows == "dictionary":
            return {"camera": {"left": picture}, "vector": vector}
        return vector if self.shows == "vector" else picture


def name(shows: str, takes: str) -> str:
    return f'{__name__}:Panels-v0?{{"shows": "{shows}", "takes": "{takes}"}}'


if "Panels-v0" not in gymnasium.registry:
    gymnasium.register("Panels-v0", Panels, max_episode_steps=LIMIT)
