"""How a batch is drawn: functions of a storage and one key per learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax

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


DEFAULTS: dict[str, Callable[..., Transition]] = {"replay": uniform, "rollout": whole}  # by storage
