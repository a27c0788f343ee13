"""Columns: additional arrays that an agent can ask for in the `extras` of its batches."""

from __future__ import annotations

from typing import ClassVar

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.dataset import trajectory_ends
from rljax.buffers.experience import Column, declaration


@declaration
class NextAction(Column):
    """`extras["next_action"]`: the action taken in the next state; 0 where `extras["has_next_action"]` is False.

    The last row of a trajectory has no next action, and neither has the newest row of a replay.
    """

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The next actions [N, A], and whether each row has one [N]."""
        has = ~trajectory_ends(data)
        following = np.roll(np.asarray(data.action), -1, axis=0)
        following[~has] = 0
        return {"next_action": following, "has_next_action": has}

    def of_replay(self, data: Transition, rows: Array, following: Array, has_following: Array) -> dict[str, Array]:
        """The next actions [..., A], and whether each row has one [...]."""
        del rows
        action = data.action[following]
        has = has_following.reshape(*has_following.shape, *[1] * (action.ndim - has_following.ndim))
        return {"next_action": jnp.where(has, action, jnp.zeros_like(action)), "has_next_action": has_following}


@declaration
class ReturnToGo(Column):
    """`extras["return_to_go"]`: the discounted sum of rewards from this row to the last one of its trajectory.

    The agent's `reward_transform` has already changed the rewards. The sum also ends where a trajectory is truncated.
    """

    discount: float

    in_replay: ClassVar[bool] = False

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N], float32, summed in float64. Raises `ValueError` where the learners' discounts differ."""
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
    """`extras["offline"]`: whether the row comes from the data set."""

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """True for all rows [N]."""
        return {"offline": np.ones(len(data.reward), np.bool_)}

    def of_replay(self, data: Transition, rows: Array, following: Array, has_following: Array) -> dict[str, Array]:
        """False for all rows [...]."""
        del data, following, has_following
        return {"offline": jnp.zeros(rows.shape, jnp.bool_)}
