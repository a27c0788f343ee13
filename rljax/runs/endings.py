"""What a run's summary.json says at its end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from rljax.distributed import processes
from rljax.learning import population
from rljax.learning.loop import Training, entries
from rljax.runs import records
from rljax.runs.statistics import summaries
from rljax.system import hardware


def summary(training: Training, folder: Path, wall_seconds: float) -> dict[str, Any]:
    """The entries of summary.json, by the training and the records in `folder`."""
    evaluations = records.read(folder, "evaluations")
    settings, from_data = population.settings(training.members), training.dataset is not None
    estimate = summaries.estimate(records.read(folder, "metrics"))
    return {
        **entries.summary(training),
        **summaries.results(evaluations, settings, from_data),
        "cut": sum(line.get("cut", 0) for line in evaluations),
        "wall_seconds": wall_seconds,
        "processes": processes.process_count(),
        "peak_memory_bytes": hardware.peak_memory(),
        **({} if estimate is None else {"estimate": estimate}),
    }
