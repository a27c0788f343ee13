"""Environments with a picture, a number, text, several discrete actions and a mask in `info`."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
from gymnasium import spaces

BUTTONS = 3


class Buttons(gymnasium.Env):
    """Press the button that the picture shows, for a reward of 1."""

    max_episode_steps = 10
    action_space: Any = spaces.Discrete(BUTTONS)

    def __init__(self) -> None:
        self.observation_space = spaces.Dict(
            image=spaces.Box(0, 255, (8, 8, 3), np.uint8),
            number=spaces.Discrete(4),
            text=spaces.Text(9),
        )
        self.shown = 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.shown = int(self.np_random.integers(BUTTONS))
        return self._observe(), self._info()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = self._reward(action)
        self.shown = int(self.np_random.integers(BUTTONS))
        return self._observe(), reward, False, False, self._info()

    def _reward(self, action: Any) -> float:
        return float(action == self.shown)

    def _observe(self) -> Any:
        picture = np.zeros((8, 8, 3), np.uint8)
        picture[self.shown] = 255
        return {"image": picture, "number": self.shown, "text": "press"}

    def _info(self) -> dict[str, Any]:
        return {}


class Masked(Buttons):
    """The same picture alone; `info` allows the right button and one other."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space = spaces.Box(0, 255, (8, 8, 3), np.uint8)

    def _observe(self) -> Any:
        return super()._observe()["image"]

    def _reward(self, action: Any) -> float:
        assert self._info()["action_mask"][action], "forbidden"
        return super()._reward(action)

    def _info(self) -> dict[str, Any]:
        mask = np.ones(BUTTONS, np.int8)
        mask[(self.shown + 1) % BUTTONS] = 0
        return {"action_mask": mask}


class Several(Buttons):
    """A button that counts from 5, and two switches, of which the first one pays 1 as well."""

    action_space: Any = spaces.Tuple((spaces.Discrete(BUTTONS, start=5), spaces.MultiBinary(2)))

    def _reward(self, action: Any) -> float:
        return float(action[0] == 5 + self.shown) + float(action[1][0])


class Aimed(gymnasium.Env):
    """1 for pressing the button that is shown, less the distance to the number that is shown."""

    max_episode_steps = 10
    observation_space: Any = spaces.Box(-1, 1, (BUTTONS + 1,))
    action_space: Any = spaces.Tuple((spaces.Discrete(BUTTONS, start=5), spaces.Box(0, 4, (1,))))

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        return self._observe(), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert self.action_space.contains(action), action
        reward = float(action[0] == 5 + self.shown) - abs(float(action[1][0]) / 2 - 1 - self.number)
        return self._observe(), reward, False, False, {}

    def _observe(self) -> Any:
        self.shown, self.number = (
            int(self.np_random.integers(BUTTONS)),
            float(self.np_random.uniform(-1, 1)),
        )
        return np.array([*np.eye(BUTTONS)[self.shown], self.number], np.float32)
