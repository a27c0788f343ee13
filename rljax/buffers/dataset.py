"""Data set: recorded transitions that all learners share and nothing is added to, and batches drawn from them.

A data set is no part of a learner's state. Drivers hold it once and hand it to `Learner.update`, so that neither
populations nor checkpoints hold copies.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rljax.agent import Array, RewardTransform, Transition
from rljax.buffers.experience import Experience, declaration, random_rows, rows_of
from rljax.buffers.replay import Replay


@declaration
class DatasetDraw:
    """How batches are drawn from a data set, in two parts: what is random, and what it takes of the data.

    Only the second reads the data. So these may lie where nothing is compiled: on the host, as NumPy arrays.
    """

    goals: ClassVar[bool] = False  # observations are [state; goal]
    has_columns: ClassVar[bool] = False  # its rows carry the columns that the agent asks for

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] in NumPy with what `take` needs beside its rows."""
        return data

    def random(self, keys: Array, number: int, experience: Dataset) -> Any:
        """What is random of an iteration's batches from `number` rows: leaves [P, U, B]; `keys` are [P]."""
        raise NotImplementedError

    def take(self, data: Transition, drawn: Any) -> Transition:
        """The batches [..., B, ...] of a data set [N, ...] for what was drawn."""
        raise NotImplementedError


@declaration
class UniformRows(DatasetDraw):
    """Every row is as likely, with replacement."""

    has_columns: ClassVar[bool] = True

    def random(self, keys: Array, number: int, experience: Dataset) -> Array:
        """Rows, int32 [P, U, B]."""
        return random_rows(keys, number, experience.num_updates, experience.batch_size)

    def take(self, data: Transition, drawn: Any) -> Transition:
        """The transitions in those rows."""
        return rows_of(data, drawn)


@declaration
class Dataset(Experience):
    """Batches from a data set alone; with `online`, the agent can go on in an environment, mixed with the data set."""

    batch_size: int  # transitions of one update
    reward_transform: RewardTransform = "none"  # of the data set's rewards, before any update
    draw: DatasetDraw = UniformRows()  # how batches are drawn
    online: Replay | None = None  # how it learns in an environment after the data
    learns_until: float | None = None  # updates after which its learning rate is 0, where it falls to that

    kind: ClassVar[str] = "dataset"
    needs_data: ClassVar[bool] = True
    mixes_data: ClassVar[bool] = True

    @property
    def goals(self) -> bool:
        """Whether observations are [state; goal]."""
        return self.draw.goals

    @property
    def steps_per_iteration(self) -> int:
        """A step of learning from data alone is an update."""
        return self.num_updates

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] with its columns, and what the draw needs, in NumPy."""
        return self.draw.prepare(super().prepare(data))

    def sample(self, buffer: Any, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...]."""
        del buffer
        assert data is not None
        return self.draw.take(data, self.draw.random(keys, data.reward.shape[0], self))


def trajectory_ends(data: Transition) -> np.ndarray:
    """Whether a trajectory ends with each row [N]: at its end or time limit, and the last one with the data."""
    ends = np.asarray(data.terminated) | np.asarray(data.truncated)
    ends[-1] = True
    return ends
