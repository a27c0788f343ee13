"""Data set: recorded transitions that never change and that all learners share, and batches drawn from them.

A data set is not a part of a learner's state. Drivers hold it once and pass it to `Learner.update`. Populations and
checkpoints therefore hold no copies of it.
"""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from rljax.agent import Array, RewardTransform, Transition
from rljax.buffers.experience import Experience, declaration, random_rows, rows_of
from rljax.buffers.replay import Replay


@declaration
class DatasetDraw:
    """How batches are drawn from a data set, in two parts: `random` draws random numbers, `take` gathers the rows.

    Only `take` reads the data. The data may therefore be NumPy arrays on the host, outside compiled programs.
    """

    goals: ClassVar[bool] = False  # observations are [state; goal]
    has_columns: ClassVar[bool] = False  # batches carry the columns that the agent asks for

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] in NumPy with the additional arrays that `take` needs."""
        return data

    def random(self, keys: Array, number: int, experience: Dataset) -> Any:
        """The random draws for an iteration's batches from `number` rows: leaves [P, U, B]; `keys` are [P]."""
        raise NotImplementedError

    def take(self, data: Transition, drawn: Any) -> Transition:
        """The batches [..., B, ...] from a data set [N, ...] for the random draws `drawn`."""
        raise NotImplementedError


@declaration
class UniformRows(DatasetDraw):
    """Uniform rows with replacement."""

    has_columns: ClassVar[bool] = True

    def random(self, keys: Array, number: int, experience: Dataset) -> Array:
        """Rows, int32 [P, U, B]."""
        return random_rows(keys, number, experience.num_updates, experience.batch_size)

    def take(self, data: Transition, drawn: Any) -> Transition:
        """The transitions in the drawn rows."""
        return rows_of(data, drawn)


@declaration
class Dataset(Experience):
    """Batches from a data set alone. With `online`, the agent can go on in an environment, with data of both mixed."""

    batch_size: int  # transitions of one update
    reward_transform: RewardTransform = "none"  # of the data set's rewards, before any update
    draw: DatasetDraw = UniformRows()  # how batches are drawn
    online: Replay | None = None  # how the agent learns in an environment after the data set
    learns_until: float | None = None  # updates after which the learning rate is 0; None where it stays above 0

    kind: ClassVar[str] = "dataset"
    needs_data: ClassVar[bool] = True
    mixes_data: ClassVar[bool] = True

    @property
    def goals(self) -> bool:
        """Whether observations are [state; goal]."""
        return self.draw.goals

    @property
    def steps_per_iteration(self) -> int:
        """Number of updates: in learning from data alone, a step is an update."""
        return self.num_updates

    def check(self) -> None:
        """Raise `ValueError` for numbers that can never work, those for going on online included."""
        super().check()
        if self.online is not None:
            self.online.check_numbers()

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] in NumPy with its columns and the arrays that the draw needs."""
        return self.draw.prepare(super().prepare(data))

    def sample(self, buffer: Any, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...]."""
        del buffer
        assert data is not None
        return self.draw.take(data, self.draw.random(keys, data.reward.shape[0], self))


def trajectory_ends(data: Transition) -> np.ndarray:
    """Whether each row [N] ends a trajectory: at termination, at truncation, and at the last row of the data."""
    ends = np.asarray(data.terminated) | np.asarray(data.truncated)
    ends[-1] = True
    return ends
