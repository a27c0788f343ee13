"""Lights out, compared with a plain loop."""

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks import lights_out
from rljax.envs.tasks.lights_out import LightsOut


def pressed(lights: np.ndarray, cell: int) -> np.ndarray:
    """A cell and its neighbours change."""
    """The lights [M, N] after one press: a cell and its neighbours change."""
    i, j = np.indices(lights.shape)
    row, column = divmod(cell, lights.shape[1])
    return lights ^ (abs(i - row) + abs(j - column) <= 1)


def all_pressed(lights: np.ndarray, cells: Any) -> np.ndarray:
    return functools.reduce(pressed, cells, lights)


def distances(rows: int, columns: int) -> np.ndarray:
    """The fewest presses from no light to each pattern [2^(M N)], whose lowest bit is cell 0;
    -1 if none lead to it.
    """
    cells, dark = rows * columns, np.zeros((rows, columns), bool)
    changes = [pressed(dark, cell).ravel() @ (1 << np.arange(cells)) for cell in range(cells)]
    fewest = np.full(2**cells, -1)
    fewest[0], front = 0, np.array([0])
    while len(front):
        reached = np.unique(np.concatenate([front ^ change for change in changes]))
        reached = reached[fewest[reached] < 0]
        fewest[reached], front = fewest[front[0]] + 1, reached
    return fewest


def boards(environment: LightsOut, observation: Any) -> np.ndarray:
    """[..., 2, M, N] bool: the lights, and the goal."""
    observation = np.asarray(observation)
    shape = (2, environment.rows, environment.columns)
    return observation.reshape(*observation.shape[:-1], *shape) > 0


def made(name: str) -> LightsOut:
    environment = lights_out.make(f"rljax/LightsOut-{name}")
    assert isinstance(environment, LightsOut)
    return environment


def problems(environment: LightsOut, number: int) -> tuple[np.ndarray, Any]:
    reset = jax.jit(jax.vmap(environment.reset))
    observation, state = reset(jax.random.split(jax.random.key(5), number))
    return np.asarray(observation), state


def rolled(environment: LightsOut, actions: np.ndarray) -> tuple[np.ndarray, Any]:
    """The first observation, and results [T, ...], also after an end."""
    key = jax.random.key(11)

    def body(state: Any, action: Any) -> Any:
        observation, state, *rest, _ = environment.step(key, state, action)
        return state, (observation, *rest)

    first, state = environment.reset(key)
    return first, jax.jit(lambda: jax.lax.scan(body, state, jnp.asarray(actions))[1])()


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["2x2", "3x4", "5x5", "6x7-test"])  # 6 x 7 cells are two words
def test_rules_are_those_of_a_plain_loop(name: str) -> None:
    environment = made(name)
    actions = np.random.default_rng(0).integers(environment.cells, size=60)
    first, (observation, reward, terminated, truncated) = rolled(environment, actions)
    lights, goal = boards(environment, first)
    for t, action in enumerate(actions):
        lights = pressed(lights, action)
        np.testing.assert_array_equal(boards(environment, observation[t]), [lights, goal])
        solved = bool((lights == goal).all())
        assert bool(terminated[t]) == solved
        np.testing.assert_allclose(reward[t], solved - 0.1, rtol=1e-6)
    assert not truncated.any()
    assert set(np.unique(observation)) == {0.0, 1.0}


@pytest.mark.parametrize(
    ("name", "solvable"), [("3x3", 512), ("2x3", 64 // 4), ("4x4", 65_536 // 16)]
)
def test_dense_rewards_are_changes_of_the_fewest_presses(name: str, solvable: int) -> None:
    environment = made(f"{name}-dense-test")
    fewest = distances(environment.rows, environment.columns)
    assert (fewest >= 0).sum() == solvable
    actions = np.random.default_rng(1).integers(environment.cells, size=200)
    first, (observation, reward, terminated, _) = rolled(environment, actions)
    lights, goal = boards(environment, np.concatenate([first[None], observation])).swapaxes(0, 1)
    needed = fewest[(lights ^ goal).reshape(201, -1) @ (1 << np.arange(environment.cells))]
    np.testing.assert_array_equal(terminated, needed[1:] == 0)
    np.testing.assert_array_equal(reward, needed[:-1] - needed[1:] + (needed[1:] == 0))
    assert len(np.unique(reward)) > 1


@pytest.mark.slow_after(3)
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("2x2", 1, 1),
        ("2x2-test", 2, 3),
        ("3x3", 1, 3),
        ("3x3-test", 4, 8),
        ("5x5", 1, 11),
        ("5x5-dense-test", 12, 24),
    ],
)
def test_goals_are_so_many_presses_away(name: str, low: int, high: int) -> None:
    environment = made(name)
    number = 4_000
    observation, state = problems(environment, number)
    presses = np.asarray(state.presses)[:, 0, None]
    chosen = (presses >> np.arange(environment.cells) & 1).astype(bool)
    counts = np.bincount(chosen.sum(axis=1), minlength=high + 1)
    assert counts[:low].sum() == 0
    assert len(counts) == high + 1
    share = number / (high - low + 1)  # uniform, to 5 standard deviations
    np.testing.assert_allclose(counts[low:], share, atol=5 * np.sqrt(share))
    first = boards(environment, observation[:50]).swapaxes(0, 1)
    for lights, goal, cells in zip(*first, chosen, strict=False):
        np.testing.assert_array_equal(all_pressed(lights, np.flatnonzero(cells)), goal)
    atol = np.sqrt(number) * 5 / 2
    lit = observation[:, : environment.cells].sum(axis=0)
    np.testing.assert_allclose(lit, number / 2, atol=atol)
    np.testing.assert_allclose(chosen.sum(axis=0), chosen.sum() / environment.cells, atol=atol)


@pytest.mark.slow_after(4)
@pytest.mark.parametrize(
    "name", ["2x2", "2x3-test", "3x3-test", "4x4-test", "5x5", "5x5-test", "6x6-test"]
)
def test_every_problem_can_be_solved_in_time(name: str) -> None:
    environment = made(name)
    observation, _ = problems(environment, 300)
    for lights, goal in boards(environment, observation):
        presses = lights_out.solve(lights ^ goal)
        assert presses.sum() <= environment.spec.max_episode_steps
        np.testing.assert_array_equal(all_pressed(lights, np.flatnonzero(presses)), goal)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (3, 3), (3, 4), (4, 4)])
def test_solutions_are_the_shortest(rows: int, columns: int) -> None:
    fewest = distances(rows, columns)
    message = f"no presses on {rows} x {columns} cells make this difference: its"
    for pattern in np.random.default_rng(0).permutation(len(fewest))[:300]:
        difference = (pattern >> np.arange(rows * columns) & 1).reshape(rows, columns)
        if fewest[pattern] < 0:
            with pytest.raises(ValueError, match=message):
                lights_out.solve(difference)
        else:
            assert lights_out.solve(difference).sum() == fewest[pattern]


@pytest.mark.parametrize(
    ("rows", "columns", "nullity"),
    [(2, 2, 0), (3, 3, 0), (2, 3, 2), (4, 4, 4), (5, 5, 2), (6, 6, 0), (9, 9, 8)],
)
def test_quiet_presses_change_nothing(rows: int, columns: int, nullity: int) -> None:
    """Nullities of square boards: OEIS, A159257."""
    sets = lights_out.quiet_presses(rows, columns)
    assert len(set(sets)) == 2**nullity
    for presses in sets:
        cells = [cell for cell in range(rows * columns) if presses >> cell & 1]
        assert not all_pressed(np.zeros((rows, columns), bool), cells).any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["2x3-test", "2x3-dense-test", "3x3-test", "3x3-dense", "4x4", "5x5-dense-test"]
)
def test_optimal_episodes_earn_what_is_predicted(name: str) -> None:
    environment, number = envs.make(f"rljax/LightsOut-{name}"), 32
    inside = environment.environment
    keys = lambda time: jax.random.split(jax.random.key(time), number)  # noqa: E731
    step = jax.jit(lambda time, *of: environment.step(keys(time), *of))
    observation, state = jax.jit(environment.reset)(keys(2))
    observation, ended = np.asarray(observation), 0
    predicted = np.array([inside.optimal_return(row) for row in observation])
    for time in range(16):
        action = np.array([inside.optimal_action(row) for row in observation], np.int32)
        played, state = jax.tree.map(np.asarray, step(time, state, action))
        observation, over = played.observation, played.terminated
        assert not played.truncated[~over].any()
        np.testing.assert_allclose(played.episode_return[over], predicted[over], rtol=1e-5)
        predicted[over] = [inside.optimal_return(row) for row in observation[over]]
        ended += over.sum()
    assert ended >= number


def test_a_problem_whose_presses_cancel_out_ends_with_a_press() -> None:
    environment = made("2x3-test")
    observation, state = problems(environment, 500)
    (rows,) = np.nonzero((observation[:, :6] == observation[:, 6:]).all(axis=1))
    assert len(rows)
    state = jax.tree.map(lambda x: x[rows[0]], state)
    assert environment.optimal_return(observation[rows[0]]) == pytest.approx(0.8)
    step = jax.jit(environment.step)
    for expected in (False, True):
        _, state, _, terminated, *_ = step(jax.random.key(0), state, np.int32(3))
        assert bool(terminated) == expected


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "5",
            "'rljax/LightsOut-5' names no size of lights out: the form is rljax/LightsOut-MxN, "
            "then -dense, -test, -dense-test or nothing. For example: rljax/LightsOut-5x5-test",
        ),
        ("5x5-test-dense", "names no size of lights out.* For example: rljax/LightsOut-5x5-test"),
        ("1x5", "'rljax/LightsOut-1x5' has 1 x 5 cells: rows and columns must be 2 to 20."),
        ("5x21", "has 5 x 21 cells"),
        ("19x19-dense", r"on 19 x 19 cells 2\^16 sets .* too many .* \(at most 2\^8\)"),
    ],
)
def test_what_there_is_not(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(f"rljax/LightsOut-{name}")


@pytest.mark.slow
def test_pictures_and_text_show_lights_and_goal() -> None:
    environment = made("2x3")
    observation, state = environment.reset(jax.random.key(1))
    lights, goal = boards(environment, observation)
    lines = environment.text(state).split("\n")
    assert lines == [
        "   ".join(" ".join("#" if on else "." for on in board[row]) for board in (lights, goal))
        for row in range(2)
    ]
    picture = environment.render(state)
    assert picture.dtype == np.uint8
    side = picture.shape[0] // 2
    for board, part in ((lights, picture), (goal, picture[:, -3 * side :])):
        shown = part[side // 2 :: side, side // 2 :: side][:, :3]
        np.testing.assert_array_equal(shown, lights_out.COLOURS[board.astype(int)])
