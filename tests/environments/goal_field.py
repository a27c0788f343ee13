"""A field with five places to go to, registered as "Field-v0", with OGBench's interface:
`task_infos`, `task_id` among the options of a reset, and `goal` in its info.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np

from rljax import datasets
from rljax.agent import Transition

PLACES = np.array([[0.0, 0.0], [0.8, 0.8], [-0.8, 0.8], [-0.8, -0.8], [0.8, -0.8]])
STEP, NEAR = 0.2, 0.2


class Field(gymnasium.Env):
    """Walk from around the centre to a place."""

    observation_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)
    action_space = gymnasium.spaces.Box(-1.0, 1.0, (2,), np.float32)

    def __init__(self) -> None:
        self.task_infos = [{"task_name": f"task{number}"} for number in range(1, 6)]
        self.task = 0

    def reset(
        self, *, seed: int | None = None, options: dict[str, Any] | None = None
    ) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.task = (options or {}).get("task_id", 1)
        self.position = self.np_random.uniform(-0.3, 0.3, 2)
        return self.position.astype(np.float32), {"goal": PLACES[self.task - 1].astype(np.float32)}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        self.position = moved(self.position, action)
        there = bool(np.linalg.norm(self.position - PLACES[self.task - 1]) <= NEAR)
        return (
            self.position.astype(np.float32),
            float(there),
            there,
            False,
            {"success": float(there)},
        )


def moved(position: np.ndarray, action: Any) -> np.ndarray:
    return np.clip(position + STEP * np.asarray(action), -1.0, 1.0)


def walks(path: Path, number: int = 200, length: int = 50) -> Path:
    """Walks that change their direction now and then."""
    generator = np.random.default_rng(0)
    rows = []
    for _ in range(number):
        position, direction = generator.uniform(-1.0, 1.0, (2, 2))
        for time in range(length):
            if generator.random() < 0.2:
                direction = generator.uniform(-1.0, 1.0, 2)
            action = np.clip(direction + 0.3 * generator.normal(size=2), -1.0, 1.0)
            after = moved(position, action.astype(np.float32))
            rows.append((position, action, 0.0, False, time == length - 1, after))
            position = after
    columns = [np.array(column) for column in zip(*rows, strict=True)]
    columns = [x if x.dtype == bool else x.astype(np.float32) for x in columns]
    bounds = (-np.ones(2, np.float32), np.ones(2, np.float32))
    name = f"{__name__}:Field-v0"
    made = datasets.OfflineDataset("walks", Transition(*columns), name, None, bounds, {})
    return datasets.write(made, path)


if "Field-v0" not in gymnasium.registry:
    gymnasium.register("Field-v0", Field, max_episode_steps=40)
