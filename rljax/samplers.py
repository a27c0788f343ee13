"""How a batch is drawn: functions of a storage and one key per learner."""

from __future__ import annotations

import jax

from rljax.agent import Array, Transition
from rljax.storage import Replay


def uniform(replay: Replay, key: Array, num_batches: int, batch_size: int) -> Transition:
    """Draw `num_batches` batches uniformly, with replacement, from the rows that hold a transition.

    `key` is [P]; returns [P, num_batches, batch_size, ...]. All batches of an iteration are one gather of
    O(num_batches x batch_size), whatever the capacity.
    """

    def draw(data: Transition, key: Array) -> Transition:
        rows = jax.random.randint(key, (num_batches, batch_size), 0, replay.size)
        return jax.tree.map(lambda x: x[rows], data)

    return jax.vmap(draw)(replay.data, key)
