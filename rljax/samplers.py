"""How a batch is drawn: functions of a storage and one key per learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition
from rljax.storage import Fixed, Mixed, Replay, Rollout


def uniform(replay: Replay, key: Array, config: Any) -> Transition:
    """Draw `num_updates` batches uniformly, with replacement, from the rows that hold a transition.

    `key` is [P]; returns [P, num_updates, batch_size, ...]. All batches of an iteration are one gather of
    O(num_updates x batch_size), whatever the capacity.
    """

    return _drawn(replay, key, config.num_updates, config.batch_size)


def whole(rollout: Rollout, key: Array, config: Any) -> Transition:
    """The rollout as the one batch of an iteration, [P, 1, T, E, ...]."""
    del key, config
    return jax.tree.map(lambda x: x[:, None], rollout.data)


def resident(fixed: Fixed, key: Array, config: Any) -> Transition:
    """Draw `num_updates` batches per learner uniformly, with replacement, from a data set that all share.

    `key` is [P]; returns [P, num_updates, batch_size, ...], as one gather.
    """
    rows = resident_rows(key, fixed.data.reward.shape[0], config)
    return jax.tree.map(lambda x: x[rows], fixed.data)


def resident_rows(key: Array, number: int, config: Any) -> Array:
    """The rows that `resident` draws from a data set of `number` of them, int32 [P, num_updates, batch_size]."""
    return _rows(key, number, config.num_updates, config.batch_size)


def mixed(
    mixed: Mixed, key: Array, config: Any, offline_share: float = 0.5, affine: tuple[float, float] = (1.0, 0.0)
) -> Transition:
    """Draw batches of which a fixed share comes from the data set and the rest from the ring, both uniformly.

    `key` is [P]; returns [P, num_updates, batch_size, ...], the data set's rows first. The default share is that of
    RLPD (Ball et al., arXiv:2302.02948). `affine` is scale and shift of the ring's rewards, as the data set's have
    had them already.
    """
    offline = round(offline_share * config.batch_size)
    key_offline, key_online = jnp.moveaxis(jax.vmap(jax.random.split)(key), 1, 0)
    rows = _rows(key_offline, mixed.fixed.data.reward.shape[0], config.num_updates, offline)
    old = jax.tree.map(lambda x: x[rows], mixed.fixed.data)
    new = _drawn(mixed.replay, key_online, config.num_updates, config.batch_size - offline)
    new = new.replace(reward=affine[0] * new.reward + affine[1], extras={})  # a data set's rows have no extras
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), old, new)


DEFAULTS: dict[str, Callable[..., Transition]] = {  # by storage
    "replay": uniform,
    "rollout": whole,
    "dataset": resident,
    "mixed": mixed,
}


def _drawn(replay: Replay, key: Array, number: int, size: int) -> Transition:
    def draw(data: Transition, key: Array) -> Transition:
        rows = jax.random.randint(key, (number, size), 0, replay.size)
        return jax.tree.map(lambda x: x[rows], data)

    return jax.vmap(draw)(replay.data, key)


def _rows(key: Array, capacity: int, number: int, size: int) -> Array:
    """Rows [P, number, size] of a data set, with replacement."""
    return jax.vmap(lambda key: jax.random.randint(key, (number, size), 0, capacity))(key)
