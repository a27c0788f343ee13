"""What happens in a run, in order: it begins; each chunk of steps gives metrics, and perhaps an
evaluation, better policies and a checkpoint; it ends.

P learners, N episodes of each.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from rljax.runs.events.controls import Controls


@dataclasses.dataclass(frozen=True)
class Event:
    """What all events have."""

    step: int  # of each learner
    run: Controls  # what may be asked of the run now


@dataclasses.dataclass(frozen=True)
class BeginEvent(Event):
    """Before the first chunk."""

    resumes: bool  # the run goes on from a checkpoint


@dataclasses.dataclass(frozen=True)
class MetricsEvent(Event):
    """After a chunk."""

    metrics: Mapping[str, np.ndarray]  # [P] means over the chunk; NaN where there was no value
    steps_per_second: float  # of all learners


@dataclasses.dataclass(frozen=True)
class EvaluationEvent(Event):
    """After an evaluation."""

    returns: np.ndarray  # [P, N], undiscounted
    lengths: np.ndarray  # [P, N], environment steps
    success: np.ndarray | None  # [P, N], 0 or 1; None where the environment does not report it
    signals: Mapping[str, np.ndarray]  # [P, N] sums over an episode, by name


@dataclasses.dataclass(frozen=True)
class BestEvent(Event):
    """After an evaluation in which a learner had its best mean return."""

    learners: np.ndarray  # [P] bool: those learners
    returns: np.ndarray  # [P] the best mean return of each learner so far


@dataclasses.dataclass(frozen=True)
class CheckpointEvent(Event):
    """After a checkpoint was saved."""

    folder: Path


@dataclasses.dataclass(frozen=True)
class EndEvent(Event):
    """After the last chunk and its checkpoint."""

    complete: bool  # all steps are done
    reason: str | None  # why it ended before; None if it is complete
    summary: Mapping[str, Any]  # as in summary.json


def of_evaluation(lines: list[dict[str, Any]], step: int, run: Controls) -> EvaluationEvent:
    """The event of the records of an evaluation, one for each learner."""

    def columns(name: str) -> np.ndarray:
        return np.array([line[name] for line in lines])

    sums = {name: np.array([x["signals"][name] for x in lines]) for name in _signals(lines)}
    success = columns("success") if all("success" in line for line in lines) else None
    return EvaluationEvent(step, run, columns("returns"), columns("lengths"), success, sums)


def _signals(lines: list[dict[str, Any]]) -> list[str]:
    return list(lines[0].get("signals", ()))
