"""Goals for data that hold none: states of the data set, drawn anew for each transition."""

from __future__ import annotations

from typing import Any, ClassVar, Literal, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.dataset import Dataset, DatasetDraw, trajectory_ends
from rljax.buffers.experience import declaration

Times = Literal["geometric", "even"]
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


@declaration
class Goals(DatasetDraw):
    """Uniform rows with goals: for values and actor, the state itself, a later one of its trajectory, or any state.

    `value_current` and `value_future` are the shares of values' goals that are the state itself and a later one of its
    trajectory; the rest are any states. `value_times` says how much later: "geometric" is k rows with probability
    (1 - discount) discount^(k - 1) for k from 1 on, "even" makes any time as likely. What lies behind the trajectory's
    end is its last row. The same holds for the actor's goals.
    """

    discount: float
    value_current: float
    value_future: float
    value_times: Times
    actor_current: float
    actor_future: float
    actor_times: Times

    goals: ClassVar[bool] = True

    def prepare(self, data: Transition) -> Transition:
        """The data with the row in which each row's trajectory ends."""
        return with_last_rows(data)

    def random(self, keys: Array, number: int, experience: Dataset) -> GoalDraws:
        """What is random: leaves [P, U, B]."""
        shape = (experience.num_updates, experience.batch_size)

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

        def draw(key: Array, own: Any) -> GoalDraws:
            key_row, key_value, key_actor = jax.random.split(key, 3)
            row = jax.random.randint(key_row, shape, 0, number)
            value = (own.value_current, own.value_future, own.value_times)
            actor = (own.actor_current, own.actor_future, own.actor_times)
            return GoalDraws(
                row, goal_rows(key_value, *value, own.discount), goal_rows(key_actor, *actor, own.discount)
            )

        return jax.vmap(draw)(keys, self)

    def take(self, data: Transition, drawn: GoalDraws) -> Transition:
        """The rows with their goals; see `with_goals`."""
        return with_goals(data, drawn)


def with_last_rows(data: Transition) -> Transition:
    """A data set [N, ...] in NumPy with the row in which each row's trajectory ends, as `with_goals` needs it."""
    (last,) = np.nonzero(trajectory_ends(data))
    rows = last[np.searchsorted(last, np.arange(len(data.reward)))]
    return data.replace(extras={**data.extras, LAST: rows.astype(np.int32)})


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
