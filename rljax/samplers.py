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


def n_step(replay: Replay, key: Array, config: Any) -> Transition:
    """Draw as `uniform` does, and sum the rewards of up to `n_step` steps; it reads `discount` and `num_envs`, too.

    Of a row and those that follow it in its episode, n or fewer where the episode ends or the ring's newest row is
    reached, k in all: `reward` is the sum of discount^i r_i, `extras["discount"]` is discount^k, and the last one's
    are `next_observation`, `terminated` and `truncated`.
    """
    number, capacity, steps = config.num_envs, replay.capacity, jnp.arange(config.n_step)

    def draw(data: Transition, key: Array, discount: Array) -> Transition:
        rows = jax.random.randint(key, (config.num_updates, config.batch_size), 0, replay.size)
        following = (rows[..., None] + number * steps) % capacity  # [U, B, n]
        ended = data.terminated[following] | data.truncated[following]
        goes_on = ~ended & (steps < _later(replay, rows, number)[..., None])
        counts = jnp.cumprod(goes_on, axis=-1, dtype=jnp.int32)[..., :-1]
        counts = jnp.concatenate([jnp.ones_like(rows[..., None]), counts], axis=-1)
        length = counts.sum(axis=-1)
        last = (rows + number * (length - 1)) % capacity
        return Transition(
            observation=data.observation[rows],
            action=data.action[rows],
            reward=jnp.where(counts == 1, discount**steps * data.reward[following], 0.0).sum(axis=-1),
            terminated=data.terminated[last],
            truncated=data.truncated[last],
            next_observation=data.next_observation[last],
            extras={name: x[rows] for name, x in data.extras.items()} | {"discount": discount**length},
        )

    return jax.vmap(draw)(replay.data, key, config.discount)


def hindsight(replay: Replay, key: Array, config: Any, environment: Any) -> Transition:
    """Draw as `uniform` does, and replace the goals of a share `hindsight`; it reads `discount` and `num_envs`, too.

    One half of these are what the row's episode reached in step k from there on, P(k) ~ discount^k among its k >= 1 in
    the ring, the other half what another environment reached in any row (the same one, where there is no other).
    `environment` (`rljax.envs.environment.GoalConditioned`) relabels observations and rewards; ends stay as they were.
    Rows hold in `extras["time"]` which step [] of their episode they are.
    """
    number, capacity = config.num_envs, replay.capacity

    def draw(data: Transition, key: Array, discount: Array, share: Array) -> Transition:
        key_rows, key_kind, key_future, key_other, key_slot = jax.random.split(key, 5)
        shape = (config.num_updates, config.batch_size)
        rows = jax.random.randint(key_rows, shape, 0, replay.size)
        time = data.extras["time"]

        def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
            low, high = bounds
            middle = (low + high + 1) // 2
            same = time[(rows + number * middle) % capacity] == time[rows] + middle  # no step later, no other episode
            return jnp.where(same, middle, low), jnp.where(same, high, middle - 1)

        bounds = (jnp.zeros_like(rows), _later(replay, rows, number))
        left, _ = jax.lax.fori_loop(0, (capacity // number).bit_length(), halve, bounds)
        decay = jnp.log(jnp.clip(discount, 1e-6, 1.0 - 1e-6))
        uniform = jax.random.uniform(key_future, shape)
        ahead = jnp.floor(jnp.log1p(uniform * jnp.expm1(decay * (left + 1))) / decay).astype(jnp.int32)
        future = (rows + number * jnp.minimum(ahead, left)) % capacity
        slot = jax.random.randint(key_slot, shape, 0, replay.size // number)
        other = slot * number + (rows + jax.random.randint(key_other, shape, 1, max(number, 2))) % number

        kind = jax.random.uniform(key_kind, shape)
        batch = jax.tree.map(lambda x: x[rows], data.replace(extras={}))
        replaced = kind < share
        goal = environment.achieved(data.next_observation[jnp.where(kind < 0.5 * share, future, other)])
        goal = jnp.where(replaced[..., None], goal, environment.desired(batch.observation))
        reward = environment.goal_reward(environment.achieved(batch.next_observation), goal)
        return batch.replace(
            observation=environment.relabelled(batch.observation, goal),
            next_observation=environment.relabelled(batch.next_observation, goal),
            reward=jnp.where(replaced, reward, batch.reward),
        )

    return jax.vmap(draw)(replay.data, key, config.discount, config.hindsight)


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


def _later(replay: Replay, rows: Array, num_envs: int) -> Array:
    """How many rows of the same environment, of `num_envs`, are newer than `rows` of a ring."""
    return (replay.position - 1 - rows) % replay.capacity // num_envs


def _rows(key: Array, capacity: int, number: int, size: int) -> Array:
    """Rows [P, number, size] of a data set, with replacement."""
    return jax.vmap(lambda key: jax.random.randint(key, (number, size), 0, capacity))(key)
