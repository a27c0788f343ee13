"""An environment whose actions are held: a frame skip, for the study of decision frequencies."""

from __future__ import annotations

from typing import Any

import gymnasium


class Held(gymnasium.Wrapper):
    """A Gymnasium environment in which each action is played for `length` steps.

    The reward is their sum. An episode that ends in between ends the step.
    """

    def __init__(self, name: str, length: int) -> None:
        super().__init__(gymnasium.make(name))
        self.length = length

    def step(self, action: Any) -> Any:
        """Play one action."""
        total = 0.0
        for _ in range(self.length):
            observation, reward, terminated, truncated, info = self.env.step(action)
            total += float(reward)
            if terminated or truncated:
                break
        return observation, total, terminated, truncated, info
