"""The figures of a report, with captions and descriptions."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping
from typing import Any

from rljax.analysis import figures, formatting
from rljax.analysis.figures import LineStyle
from rljax.analysis.report.results import RowResult, SuiteResult, TaskResult


@dataclasses.dataclass
class Drawing:
    """A figure with its caption and its description."""

    name: str  # within its section; empty for the only or the main figure
    figure: Any
    description: str  # read aloud in place of the figure
    caption: str


def of_suite(result: SuiteResult, styles: Mapping[str, LineStyle]) -> Iterator[Drawing]:
    """The figures over the tasks of a suite."""
    description = "IQM: " + "; ".join(
        f"{label} {formatting.number(each['iqm'].value, 2)} ({formatting.interval(each['iqm'], 2)})"
        for label, each in result.aggregates.items()
    )
    axis = result.suite.axis
    iqm = {label: result.aggregates[label]["iqm"] for label in result.order}
    drawn = {
        "iqm": figures.intervals(iqm, styles, f"IQM of {axis}", "Interquartile mean"),
        "profiles": figures.profiles(
            result.thresholds, result.profiles, styles, axis, "Performance profiles"
        ),
    }
    if result.efficiency:
        lines = {}
        for label in result.order:
            each = result.efficiency[label]
            lines[label] = figures.Line(label, result.steps, each.value, each.low, each.high)
        axes = ("steps", f"IQM of {axis}")
        drawn["efficiency"] = figures.curves("Sample efficiency", lines, styles, {}, axes)
    if result.improvement:
        drawn["improvement"] = _improvement(result, styles)
    captions = {
        "iqm": "Dot: estimate; bar: its 95 % interval.",
        "profiles": "The share of learners that score above each value, with 95 % bands.",
        "efficiency": "The IQM at each step that all runs cover, with 95 % bands.",
        "improvement": (
            "The probability that a learner of X scores above one of Y. Dashed line: no difference."
        ),
    }
    for name, figure in drawn.items():
        yield Drawing(name, figure, f"{captions[name]} {description}", captions[name])


def _improvement(result: SuiteResult, styles: Mapping[str, LineStyle]) -> Any:
    estimates = {f"{x} > {y}": estimate for (x, y), estimate in result.improvement.items()}
    pair_styles = {f"{x} > {y}": styles[x] for x, y in result.improvement}
    title = "Probability of improvement"
    return figures.intervals(estimates, pair_styles, "P(X > Y), mean over tasks", title, 0.5)


def of_task(result: TaskResult, styles: Mapping[str, LineStyle]) -> Iterator[Drawing]:
    """The learning curves of a task, and the IQM of several rows."""
    table = result.table
    values = "; ".join(f"{each.row.label} {_iqm(each, result.decimals)}" for each in result.rows)
    description = f"Interquartile mean at the end: {values}."
    axes = ("steps" if table.data else "environment steps", f"evaluation {table.metric[:-1]}")
    lines = {each.row.label: each.curve for each in result.rows}
    yield Drawing(
        "",
        figures.curves(table.task, lines, styles, _references(result), axes),
        f"Learning curves in {table.task}. {description}",
        "Line: interquartile mean over learners; band: its 95 % interval"
        + ("; thin: single learners." if result.detailed else "."),
    )
    leaders = {row.label: estimate for row, estimate in result.leaders}
    if len(leaders) > 1:
        title = f"Interquartile mean at {formatting.steps(table.budget)} steps"
        yield Drawing(
            "iqm",
            figures.intervals(leaders, styles, axes[1], title),
            f"{title} of {table.task}. {description}",
            "Dot: estimate; bar: its 95 % interval.",
        )


def _iqm(result: RowResult, decimals: int) -> str:
    if result.estimates is None:
        return "not finite"
    return formatting.number(result.estimates["iqm"].value, decimals)


def _references(result: TaskResult) -> dict[str, tuple[str, Any, Any, Any]]:
    references: dict[str, tuple[str, Any, Any, Any]] = {}
    if not result.detailed:
        return references
    for each in result.rows:
        points = each.published_curve
        if points and not any(
            label.startswith(f"{points[0].agent} by") for label, *_ in references.values()
        ):
            steps, means, stds = zip(
                *[(point.step, point.mean, point.std) for point in points], strict=True
            )
            repository = points[0].source.partition("@")[0].rpartition("/")[2]
            references[each.row.label] = (f"{points[0].agent} by {repository}", steps, means, stds)
    return references
