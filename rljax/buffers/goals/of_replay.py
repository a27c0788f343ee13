"""Goals of a replay: what episodes reach later, in the observations' own goals."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal

import jax
import jax.numpy as jnp

from rljax.agent import Array, Step, Transition, choose
from rljax.buffers.dataset import Dataset
from rljax.buffers.experience import declaration
from rljax.buffers.goals.of_data import Goals
from rljax.buffers.goals.trajectories import Stored
from rljax.buffers.replay import Draw, Replay, batch_rows
from rljax.buffers.storage.ring import ReplayBuffer, earlier_rows, steps_left

IS_GOAL = "is_goal"  # in extras: 1 where an observation [O] holds its goal, else 0

# Where the new goals of `Hindsight` were reached.
GoalSource = Literal["mixed", "future", "final", "episode"]


@declaration
class TimedDraw(Draw):
    """A draw that knows the time of each row."""

    def extras(self, step: Step) -> dict[str, Array]:
        return {"time": step.episode_length}  # within its episode, from 1 on


@declaration
class Hindsight(TimedDraw):
    """Uniform rows, with the goals of a `share` of them replaced; observations and rewards follow,
    `terminated` and `truncated` do not.

    By `goals`, new goals were reached in

    - "mixed": k steps later in the row's episode, with P(k) ~ discount^k, for one half of them; for
      the other in any row of another environment, if there is one;
    - "future": any step of the row's episode from the row's on;
    - "final": the newest step of the row's episode;
    - "episode": any step of the row's episode that the ring still has.

    The last three are of Andrychowicz et al., arXiv:1707.01495, section 4.5. Rows of a data set
    beside the replay keep their goals.
    """

    share: float
    discount: float
    # `rljax.envs.environment.GoalConditioned`; the training's plan fills it in
    environment: Any = None
    goals: GoalSource = "mixed"

    flag: ClassVar[str] = "hindsight"
    only_new: ClassVar[bool] = True
    from_data: ClassVar[bool] = True
    relabels: ClassVar[bool] = True

    def with_goals(self, goals: Any, env: str) -> Hindsight:
        """The draw with `goals`; raises `ValueError` for a text, the reason why there are none."""
        parts = ("achieved", "desired", "relabelled", "goal_reward")
        if all(hasattr(goals, part) for part in parts):
            return dataclasses.replace(self, environment=goals)
        reason = goals if isinstance(goals, str) else without_goals(env, "rljax/BoxPick-4x4")
        raise ValueError(
            f"--config.{self.flag} replaces goals, and {reason}, or --config.{self.flag} 0."
        )

    def _steps(self, uniform: Array, discount: Array, before: Array, left: Array) -> Array:
        """Steps from each row to that of its new goal, from `before` back to `left` ahead."""
        if self.goals == "final":
            return left
        if self.goals == "mixed":
            return discounted_steps(uniform, discount, left)
        back = before if self.goals == "episode" else 0
        drawn = jnp.floor(uniform * (back + left + 1)).astype(jnp.int32)
        return jnp.minimum(drawn, back + left) - back

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        number, capacity = experience.num_envs, buffer.capacity

        def draw(ring: ReplayBuffer, key: Array, discount: Array, share: Array) -> Transition:
            key_rows, key_kind, key_future, key_other, key_slot = jax.random.split(key, 5)
            shape = (experience.num_updates, experience.batch_size)
            rows = batch_rows(ring, key_rows, experience, experience.batch_size)
            time = ring.data.extras["time"]
            left = steps_left(ring, rows, number)
            uniform = jax.random.uniform(key_future, shape)
            before = jnp.minimum(time[rows] - 1, earlier_rows(ring, rows, number))
            steps = self._steps(uniform, discount, before, left)
            inside = (rows + number * steps) % capacity
            step = jax.random.randint(key_slot, shape, 0, ring.drawable // number)
            environment = (rows + jax.random.randint(key_other, shape, 1, max(number, 2))) % number
            other = ring.row_of(step, environment, number)

            kind = jax.random.uniform(key_kind, shape)
            batch = ring.transitions(rows).replace(extras={})
            replaced = kind < share
            source = inside
            if self.goals == "mixed":
                source = jnp.where(kind < 0.5 * share, inside, other)
            goal = self.environment.achieved(ring.next_observations(source))
            goal = choose(replaced, goal, self.environment.desired(batch.observation))
            reward = self.environment.goal_reward(
                self.environment.achieved(batch.next_observation), goal
            )
            return batch.replace(
                observation=self.environment.relabelled(batch.observation, goal),
                next_observation=self.environment.relabelled(batch.next_observation, goal),
                reward=jnp.where(replaced, reward, batch.reward),
            )

        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0, 0))(
            buffer,
            keys,
            self.discount,  # pyright: ignore[reportArgumentType]
            self.share,  # pyright: ignore[reportArgumentType]
        )


@declaration
class FutureGoals(TimedDraw):
    """Uniform rows, all with goals that their episodes reach later: k steps after the row's
    observation, k = 1, 2, ..., with P(k) ~ discount^k.

    Both observations have the new goal, and `extras["is_goal"]` [..., O] is 1 where an observation
    holds it, else 0: a goal must have numbers of its own. Rewards, `terminated` and `truncated`
    stay.
    """

    discount: float
    # `rljax.envs.environment.GoalConditioned`; the training's plan fills it in
    environment: Any = None

    def with_goals(self, goals: Any, env: str) -> FutureGoals:
        """The draw with `goals`; raises `ValueError` for a text, the reason why there are none."""
        if all(hasattr(goals, part) for part in ("achieved", "relabelled")):
            return dataclasses.replace(self, environment=goals)
        reason = goals if isinstance(goals, str) else without_goals(env, "rljax/GoalMaze")
        raise ValueError(f"this agent learns to reach goals, and {reason}.")

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        goals, number, capacity = self.environment, experience.num_envs, buffer.capacity

        def draw(ring: ReplayBuffer, key: Array, discount: Array) -> Transition:
            key_rows, key_future = jax.random.split(key)
            rows = batch_rows(ring, key_rows, experience, experience.batch_size)
            uniform = jax.random.uniform(key_future, rows.shape)
            steps = discounted_steps(uniform, discount, steps_left(ring, rows, number))
            reached = ring.next_observations((rows + number * steps) % capacity)
            goal, batch = goals.achieved(reached), ring.transitions(rows)
            nowhere = jnp.zeros_like(batch.observation)
            return batch.replace(
                observation=goals.relabelled(batch.observation, goal),
                next_observation=goals.relabelled(batch.next_observation, goal),
                extras={IS_GOAL: goals.relabelled(nowhere, jnp.ones_like(goal))},
            )

        discount: Any = self.discount
        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, discount)


@declaration
class ReplayGoals(TimedDraw):
    """Uniform rows of a replay with the goals of a data set's `draw`, of states in the replay; and
    beside a data set rows of it with goals of its own.
    """

    draw: Goals

    from_data: ClassVar[bool] = True
    relabels: ClassVar[bool] = True

    @property
    def beside_data(self) -> Goals:
        return self.draw

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        shape, number = (experience.num_updates, experience.batch_size), experience.num_envs

        def draw(ring: ReplayBuffer, key: Array, goals: Goals) -> Transition:
            drawn = goals.draws(key, shape, jnp.maximum(ring.drawable, 1))
            return goals.batch(Stored(ring, number), drawn)

        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, self.draw)


def goal_dataset(config: Any, draw: Goals) -> Dataset:
    """Batches of data with the goals of `draw`, and online beside it of new experience."""
    online = Replay.of(config, draw=ReplayGoals(draw=draw))
    return Dataset.of(config, draw=draw, online=online)


def without_goals(env: str, other: str) -> str:
    """Why no goal can be replaced in `env`, and that it can in the `other` environment."""
    return (
        f"the observations of '{env}' hold none. Choose an environment whose observations hold "
        f"goals, such as {other}"
    )


def discounted_steps(uniform: Array, discount: Array, left: Array) -> Array:
    """Steps [...] from 0 to `left`, with P(k) ~ discount^k, by numbers in [0, 1)."""
    decay = jnp.log(jnp.clip(discount, 1e-6, 1.0 - 1e-6))
    ahead = jnp.floor(jnp.log1p(uniform * jnp.expm1(decay * (left + 1))) / decay)
    return jnp.minimum(ahead.astype(jnp.int32), left)
