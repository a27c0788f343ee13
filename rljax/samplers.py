"""How a batch is drawn: functions of a storage and one key per learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition
from rljax.storage import Replay, Rollout


def uniform(replay: Replay, key: Array, config: Any) -> Transition:
    """Draw `num_updates` batches uniformly, with replacement, from the rows that hold a transition.

    `key` is [P]; returns [P, num_updates, batch_size, ...]. All batches of an iteration are one gather of
    O(num_updates x batch_size), whatever the capacity.
    """

    def draw(data: Transition, key: Array) -> Transition:
        rows = jax.random.randint(key, (config.num_updates, config.batch_size), 0, replay.size)
        return jax.tree.map(lambda x: x[rows], data)

    return jax.vmap(draw)(replay.data, key)


def whole(rollout: Rollout, key: Array, config: Any) -> Transition:
    """The rollout as the one batch of an iteration, [P, 1, T, E, ...]."""
    del key, config
    return jax.tree.map(lambda x: x[:, None], rollout.data)


def shuffled(key: Array, rows: int) -> Array:
    """The indices 0 to `rows` - 1 in random order, int32 [rows].

    Indices are packed below random bits and sorted as one array, which on the CPU takes a ninth of the time of
    `jax.random.permutation`. Two of the same bits keep their order: a pair does so with a probability of 2^-16 at most.
    """
    width = max(1, (rows - 1).bit_length())
    if width > 16:  # too few bits would be left
        return jax.random.permutation(key, rows)
    bits = jax.random.bits(key, (rows,)) << width
    return (jnp.sort(bits | jnp.arange(rows, dtype=jnp.uint32)) & (2**width - 1)).astype(jnp.int32)


DEFAULTS: dict[str, Callable[..., Transition]] = {"replay": uniform, "rollout": whole}  # by storage
