"""The point maze against its rules, and its scripted episodes against the authors' controller, both
in NumPy.
"""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import Transition
from rljax.envs.tasks import point_maze
from rljax.envs.tasks.point_maze import Draws, GoalMaze, MazeState, PointMaze
from rljax.runs.policies import collect

TASK, GOALS = PointMaze(), GoalMaze()
DT, KG = 0.01, 1000 * 4 / 3 * np.pi * 0.1**3
ROWS = ("######", "#..###", "#....#", "######")
demonstrations = jax.jit(TASK.demonstrations, static_argnums=1)


@jax.jit
def stepped(position: Any, velocity: Any, goal: Any, action: Any) -> Any:
    states = MazeState(position, velocity, goal)
    return jax.vmap(TASK.step, in_axes=(None, 0, 0))(jax.random.key(0), states, action)


def test_a_force_moves_the_point_against_damping() -> None:
    generator = np.random.default_rng(0)
    position = np.array([-0.5, -0.5]) + generator.uniform(-0.3, 0.3, (100, 2))
    velocity, action = generator.uniform(-7, 7, (100, 2)), generator.uniform(-1.5, 1.5, (100, 2))
    goal = np.array([-0.3, -0.5]) + generator.uniform(-0.7, 0.7, (100, 2))
    observation, _, reward, terminated, truncated, info = stepped(position, velocity, goal, action)
    speed = np.clip(velocity, -5, 5)
    # implicit in the damping: m (v' - v) / dt = 100 a - v'
    speed = (KG * speed + DT * 100 * np.clip(action, -1, 1)) / (KG + DT)
    place = position + DT * speed
    np.testing.assert_allclose(observation, np.concatenate([place, speed], axis=1), atol=1e-5)
    distance = np.linalg.norm(place - goal, axis=1)
    np.testing.assert_allclose(reward, np.exp(-distance), rtol=1e-5)
    np.testing.assert_array_equal(info["success"], distance <= 0.45)
    assert 0 < info["success"].sum() < 100
    assert not (terminated | truncated).any()


def test_walls_take_the_speed_towards_them() -> None:
    places = np.array([[-1.5, 0.88], [1.88, -0.88], [-0.05, -0.03], [0.5, -0.12], [-0.5, -0.5]])
    speeds = np.array([[0.0, 3.0], [4.0, -3.0], [2.0, 2.0], [3.0, 4.0], [0.0, 0.0]])
    still = np.zeros((5, 2))
    observation = np.asarray(stepped(places, speeds, still, still)[0])
    slow = KG / (KG + DT)
    np.testing.assert_allclose(observation[0, [1, 3]], [0.9, 0.0], atol=1e-6)
    np.testing.assert_allclose(observation[1], [1.9, -0.9, 0.0, 0.0], atol=1e-6)
    # the edge of the wall between both rows, at (0, 0): it is touched at a slant
    middle = places[2] + DT * slow * speeds[2]
    normal = middle / np.linalg.norm(middle)
    np.testing.assert_allclose(observation[2, :2], 0.1 * normal, atol=1e-6)
    assert abs(observation[2, 2:] @ normal) < 1e-5
    np.testing.assert_allclose(observation[3], [0.53, -0.1, 3.0 * slow, 0.0], atol=1e-4)
    np.testing.assert_allclose(observation[4], [-0.5, -0.5, 0.0, 0.0], atol=1e-6)


# The authors' controller, from envs/pointmaze/policies/maze_expert.py and
# envs/pointmaze/samplers/maze_sampler.py.


def centre(cell: tuple[int, int]) -> np.ndarray:
    return np.array([cell[1] - 2.5, 1.5 - cell[0]])


def way(start: tuple[int, int], goal: tuple[int, int]) -> dict[Any, Any]:
    """By 50 iterations of values, as the authors do."""
    moves = [(0, 1), (0, -1), (-1, 0), (1, 0)]
    values: dict[Any, np.ndarray] = {
        (i, j): np.zeros(4) for i in range(4) for j in range(6) if ROWS[i][j] == "."
    }
    following = {cell: [(cell[0] + i, cell[1] + j) for i, j in moves] for cell in values}
    for _ in range(50):
        best = {cell: q.max() for cell, q in values.items()}
        values = {
            cell: np.array([(x == goal) + 0.99 * best.get(x, 0.0) for x in following[cell]])
            for cell in values
        }
    path: dict[Any, Any] = {}
    while True:
        path[start] = following[start][int(np.argmax(values[start]))]
        if path[start] == goal:
            return path
        start = path[start]


def scripted(start: Any, cells: list[Any], random: bool, draws: Draws) -> Any:
    """Observations [T, 4] and actions [T, 2], float64."""
    position, velocity = np.array(start, np.float64), np.zeros(2)
    goals = [centre(cell) + x for cell, x in zip(cells, draws.goals, strict=False)]
    number, path, reached = 0, None, False
    cell, aim = (0, 0), np.zeros(2)
    observations, actions = [], []
    for shift, uniform in zip(draws.shifts, draws.actions, strict=True):
        observations.append(np.concatenate([position, velocity]))
        last = number == len(cells) - 1
        fast = (np.abs(velocity) > 0.5).any() and not (last and random)
        if not reached and np.linalg.norm(position - goals[number]) <= 0.5 and not fast:
            if last:
                reached = True
            else:
                number, path = number + 1, None
        if path is None:
            here = (int(np.floor(2 - position[1])), int(np.floor(position[0] + 3)))
            path = way(here, cells[number])
            cell = path[here]
            aim = centre(cell)
        if np.linalg.norm(aim - position) <= 0.1 and cell != cells[number]:
            cell = path[cell]
            aim = goals[number] if cell == cells[number] else centre(cell) - shift
        action = np.clip(10 * (aim - position) - velocity, -1, 1)
        if reached and random:
            action = uniform
        actions.append(action)
        velocity = (KG * np.clip(velocity, -5, 5) + DT * 100 * action) / (KG + DT)
        position = position + DT * velocity
    return np.array(observations), np.array(actions)


@functools.cache
def played() -> Any:
    return jax.jit(TASK.played)


@pytest.mark.parametrize("part", [0, 2, 3])
def test_scripted_episodes_are_the_authors(part: int) -> None:
    for seed in range(3):
        generator = np.random.default_rng(seed)
        numbers = (
            generator.uniform(-0.25, 0.25, (3, 2)),
            generator.uniform(0, 0.2, (200, 2)),
            generator.uniform(-1, 1, (200, 2)),
        )
        draws = Draws(*map(jnp.asarray, numbers))
        start = centre((1, 2)) + generator.uniform(-0.25, 0.25, 2)
        state = MazeState(jnp.asarray(start), jnp.zeros(2), jnp.asarray(centre((2, 4))))
        cells = [[(2, 2)], [(1, 1), (2, 1), (2, 4)]][int(part > 1)]
        rows = played()(
            state, point_maze.PARTS[part], point_maze.LAST[part], np.bool_(part == 3), draws
        )
        observations, actions = scripted(start, cells, part == 3, draws)
        until = 200  # or until a wall is touched, which the script above does not know
        x, y = observations[:, 0], observations[:, 1]
        touches = (x > 1.9) | (y < -0.9) | ((x > -0.1) & (y > -0.1)) | (y > 0.9) | (x < -1.9)
        if touches.any():
            until = int(touches.argmax())
        assert until > 90
        np.testing.assert_allclose(rows.observation[:until], observations[:until], atol=2e-3)
        np.testing.assert_allclose(rows.action[: until - 1], actions[: until - 1], atol=2e-2)
        np.testing.assert_array_equal(rows.truncated, np.arange(200) == 199)


def episodes(rows: Transition, number: int) -> Any:
    return jax.tree.map(lambda x: np.asarray(x).reshape(number, 200, *x.shape[1:]), rows)


def test_the_data_have_the_authors_parts_and_returns() -> None:
    """The authors' script, run with their MuJoCo, has mean returns 26.8, 26.6, 57.4 and 52.6."""
    rows = episodes(demonstrations(jax.random.key(0), 200), 200)
    returns = rows.reward.sum(axis=1).reshape(4, 50)
    np.testing.assert_allclose(returns.mean(axis=1), [26.8, 26.6, 57.4, 52.6], atol=2.5)
    np.testing.assert_array_equal(rows.next_observation[:, :-1], rows.observation[:, 1:])
    assert not rows.terminated.any()
    np.testing.assert_array_equal(rows.truncated.sum(axis=1), 1)
    left = (rows.observation[..., 0] < -1.0).any(axis=1)
    right = (rows.observation[..., 0] > 1.0).any(axis=1)
    np.testing.assert_array_equal(left, right)
    np.testing.assert_array_equal(left, np.repeat([False, False, True, True], 50))
    short = jax.jit(TASK.short_way, static_argnums=1)(jax.random.key(1), 50)
    short_way = np.asarray(short.reward).reshape(50, 200).sum(axis=1)
    assert short_way.min() > returns.max() + 10
    assert short_way.mean() == pytest.approx(117, abs=5)


def test_it_is_recorded_by_its_name() -> None:
    first, other = (collect.demonstrated(point_maze.NAME, steps=900, seed=x) for x in (3, 4))
    assert first.num == 800
    again = collect.demonstrated(point_maze.NAME, steps=900, seed=3)
    np.testing.assert_array_equal(first.transitions.action, again.transitions.action)
    assert (first.transitions.action != other.transitions.action).any()


def test_episodes_begin_and_end_where_the_map_says() -> None:
    observation, states = jax.vmap(TASK.reset)(jax.random.split(jax.random.key(0), 200))
    for places, cell in ((states.position, (1, 2)), (states.goal, (2, 4))):
        offsets = np.asarray(places) - centre(cell)
        assert np.abs(offsets).max() <= 0.25
        assert (offsets.min(axis=0) < -0.2).all()
        assert (offsets.max(axis=0) > 0.2).all()
    np.testing.assert_array_equal(observation[:, 2:], 0)
    spec = envs.make(point_maze.NAME).spec
    assert (spec.observation_shape, spec.action_size, spec.max_episode_steps) == ((4,), 2, 200)


def test_pictures_and_text_show_what_there_is() -> None:
    state = MazeState(jnp.asarray([-1.5, 0.5]), jnp.zeros(2), jnp.asarray([1.5, -0.5]))
    picture = TASK.render(state)
    assert (picture.shape, picture.dtype) == ((4 * 48, 6 * 48, 3), np.uint8)
    colours = [
        tuple(picture[48 * i + 24, 48 * j + 24]) for i, j in ((0, 0), (1, 1), (2, 4), (2, 2))
    ]
    assert len(set(colours)) == 4
    assert TASK.text(state).split("\n") == ["######", "#O.###", "#...G#", "######"]
    assert "\x1b[34mO\x1b[0m" in TASK.text(state, colours=True)


# The maze with goals.


def test_goals_are_everywhere_but_where_episodes_begin() -> None:
    observation, states = jax.vmap(GOALS.reset)(jax.random.split(jax.random.key(0), 700))
    position, goal = np.asarray(states.position), np.asarray(states.goal)
    np.testing.assert_array_equal(observation, np.c_[position, np.zeros((700, 2)), goal])
    begin = np.array([-1.0, 1.0])  # left and above
    assert np.abs(position - begin).max() <= 0.25
    cells = np.round(goal).astype(int)
    assert np.abs(goal - cells).max() <= 0.4
    places, counts = np.unique(cells, axis=0, return_counts=True)
    assert {tuple(place) for place in places} == {
        (0, 1),
        (1, 1),
        (1, 0),
        (-1, -1),
        (0, -1),
        (1, -1),
    }
    assert counts.min() > 70
    spec = envs.make(point_maze.GOALS_NAME).spec
    assert (spec.observation_shape, spec.action_size, spec.max_episode_steps) == ((6,), 2, 100)


def test_one_force_is_held_for_four_steps_of_the_point() -> None:
    """In the open, where nothing is touched; the reward is for being near the goal."""
    generator = np.random.default_rng(0)
    position = np.array([0.0, 1.0]) + generator.uniform(-0.1, 0.1, (50, 2))
    velocity, action = generator.uniform(-2, 2, (50, 2)), generator.uniform(-1.2, 1.2, (50, 2))
    goal = position + generator.uniform(-0.3, 0.3, (50, 2))
    step = jax.jit(jax.vmap(GOALS.step, in_axes=(None, 0, 0)))
    states = MazeState(*map(jnp.asarray, (position, velocity, goal)))
    observation, _, reward, terminated, truncated, info = step(jax.random.key(0), states, action)
    for _ in range(4):
        velocity = (KG * velocity + DT * 100 * np.clip(action, -1, 1)) / (KG + DT)
        position = position + DT * velocity
    np.testing.assert_allclose(observation, np.c_[position, velocity, goal], atol=1e-5)
    near = np.linalg.norm(position - goal, axis=1) <= 0.25
    assert 5 < near.sum() < 45
    np.testing.assert_array_equal(reward, near)
    np.testing.assert_array_equal(info["success"], near)
    assert not (terminated | truncated).any()


def test_the_other_arm_is_reached_round_the_corner_alone() -> None:
    """Down is a wall; right, down and left is the way."""
    state = MazeState(jnp.asarray([-1.0, 1.0]), jnp.zeros(2), jnp.asarray([-1.0, -1.0]))
    step = jax.jit(GOALS.step)
    for _ in range(30):
        state = step(jax.random.key(0), state, jnp.asarray([0.0, -1.0]))[1]
    np.testing.assert_allclose(state.position, [-1.0, 0.6], atol=1e-5)
    reward = 1.0
    for force in ([1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]):
        for _ in range(30):
            _, state, reward, *_ = step(jax.random.key(0), state, jnp.asarray(force))
    np.testing.assert_allclose(state.position, [-1.4, -1.4], atol=1e-5)
    assert reward == 0.0, "it is beyond the goal, in the corner"


def test_observations_with_other_goals_are_paid_for_them() -> None:
    observation = np.random.default_rng(0).uniform(-1, 1, (2, 9, 6)).astype(np.float32)
    goal = np.asarray(GOALS.achieved(observation)) + np.float32([0.2, 0.0])
    other = GOALS.relabelled(jnp.asarray(observation), goal)
    np.testing.assert_array_equal(other[..., :4], observation[..., :4])
    np.testing.assert_array_equal(GOALS.desired(other), goal)
    np.testing.assert_array_equal(GOALS.goal_reward(GOALS.achieved(other), goal), np.ones((2, 9)))
    assert not GOALS.goal_reward(GOALS.achieved(other), goal + 0.1).any()


def test_pictures_and_text_show_the_maze_with_goals() -> None:
    state = MazeState(jnp.asarray([-1.0, 1.0]), jnp.zeros(2), jnp.asarray([1.0, -1.0]))
    picture = GOALS.render(state)
    assert (picture.shape, picture.dtype) == ((5 * 48, 5 * 48, 3), np.uint8)
    lines = ["#####", "#O..#", "###.#", "#..G#", "#####"]
    assert GOALS.text(state).split("\n") == lines
