"""What a check found in the records of a run."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

import numpy as np

from rljax.analysis.diagnosis.history import History


@dataclasses.dataclass(frozen=True)
class Finding:
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


def number(value: float) -> str:
    """A number with four digits."""
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def share(value: float) -> str:
    """A share in percent."""
    return f"{value:.0%}" if value >= 0.01 or value == 0 else f"{value:.2g}"


def joined(names: Sequence[str]) -> str:
    """Names of metrics as evidence."""
    return ", ".join(f"'{name}'" for name in names)
