"""How a batch is drawn: functions of a storage and one key per learner."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.storage import Fixed, Mixed, Replay, Rollout


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


class FromData(NamedTuple):
    """A sampler of data sets, which all learners share, in two parts: what is random, and what it takes of the data.

    Only the second reads the data, so that these may lie where nothing is compiled: on the host, as NumPy arrays.
    """

    draw: Callable[[Array, int, Any], Any]  # keys [P], number of rows N, config: leaves [P, num_updates, batch_size]
    take: Callable[[Transition, Any], Transition]  # data [N, ...], and what was drawn: as many batches, [..., B, ...]

    def __call__(self, fixed: Fixed, key: Array, config: Any) -> Transition:
        """Draw `num_updates` batches per learner; `key` is [P], returns [P, num_updates, batch_size, ...]."""
        return self.take(fixed.data, self.draw(key, fixed.data.reward.shape[0], config))


def resident_rows(key: Array, number: int, config: Any) -> Array:
    """The rows that `resident` draws from a data set of `number` of them, int32 [P, num_updates, batch_size]."""
    return _rows(key, number, config.num_updates, config.batch_size)


def rows_of(data: Transition, rows: Any) -> Transition:
    """The transitions in `rows` [...] of a data set [N, ...], in one gather."""
    return jax.tree.map(lambda x: x[rows], data)


resident = FromData(resident_rows, rows_of)  # uniformly, with replacement


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
    old = rows_of(mixed.fixed.data, rows)
    new = _as_data(_drawn(mixed.replay, key_online, config.num_updates, config.batch_size - offline), affine)
    return jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=2), old, new)


def pooled(mixed: Mixed, key: Array, config: Any, affine: tuple[float, float] = (1.0, 0.0)) -> Transition:
    """Draw batches uniformly from the data set and the ring together: each of their transitions is as likely.

    So the offline share falls as experience gathers. Arguments and result are as of `mixed`.
    """
    data, number = mixed.fixed.data, mixed.fixed.data.reward.shape[0]

    def draw(ring: Transition, key: Array) -> Transition:
        rows = jax.random.randint(key, (config.num_updates, config.batch_size), 0, number + mixed.replay.size)
        is_old = rows < number
        old = rows_of(data, jnp.minimum(rows, number - 1))
        new = _as_data(rows_of(ring, jnp.maximum(rows - number, 0)), affine)
        choose = jax.vmap(jax.vmap(jnp.where))
        return jax.tree.map(lambda old, new: choose(is_old, old, new), old, new)

    return jax.vmap(draw)(mixed.replay.data, key)


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


def _as_data(new: Transition, affine: tuple[float, float]) -> Transition:
    """New transitions as a data set has them: rewards changed alike, no extras."""
    return new.replace(reward=affine[0] * new.reward + affine[1], extras={})


def _later(replay: Replay, rows: Array, num_envs: int) -> Array:
    """How many rows of the same environment, of `num_envs`, are newer than `rows` of a ring."""
    return (replay.position - 1 - rows) % replay.capacity // num_envs


def _rows(key: Array, capacity: int, number: int, size: int) -> Array:
    """Rows [P, number, size] of a data set, with replacement."""
    return jax.vmap(lambda key: jax.random.randint(key, (number, size), 0, capacity))(key)


# Goals, which a data set holds none of: states of it, drawn anew for each transition.

LAST = "last_row"  # of a data set's extras: the row [N] in which each row's trajectory ends


class GoalRows(NamedTuple):
    """What is random of goals, [...] each: rows min(row + steps + floor(share (last - row)), last), or `other`."""

    other: Any  # int32: a row of any trajectory
    steps: Any  # int32: how many rows later at least
    share: Any  # float32, in [0, 1): and which part of the trajectory's rest
    is_other: Any  # bool


class GoalDraws(NamedTuple):
    """What is random of batches with goals."""

    row: Any  # int32 [...]
    value: GoalRows
    actor: GoalRows


def with_last_rows(data: Transition) -> Transition:
    """A data set [N, ...] in NumPy with the row in which each row's trajectory ends, as `goals` needs it.

    A trajectory ends where it is terminated or truncated, the last one with the data.
    """
    ends = np.asarray(data.terminated) | np.asarray(data.truncated)
    ends[-1] = True
    (last,) = np.nonzero(ends)
    rows = last[np.searchsorted(last, np.arange(len(ends)))]
    return data.replace(extras={**data.extras, LAST: rows.astype(np.int32)})


def goal_draws(key: Array, number: int, config: Any) -> GoalDraws:
    """What `goals` draws from a data set of `number` rows, [P, num_updates, batch_size] each.

    Reads of a config, whose floats are [P], `discount` and for values and actor: `value_goal_current` and
    `value_goal_future`, the shares of goals that are the state itself and a later one of its trajectory, the rest being
    any states; and `value_goal_times`, how much later: "geometric", by k rows with probability (1 - discount)
    discount^(k - 1) for k from 1 on, or "even", any time being as likely. What lies behind the end is the last row.
    """
    shape = (config.num_updates, config.batch_size)

    def goal_rows(key: Array, current: Array, future: Array, times: str, discount: Array) -> GoalRows:
        key_kind, key_other, key_time = jax.random.split(key, 3)
        kind, time = jax.random.uniform(key_kind, shape), jax.random.uniform(key_time, shape)
        later = kind >= current
        if times == "geometric":  # the least k with discount^k <= 1 - time
            waited = jnp.ceil(jnp.log1p(-time) / jnp.log(jnp.minimum(discount, 1.0 - 1e-6)))
            steps, share = jnp.clip(waited, 1, number).astype(jnp.int32), jnp.zeros(shape)
        else:
            steps, share = jnp.ones(shape, jnp.int32), time
        other = jax.random.randint(key_other, shape, 0, number)
        return GoalRows(other, jnp.where(later, steps, 0), jnp.where(later, share, 0.0), kind >= current + future)

    def draw(key: Array, config: Any) -> GoalDraws:
        key_row, key_value, key_actor = jax.random.split(key, 3)
        row = jax.random.randint(key_row, shape, 0, number)
        value = (config.value_goal_current, config.value_goal_future, config.value_goal_times)
        actor = (config.actor_goal_current, config.actor_goal_future, config.actor_goal_times)
        discount = config.discount
        return GoalDraws(row, goal_rows(key_value, *value, discount), goal_rows(key_actor, *actor, discount))

    return jax.vmap(draw)(key, config)


def with_goals(data: Transition, draws: GoalDraws) -> Transition:
    """Transitions of a data set [N, ...] that `with_last_rows` has seen, with goals behind their states.

    Observations and successors [..., B, 2 O] hold the values' goals, `extras["actor_observation"]` the actor's. The
    reward is -1; where a row is its own goal it is 0, and `terminated`. What the data have of either is of no account.
    """
    on_host = isinstance(data.observation, np.ndarray)
    xp: Any = np if on_host else jnp
    row, last = draws.row, data.extras[LAST][draws.row]

    def place(goal: GoalRows) -> Any:
        rest = xp.floor(goal.share * (last - row).astype(np.float32)).astype(np.int32)
        return xp.where(goal.is_other, goal.other, xp.minimum(row + goal.steps + rest, last))

    value = place(draws.value)
    state, value_goal, actor_goal = data.observation[xp.stack([row, value, place(draws.actor)])]
    reached = value == row
    return Transition(
        observation=xp.concatenate([state, value_goal], axis=-1),
        action=data.action[row],
        reward=reached.astype(np.float32) - 1.0,
        terminated=reached,
        truncated=data.truncated[row],
        next_observation=xp.concatenate([data.next_observation[row], value_goal], axis=-1),
        extras={"actor_observation": xp.concatenate([state, actor_goal], axis=-1)},
    )


goals = FromData(goal_draws, with_goals)
