"""Goals of transitions: states of a data set, or of a replay beside it."""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple, Self

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec, Transition, config, same_fields, shown
from rljax.buffers.dataset import Dataset, DatasetDraw, OnlineSettings
from rljax.buffers.experience import Observed, Supply, declaration
from rljax.buffers.goals.trajectories import Recorded, Trajectories, halves
from rljax.buffers.rows import TerminalRows, terminal_rows
from rljax.buffers.windows import with_last_rows
from rljax.requirements import Share

Times = Literal["geometric", "even"]


@config
class WithActorGoals(OnlineSettings):
    """Settings of an actor's goals drawn from data: a base of an agent's Config."""

    discount: Share = 0.99  # gamma, of geometric times too; OGBench
    actor_goal_current: Share = 0.0  # the state itself; OGBench
    actor_goal_future: Share = 1.0  # later ones, rest any; OGBench
    actor_goal_times: Times = "even"  # how much later; OGBench


@config
class WithGoals(WithActorGoals):
    """Settings of goals drawn from data: a base of an agent's Config."""

    value_goal_current: Share = 0.2  # the state itself; OGBench
    value_goal_future: Share = 0.5  # later ones, rest any; OGBench
    value_goal_times: Times = "geometric"  # how much later; OGBench


def check_goals(settings: WithActorGoals) -> None:
    """Raise `ValueError` where a Config's shares of goals are more than all goals."""
    for name in ("value", "actor"):
        fields = (f"{name}_goal_current", f"{name}_goal_future")
        shares = same_fields(settings, fields).values()
        share = np.max(sum(map(np.asarray, shares)))
        if share > 1.0 + 1e-6:
            raise ValueError(
                f"--config.{name}-goal-current and --config.{name}-goal-future are shares "
                f"of all goals, and together {share:g}: they must be at most 1."
            )


class GoalRows(NamedTuple):
    """Random draws of goals, [...] each.

    A goal's row is min(row + steps + floor(share (last - row)), last), or `other` where `is_other`.
    """

    other: Any  # int32: the number of a row of any trajectory
    steps: Any  # int32: rows after `row`, at least
    share: Any  # float32, in [0, 1): of the trajectory's rest
    is_other: Any  # bool: whether the goal is `other`


class GoalDraws(NamedTuple):
    """Random draws of batches with goals."""

    row: Any  # int32 [...], the numbers of rows
    value: GoalRows
    actor: GoalRows


class SubgoalDraws(NamedTuple):
    """Random draws of batches with goals, and of goals of options, if any."""

    goals: GoalDraws
    option: GoalRows | None


@declaration
class Goals(DatasetDraw):
    """Uniform rows with goals, drawn separately for values and actor.

    A value's goal is the row's own state, with share `value_goal_current`; a later state of its
    trajectory, `value_goal_future`; or any state of the data set. The later row is k rows on, but
    at most the trajectory's last. `value_goal_times` is "geometric", with the probability
    (1 - discount) discount^(k - 1) from k = 1 on, or "even". The same holds for actors.
    """

    discount: float
    actor_goal_current: float
    actor_goal_future: float
    actor_goal_times: Times
    value_goal_current: float | None = None  # None: values have the actor's goals
    value_goal_future: float | None = None
    value_goal_times: Times = "geometric"

    pairs: ClassVar[tuple[str, ...]] = ("actor_observation",)

    @classmethod
    def of(cls, settings: WithActorGoals) -> Self:
        """The draw by a Config's fields of the same names."""
        names = [field.name for field in dataclasses.fields(cls)]
        return cls(**same_fields(settings, names))

    @property
    def observes(self) -> Observed:
        return ("goals",)  # observations are [state; goal]

    def observed_spec(self, spec: EnvSpec, name: str) -> EnvSpec:
        """The spaces with a goal behind the state; raises `ValueError` for all but vectors."""
        if not spec.is_vector:
            raise ValueError(
                f"'{name}' shows {shown(spec)}, and goals are drawn from vectors alone: "
                "choose another agent."
            )
        return dataclasses.replace(spec, observation_shape=(2 * spec.observation_shape[0],))

    def require_all_tasks(self, supply: Supply) -> None:
        raise ValueError(
            f"'{supply.data}' is cut where one task is done, and agent '{supply.agent}' learns of "
            f"all goals. Use: rljax train {supply.agent} --data {supply.all_tasks}"
        )

    def terminal_rows(self, data: Transition, most: int) -> TerminalRows | None:
        """Rows with reward 0: any row is terminal if its goal is its own state."""
        rows = terminal_rows(data, np.arange(len(data.reward)), most)
        assert rows is not None
        both = np.concatenate([rows.observation, rows.observation], axis=-1)
        return rows._replace(observation=both, reward=np.zeros_like(rows.reward))

    def prepare(self, data: Transition) -> Transition:
        return with_last_rows(data)

    def random(self, keys: Array, number: int, experience: Dataset) -> Any:
        shape = (experience.num_updates, experience.batch_size)
        return jax.vmap(lambda key, goals: goals.draws(key, shape, number))(keys, self)

    def draws(self, key: Array, shape: tuple[int, ...], number: Any) -> Any:
        """One learner's draws [...] from `number` rows."""
        key_row, key_value, key_actor = jax.random.split(key, 3)
        row = jax.random.randint(key_row, shape, 0, number)
        actor = goal_rows(key_actor, shape, number, self, "actor")
        if self.value_goal_current is None:
            return GoalDraws(row, actor, actor)
        return GoalDraws(row, goal_rows(key_value, shape, number, self, "value"), actor)

    def take(self, data: Transition, drawn: Any) -> Transition:
        return self.batch(Recorded(data), drawn)

    def batch(self, source: Trajectories, drawn: Any) -> Transition:
        """The batches [..., B, ...] for what was `drawn`."""
        return with_goals(source, begun(source, drawn.row), drawn)


@declaration
class Subgoals(Goals):
    """The same with states on the way to goals, and with options of several steps, if any.

    `extras["subgoal_observation"]` [..., B, 2 O] has behind each state the one `subgoal_steps` on,
    at most the trajectory's last; `extras["target_observation"]` the same, but at most the actor's
    goal, unless that is any state. For options of n = `option_steps` > 1, see `with_options`.
    """

    subgoal_steps: int = 25
    option_steps: int = 1

    pairs: ClassVar[tuple[str, ...]] = (
        *Goals.pairs,
        "subgoal_observation",
        "target_observation",
        "option_observation",
        "option_next_observation",
    )

    def draws(self, key: Array, shape: tuple[int, ...], number: Any) -> Any:
        key_goals, key_option = jax.random.split(key)
        draws, option = super().draws(key_goals, shape, number), None
        if self.option_steps > 1:
            option = goal_rows(key_option, shape, number, self, "value")
        return SubgoalDraws(draws, option)

    def batch(self, source: Trajectories, drawn: Any) -> Transition:
        start = begun(source, drawn.goals.row)
        batch = with_subgoals(source, start, drawn.goals, self.subgoal_steps)
        if drawn.option is None:
            return batch
        return with_options(batch, source, start, drawn.option, self.option_steps)


def goal_rows(
    key: Array, shape: tuple[int, ...], number: Any, settings: Goals, of: Literal["value", "actor"]
) -> GoalRows:
    """Draws [...] of goals of values or the actor, from `number` rows."""
    names = [f"{of}_goal_{part}" for part in ("current", "future", "times")]
    current, future, times = (getattr(settings, name) for name in names)
    key_kind, key_other, key_time = jax.random.split(key, 3)
    kind, time = jax.random.uniform(key_kind, shape), jax.random.uniform(key_time, shape)
    later = kind >= current
    if times == "geometric":  # the least k with discount^k <= 1 - time
        decay = jnp.log(jnp.minimum(settings.discount, 1.0 - 1e-6))
        waited = jnp.ceil(jnp.log1p(-time) / decay)
        steps, share = jnp.clip(waited, 1, number).astype(jnp.int32), jnp.zeros(shape)
    else:
        steps, share = jnp.ones(shape, jnp.int32), time
    other = jax.random.randint(key_other, shape, 0, number)
    return GoalRows(
        other,
        jnp.where(later, steps, 0),
        jnp.where(later, share, 0.0),
        kind >= current + future,
    )


class Start(NamedTuple):
    """Rows [...] of trajectories, and how many later rows these have."""

    row: Any
    left: Any


def begun(source: Trajectories, number: Any) -> Start:
    """The rows with these numbers [...]."""
    row = source.row(number)
    return Start(row, source.left(row))


def with_goals(source: Trajectories, start: Start, draws: GoalDraws) -> Transition:
    """Transitions with goals behind their states.

    `observation` and `next_observation` [..., B, 2 O] hold the values' goals,
    `extras["actor_observation"]` the actor's. Where a row is its own goal, the reward is 0 and
    `terminated` True, elsewhere -1 and False.
    """
    xp, row = source.xp, start.row
    value, actor = (placed(source, start, goal) for goal in (draws.value, draws.actor))
    state, value_goal, actor_goal = source.states(xp.stack([row, value, actor]))
    reached = value == row
    return Transition(
        observation=xp.concatenate([state, value_goal], axis=-1),
        action=source.data.action[row],
        reward=reached.astype(np.float32) - 1.0,
        terminated=reached,
        truncated=source.data.truncated[row],
        next_observation=xp.concatenate([source.next_states(row), value_goal], axis=-1),
        extras={"actor_observation": xp.concatenate([state, actor_goal], axis=-1)},
    )


def placed(source: Trajectories, start: Start, goal: GoalRows) -> Any:
    """The rows [...] of goals."""
    later = source.later(start.row, _steps_to(source.xp, start, goal))
    return source.xp.where(goal.is_other, source.row(goal.other), later)


def _steps_to(xp: Any, start: Start, goal: GoalRows) -> Any:
    """Steps [...] to goals of the same trajectory."""
    rest = xp.floor(goal.share * start.left.astype(np.float32)).astype(np.int32)
    return xp.minimum(goal.steps + rest, start.left)


def ahead(source: Trajectories, start: Start, goal: GoalRows, steps: int) -> Any:
    """The rows [...] some `steps` later: at most the trajectory's last, and at most the goal's
    where that lies in the trajectory.
    """
    xp = source.xp
    most = xp.where(goal.is_other, start.left, _steps_to(xp, start, goal))
    return source.later(start.row, xp.minimum(steps, most))


def with_subgoals(source: Trajectories, start: Start, draws: GoalDraws, steps: int) -> Transition:
    """`with_goals`, and in extras the states `steps` ahead: see `Subgoals`."""
    xp, batch = source.xp, with_goals(source, start, draws)
    anywhere = draws.actor._replace(is_other=xp.ones_like(draws.actor.is_other))
    subgoals = ahead(source, start, anywhere, steps), ahead(source, start, draws.actor, steps)
    state, subgoal, target = source.states(xp.stack([start.row, *subgoals]))
    extras = {
        "subgoal_observation": xp.concatenate([state, subgoal], axis=-1),
        "target_observation": xp.concatenate([state, target], axis=-1),
    }
    return batch.replace(extras={**batch.extras, **extras})


def with_options(
    batch: Transition, source: Trajectories, start: Start, goal: GoalRows, steps: int
) -> Transition:
    """`batch` of the rows `start` [...], and in extras options, transitions of up to `steps` steps.

    An option ends in the state some `steps` on, at most in the trajectory's last or in the goal. A
    goal that would be the row's own state is where the option ends. The option is terminal with the
    reward 0 where it ends in its goal, and has the reward -1 elsewhere. `extras` have
    "option_observation" and "option_next_observation" [..., 2 O], "option_reward" and
    "option_terminated" [...].
    """
    xp = source.xp
    is_own = (goal.steps == 0) & ~goal.is_other
    end = ahead(source, start, goal._replace(is_other=goal.is_other | is_own), steps)
    goal_row = xp.where(is_own, end, placed(source, start, goal))
    state, successor, option_goal = source.states(xp.stack([start.row, end, goal_row]))
    reached = end == goal_row
    extras = {
        "option_observation": xp.concatenate([state, option_goal], axis=-1),
        "option_next_observation": xp.concatenate([successor, option_goal], axis=-1),
        "option_reward": reached.astype(np.float32) - 1.0,
        "option_terminated": reached,
    }
    return batch.replace(extras={**batch.extras, **extras})


def options(batch: Transition) -> Transition:
    """The options of `with_options` as transitions [B]; their actions are the first ones."""
    names = ("observation", "next_observation", "reward", "terminated")
    return batch.replace(**{name: batch.extras[f"option_{name}"] for name in names})


def toward(observation: Any, other: Any) -> Any:
    """The states of observations [..., 2 O] with the goals of `other` [..., 2 O] behind them."""
    return jnp.concatenate([halves(observation)[0], halves(other)[1]], axis=-1)
