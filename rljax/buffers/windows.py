"""Windows: consecutive steps of one episode, from rows of data sets and replays.

A chunk is a window as one transition: several actions of one decision. Li et al., Q-chunking,
arXiv:2507.07969.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.agent import NEXT_BASE_ACTION, Array, Transition, config
from rljax.buffers.rows import rows_of, trajectory_begins, trajectory_ends, without
from rljax.buffers.storage.ring import ReplayBuffer, later_rows
from rljax.requirements import Count

LAST = "last_row"  # in extras: the last row [N] of each row's trajectory
REWARDS = "rewards"  # in extras of chunks: [..., h]
OF_NEXT = (NEXT_BASE_ACTION,)  # in extras: those that belong to the next observation
VALID = "valid"  # in extras of chunks, [..., h] bool: whether a step belongs to the row's episode


class Window(NamedTuple):
    """Rows of h steps in order, [..., h]; beyond the episode's end, or the newest row, others."""

    row: Any  # int32
    valid: Any  # bool; the first step is

    @property
    def last(self) -> Any:
        """The row [...] of the last valid step."""
        xp: Any = np if isinstance(self.row, np.ndarray) else jnp
        index = self.valid.sum(axis=-1)[..., None] - 1
        return xp.take_along_axis(self.row, index, axis=-1)[..., 0]


@config
class WithChunks:
    """Settings of actions in chunks: a base of an agent's Config."""

    chunk_length: Count = 1  # h, actions of one decision; arXiv:2507.07969: 5


def with_last_rows(data: Transition) -> Transition:
    """A data set [N, ...] in NumPy with the last row of each row's trajectory in its extras."""
    (last,) = np.nonzero(trajectory_ends(data))
    rows = last[np.searchsorted(last, np.arange(len(data.reward)))]
    return data.replace(extras={**data.extras, LAST: rows.astype(np.int32)})


def with_last_steps(data: Transition, num_actions: int | None = None) -> Transition:
    """A data set [N, ...] in NumPy, whose observations [N, O] show the last action [A] and reward
    behind them, as `rljax.envs.last_step` does; both are 0 where a trajectory begins.

    `num_actions` is A of discrete actions.
    """
    action, reward = np.asarray(data.action), np.asarray(data.reward)[:, None]
    discrete = num_actions is not None
    action = action[:, None] == np.arange(num_actions) if discrete else np.clip(action, -1.0, 1.0)
    after = np.concatenate([action, reward], axis=1).astype(np.float32)
    begins = trajectory_begins(data)
    before = np.where(begins[:, None], 0.0, np.roll(after, 1, axis=0)).astype(np.float32)
    return data.replace(
        observation=np.concatenate([data.observation, before], axis=1),
        next_observation=np.concatenate([data.next_observation, after], axis=1),
    )


def windowed(data: Transition, length: int) -> Transition:
    """A data set [N, ...] `with_last_rows`; raises `ValueError` without any window of `length`."""
    data = with_last_rows(data)
    longest = int((data.extras[LAST] - np.arange(len(data.reward))).max()) + 1
    if longest < length:
        raise ValueError(
            f"--config.chunk-length is {length:,}, and the longest trajectory of the data has "
            f"{longest:,} steps. Lower it."
        )
    return data


def window_of_data(data: Transition, rows: Any, length: int) -> Window:
    """The windows of `length` steps from `rows` [...] of a data set of `with_last_rows`."""
    xp: Any = np if isinstance(rows, np.ndarray) else jnp
    following = rows[..., None] + xp.arange(length, dtype=np.int32)
    valid = following <= data.extras[LAST][rows][..., None]
    return Window(xp.minimum(following, len(data.reward) - 1), valid)


def window_of_ring(ring: ReplayBuffer, rows: Array, num_envs: int, length: int) -> Window:
    """The windows of `length` steps from `rows` [...] of one learner's ring."""
    data, steps = ring.data, jnp.arange(length)
    following = (rows[..., None] + num_envs * steps) % ring.capacity
    ended = data.terminated[following] | data.truncated[following]
    goes_on = ~ended & (steps < later_rows(ring, rows, num_envs)[..., None])
    valid = jnp.cumprod(goes_on, axis=-1, dtype=jnp.int32)[..., :-1] > 0
    first = jnp.ones((*rows.shape, 1), jnp.bool_)
    return Window(following, jnp.concatenate([first, valid], axis=-1))


def chunks_of_data(data: Transition, rows: Any, length: int) -> Transition:
    """The transitions in `rows` [...] of a data set of `with_last_rows`, as `chunks`."""
    window = window_of_data(data, rows, length)
    return chunks(_over_data(data, rows, window), data, window)


def chunks_of_ring(ring: ReplayBuffer, rows: Array, num_envs: int, length: int) -> Transition:
    """The transitions in `rows` [...] of one learner's ring, as `chunks`."""
    window = window_of_ring(ring, rows, num_envs, length)
    return chunks(_over_ring(ring, rows, window), ring.data, window)


def chunks(batch: Transition, data: Transition, window: Window) -> Transition:
    """Transitions [...] over h steps of `data` [N, ...], with their actions [..., h A]; these have
    no meaning where `extras["valid"]` is False.
    """
    action = data.action[window.row]
    return batch.replace(action=action.reshape(*action.shape[:-2], -1))


def steps_of_data(data: Transition, rows: Any, length: int) -> Transition:
    """The transitions in `rows` [...] of a data set of `with_last_rows`, over up to `length` steps.

    `action` is the first step's. `terminated`, `truncated` and `next_observation` are those of the
    last valid step, and `reward` the first one's. `extras["rewards"]` [..., h] holds all, and
    `extras["valid"]` [..., h] says which belong to the row's episode.
    """
    return _over_data(data, rows, window_of_data(data, rows, length))


def steps_of_ring(ring: ReplayBuffer, rows: Array, num_envs: int, length: int) -> Transition:
    """As `steps_of_data`, of the `rows` [...] of one learner's ring."""
    return _over_ring(ring, rows, window_of_ring(ring, rows, num_envs, length))


def _over_data(data: Transition, rows: Any, window: Window) -> Transition:
    batch = rows_of(without(data, LAST).replace(next_observation=None), rows)
    return _over(batch, data, window, rows_of(data.next_observation, window.last))


def _over_ring(ring: ReplayBuffer, rows: Array, window: Window) -> Transition:
    return _over(ring.transitions(rows), ring.data, window, ring.next_observations(window.last))


def _over(batch: Transition, data: Transition, window: Window, next_observation: Any) -> Transition:
    following = {name: data.extras[name][window.last] for name in OF_NEXT if name in data.extras}
    rewards = {REWARDS: data.reward[window.row], VALID: window.valid}
    return batch.replace(
        terminated=data.terminated[window.last],
        truncated=data.truncated[window.last],
        next_observation=next_observation,
        extras={**batch.extras, **following, **rewards},
    )


def n_step_return(batch: Transition, discount: Array | float) -> Transition:
    """Transitions [...] of `steps_of_data` with one reward: over k valid steps `reward` is the sum
    of discount^i r_i, and `extras["discount"]` is discount^k.
    """
    extras = dict(batch.extras)
    rewards, valid = extras.pop(REWARDS), extras.pop(VALID)
    discounted = discount ** jnp.arange(valid.shape[-1]) * rewards
    return batch.replace(
        reward=jnp.where(valid, discounted, 0.0).sum(axis=-1),
        extras=extras | {"discount": discount ** valid.sum(axis=-1)},
    )


def with_chunk_return(batch: Transition, discount: Array | float) -> Transition:
    """Chunks [B] with the sum of discount^i r_i as reward, for critics; other batches as they are.

    `extras["discount"]` is discount^h, and `extras["weight"]` [B] 0 where the chunk is not whole.
    """
    if VALID not in batch.extras:
        return batch
    valid = batch.extras[VALID]
    length = valid.shape[-1]
    powers = jnp.asarray(discount) ** jnp.arange(length)
    whole = valid[..., -1].astype(jnp.float32)
    weight = whole * batch.extras.get("weight", 1.0)
    return batch.replace(
        reward=jnp.where(valid, powers * batch.extras[REWARDS], 0.0).sum(axis=-1),
        extras={**batch.extras, "weight": weight, "discount": jnp.asarray(discount) ** length},
    )


def bootstrapped(batch: Transition, value: Array, discount: Array | float) -> Array:
    """Rewards and the discounted `value` [B] of what follows, which ends have not; the discount is
    the batch's own where its rewards are of several steps.
    """
    discount = batch.extras.get("discount", discount) * (1.0 - batch.terminated)
    return batch.reward + discount * value


def valid_actions(batch: Transition) -> Array | None:
    """Which numbers [B, h A] of chunks belong to the row's episode; None without chunks."""
    if VALID not in batch.extras:
        return None
    valid = batch.extras[VALID]
    return jnp.repeat(valid, batch.action.shape[-1] // valid.shape[-1], axis=-1)


def whole_chunks(batch: Transition) -> Array | None:
    """Which chunks [B, 1] the row's episode has whole; None without chunks."""
    return batch.extras[VALID][..., -1:] if VALID in batch.extras else None
