"""Columns: additional arrays in the `extras` of an agent's batches."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.experience import Column, declaration
from rljax.buffers.rows import RingRows, trajectory_begins, trajectory_ends

BLOCK = 16  # steps read at a time
SAME = 1e-4  # rewards that differ by less are one


@declaration
class NextAction(Column):
    """`extras["next_action"]`: the action in the next state; 0 where `extras["has_next_action"]` is
    False: in the last row of a trajectory and the newest of a replay.
    """

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        has = ~trajectory_ends(data)
        following = np.roll(np.asarray(data.action), -1, axis=0)
        following[~has] = 0
        return {"next_action": following, "has_next_action": has}

    def of_replay(self, data: Transition, at: RingRows) -> dict[str, Array]:
        has = (at.later > 0) & ~(data.terminated | data.truncated)[at.row]
        action = data.action[at.after(1)]
        known = has.reshape(*has.shape, *[1] * (action.ndim - has.ndim))
        return {
            "next_action": jnp.where(known, action, jnp.zeros_like(action)),
            "has_next_action": has,
        }


@declaration
class ReturnToGo(Column):
    """`extras["return_to_go"]`: the sum of transformed rewards from this row to its trajectory's
    end, also by truncation, discounted if there is a discount.

    With `failure`, a truncated trajectory whose rewards from this row on are all `failure` has the
    return failure / (1 - discount) (Cal-QL, arXiv:2303.05479).

    It is 0 where `extras["has_return_to_go"]` is False: in unfinished episodes of a replay.
    """

    discount: float | None = None
    failure: float | None = None

    def check(self) -> None:
        self._settings()

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N], float32, summed in float64, and True for each row [N]."""
        from scipy.signal import lfilter

        discount, failure = self._settings()
        reward, begin, sums = np.asarray(data.reward, np.float64), 0, []
        for end in np.flatnonzero(trajectory_ends(data)):
            backwards = reward[begin : end + 1][::-1]
            sums.append(lfilter([1.0], [1.0, -discount], backwards)[::-1])
            if failure is not None and not data.terminated[end]:
                fails = np.logical_and.accumulate(np.abs(backwards - failure) < SAME)[::-1]
                sums[-1] = np.where(fails, failure / (1.0 - discount), sums[-1])
            begin = end + 1
        returns = np.concatenate(sums).astype(np.float32)
        return {"return_to_go": returns, "has_return_to_go": np.ones(len(returns), np.bool_)}

    def of_replay(self, data: Transition, at: RingRows) -> dict[str, Array]:
        """The column [...], and whether each row [...] has one."""
        discount = jnp.ravel(jnp.asarray(1.0 if self.discount is None else self.discount))[0]
        failure = None if self.failure is None else jnp.ravel(jnp.asarray(self.failure))[0]
        later = at._replace(row=at.row[..., None])

        def goes_on(state: _Sum) -> Array:
            return ((state.first <= at.later) & ~state.ended).any()

        def block(state: _Sum) -> _Sum:
            steps = state.first + jnp.arange(BLOCK)
            rows = later.after(steps)  # [..., BLOCK]
            stored = steps <= at.later[..., None]
            ends = (data.terminated | data.truncated)[rows] & stored
            before = jnp.cumsum(ends, axis=-1) - ends  # ends before a step
            in_episode = stored & (before == 0) & ~state.ended[..., None]
            reward = at.reward_map(data.reward[rows])
            fails = state.fails
            if failure is not None:
                is_failure = (jnp.abs(reward - failure) < SAME) & ~data.terminated[rows]
                fails = fails & (~in_episode | is_failure).all(axis=-1)
            total = state.total + jnp.where(in_episode, discount**steps * reward, 0.0).sum(axis=-1)
            return _Sum(state.first + BLOCK, total, state.ended | ends.any(axis=-1), fails)

        zero = jnp.zeros(at.row.shape)
        begun = _Sum(jnp.zeros((), jnp.int32), zero, zero > 0, zero == 0)
        _, total, ended, fails = jax.lax.while_loop(goes_on, block, begun)
        if failure is not None:
            total = jnp.where(fails, failure / (1.0 - discount), total)
        return {"return_to_go": jnp.where(ended, total, 0.0), "has_return_to_go": ended}

    def _settings(self) -> tuple[float, float | None]:

        def common(values: Any, flag: str) -> float:
            numbers = np.unique(np.asarray(values, np.float32))
            if len(numbers) > 1:
                raise ValueError(
                    f"returns to go are computed once for all learners: give one --config.{flag}."
                )
            return float(numbers[0])

        discount = 1.0 if self.discount is None else common(self.discount, "discount")
        return discount, None if self.failure is None else common(self.failure, "failure-reward")


class _Sum(NamedTuple):
    first: Array  # []: the next step
    total: Array  # [...]
    ended: Array  # [...] bool: the episode has ended
    fails: Array  # [...] bool: all rewards so far are `failure`


@declaration
class Time(Column):
    """`extras["time"]`: the steps before this row in its trajectory, int32."""

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        rows = np.arange(len(data.reward))
        first = np.maximum.accumulate(np.where(trajectory_begins(data), rows, 0))
        return {"time": (rows - first).astype(np.int32)}


@declaration
class Source(Column):
    """`extras["offline"]`: whether the row comes from the data set."""

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        return {"offline": np.ones(len(data.reward), np.bool_)}

    def of_replay(self, data: Transition, at: RingRows) -> dict[str, Array]:
        return {"offline": jnp.zeros(at.row.shape, jnp.bool_)}
