"""A point among hazards, against its rules in NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.envs.tasks.point_hazards import GOAL_RADIUS, RADIUS, SPEED, PointHazards, PointState

TASK = PointHazards()
step = jax.jit(TASK.step)


def keys(number: int) -> Any:
    return jax.random.split(jax.random.key(0), number)


@pytest.mark.slow
def test_rewards_and_costs_follow_the_rules() -> None:
    _, states = jax.vmap(TASK.reset)(keys(300))
    actions = jax.random.uniform(jax.random.key(1), (300, 2), minval=-1.5, maxval=1.5)
    results = jax.vmap(TASK.step)(keys(300), states, actions)
    observation, after, reward, terminated, truncated, info = results
    old, new = np.asarray(states.position, np.float64), np.asarray(after.position, np.float64)
    moved = old + SPEED * np.clip(actions, -1, 1)
    np.testing.assert_allclose(new, np.clip(moved, -1, 1), atol=1e-6)
    before, left = (np.linalg.norm(np.asarray(states.goal) - x, axis=-1) for x in (old, new))
    reached = left < GOAL_RADIUS
    assert 0 < reached.sum() < 50
    np.testing.assert_allclose(reward, (before - left) / SPEED + 10 * reached, rtol=1e-4, atol=1e-4)
    distances = np.linalg.norm(np.asarray(states.hazards) - new[:, None], axis=-1)
    inside = (distances < RADIUS).any(axis=-1)
    assert 0 < inside.sum() < 150
    np.testing.assert_array_equal(info["cost"], inside.astype(np.float32))
    moved = (np.asarray(after.goal) != np.asarray(states.goal)).any(axis=-1)
    np.testing.assert_array_equal(moved, reached)
    assert not (terminated | truncated).any()
    relative = np.asarray(observation)[:, 2:].reshape(300, 5, 2)
    np.testing.assert_allclose(relative[:, 0], np.asarray(after.goal) - new, atol=1e-6)
    distances = np.linalg.norm(relative[:, 1:], axis=-1)
    assert (np.diff(distances, axis=1) >= 0).all()


@pytest.mark.slow
def test_nothing_begins_in_a_hazard_where_there_is_room() -> None:
    _, states = jax.vmap(TASK.reset)(keys(300))
    for places in (states.position, states.goal):
        places = np.asarray(places)[:, None]
        distances = np.linalg.norm(np.asarray(states.hazards) - places, axis=-1)
        assert (distances >= RADIUS).all()


def straight(state: PointState) -> jax.Array:
    return (state.goal - state.position) / jnp.linalg.norm(state.goal - state.position)


@pytest.mark.slow
def test_who_runs_straight_pays() -> None:
    def one(key: Any) -> Any:
        def body(state: Any, key: Any) -> Any:
            _, state, reward, _, _, info = TASK.step(key, state, straight(state))
            return state, (reward, info["cost"])

        first, rest = jax.random.split(key)
        found = jax.lax.scan(body, TASK.reset(first)[1], jax.random.split(rest, 200))[1]
        return jax.tree.map(jnp.sum, found)

    reward, cost = jax.jit(jax.vmap(one))(keys(64))
    assert reward.mean() > 250
    assert 35 < cost.mean() < 70


def test_pictures_and_text_show_what_there_is() -> None:
    hazards = jnp.full((4, 2), 0.5)
    state = PointState(jnp.asarray([-0.5, -0.5]), jnp.asarray([-0.5, 0.5]), hazards)
    picture = TASK.render(state)
    assert (picture.shape, picture.dtype) == ((256, 256, 3), np.uint8)
    places = ((64, 192), (64, 64), (192, 64), (192, 192))
    colours = [tuple(picture[place]) for place in places]
    assert len(set(colours)) == 4
    lines = TASK.text(state).split("\n")
    assert (lines[5][30], lines[5][10], lines[14][10], lines[14][30]) == ("x", "G", "O", ".")
    assert "\x1b[34mO\x1b[0m" in TASK.text(state, colours=True)
