"""Box pick, compared with a plain simulation."""

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks import box_pick
from rljax.envs.tasks.box_pick import DOWN, LEFT, PICK, PUT, RIGHT, UP, BoxPick, Solver

# (agent, box) to the code without targets
SEEN = {(0, 0): 0, (0, 1): 1, (1, 0): 3, (2, 0): 4, (1, 1): 5, (2, 1): 11}


def made(name: str) -> BoxPick:
    environment = box_pick.make(f"rljax/BoxPick-{name}")
    assert isinstance(environment, BoxPick)
    return environment


def problems(environment: BoxPick, number: int) -> tuple[np.ndarray, Any]:
    """First observations [number, 2 M N], and states."""
    reset = jax.jit(jax.vmap(environment.reset))
    return jax.tree.map(np.asarray, reset(jax.random.split(jax.random.key(5), number)))


def problem(state: Any, row: int) -> Any:
    return jax.tree.map(lambda x: x[row], state)


def single(boxes: Any, targets: Any, agent: int = 0, start: int = 0, carrying: bool = False) -> Any:
    """A state that allows every cell."""
    cells = [jnp.asarray(x) for x in (boxes, targets, np.ones(len(boxes), bool))]
    numbers = (jnp.int32(agent), jnp.int32(start), jnp.array(carrying))
    return box_pick.BoxPickState(*cells, *numbers)


class Simulation:
    """In plain Python: a set of boxes, and the agent's cell."""

    def __init__(self, environment: BoxPick, state: Any) -> None:
        self.rows, self.columns = environment.rows, environment.columns
        self.boxes, self.targets, self.allowed = (
            {divmod(int(cell), self.columns) for cell in np.flatnonzero(cells)}
            for cells in (state.boxes, state.targets, state.allowed)
        )
        self.agent = self.start = divmod(int(state.agent), self.columns)
        self.carrying = False

    def step(self, action: int) -> tuple[bool, bool]:
        """Whether the boxes are on their targets, and the agent where it must not be."""
        row, column = self.agent
        if action == PICK and self.agent in self.boxes and not self.carrying:
            self.boxes, self.carrying = self.boxes - {self.agent}, True
        elif action == PUT and self.agent not in self.boxes and self.carrying:
            self.boxes, self.carrying = self.boxes | {self.agent}, False
        elif action in (UP, DOWN, LEFT, RIGHT):
            down, right = {UP: (-1, 0), DOWN: (1, 0), LEFT: (0, -1), RIGHT: (0, 1)}[action]
            if 0 <= row + down < self.rows and 0 <= column + right < self.columns:
                self.agent = row + down, column + right
        return self.boxes == self.targets, self.agent not in self.allowed

    def observe(self) -> list[int]:
        cells = [divmod(cell, self.columns) for cell in range(self.rows * self.columns)]
        grid = [
            SEEN[(cell == self.agent) * (1 + self.carrying), cell in self.boxes] for cell in cells
        ]
        return grid + [SEEN[int(cell == self.start), cell in self.targets] for cell in cells]

    def carry_all(self) -> list[int]:
        """Actions that carry one box after another, each applied at once."""
        done: list[int] = []
        done: list[int] = []

        def walk(to: tuple[int, int], then: int) -> None:
            down, right = to[0] - self.agent[0], to[1] - self.agent[1]
            path = [DOWN if down > 0 else UP] * abs(down)
            path += [*([RIGHT if right > 0 else LEFT] * abs(right)), then]
            for action in path:
                self.step(action)
            done.extend(path)

        while self.boxes != self.targets:
            walk(min(self.boxes - self.targets), PICK)
            walk(min(self.targets - self.boxes), PUT)
        return done


def busy_actions(number: int, seed: int = 0) -> np.ndarray:
    """Half of them are pick and put."""
    return np.random.default_rng(seed).choice(6, number, p=[0.125] * 4 + [0.25] * 2)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "name", ["4x4", "3x5-test", "4x4-quarter", "6x6-horizontal", "4x6-vertical"]
)
def test_rules_are_those_of_a_plain_simulation(name: str) -> None:
    environment = made(name)
    first, state = problems(environment, 1)
    state = problem(state, 0)
    solution = Simulation(environment, state).carry_all()
    actions = np.concatenate([solution, busy_actions(400)])

    def body(state: Any, action: Any) -> Any:
        observation, after, *rest, _ = environment.step(jax.random.key(0), state, action)
        return after, (observation, *rest)

    scan = jax.jit(lambda state, actions: jax.lax.scan(body, state, actions)[1])
    observation, reward, terminated, truncated = map(np.asarray, scan(state, actions))
    simulation = Simulation(environment, state)
    np.testing.assert_array_equal(first[0], simulation.observe())
    for t, action in enumerate(actions):
        solved, left = simulation.step(action)
        np.testing.assert_array_equal(observation[t], simulation.observe())
        assert (reward[t], truncated[t]) == (solved, left)
    assert reward[len(solution) - 1] == 1
    assert not terminated.any()
    assert set(np.unique(environment.achieved(observation))) == {0, 1, 3, 4, 5, 11}


@pytest.mark.parametrize(
    ("name", "moving"),
    [
        ("6x6", 1),
        ("6x6-test", 4),
        ("4x4-quarter", 4),
        ("6x6-quarter-test", 4),
        ("6x6-horizontal", 4),
        ("4x6-vertical", 4),
    ],
)
def test_boxes_and_targets_are_as_many_as_the_split_says(name: str, moving: int) -> None:
    _, state = problems(made(name), 500)
    assert (state.boxes.sum(axis=1) == 4).all()
    assert (state.targets.sum(axis=1) == 4).all()
    assert ((state.boxes & ~state.targets).sum(axis=1) == moving).all()
    assert not state.carrying.any()
    np.testing.assert_array_equal(state.agent, state.start)


@pytest.mark.parametrize("name", ["6x6", "4x4-test"])
def test_everything_is_anywhere(name: str) -> None:
    environment, number = made(name), 4_000
    _, state = problems(environment, number)
    assert state.allowed.all()
    for counts, expected in (
        (state.boxes.sum(axis=0), 4),
        (state.targets.sum(axis=0), 4),
        ((state.boxes & state.targets).sum(axis=0), 4 - environment.moving),
        (np.bincount(state.agent, minlength=environment.cells), 1),
    ):
        share = number * expected / environment.cells
        np.testing.assert_allclose(counts, share, atol=5 * np.sqrt(share))


@pytest.mark.parametrize("name", ["6x6-quarter", "6x6-quarter-test", "4x8-quarter"])
def test_quarters_are_neighbours_in_training_and_opposite_in_tests(name: str) -> None:
    environment = made(name)
    rows, columns = environment.rows, environment.columns
    row, column = np.indices((rows, columns)) * 2 // [[[rows]], [[columns]]]
    quarter = (2 * row + column).ravel()
    _, state = problems(environment, 500)
    pairs = set()
    for boxes, targets, agent, allowed in zip(
        state.boxes, state.targets, state.agent, state.allowed, strict=True
    ):
        (source,), (target,) = (np.unique(quarter[cells]) for cells in (boxes, targets))
        assert quarter[agent] == source
        assert environment.test == (source + target == 3)
        assert source != target
        pairs.add((source, target))
        inside = np.isin(quarter, (source, target))
        np.testing.assert_array_equal(allowed, environment.test | inside)
    assert len(pairs) == (4 if environment.test else 8)


@pytest.mark.parametrize(("name", "axis"), [("6x6-horizontal", 0), ("4x6-vertical", 1)])
def test_halves_are_left_in_tests_only(name: str, axis: int) -> None:
    environment = made(name)
    shape = (environment.rows, environment.columns)
    _, state = problems(environment, 200)
    for agent, allowed in zip(state.agent, state.allowed, strict=True):
        place = np.indices(shape)[axis].ravel() * 2 // shape[axis]
        np.testing.assert_array_equal(allowed, place == place[agent])
    assert problems(made(f"{name}-test"), 200)[1].allowed.all()


@pytest.mark.parametrize(
    "name",
    [
        "6x6",
        "6x6-test",
        "6x6-quarter",
        "6x6-quarter-test",
        "6x6-horizontal-test",
        "6x6-vertical-test",
        "9x8-test",
    ],
)
def test_every_problem_can_be_solved_in_time(name: str) -> None:
    """Those to be solved in one half may be impossible."""
    environment = made(name)
    _, state = problems(environment, 200)
    longest = 0
    for row in range(200):
        first = problem(state, row)
        solution = Simulation(environment, first).carry_all()
        simulation = Simulation(environment, first)
        ends = [simulation.step(action) for action in solution]
        assert ends[-1] == (True, False)
        assert not any(left for _, left in ends)
        longest = max(longest, len(solution))
    assert 0 < longest <= environment.spec.max_episode_steps


def test_episodes_are_long_enough_for_the_farthest() -> None:
    assert made("5x6-vertical").spec.max_episode_steps == 100, "an odd side is not halved"
    assert made("10x10").spec.max_episode_steps == 4 * 2 * (18 + 1)


def test_leaving_a_half_ends_the_episode_where_it_was_left() -> None:
    environment = envs.make("rljax/BoxPick-4x4-vertical")
    keys = jax.random.split(jax.random.key(0), 16)
    _, state = jax.jit(environment.reset)(keys)
    right = np.asarray(state.environment.agent) % 4 == 1
    assert 0 < right.sum() < 16
    played, _ = jax.jit(environment.step)(keys, state, np.full(16, RIGHT, np.int32))
    np.testing.assert_array_equal(played.truncated, right)
    grids = np.asarray(played.next_observation)[right, :16]
    np.testing.assert_array_equal(np.nonzero(grids >= 3)[1] % 4, 2)


def transitions(environment: BoxPick) -> tuple[np.ndarray, np.ndarray]:
    """Observations [T, 2 M N] of an episode, and rewards [T]."""
    key = jax.random.key(8)

    def body(state: Any, action: Any) -> Any:
        observation, state, reward, *_ = environment.step(key, state, action)
        return state, (observation, reward)

    run = jax.jit(lambda: jax.lax.scan(body, environment.reset(key)[1], busy_actions(3_000))[1])
    return jax.tree.map(np.asarray, run())


def test_rewards_in_hindsight_are_the_environments() -> None:
    environment = made("2x4")
    observation, reward = transitions(environment)
    assert 0 < reward.sum() < len(reward)
    achieved, desired = environment.achieved(observation), environment.desired(observation)
    again = environment.goal_reward(achieved, desired)
    np.testing.assert_array_equal(again, reward)
    assert again.dtype == jnp.float32


def test_what_was_reached_is_rewarded_as_a_goal_wherever_the_agent_is() -> None:
    environment = made("2x4")
    observation, _ = transitions(environment)
    grids = environment.achieved(observation)
    boxes = np.isin(grids, [1, 5, 11])
    many = lambda x: np.broadcast_to(x, (50, *x.shape))  # noqa: E731
    goals = np.broadcast_to(grids[:50, None], (50, *grids.shape))
    relabelled = environment.relabelled(many(observation), goals)
    achieved, desired = environment.achieved(relabelled), environment.desired(relabelled)
    np.testing.assert_array_equal(achieved, many(grids))
    np.testing.assert_array_equal(desired[:, 0], grids[:50])
    reward = environment.goal_reward(achieved, desired)
    np.testing.assert_array_equal(reward, (boxes[:50, None] == boxes).all(axis=-1))
    same = np.asarray(reward[0]) > 0
    assert same.sum() > 1
    assert (grids[same] != grids[0]).any(), "the agent was somewhere else too"


def test_targets_are_hidden() -> None:
    environment = made("4x4-test")
    _, state = problems(environment, 1)
    state = problem(jax.tree.map(jnp.asarray, state), 0)
    moved = state.replace(targets=jnp.roll(state.targets, 1))
    step = jax.jit(environment.step)
    one, other = (step(jax.random.key(0), given, DOWN)[0] for given in (state, moved))
    np.testing.assert_array_equal(environment.achieved(one), environment.achieved(other))
    assert (environment.desired(one) != environment.desired(other)).any()


def fewest_steps(simulation: Simulation) -> int:
    """A breadth-first search."""
    front = {(frozenset(simulation.boxes), simulation.agent, simulation.carrying)}
    seen, steps = set(front), 0
    while all(boxes != simulation.targets for boxes, _, _ in front):
        reached = set()
        for state, action in itertools.product(front, range(6)):
            simulation.boxes, simulation.agent, simulation.carrying = state
            simulation.step(action)
            reached.add((frozenset(simulation.boxes), simulation.agent, simulation.carrying))
        front = reached - seen
        seen, steps = seen | front, steps + 1
    return steps


@pytest.mark.parametrize("name", ["2x4-test", "3x3-test", "4x4"])
def test_solutions_are_the_shortest(name: str) -> None:
    environment = made(name)
    observation, state = problems(environment, 4)
    for row in range(4):
        solver = Solver(state.targets[row].reshape(environment.rows, environment.columns))
        simulation = Simulation(environment, problem(state, row))
        assert solver.steps(observation[row]) == fewest_steps(simulation)


def test_the_search_visits_every_state() -> None:
    """4 boxes on the floor of 9 cells, or 3 and one in hand, with the agent anywhere."""
    solver = Solver(np.arange(9).reshape(3, 3) < 4)
    assert len(np.unique(solver._states)) == len(solver._states) == 9 * (126 + 84)
    assert (solver._steps == 0).sum() == 9


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["3x3-test", "4x4", "4x4-quarter"])
def test_optimal_episodes_earn_what_is_predicted(name: str) -> None:
    environment = envs.make(f"rljax/BoxPick-{name}")
    inside = environment.environment
    keys, step = jax.random.split(jax.random.key(2), 4), jax.jit(environment.step)
    rows, state = jax.tree.map(np.asarray, jax.jit(environment.reset)(keys))
    targets = state.environment.targets.reshape(4, inside.rows, inside.columns)
    solvers = [Solver(board) for board in targets]
    steps = [solver.steps(row) for solver, row in zip(solvers, rows, strict=True)]
    predicted = inside.spec.max_episode_steps - np.array(steps) + 1
    for _ in range(inside.spec.max_episode_steps):
        action = [solver.action(row) for solver, row in zip(solvers, rows, strict=True)]
        played, state = step(keys, state, np.array(action, np.int32))
        rows = np.asarray(played.next_observation)
    assert played.truncated.all()
    np.testing.assert_array_equal(played.episode_return, predicted)
    assert len(set(predicted)) > 1


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("6", "'rljax/BoxPick-6' names no size of box pick: the form is .*-MxN, then -quarter,"),
        ("6x6-test-quarter", "no size of box pick.* For example: rljax/BoxPick-6x6-quarter-test"),
        ("1x8", "'rljax/BoxPick-1x8' has 1 x 8 cells: rows and columns must be 2 to 10."),
        ("2x3", "'rljax/BoxPick-2x3' has 6 cells: 4 boxes and their targets need 8."),
        ("5x6-quarter", "cannot be split: a side that is halved must be even, and a quarter must"),
        ("2x6-quarter", "a quarter must hold 4 boxes. For example: rljax/BoxPick-6x6-quarter"),
        ("5x6-horizontal", "a side that is halved must be even"),
        ("6x5-vertical", "a side that is halved must be even"),
    ],
)
def test_what_there_is_not(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(f"rljax/BoxPick-{name}")


def test_searches_of_large_grids_are_refused() -> None:
    message = "8 x 8 cells have too many states: search at most 7 x 7 of them"
    with pytest.raises(ValueError, match=message):
        Solver(np.zeros((8, 8), bool))


def test_pictures_and_text_tell_all_twelve_cells_apart() -> None:
    environment = made("2x4")
    cells, seen = np.arange(8), {}
    for carrying, agent in itertools.product((False, True), range(4)):
        state = single(cells % 2 == 1, cells // 2 % 2 == 1, agent, 7, carrying)
        picture, lines = environment.render(state), environment.text(state).split("\n")
        side = picture.shape[0] // 2
        for cell in range(4):
            code = int(box_pick.CODES[(1 + carrying) * (cell == agent), cell])
            symbol = lines[0][3 * cell : 3 * cell + 2]
            square = picture[:side, cell * side : (cell + 1) * side].tobytes()
            assert seen.setdefault(code, (symbol, square)) == (symbol, square)
    assert set(seen) == set(range(12))
    assert len({symbol for symbol, _ in seen.values()}) == 12
    assert len({square for _, square in seen.values()}) == 12
