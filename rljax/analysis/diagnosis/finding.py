"""What a check found in the records of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from rljax.analysis.diagnosis.history import History


@dataclasses.dataclass(frozen=True)
class RunFinding:
    """Something that looks wrong."""

    name: str  # by which docs/diagnosis.md explains it
    title: str  # a sentence
    evidence: str  # numbers, steps and learners
    remedy: str  # what to try


def learners(history: History, flags: np.ndarray, text: Iterable[str]) -> str:
    """The evidence of the learners with `flags` [P], from one text for each learner [P]."""
    lines = [
        f"{history.name(learner)}: {line}" if history.learners > 1 else line
        for learner, (flag, line) in enumerate(zip(flags, text, strict=True))
        if flag
    ]
    more = f"; and {len(lines) - 3} more learners" if len(lines) > 3 else ""
    return "; ".join(lines[:3]) + more
