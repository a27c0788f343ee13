"""The trials of a sweep's search, from the files in its folder."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import figures, folders, formatting
from rljax.analysis.report.elements import CaptionedTable, Section, TableCell
from rljax.learning import population, schedules
from rljax.system import outputs
from rljax.trust import printable
from rljax.tuning import generations


@dataclasses.dataclass(frozen=True)
class TrialRecord:
    """One trial of a search."""

    number: int
    settings: Mapping[str, Any]
    values: Mapping[int, float | None]  # by steps; None: a learner diverged. None of them: running

    @property
    def value(self) -> float:
        """The last value; NaN without one."""
        last = self.values[max(self.values)] if self.values else None
        return np.nan if last is None else last


def is_sweep(folder: Path) -> bool:
    """Whether `folder` is that of a sweep."""
    return (Path(folder) / folders.SWEEP_FILE).exists()


def read(folder: Path) -> list[TrialRecord]:
    """The trials of the sweep in `folder`, in order; none in a sweep of population-based training.

    Raises `ValueError` for damaged files.
    """
    trials = []
    for generation in sorted(Path(folder).glob("generation-*")):
        told = {entry["trial"]: entry["values"] for entry in _entries(generation / "told.json")}
        for entry in _entries(generation / "trials.json"):
            values = {int(steps): x for steps, x in told.get(entry["trial"], {}).items()}
            trials.append(TrialRecord(entry["trial"], entry["params"], values))
    return sorted(trials, key=lambda trial: trial.number)


def _entries(path: Path) -> list[dict[str, Any]]:
    if not path.exists():
        return []
    return generations.listed(
        path, lambda entry: {"params": {}, "values": {}, "trial": entry["trial"], **entry}
    )


def best(trials: Sequence[TrialRecord]) -> TrialRecord | None:
    """The trial with the highest value after the most steps, so far."""
    whole = [trial for trial in trials if np.isfinite(trial.value)]
    return max(whole, key=_rank, default=None)


def _rank(trial: TrialRecord) -> tuple[float, ...]:
    value = trial.value if np.isfinite(trial.value) else -np.inf
    return max(trial.values, default=0), value, -trial.number


def text(trials: Sequence[TrialRecord]) -> str:
    """How far a search is, and its best trial."""
    ended = sum(bool(trial.values) for trial in trials)
    leader = best(trials)
    so_far = f"{ended} of {formatting.count(len(trials), 'trial')} ended"
    if leader is None:
        return so_far
    settings = population.label(leader.settings)
    return f"{so_far}; best: trial {leader.number}, {_shown(leader.value)}, {settings}"


def section(folder: Path, trials: Sequence[TrialRecord]) -> Section:
    """A table of the trials, the best ones first."""
    steps = sorted({step for trial in trials for step in trial.values})
    names = list(dict.fromkeys(name for trial in trials for name in trial.settings))
    ordered = sorted(trials, key=_rank, reverse=True)
    rows = [
        [
            TableCell.of(str(trial.number)),
            *(TableCell.of(str(trial.settings.get(name, ""))) for name in names),
            *(TableCell.of(_at(trial, step)) for step in steps),
        ]
        for trial in ordered
    ]
    columns = ["trial", *names, *(f"{step:,} steps" for step in steps)]
    caption = (
        "Each trial's value: the interquartile mean, over tuning seeds, of the last evaluation's "
        "return. Values of a search choose the settings, and are higher than those of other seeds."
    )
    return Section(f"Search in {folder}", [CaptionedTable(caption, columns, rows)])


def _at(trial: TrialRecord, step: int) -> str:
    if step not in trial.values:
        return "" if trial.values else "not ended"
    value = trial.values[step]
    return "diverged" if value is None else _shown(value)


def _shown(value: float) -> str:
    return "beyond a limit" if value <= schedules.BROKEN else formatting.plain(value)


def plot(folder: Path, output: Path | None = None) -> Path:
    """Draw the trials' values in their order, and the best so far, into a file; return its path.

    Raises `ValueError` for a sweep without trials.
    """
    trials = [trial for trial in read(folder) if np.isfinite(trial.value)]
    trials = [trial for trial in trials if trial.value > schedules.BROKEN]
    if not trials:
        raise ValueError(
            f"the sweep in '{folder}' has no trial with a value. Its runs, also those of "
            f"population-based training, are drawn one by one: rljax watch {folder} lists them."
        )
    output = Path(output) if output is not None else Path(folder) / "curve.png"
    outputs.require_makeable(output)

    import matplotlib
    from matplotlib.figure import Figure

    most = max(max(trial.values) for trial in trials)
    whole = [trial for trial in trials if max(trial.values) == most]
    with matplotlib.rc_context(figures.RC):
        figure = Figure(figsize=(5.6, 3.6), layout="constrained")
        panel = figure.subplots()
        for chosen, label, alpha in ((trials, "fewer steps", 0.35), (whole, f"{most:,} steps", 1)):
            places = [trial.number for trial in chosen], [trial.value for trial in chosen]
            if chosen is whole or len(whole) < len(trials):
                panel.plot(*places, "o", color=figures.INK, alpha=alpha, markersize=4, label=label)
        so_far = np.maximum.accumulate([trial.value for trial in whole])
        numbers = [trial.number for trial in whole]
        panel.step(numbers, so_far, where="post", label="best so far")
        panel.legend(frameon=False)
        title = printable(f"search in {Path(folder).name}").replace("$", r"\$")
        figures.finish_panel(panel, title, "trial", "value on tuning seeds")
    return figures.save(figure, output)
