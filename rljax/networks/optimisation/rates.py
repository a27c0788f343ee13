"""Numbers that change linearly during a run."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp

from rljax.agent import Array, Number


def decayed(
    rate: Number,
    updates: Array | int,
    steps_per_update: int,
    decay_steps: Number | None,
) -> Any:
    """A learning rate [] after `updates` [] of `steps_per_update` environment steps.

    It falls to 0 within `decay_steps`; None: constant.
    """
    if decay_steps is None:
        return rate
    steps = jnp.float32(updates) * steps_per_update  # int32 could overflow
    return rate * jnp.maximum(0.0, 1.0 - steps / decay_steps)


def linear(start: Number, end: Number, steps: Any, duration: Number) -> Array:
    """A number [] after `steps` []: it goes from `start` to `end` in `duration` steps."""
    passed = jnp.minimum(steps / duration, 1.0)
    return start + (end - start) * passed
