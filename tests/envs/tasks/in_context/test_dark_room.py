"""Dark rooms, beside their rules in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks.in_context.dark_room import DarkRoom, DarkRoomState

ROWS, COLUMNS = 3, 4
TASK = DarkRoom("rljax/DarkRoom-3x4", ROWS, COLUMNS)
STEPS: dict[int, Any] = {0: (1, 0), 1: (-1, 0), 2: (0, 1), 3: (0, -1), 4: (0, 0)}


def all_states() -> DarkRoomState:
    places = [(r, c) for r in range(ROWS) for c in range(COLUMNS)]
    both = np.array([(cell, goal) for cell in places for goal in places], np.int32)
    return DarkRoomState(jnp.asarray(both[:, 0]), jnp.asarray(both[:, 1]))


def test_moves_and_rewards_in_all_states() -> None:
    states = all_states()
    keys = jax.random.split(jax.random.key(0), len(states.cell))
    for action, move in STEPS.items():
        actions = jnp.full(len(keys), action)
        observation, after, reward, *ends, info = jax.vmap(TASK.step)(keys, states, actions)
        moved = np.clip(np.asarray(states.cell) + move, 0, (ROWS - 1, COLUMNS - 1))
        np.testing.assert_array_equal(after.cell, moved)
        np.testing.assert_array_equal(observation, moved)
        np.testing.assert_array_equal(after.goal, states.goal)
        reached = (moved == np.asarray(states.goal)).all(axis=1)
        np.testing.assert_array_equal(reward, reached)
        np.testing.assert_array_equal(info["success"], reached)
        assert not np.any(ends)


def test_optimal_actions_lead_to_the_goal_on_a_shortest_way() -> None:
    states = all_states()
    distance = np.abs(np.asarray(states.goal) - np.asarray(states.cell)).sum(axis=1)
    keys = jax.random.split(jax.random.key(0), len(states.cell))
    actions = jax.vmap(TASK.optimal_action)(states)
    after = jax.vmap(TASK.step)(keys, states, actions)[1]
    left = np.abs(np.asarray(after.goal) - np.asarray(after.cell)).sum(axis=1)
    np.testing.assert_array_equal(left, np.maximum(distance - 1, 0))
    np.testing.assert_array_equal(np.asarray(actions) == 4, distance == 0)


def test_goals_of_training_and_test_are_apart() -> None:
    """The cells in an order that the authors' generator shuffles: collect_data.py."""
    goals = np.array([[(j, i) for i in range(10)] for j in range(10)]).reshape(-1, 2)
    np.random.RandomState(seed=0).shuffle(goals)
    for suffix, expected in (("", goals[:80]), ("-test", goals[80:])):
        task: Any = envs.make(f"rljax/DarkRoom-10x10{suffix}").environment
        np.testing.assert_array_equal(task.goals, expected)
        states = jax.vmap(task.reset)(jax.random.split(jax.random.key(0), 2_000))[1]
        drawn = {tuple(x) for x in np.asarray(states.goal).tolist()}
        assert drawn == {tuple(x) for x in expected.tolist()}
        np.testing.assert_array_equal(states.cell, 0)


def test_random_places_are_uniform_and_of_the_same_task() -> None:
    state = DarkRoomState(jnp.zeros(2, jnp.int32), jnp.array([1, 2]))
    keys = jax.random.split(jax.random.key(0), 12_000)
    states = jax.vmap(TASK.anywhere, in_axes=(0, None))(keys, state)
    counts = np.bincount(np.asarray(jax.vmap(TASK.place)(states)), minlength=12)
    assert len(counts) == TASK.num_places
    assert (np.abs(counts - 1_000) < 160).all()
    np.testing.assert_array_equal(states.goal, np.tile([1, 2], (12_000, 1)))


def test_text_and_pictures_show_the_goal_to_people() -> None:
    state = DarkRoomState(jnp.array([0, 1]), jnp.array([2, 3]))
    assert TASK.text(state).splitlines() == [". A . .", ". . . .", ". . . g"]
    assert TASK.render(state).shape == (3 * 32, 4 * 32, 3)


def test_the_time_limit_is_in_the_name() -> None:
    assert envs.make("rljax/DarkRoom-9x9-20-test").spec.max_episode_steps == 20
    assert envs.make("rljax/DarkRoom-9x9").spec.max_episode_steps == 100


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("rljax/DarkRoom-1x5", "has 1 x 5 cells: rows and columns must be 2 to 50"),
        ("rljax/DarkRoom-5x5-0", "episodes of 0 steps"),
        ("rljax/DarkRoom-5", "the form is rljax/DarkRoom-MxN"),
    ],
)
def test_wrong_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(name)
