"""Scripted experts of OGBench's point mazes.

    navigate  from a random cell to random cells, one after the other. Cells in a straight corridor
              are no goals.
    stitch    from a random cell to one that is 4 cells away, where it stays; to itself if none is
    action    towards the next cell of a shortest way, with Gaussian noise of `NOISE`

Source: Park et al., arXiv:2410.20092; seohongpark/ogbench, data_gen_scripts/generate_locomaze.py
and commands.sh.
"""

from __future__ import annotations

import importlib
from typing import Any

import numpy as np

from rljax.datasets.recording.experts import Expert, RecordingTask, Row

Cell = tuple[int, int]

NOISE = 0.5  # std of each number of an action
NEIGHBOURS = ((-1, 0), (0, -1), (1, 0), (0, 1))
AWAY = 4  # cells from a start to its goal in "stitch"


class MazeWalker(Expert):
    """A point that walks along the shortest way to a goal."""

    def __init__(self, task: RecordingTask) -> None:
        """Raises `ImportError` if the package is missing."""
        super().__init__(task)
        importlib.import_module("ogbench")  # registers the environments
        import gymnasium

        self.environment: Any = gymnasium.make(
            f"{task.environment}-v0",
            terminate_at_goal=False,
            max_episode_steps=task.length + 1,
            disable_env_checker=True,
        )
        self.cells, self.goals = cells(self.environment.unwrapped.maze_map)

    @staticmethod
    def published(environment: str, kind: str) -> tuple[int, int]:
        if kind == "stitch":
            return 200, 5000
        return (2000, 500) if environment.endswith("giant") else (1000, 1000)

    def rows(self, generator: np.random.Generator, seed: int) -> list[Row]:
        maze, navigates = self.environment.unwrapped, self.task.kind == "navigate"
        start = drawn(generator, self.cells)
        goals = self.goals if navigates else away(maze.maze_map, start) or [start]
        ends = {"init_ij": start, "goal_ij": drawn(generator, goals)}
        observation, _ = self.environment.reset(seed=seed, options={"task_info": ends})
        rows, ended = [], False
        while not ended:
            position = maze.get_xy()
            subgoal, _ = maze.get_oracle_subgoal(position, maze.cur_goal_xy)
            direction = subgoal - position
            direction = direction / (np.linalg.norm(direction) + 1e-6)
            action = direction + generator.normal(0.0, NOISE, 2)
            action = np.clip(action, -1, 1).astype(np.float32)
            successor, _, terminated, truncated, info = self.environment.step(action)
            ended = bool(terminated or truncated)
            if info["success"] and navigates:
                maze.set_goal(drawn(generator, self.goals))
            row = {"observations": observation, "actions": action, "terminals": ended}
            rows.append(row | {"qpos": info["prev_qpos"], "qvel": info["prev_qvel"]})
            observation = successor
        return rows


def drawn(generator: np.random.Generator, cells: list[Cell]) -> Cell:
    """One of the cells."""
    return cells[generator.integers(len(cells))]


def cells(maze: np.ndarray) -> tuple[list[Cell], list[Cell]]:
    """The free cells of a maze, whose walls are 1, and those without the cells of straight
    corridors.
    """
    free = [(int(i), int(j)) for i, j in np.argwhere(maze == 0)]

    def in_a_corridor(cell: Cell) -> bool:
        above, left, below, right = (maze[cell[0] + i, cell[1] + j] for i, j in NEIGHBOURS)
        return above == below != left == right

    return free, [cell for cell in free if not in_a_corridor(cell)]


def away(maze: np.ndarray, start: Cell, steps: int = AWAY) -> list[Cell]:
    """The cells whose shortest way from `start` has `steps` steps."""
    seen, frontier = {start}, [start]
    for _ in range(steps):
        around = [(i + a, j + b) for i, j in frontier for a, b in NEIGHBOURS]
        frontier = list(dict.fromkeys(x for x in around if maze[x] == 0 and x not in seen))
        seen.update(frontier)
    return frontier
