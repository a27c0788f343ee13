"""Dip, recovery and regret of trained learners in an environment.

With `--then-online` the hand-over is the end of updates from data, else a run's beginning.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np

from rljax.analysis import folders


@dataclasses.dataclass(frozen=True)
class Handover:
    """The evaluations of one learner since the hand-over. Values are returns or scores."""

    steps: np.ndarray  # [S] environment steps since the hand-over, ascending
    values: np.ndarray  # [S] means over the episodes of an evaluation

    @property
    def before(self) -> float:
        """The value at the hand-over."""
        return float(self.values[0])

    @property
    def dip(self) -> float:
        """The fall to the lowest value; at least 0."""
        return float(self.values[0] - self.values.min())

    @property
    def recovery(self) -> int | None:
        """Steps until the value, after its lowest point, is as high as before, if ever."""
        lowest = int(self.values.argmin())
        back = np.flatnonzero(self.values[lowest:] >= self.values[0])
        return int(self.steps[lowest + back[0]]) if len(back) else None

    @property
    def average(self) -> float:
        """The mean value over the steps, by the trapezium rule."""
        if len(self.steps) == 1:
            return self.before
        return float(np.trapezoid(self.values, self.steps) / (self.steps[-1] - self.steps[0]))

    @property
    def final(self) -> float:
        """The value at the end."""
        return float(self.values[-1])


def handovers(folder: Path, scores: bool = False) -> list[Handover]:
    """The hand-over of each learner of the run in `folder`, with returns or normalised `scores`.

    Raises `ValueError` for a run before its hand-over, or without scores.
    """
    run = folders.read(folder)
    begin = run.config["steps"] if run.config.get("then_online") else 0
    learners = []
    for learner in run.learners:
        values = learner.scores if scores else learner.returns
        if values is None:
            raise ValueError(
                f"'{folder}' has no normalised scores: its data set has no reference returns."
            )
        online = learner.steps >= begin
        if not online.any():
            raise ValueError(f"'{folder}' has not come to its hand-over at step {begin:,}.")
        learners.append(Handover(learner.steps[online] - begin, values[online]))
    return learners


def regret(learner: Handover) -> float:
    """CORL's regret: 1 minus a hundredth of the mean score after the hand-over.

    Source: github.com/corl-team/CORL, with evaluations at equal distances.
    """
    return 1.0 - float(learner.values[1:].mean()) / 100.0
