"""Lights out, compared with a plain loop: rules, problems, shortest solutions and their returns."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks import lights_out
from rljax.envs.tasks.lights_out import LightsOut


def pressed(lights: np.ndarray, cell: int) -> np.ndarray:
    """The lights [M, N] after one press, cell by cell."""
    lights = lights.copy()
    row, column = divmod(cell, lights.shape[1])
    for i in range(lights.shape[0]):
        for j in range(lights.shape[1]):
            if abs(i - row) + abs(j - column) <= 1:
                lights[i, j] ^= True
    return lights


def distances(rows: int, columns: int) -> np.ndarray:
    """The fewest presses from no light to each pattern [2^(M N)], -1 if none lead to it.

    Cell 0 is the lowest bit.
    """
    cells = rows * columns
    changes = [
        pressed(np.zeros((rows, columns), bool), cell).ravel() @ (1 << np.arange(cells))
        for cell in range(cells)
    ]
    fewest = np.full(2**cells, -1)
    fewest[0], front = 0, np.array([0])
    while len(front):
        reached = np.unique(np.concatenate([front ^ change for change in changes]))
        reached = reached[fewest[reached] < 0]
        fewest[reached], front = fewest[front[0]] + 1, reached
    return fewest


def boards(environment: LightsOut, observation: Any) -> np.ndarray:
    """[..., 2, M, N] bool: the lights, and the lights of the goal."""
    observation = np.asarray(observation)
    return (
        observation.reshape(*observation.shape[:-1], 2, environment.rows, environment.columns) > 0
    )


def made(name: str) -> LightsOut:
    environment = lights_out.make(f"rljax/LightsOut-{name}")
    assert isinstance(environment, LightsOut)
    return environment


def problems(environment: LightsOut, number: int) -> tuple[np.ndarray, Any]:
    """First observations [number, 2 M N], and states."""
    observation, state = jax.jit(jax.vmap(environment.reset))(
        jax.random.split(jax.random.key(5), number)
    )
    return np.asarray(observation), state


def rolled(environment: LightsOut, actions: np.ndarray) -> tuple[np.ndarray, Any]:
    """The first observation, and the results of `step` [T, ...], also after an end."""

    @jax.jit
    def play(key: Any) -> Any:
        first, state = environment.reset(key)

        def body(state: Any, action: Any) -> Any:
            observation, state, *rest, _ = environment.step(key, state, action)
            return state, (observation, *rest)

        return first, jax.lax.scan(body, state, jnp.asarray(actions))[1]

    return play(jax.random.key(11))


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
    chosen = (np.asarray(state.presses)[:, 0, None] >> np.arange(environment.cells) & 1).astype(
        bool
    )
    counts = np.bincount(chosen.sum(axis=1), minlength=high + 1)
    assert counts[:low].sum() == 0
    assert len(counts) == high + 1
    share = number / (high - low + 1)  # uniform, to 5 standard deviations
    np.testing.assert_allclose(counts[low:], share, atol=5 * np.sqrt(share))
    for lights, goal, cells in zip(
        *boards(environment, observation[:50]).swapaxes(0, 1), chosen, strict=False
    ):
        for cell in np.flatnonzero(cells):
            lights = pressed(lights, cell)
        np.testing.assert_array_equal(lights, goal)
    expected = np.sqrt(number) * 5 / 2
    np.testing.assert_allclose(
        observation[:, : environment.cells].sum(axis=0), number / 2, atol=expected
    )
    np.testing.assert_allclose(chosen.sum(axis=0), chosen.sum() / environment.cells, atol=expected)


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
        for cell in np.flatnonzero(presses):
            lights = pressed(lights, cell)
        np.testing.assert_array_equal(lights, goal)


@pytest.mark.parametrize(("rows", "columns"), [(2, 2), (2, 3), (3, 3), (3, 4), (4, 4)])
def test_solutions_are_the_shortest(rows: int, columns: int) -> None:
    fewest = distances(rows, columns)
    patterns = np.random.default_rng(0).permutation(len(fewest))[:300]
    for pattern in patterns:
        difference = (pattern >> np.arange(rows * columns) & 1).reshape(rows, columns)
        if fewest[pattern] < 0:
            with pytest.raises(
                ValueError,
                match=f"no presses on {rows} x {columns} cells make this difference: its",
            ):
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
        lights = np.zeros((rows, columns), bool)
        for cell in range(rows * columns):
            if presses >> cell & 1:
                lights = pressed(lights, cell)
        assert not lights.any()


@pytest.mark.slow
@pytest.mark.parametrize(
    "name", ["2x3-test", "2x3-dense-test", "3x3-test", "3x3-dense", "4x4", "5x5-dense-test"]
)
def test_optimal_episodes_earn_what_is_predicted(name: str) -> None:
    environment, number = envs.make(f"rljax/LightsOut-{name}"), 32
    inside: Any = environment.environment
    step = jax.jit(
        lambda time, *args: environment.step(jax.random.split(jax.random.key(time), number), *args)
    )
    observation, state = jax.jit(environment.reset)(jax.random.split(jax.random.key(2), number))
    observation = np.asarray(observation)
    predicted = np.array([inside.optimal_return(row) for row in observation])
    ended = 0
    for time in range(16):
        played, state = step(
            time, state, np.array([inside.optimal_action(row) for row in observation], np.int32)
        )
        observation, over = np.asarray(played.observation), np.asarray(played.terminated)
        assert not np.asarray(played.truncated)[~over].any()
        np.testing.assert_allclose(
            np.asarray(played.episode_return)[over], predicted[over], rtol=1e-5
        )
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


def test_episodes_are_cut_off_after_as_many_steps_as_cells() -> None:
    environment = envs.make("rljax/LightsOut-3x3")
    keys = jax.random.split(jax.random.key(0), 4)
    step, state = jax.jit(environment.step), jax.jit(environment.reset)(keys)[1]
    for time in range(9):
        played, state = step(keys, state, np.zeros(4, np.int32))
        np.testing.assert_array_equal(played.truncated, np.full(4, time == 8))


@pytest.mark.parametrize("name", lights_out.names())
def test_names(name: str) -> None:
    assert lights_out.make(name).spec.name == name


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "5",
            (
                r"'rljax/LightsOut-5' names no size of lights out: the form is "
                r"rljax/LightsOut-MxN, then -dense, -test, -dense-test or nothing. For example: "
                r"rljax/LightsOut-5x5-test"
            ),
        ),
        ("5x5-test-dense", r"names no size of lights out.* For example: rljax/LightsOut-5x5-test"),
        ("1x5", r"'rljax/LightsOut-1x5' has 1 x 5 cells: rows and columns must be 2 to 20."),
        ("5x21", r"has 5 x 21 cells"),
        (
            "19x19-dense",
            (
                r"on 19 x 19 cells 2\^16 sets of presses have the same effect, too many .* "
                r"\(at most 2\^8\)"
            ),
        ),
    ],
)
def test_what_there_is_not(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(f"rljax/LightsOut-{name}")


def test_large_sizes_are_refused_for_dense_rewards_only() -> None:
    assert envs.make("rljax/LightsOut-19x19").spec.action_size == 361


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
    shown = picture[side // 2 :: side, side // 2 :: side]
    np.testing.assert_array_equal(shown[:, :3], lights_out.COLOURS[lights.astype(int)])
    right = picture[:, -3 * side :][side // 2 :: side, side // 2 :: side]
    np.testing.assert_array_equal(right, lights_out.COLOURS[goal.astype(int)])
