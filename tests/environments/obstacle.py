"""An obstacle with a way round on either side: their mean runs into it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import datasets
from rljax.agent import Array, EnvSpec, Transition

START, STRIDE, REACH = -1.0, 0.25, 0.3
DEPTH, WIDTH = 0.3, 0.4  # of the obstacle around the origin, half each


def outcome(position: Any) -> tuple[Any, Any]:
    """Whether a position [2] is in the obstacle, or behind everything."""
    return (abs(position[0]) < DEPTH) & (abs(position[1]) < WIDTH), position[0] >= 1.0 - 1e-4


class Obstacle:
    """From x = -1 to 1 in 8 steps, steering along y: 1 at the end, -1 in the obstacle."""

    spec = EnvSpec("Obstacle", observation_shape=(2,), action_size=1, max_episode_steps=20)
    params = None

    def reset(self, key: Array, params: Any) -> tuple[Array, Array]:
        position = jnp.array([START, 0.05 * jax.random.uniform(key, minval=-1.0)])
        return position, position

    def step(self, key: Array, state: Array, action: Array, params: Any) -> Any:
        position = state + jnp.array([STRIDE, 0.0]).at[1].set(REACH * action[0])
        crashed, arrived = outcome(position)
        return position, position, 1.0 * arrived - 1.0 * crashed, crashed | arrived, False, {}


def passages(path: Path, episodes: int = 400) -> Path:
    """Drivers who steer left or right until the obstacle lies behind them."""
    generator, rows = np.random.default_rng(0), []
    for episode in range(episodes):
        position = np.array([START, generator.uniform(-0.05, 0.05)])
        side, terminated = 1 - 2 * (episode % 2), False
        while not terminated:
            steering = 0.7 * side if position[0] < -DEPTH else 0.0
            action = np.clip([steering + 0.15 * generator.normal()], -1, 1)
            successor = position + np.array([STRIDE, REACH * action[0]])
            crashed, arrived = outcome(successor)
            terminated = bool(crashed or arrived)
            rows.append(
                (position, action, 1.0 * arrived - 1.0 * crashed, terminated, False, successor)
            )
            position = successor
    columns = [np.stack(column) for column in zip(*rows, strict=True)]
    columns = [column.astype(bool if column.dtype == bool else np.float32) for column in columns]
    bounds = (np.array([-1.0]), np.array([1.0]))
    return datasets.write(
        datasets.OfflineDataset("passages", Transition(*columns), None, None, bounds, {}), path
    )
