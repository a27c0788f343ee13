"""Resets: all that is learnt begins anew, and the replay stays.

Parameters, targets, optimisers' states and temperatures are those of a fresh `init`. Statistics of
observations, the replay and the number of updates stay. The new networks learn from the whole
replay, and not from its first transitions alone [1].

[1] Nikishin et al., The Primacy Bias, arXiv:2205.07802
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

import jax
import jax.numpy as jnp

from rljax.agent import Array, config
from rljax.requirements import Count, Counts

T = TypeVar("T")
RESET = 0x5E7  # folded into an update's key, for a key of the reset's own


@config
class WithResets:
    """Settings of resets: a base of an agent's Config."""

    reset_every: Count | None = None  # updates between resets; arXiv:2205.07802
    reset_at: Counts = ()  # updates after which there is one more; arXiv:2405.16158


def is_due(step: Array, settings: WithResets) -> Array:
    """Whether [] a reset follows update number `step`, counted from 0."""
    due = jnp.isin(step + 1, jnp.asarray(settings.reset_at, jnp.int32))
    if settings.reset_every is not None:
        due |= (step + 1) % settings.reset_every == 0
    return due


def renewed(state: T, init: Callable[..., T], key: Array, step: Array, settings: WithResets) -> T:
    """The State after an update, or as `init` makes it where a reset is due.

    `key` and `step` are those of the update, so that a resumed run has the same resets. The State
    has the environment's `spec`.
    """
    if settings.reset_every is None and not settings.reset_at:
        return state
    key = jax.random.fold_in(key, RESET)

    def fresh(state: Any) -> Any:
        return init(key, state.spec, settings)

    return jax.lax.cond(is_due(step, settings), fresh, lambda state: state, state)
