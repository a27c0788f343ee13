"""What scripted experts share: the random numbers and the columns of a trajectory."""

from __future__ import annotations

import abc
import collections
import dataclasses
from collections.abc import Iterable
from typing import Any

import numpy as np

TYPES = {"terminals": np.bool_, "button_states": np.int64}  # others: float32, pictures uint8

Row = dict[str, Any]  # one step: observations, actions, terminals, qpos, qvel


@dataclasses.dataclass(frozen=True)
class RecordingTask:
    """What determines trajectories, except for their numbers."""

    environment: str  # "cube-single"
    kind: str  # such as "play" or "noisy"
    split: str  # "train" or "val"
    length: int  # transitions
    seed: int
    visual: bool = False  # observations are pictures [64, 64, 3]

    @property
    def family(self) -> str:
        """The first word of the environment's name."""
        return self.environment.partition("-")[0]

    def seeds(self, number: int) -> list[int]:
        """Three seeds of trajectory `number`: of the environment, of NumPy's own generator, which
        the package reads, and of the expert.
        """
        entropy = (self.seed, int(self.split == "val"), number)
        return [int(word) for word in np.random.SeedSequence(entropy).generate_state(3)]


class Expert(abc.ABC):
    """An environment, and who acts in it."""

    def __init__(self, task: RecordingTask) -> None:
        self.task = task

    @staticmethod
    @abc.abstractmethod
    def published(environment: str, kind: str) -> tuple[int, int]:
        """Transitions of a trajectory, and trajectories, of the published training data."""

    @abc.abstractmethod
    def rows(self, generator: np.random.Generator, seed: int) -> Iterable[Row]:
        """One trajectory, whose environment begins with `seed`."""

    def trajectory(self, number: int) -> dict[str, np.ndarray]:
        """The arrays of trajectory `number`, M = length + 1 rows each.

        They are `observations` [M, O], `actions` [M, A], `qpos` and `qvel` [M, ...] float32,
        `terminals` [M] bool, and perhaps `button_states` [M, buttons] int64.
        """
        seed, global_seed, expert_seed = self.task.seeds(number)
        before = np.random.get_state()
        np.random.seed(global_seed)
        try:
            rows = list(self.rows(np.random.default_rng(expert_seed), seed))
        finally:
            np.random.set_state(before)
        columns = collections.defaultdict(list)
        for row in rows:
            for key, value in row.items():
                columns[key].append(value)
        types = TYPES | ({"observations": np.uint8} if self.task.visual else {})
        return {
            key: np.asarray(values, types.get(key, np.float32)) for key, values in columns.items()
        }
