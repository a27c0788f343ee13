"""Data of tasks that are learnt in context: random transitions, or histories of a learner.

Each lifetime is one trajectory with a random task. The columns `optimal_action` and `task` have the
optimal action of each row, and a number that tells tasks apart.
"""

from __future__ import annotations

from typing import Any, Protocol

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition, choose
from rljax.buffers import OPTIMAL_ACTION, TASK
from rljax.envs.lifetimes import Lifetime, Repeatable

ROWS = 101  # of a lifetime with optimal actions: 100 of a context and a query
EPISODES = 100  # of a learner's history
# Of the learner: its discount, random actions in the end, and the share of its lifetime after which
# they are so few; the first value of each action; the smallest step towards a target.
DISCOUNT, EXPLORATION, LEARNT, OPTIMISM, STEP = 0.9, 0.05, 0.5, 1.0, 0.2


class KnownTask(Repeatable, Protocol):
    """A task with discrete actions whose states are known."""

    num_places: int

    def observe(self, state: Any) -> Array:
        """The observation [O] of a state."""
        ...

    def place(self, state: Any) -> Array:
        """The number [] of the place where a state is."""
        ...

    def number(self, state: Any) -> Array:
        """A number [] that tells tasks apart."""
        ...

    def anywhere(self, key: Array, state: Any) -> Any:
        """A random state of the same task."""
        ...

    def optimal_action(self, state: Any) -> Array:
        """The optimal action [] in a state."""
        ...

    def behaviour(self, key: Array) -> Array:
        """Probabilities [A] with which the data of one task have actions."""
        ...


def is_known(task: Any) -> bool:
    """Whether a task has what is needed here."""
    return all(hasattr(task, name) for name in ("anywhere", "behaviour", "place"))


def with_optimal_actions(task: KnownTask, key: Array, number: int, rows: int) -> Transition:
    """`number` lifetimes of `rows` transitions, one after another, as Lee et al. record them
    (arXiv:2306.14892).

    Each row begins in a random state.
    """

    def lifetime(key: Array) -> Transition:
        key_task, key_behaviour, key_rows = jax.random.split(key, 3)
        state = task.reset(key_task, task.params)[1]
        logits = jnp.log(task.behaviour(key_behaviour))

        def row(key: Array) -> Transition:
            key_state, key_action, key_step = jax.random.split(key, 3)
            before = task.anywhere(key_state, state)
            action = jax.random.categorical(key_action, logits).astype(jnp.int32)
            following, _, reward, *_ = task.step(key_step, before, action, task.params)
            never = jnp.zeros((), jnp.bool_)
            observation, labels = task.observe(before), _labels(task, before)
            return Transition(observation, action, reward, never, never, following, labels)

        return _ended(jax.vmap(row)(jax.random.split(key_rows, rows)))

    return _joined(jax.vmap(lifetime)(jax.random.split(key, number)))


def histories(task: KnownTask, key: Array, number: int, episodes: int) -> Transition:
    """`number` lifetimes of `episodes` episodes each, in which Q-learning with a table learns the
    task: at first all actions are random, at last few.
    """
    world = Lifetime(task, f"lifetime-{episodes}/")
    steps = world.spec.max_episode_steps
    assert steps is not None

    def lifetime(key: Array) -> Transition:
        key_reset, key_steps = jax.random.split(key)
        observation, state = world.reset(key_reset, task.params)
        shape = (task.num_places, task.spec.action_size)
        learner = (jnp.full(shape, OPTIMISM), jnp.zeros(shape))

        def step(carry: Any, inputs: Any) -> tuple[Any, Transition]:
            (values, visits), observation, state = carry
            key, time = inputs
            key_step, key_explore, key_random = jax.random.split(key, 3)
            place, labels = task.place(state.environment), _labels(task, state.environment)
            share = jnp.maximum(1.0 - time / (LEARNT * steps), EXPLORATION)
            random = jax.random.randint(key_random, (), 0, task.spec.action_size)
            explores = jax.random.bernoulli(key_explore, share)
            action = jnp.where(explores, random, values[place].argmax()).astype(jnp.int32)
            after = world.step(key_step, state, action, task.params)
            following, state, reward, terminated, truncated, _ = after
            ended = state.steps == 0
            later = jnp.where(ended, 0.0, values[task.place(state.environment)].max())
            visits = visits.at[place, action].add(1.0)
            rate = jnp.maximum(1.0 / visits[place, action], STEP)
            error = reward + DISCOUNT * later - values[place, action]
            values = values.at[place, action].add(rate * error)
            row = Transition(observation, action, reward, terminated, truncated, following, labels)
            return ((values, visits), following, state), row

        inputs = (jax.random.split(key_steps, steps), jnp.arange(steps))
        return _ended(jax.lax.scan(step, (learner, observation, state), inputs)[1])

    return _joined(jax.vmap(lifetime)(jax.random.split(key, number)))


def _labels(task: KnownTask, state: Any) -> dict[str, Array]:
    optimal = task.optimal_action(state).astype(jnp.float32)
    return {OPTIMAL_ACTION: optimal, TASK: jnp.asarray(task.number(state), jnp.float32)}


def _ended(rows: Transition) -> Transition:
    """A trajectory [T, ...] that is cut after its last row, if it does not end there."""
    last = jnp.arange(len(rows.reward)) == len(rows.reward) - 1
    return rows.replace(truncated=choose(last, ~rows.terminated, rows.truncated))


def _joined(trajectories: Transition) -> Transition:
    return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), trajectories)
