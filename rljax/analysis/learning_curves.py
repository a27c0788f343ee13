"""Learning curves of runs in one figure: a panel per task, a curve per agent and choice of settings."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from rljax.analysis import figures, tables
from rljax.runs import records


def plot(
    paths: Sequence[Path],
    output: Path | None = None,
    references: figures.References | None = None,
    statistic: str = "mean",
) -> Path:
    """Draw the evaluation returns of runs, and return the file's path.

    Learners of one agent with the same settings on the same task are pooled, from however many runs they come. A curve
    is the mean (or IQM) over learners, its band the 95 % bootstrap interval of that over learners, its thin lines the
    single learners. The band of a single learner is over its episodes, and the legend says so.

    Args:
        paths: folders of runs, finished or not.
        output: a .png, .svg or .pdf file, replaced if it exists; curve.png in the first run's folder by default.
        references: published curves by (curve, panel): steps [S], mean [S] and standard deviation [S], each drawn as a
            dashed line with a band in its panel; single points as error bars.
        statistic: "mean" or "iqm".

    Raises:
        ValueError: no paths, a path that is not a run or has no evaluations yet, a suffix or statistic that is not
            known, a reference whose arrays differ in shape.
    """
    if not paths:
        raise ValueError("there is no run to plot. Name the folder of one or more: rljax plot runs/sac/Hopper-v5/*")
    output = Path(output) if output is not None else Path(paths[0]) / "curve.png"
    distinct = {Path(path).resolve(): Path(path) for path in paths}  # a run named twice is no further evidence
    runs = [_read(path) for path in distinct.values()]
    titles, names = tables.task_titles(dict.fromkeys(run.task for run in runs)), tables.row_names(runs)
    curves = [
        figures.Curve(names(learner), titles[run.task], learner.evaluations, run.episodes, _counted(run))
        for run in runs
        for learner in run.learners
    ]
    return figures.draw(curves, output, references, statistic)


def _read(path: Path) -> tables.Run:
    if not path.is_dir():
        raise ValueError(f"'{path}' is not a run: there is no such folder. Where runs are kept: ls -d runs/*/*/*")
    records.read_config(path)
    if not records.read(path, "evaluations"):
        raise ValueError(
            f"'{path}' has no evaluations yet: its evaluations.jsonl is missing or empty. "
            f"Wait for the first, or go on with the training: rljax resume {path}"
        )
    try:
        return tables.read(path)
    except ValueError as error:
        raise ValueError(f"'{path}' is not a run: {error}") from error


def _counted(run: tables.Run) -> str:
    """What the steps of a run are; of older runs with data it is not known."""
    if not run.described.get("data"):
        return "environment steps"
    storage = run.described.get("storage")
    if storage is None:
        return "steps"
    if storage != "dataset":
        return "environment steps"
    return "updates, then environment steps" if run.described.get("then_online") else "updates"
