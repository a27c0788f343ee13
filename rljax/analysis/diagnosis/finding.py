"""What a check found in the records of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator

import numpy as np

from rljax.analysis.diagnosis.history import History


@dataclasses.dataclass(frozen=True)
class RunFinding:
    """Something that looks wrong."""

    name: str  # by which docs/diagnosis.md explains it
    title: str  # a sentence
    evidence: str  # numbers, steps and learners
    remedy: str  # what to try


def of_learners(
    history: History,
    flags: np.ndarray,
    evidence: Callable[[int], str],
    name: str,
    title: str,
    remedy: str,
) -> Iterator[RunFinding]:
    """The finding about the learners with `flags` [P], if there are any. `evidence` is asked of
    those alone.
    """
    lines = [
        f"{history.name(learner)}: {evidence(learner)}"
        if history.learners > 1
        else evidence(learner)
        for learner in map(int, np.flatnonzero(flags))
    ]
    more = f"; and {len(lines) - 3} more learners" if len(lines) > 3 else ""
    if lines:
        yield RunFinding(name, title, "; ".join(lines[:3]) + more, remedy)
