"""`rljax/Pendulum` seen in pictures, `rljax/PendulumPictures`.

The observation is the last three pictures of the white rod, [16, 16, 3] uint8, the newest last, at
first all alike.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import StepResult
from rljax.envs.tasks.analytic import Pendulum, PendulumState

NAME = "rljax/PendulumPictures"
PIXELS, FRAMES = 16, 3
REACH = 1.2  # half of a picture's width, in lengths of the rod
WIDTH = 0.1  # half of the rod's
SCALE = 15  # pixels of a film for one of an observation


@struct.dataclass
class PicturesState:
    """The pendulum and its last pictures."""

    pendulum: PendulumState
    pictures: Array  # [PIXELS, PIXELS, FRAMES] uint8


class PendulumPictures:
    """The task."""

    params = None
    frames_per_second = 20.0

    def __init__(self, name: str = NAME) -> None:
        self.pendulum = Pendulum(name)
        shape = (PIXELS, PIXELS, FRAMES)
        self.spec: EnvSpec = dataclasses.replace(
            self.pendulum.spec, observation_shape=shape, observation_dtype="uint8", stack=FRAMES
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, PicturesState]:
        """Begin an episode."""
        _, pendulum = self.pendulum.reset(key)
        pictures = jnp.repeat(picture(pendulum.angle)[..., None], FRAMES, axis=-1)
        return pictures, PicturesState(pendulum, pictures)

    def step(
        self, key: Array, state: PicturesState, action: Array, params: Any = None
    ) -> StepResult:
        """Apply one torque."""
        result = self.pendulum.step(key, state.pendulum, action)
        pendulum = result[1]
        newest = picture(pendulum.angle)[..., None]
        pictures = jnp.concatenate([state.pictures[..., 1:], newest], axis=-1)
        return pictures, PicturesState(pendulum, pictures), *result[2:]

    def render(self, state: PicturesState, params: Any = None) -> np.ndarray:
        """The newest picture, larger, [H, W, 3] uint8."""
        newest = np.asarray(state.pictures)[..., -1]
        return np.repeat(np.kron(newest, np.ones((SCALE, SCALE), np.uint8))[..., None], 3, axis=-1)


def picture(angle: Array) -> Array:
    """The rod at an angle [] in radians, [PIXELS, PIXELS] uint8."""
    size = 2 * REACH / PIXELS
    centres = (jnp.arange(PIXELS) + 0.5) * size - REACH
    x, y = centres[None, :], -centres[:, None]
    along = jnp.clip(x * jnp.sin(angle) + y * jnp.cos(angle), 0, 1)
    distance = jnp.hypot(x - along * jnp.sin(angle), y - along * jnp.cos(angle))
    return jnp.round(255 * jnp.clip(0.5 - (distance - WIDTH) / size, 0, 1)).astype(jnp.uint8)


ENVIRONMENTS = {NAME: PendulumPictures}
