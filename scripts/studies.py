"""What the studies share: runs that are made once, and gone on with where they were stopped."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np

from rljax import record, run


def trained(out: Path, begin: Callable[[], object]) -> Path:
    """The folder of a run, complete: as it is, gone on with from its newest checkpoint, or made by `begin`.

    Leaves the program where the training is interrupted.
    """
    if not complete(out):
        if (out / "checkpoints").exists():
            run.resume(out, quiet=False)
        else:
            begin()
    if not complete(out):
        raise SystemExit(f"stopped in '{out}', all saved: the same command goes on.")
    return out


def complete(out: Path) -> bool:
    """Whether a run has been trained to its end."""
    file = out / "summary.json"
    return file.exists() and json.loads(file.read_text())["complete"]


def last(out: Path, name: str) -> np.ndarray:
    """Of each learner [learner] the mean of its last three evaluations: of their "returns" or "scores"."""
    evaluations = record.read(out, "evaluations")
    steps = sorted({line["step"] for line in evaluations})[-3:]
    learners = range(1 + max(line["learner"] for line in evaluations))
    return np.array(
        [
            np.mean([np.mean(line[name]) for line in evaluations if line["learner"] == i and line["step"] in steps])
            for i in learners
        ]
    )
