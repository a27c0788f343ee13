"""Learning curves: a panel per task, a curve per agent and settings."""

from __future__ import annotations

import dataclasses
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax.analysis import figures, folders, formatting, labels
from rljax.analysis.report import searches
from rljax.learning import registry
from rljax.runs import records
from rljax.runs.statistics import estimators, summaries
from rljax.system import outputs

SUFFIXES = (".png", ".svg", ".pdf")

References = Mapping[tuple[str, str], tuple[ArrayLike, ArrayLike, ArrayLike]]


@dataclasses.dataclass
class Curve:
    """Evaluations of one curve. `draw` pools those with the same name and panel."""

    agent: str  # the curve's name: an agent, or an agent and its settings
    environment: str  # the panel's title: an environment, or a data set
    evaluations: list[dict[str, Any]]  # lines of evaluations.jsonl: learner, seed, step, returns
    episodes: set[int]  # per evaluation; `returns` may be shorter, if only their mean is known
    x_label: str = "environment steps"  # what the steps count


def plot(
    paths: Sequence[Path],
    output: Path | None = None,
    signal: str | None = None,
    metric: str | None = None,
) -> Path:
    """Draw the evaluation returns of runs, or sums of a `signal` such as "cost", or a `metric` of
    metrics.jsonl such as "actor/kl", into a file, and return its path.

    The file is .png, .svg or .pdf, by default curve.png in the first run's folder. A curve is the
    mean over learners with the same agent, settings and task, its band the mean's 95 % bootstrap
    interval. Fewer than five learners have no band; that of a single learner is over its episodes.
    Of a sweep: see `searches.plot`.

    Raises `ValueError` for no paths, a path that is no evaluated run, an unknown suffix, both a
    signal and a metric, or a missing one.
    """
    if not paths:
        raise ValueError(
            "there is no run to plot. Name the folder of one or more: rljax plot "
            "runs/sac/Hopper-v5/*"
        )
    sweep = next((Path(path) for path in paths if searches.is_sweep(path)), None)
    if sweep is not None:
        if len(paths) > 1 or signal is not None or metric is not None:
            raise ValueError(
                f"'{sweep}' is a sweep, whose search is drawn alone: rljax plot {sweep}. Its runs, "
                f"which rljax watch {sweep} lists, are drawn like others."
            )
        return searches.plot(sweep, output)
    if signal is not None and metric is not None:
        raise ValueError("--signal is of evaluations, --metric of training: give one of them.")
    drawn = signal or metric
    file = "curve.png" if drawn is None else f"curve-{drawn.replace('/', '-')}.png"
    output = Path(output) if output is not None else Path(paths[0]) / file
    distinct = {Path(path).resolve(): Path(path) for path in paths}
    runs = [_read(path, metric) for path in distinct.values()]
    outputs.require_makeable(output)
    names = labels.task_names(dict.fromkeys(run.task for run in runs))
    label = labels.row_labels(runs)
    curves = [
        Curve(label(learner), names[run.task], _drawn(learner, signal), run.episodes, _x_label(run))
        for run in runs
        for learner in run.learners
    ]
    return draw(curves, output, y_label=metric or f"evaluation {signal or 'return'}")


def _drawn(learner: folders.LearnerRecord, signal: str | None) -> list[dict[str, Any]]:
    if signal is None:
        return learner.evaluations
    if signal not in learner.signals:
        has = f"only {', '.join(learner.signals)}" if learner.signals else "none"
        raise ValueError(
            f"--signal is '{signal}', and the run in '{learner.run.folder}' has {has}."
        )
    return [record | {"returns": record["signals"][signal]} for record in learner.evaluations]


def draw(
    curves: Sequence[Curve],
    output: Path,
    references: References | None = None,
    y_label: str = "evaluation return",
) -> Path:
    """Draw evaluations into a file, and return its path.

    `references` are published curves by (curve, panel): steps, mean and standard deviation, [S]
    each. Raises `ValueError` for an unknown suffix, or arrays that differ in shape.
    """
    output = Path(output)
    if output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"output is '{output}', its suffix must be one of {', '.join(SUFFIXES)}.")
    curves = _pool(curves)
    points = _check_references(references or {})

    import matplotlib
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(curve.environment for curve in curves))
    agents = dict.fromkeys(curve.agent for curve in curves)
    agents |= dict.fromkeys(agent for agent, environment in points if environment in environments)
    styles = figures.line_styles(agents)
    columns = 2 if len(environments) == 4 else min(3, len(environments))
    rows = -(-len(environments) // columns)
    # Pyplot would need a display, or change global state.
    with matplotlib.rc_context(figures.RC):
        width = max(5.6, 4.4 * columns)
        figure = Figure(figsize=(width, 3.9 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(environments) :]:
            panel.set_axis_off()
        for panel, environment in zip(panels, environments, strict=False):
            in_panel = [curve for curve in curves if curve.environment == environment]
            for curve in in_panel:
                figures.draw_line(panel, _line(curve), styles[curve.agent])
            for (agent, where), reference in points.items():
                if where == environment:
                    figures.draw_reference(
                        panel, registry.agent_name(agent), styles[agent][1], *reference
                    )
            figures.finish_panel(panel, environment, _common_label(in_panel), y_label)
        caption = textwrap.fill(_caption(curves), int(16 * width))
        figure.supxlabel(caption, fontsize=7.5, color="0.35")
    return figures.save(figure, output)


def _read(path: Path, metric: str | None) -> folders.RunRecord:
    if not path.is_dir():
        raise ValueError(
            f"'{path}' is not a run: there is no such folder. Where runs are kept: ls -d runs/*/*/*"
        )
    if metric is not None:
        return folders.read_metric(path, metric)
    records.read_config(path)
    if not records.read(path, "evaluations"):
        raise ValueError(
            f"'{path}' has no evaluations yet: its evaluations.jsonl is missing or empty. "
            f"Wait for the first, or go on with the training: rljax resume {path}"
        )
    return folders.read(path)


def _x_label(run: folders.RunRecord) -> str:
    if run.config["data"] is None or run.config["storage"] != "dataset":
        return "environment steps"
    return "updates, then environment steps" if run.config["then_online"] else "updates"


def _common_label(curves: Sequence[Curve]) -> str:
    x_labels = {curve.x_label for curve in curves}
    return x_labels.pop() if len(x_labels) == 1 else "steps"


def _pool(curves: Sequence[Curve]) -> list[Curve]:
    pooled: dict[tuple[str, str], Curve] = {}
    for part, curve in enumerate(curves):
        empty = dataclasses.replace(curve, evaluations=[], episodes=set())
        whole = pooled.setdefault((curve.agent, curve.environment), empty)
        whole.evaluations += [
            record | {"learner": (part, record["learner"])} for record in curve.evaluations
        ]
        whole.episodes |= curve.episodes
        whole.x_label = _common_label([whole, curve])
    return list(pooled.values())


def _check_references(
    references: References,
) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    checked = {}
    for (agent, environment), points in references.items():
        steps, mean, std = (np.atleast_1d(np.asarray(values, np.float64)) for values in points)
        if not steps.shape == mean.shape == std.shape or steps.ndim != 1:
            raise ValueError(
                f"the reference of '{agent}' in '{environment}' has steps {steps.shape}, mean "
                f"{mean.shape} and standard deviation {std.shape}, all three must be [S]."
            )
        checked[agent, environment] = (steps, mean, std)
    return checked


def _line(curve: Curve) -> figures.Line:
    learners: dict[Any, dict[int, float]] = {}
    for record in curve.evaluations:
        learners.setdefault(record["learner"], {})[record["step"]] = float(
            estimators.mean(record["returns"])
        )
    steps, centre, low, high = summaries.learning_curve(curve.evaluations)
    seeds = len({record["seed"] for record in curve.evaluations})
    label = f"{registry.agent_name(curve.agent)} ({formatting.count(seeds, 'seed')}"
    if seeds < len(learners):
        label += f", {len(learners)} learners"
    if len(learners) == 1:
        label += ", band over its episodes" if np.isfinite(low).any() else ""
        label += ", no band" if curve.episodes and not np.isfinite(low).any() else ""
        return figures.Line(label + ")", steps, centre, low, high)
    single = [
        (sorted(by_step), [by_step[step] for step in sorted(by_step)])
        for by_step in learners.values()
    ]
    drawn = len(single) <= figures.MOST_SINGLE_LEARNERS or not len(steps)
    return figures.Line(label + ")", steps, centre, low, high, single if drawn else ())


def _caption(curves: Sequence[Curve]) -> str:
    episodes = sorted(set().union(*(curve.episodes for curve in curves)))
    text = "line: mean, band: its 95 % bootstrap interval"
    if episodes:
        number = formatting.span(f"{episodes[0]:,}", f"{episodes[-1]:,}")
        unit = "episode" if episodes == [1] else "episodes"
        text = f"{number} {unit} per evaluation; {text}"
    if any(len({record["learner"] for record in curve.evaluations}) > 1 for curve in curves):
        text += f" over seeds, from {estimators.FEWEST} on; thin: single seeds"
    return text
