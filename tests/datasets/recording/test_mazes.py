"""Recording of OGBench's point mazes."""

from __future__ import annotations

import collections
import sys
import types
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rljax import datasets
from rljax.datasets.publishers import ogbench
from rljax.datasets.recording import experts, mazes, scripted_experts

MAZE = np.array(
    [
        [1, 1, 1, 1, 1, 1, 1],
        [1, 0, 0, 0, 0, 0, 1],
        [1, 0, 1, 1, 1, 0, 1],
        [1, 0, 0, 0, 1, 0, 1],
        [1, 1, 0, 1, 1, 0, 1],
        [1, 1, 1, 1, 1, 1, 1],
    ]
)


def test_goals_are_ends_corners_and_crossings() -> None:
    free, goals = mazes.cells(MAZE)
    assert free == [tuple(cell) for cell in np.argwhere(MAZE == 0)]
    assert goals == [(1, 1), (1, 5), (3, 1), (3, 2), (3, 3), (4, 2), (4, 5)]


def test_cells_so_many_steps_away_are_those_of_walks() -> None:
    """Against powers of the matrix of neighbours: the first with a way has the distance."""
    free, _ = mazes.cells(MAZE)
    near = np.array(
        [[abs(a - c) + abs(b - d) == 1 for c, d in free] for a, b in free], dtype=np.int64
    )
    for i, start in enumerate(free):
        for steps in range(1, 7):
            before = sum(np.linalg.matrix_power(near, n) for n in range(steps))
            reached = np.linalg.matrix_power(near, steps)
            expected = [
                c for c, n, m in zip(free, reached[i], before[i], strict=True) if n and not m
            ]
            assert sorted(mazes.away(MAZE, start, steps)) == expected


@pytest.mark.parametrize(
    ("name", "transitions"),
    [
        ("pointmaze-medium-navigate", 1_000_000),
        ("pointmaze-giant-navigate", 1_000_000),
        ("pointmaze-large-stitch", 1_000_000),
    ],
)
def test_as_much_is_recorded_as_was_published(name: str, transitions: int) -> None:
    parts = ogbench.parse(f"ogbench/{name}-v0")
    length, number = mazes.MazeWalker.published(parts.environment, parts.kind)
    assert length * number == transitions
    assert length == {"stitch": 200, "navigate": 2000 if "giant" in name else 1000}[parts.kind]


class Room:
    """A stand-in for the package's environment: the point is where it is told to go."""

    maze_map = MAZE

    def __init__(self, limit: int) -> None:
        self.limit, self.goals = limit, []

    @property
    def unwrapped(self) -> Room:
        return self

    def reset(self, seed: int | None, options: dict[str, Any]) -> tuple[np.ndarray, dict]:
        self.ends, self.steps = options["task_info"], 0
        self.place = np.array(self.ends["init_ij"], float)
        self.set_goal(self.ends["goal_ij"])
        return self.place, {}

    def set_goal(self, cell: tuple[int, int]) -> None:
        self.cur_goal_xy = np.array(cell, float)
        self.goals.append(cell)

    def get_xy(self) -> np.ndarray:
        return self.place

    def get_oracle_subgoal(self, start: np.ndarray, goal: np.ndarray) -> tuple[np.ndarray, None]:
        return goal, None

    def step(self, action: np.ndarray) -> tuple[np.ndarray, float, bool, bool, dict[str, Any]]:
        self.steps += 1
        before, self.place = self.place, self.place + action
        reached = np.linalg.norm(self.place - self.cur_goal_xy) < 1.0
        info = {"success": float(reached), "prev_qpos": before, "prev_qvel": 0 * before}
        return self.place, 0.0, False, self.steps == self.limit, info


@pytest.mark.parametrize("kind", ["navigate", "stitch"])
def test_goals_follow_each_other_where_the_point_navigates(
    kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "ogbench", types.ModuleType("ogbench"))
    rooms = []

    def make(name: str, max_episode_steps: int, **options: Any) -> Room:
        assert (name, options["terminate_at_goal"]) == ("pointmaze-small-v0", False)
        rooms.append(Room(max_episode_steps))
        return rooms[0]

    monkeypatch.setattr(gymnasium, "make", make)
    expert = mazes.MazeWalker(experts.RecordingTask("pointmaze-small", kind, "train", 60, 0))
    arrays, (room,) = expert.trajectory(0), rooms
    assert arrays["terminals"].tolist() == [False] * 60 + [True]
    np.testing.assert_array_equal(arrays["observations"], arrays["qpos"])
    moved = np.diff(arrays["observations"], axis=0)
    np.testing.assert_allclose(arrays["actions"][:-1], moved, atol=1e-6)
    start, cells = room.ends["init_ij"], mazes.cells(MAZE)[1]
    if kind == "stitch":
        assert room.goals == [room.ends["goal_ij"]]
        assert room.goals[0] in mazes.away(MAZE, start)
    else:
        assert len(room.goals) > 3, "a new goal where one is reached"
        assert set(room.goals) <= set(cells)


def test_a_point_that_is_shut_in_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the maze of teleports, where a cell has no neighbour."""

    class Shut(Room):
        maze_map = np.array([[1, 1, 1], [1, 0, 1], [1, 1, 1]])

    room = Shut(11)
    monkeypatch.setitem(sys.modules, "ogbench", types.ModuleType("ogbench"))
    monkeypatch.setattr(gymnasium, "make", lambda *_, **options: room)
    expert = mazes.MazeWalker(experts.RecordingTask("pointmaze-shut", "stitch", "train", 10, 0))
    assert len(expert.trajectory(0)["actions"]) == 11
    assert room.ends == {"init_ij": (1, 1), "goal_ij": (1, 1)}


@pytest.fixture(params=["navigate", "stitch"])
def recorded(request: pytest.FixtureRequest, tmp_path: Path) -> tuple[str, datasets.OfflineDataset]:
    pytest.importorskip("ogbench")
    name = f"ogbench/pointmaze-medium-{request.param}-v0"
    path = tmp_path / "ogbench" / f"pointmaze-medium-{request.param}-v0.npz"
    scripted_experts.record(name, path, steps=1200, seed=1)
    return request.param, datasets.load(name, tmp_path, download=False)


def test_trajectories_go_where_they_should(recorded: tuple[str, datasets.OfflineDataset]) -> None:
    kind, dataset = recorded
    ends = np.flatnonzero(dataset.transitions.truncated)
    length = {"navigate": 1000, "stitch": 200}[kind]
    np.testing.assert_array_equal(ends, np.arange(length, len(ends) * length + 1, length) - 1)
    assert not dataset.transitions.terminated.any()
    states = dataset.transitions.observation.reshape(len(ends), length, 2)
    cells = np.floor(states / 4.0 + 0.5)  # 4 m wide
    visited = [len(collections.Counter(map(tuple, of))) for of in cells]
    if kind == "stitch":
        assert max(visited) <= 7, "4 cells away, and those that noise reaches"
        late = states[:, -20:]
        assert np.ptp(late, axis=1).max() < 4.0, "it stays at its goal"
    else:
        assert min(visited) >= 8


def test_a_trajectory_depends_on_its_seed_and_number_only() -> None:
    pytest.importorskip("ogbench")
    task = experts.RecordingTask("pointmaze-medium", "navigate", "train", 30, 2)
    expert = mazes.MazeWalker(task)
    first, second = expert.trajectory(0), expert.trajectory(1)
    again = mazes.MazeWalker(task).trajectory(1)
    for key, values in second.items():
        np.testing.assert_array_equal(again[key], values)
    assert (first["observations"] != second["observations"]).any()
