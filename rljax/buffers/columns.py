"""Columns: what else an agent can ask the rows of its batches to carry in `extras`."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.dataset import trajectory_ends
from rljax.buffers.experience import Column, declaration


@declaration
class NextAction(Column):
    """`extras["next_action"]`: the action in the successor; 0 where `extras["has_next_action"]` is False.

    There is none in the last row of a trajectory, nor in the newest row of a replay.
    """

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N, A], and whether there is one [N]."""
        has = ~trajectory_ends(data)
        following = np.roll(np.asarray(data.action), -1, axis=0)
        following[~has] = 0
        return {"next_action": following, "has_next_action": has}

    def of_replay(self, data: Transition, rows: Array, following: Array, has_following: Array) -> dict[str, Array]:
        """The column [..., A], and whether there is one [...]."""
        del rows
        action = data.action[following]
        has = has_following.reshape(*has_following.shape, *[1] * (action.ndim - has_following.ndim))
        return {"next_action": jnp.where(has, action, jnp.zeros_like(action)), "has_next_action": has_following}


@declaration
class ReturnToGo(Column):
    """`extras["return_to_go"]`: the discounted sum of rewards from this row to the last one of its trajectory.

    The rewards are those after the agent's `reward_transform`. Where a trajectory is truncated the sum ends, too.
    """

    discount: float

    in_replay: ClassVar[bool] = False

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N], float32, summed in float64. Raises `ValueError` where learners differ in their discounts."""
        from scipy.signal import lfilter

        discounts = np.unique(np.asarray(self.discount, np.float32))
        if len(discounts) > 1:
            raise ValueError("returns to go are computed once for all learners: give one --config.discount.")
        reward, begin, sums = np.asarray(data.reward, np.float64), 0, []
        for end in np.flatnonzero(trajectory_ends(data)):
            sums.append(lfilter([1.0], [1.0, -float(discounts[0])], reward[begin : end + 1][::-1])[::-1])
            begin = end + 1
        return {"return_to_go": np.concatenate(sums).astype(np.float32)}


@declaration
class Source(Column):
    """`extras["offline"]`: whether the row is of the data set."""

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """True [N]."""
        return {"offline": np.ones(len(data.reward), np.bool_)}

    def of_replay(self, data: Transition, rows: Array, following: Array, has_following: Array) -> dict[str, Array]:
        """False [...]."""
        del data, following, has_following
        return {"offline": jnp.zeros(rows.shape, jnp.bool_)}
