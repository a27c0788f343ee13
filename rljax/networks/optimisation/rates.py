"""Numbers that change linearly during a run."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from rljax.agent import Array, Number


def decayed(settings: Any, rollouts: Array | int) -> Any:
    """The `learning_rate` [] of a Config after `rollouts` [] of `num_envs` times `num_steps` steps.

    It falls to 0 within `decay_steps`; None: constant.
    """
    if settings.decay_steps is None:
        return settings.learning_rate
    # int32 could overflow
    steps = jnp.float32(rollouts) * (settings.num_envs * settings.num_steps)
    return settings.learning_rate * jnp.maximum(0.0, 1.0 - steps / settings.decay_steps)


def linear(start: Number, end: Number, steps: Any, duration: Number) -> Array:
    """A number [] after `steps` []: it goes from `start` to `end` in `duration` steps."""
    passed = jnp.minimum(steps / duration, 1.0)
    return start + (end - start) * passed
