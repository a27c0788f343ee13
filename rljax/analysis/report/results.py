"""The numbers of a report."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable

import numpy as np

from rljax.analysis import comparison, figures, formatting, published, tables
from rljax.analysis.comparison import Estimate
from rljax.analysis.suites import Suite
from rljax.analysis.tables import Row, Table
from rljax.learning import registry
from rljax.runs.statistics import estimators, summaries

MOST_ROWS = 6  # a figure with more rows shows neither single learners nor published curves
MOST_PAIRS = 10  # a suite with more pairs of agents compares its best agent with the others only
THRESHOLDS = 120  # of a performance profile


@dataclasses.dataclass
class RowResult:
    """The numbers of one row."""

    row: Row
    # "iqm", "median", "mean"; None where a value is not finite
    estimates: dict[str, Estimate] | None
    curve: figures.Line  # the IQM over learners at each step
    published: list[published.Point]  # of each source, the one nearest to the row's step
    published_curve: list[published.Point]  # of one source, up to the budget


@dataclasses.dataclass
class TaskResult:
    """The numbers of one task."""

    table: Table
    rows: list[RowResult]  # the leaders first, then the rows that are not compared
    detailed: bool  # few enough curves for single learners and published curves

    @property
    def leaders(self) -> list[tuple[Row, Estimate]]:
        """The rows that reached the step of comparison, and their IQM, highest first."""
        return [
            (each.row, each.estimates["iqm"])
            for each in self.rows
            if each.row.complete and each.estimates is not None
        ]

    @property
    def decimals(self) -> int:
        """Decimals of all numbers of the task."""
        if self.table.metric == "scores":
            return 1
        return formatting.decimals(
            np.concatenate([row.values(self.table.metric) for row in self.table.rows])
        )

    @property
    def random_return(self) -> float | None:
        """The mean return of uniform actions, where runs have played them."""
        returns = [
            value
            for row in self.table.rows
            for learner in row.learners
            for value in learner.evaluations[0].get("random") or []
        ]
        return float(np.mean(returns)) if returns else None

    @property
    def lead(self) -> Estimate:
        """The probability that a learner of the first leader scores above one of the second."""
        (first, _), (second, _), *_ = self.leaders
        scores = {
            name: {"": row.values(self.table.metric)} for name, row in (("x", first), ("y", second))
        }
        return comparison.improvement(scores, [("x", "y")])["x", "y"]


def task_result(table: Table, at: int | None) -> TaskResult:
    """A task's results at the step `at`, or at the budget's end."""
    rows = sorted((_row_result(row, table, at) for row in table.rows), key=_rank)
    learners = sum(len(row.counted) for row in table.rows)
    detailed = len(rows) <= MOST_ROWS and learners <= 2 * figures.MOST_SINGLE_LEARNERS
    if not detailed:
        for each in rows:
            each.curve.learners = ()
    return TaskResult(table, rows, detailed)


def _rank(result: RowResult) -> float:
    if result.estimates is None or not result.row.complete:
        return np.inf
    return -result.estimates["iqm"].value


def _row_result(row: Row, table: Table, at: int | None) -> RowResult:
    agent, metric = registry.agent_name(row.agent), table.metric[:-1]
    curve = published.curve(agent, table.published_task, metric)
    return RowResult(
        row,
        tables.estimates(row, table.metric),
        _learning_curve(row, table.metric, at),
        published.points(agent, table.published_task, metric, row.step),
        [point for point in curve if point.step is not None and point.step <= 1.05 * table.budget],
    )


def _learning_curve(row: Row, metric: str, at: int | None) -> figures.Line:
    learners = []
    for learner, _ in row.counted:
        until = np.inf if at is None else at
        end = int(np.searchsorted(learner.steps, until, side="right"))
        learners.append((learner.steps[:end], getattr(learner, metric)[:end]))
    steps, centre, low, high = summaries.curve_over_learners(learners, estimators.iqm)
    label = figures.wrapped(f"{row.label} ({formatting.count(len(learners), 'learner')})")
    return figures.Line(label, steps, centre, low, high, learners if len(learners) > 1 else ())


def number_sources(results: Iterable[TaskResult]) -> dict[str, int]:
    """The numbers by which the page names the sources of published points."""
    sources: dict[str, int] = {}
    for result in results:
        for row in result.rows:
            for point in row.published:
                sources.setdefault(source(point), len(sources) + 1)
    return sources


def source(point: published.Point) -> str:
    """The source of a published point, with its note."""
    return f"{point.source}: {point.note}"


@dataclasses.dataclass
class SuiteResult:
    """The numbers of one suite, by the labels of its rows."""

    suite: Suite
    aggregates: dict[str, dict[str, Estimate]]  # each measure of `comparison.MEASURES`
    order: list[str]  # labels, the highest IQM first
    thresholds: np.ndarray  # [T]
    profiles: dict[str, Estimate]  # [T] each, in `order`
    steps: np.ndarray  # [S]
    efficiency: dict[str, Estimate]  # [S] each; empty for curves not finite or of a single step
    improvement: dict[tuple[str, str], Estimate]  # that the first is better than the second


def suite_result(suite: Suite) -> SuiteResult:
    """The results of a suite."""
    scores = suite.scores()
    aggregates = comparison.aggregate(scores)
    order = sorted(aggregates, key=lambda label: -aggregates[label]["iqm"].value)
    scores = {label: scores[label] for label in order}
    high = max(values.max() for tasks in scores.values() for values in tasks.values())
    low = min(values.min() for tasks in scores.values() for values in tasks.values())
    thresholds = np.linspace(min(0.0, low), high, THRESHOLDS)
    steps, values = suite.scores_over_time()
    finite = all(np.isfinite(array).all() for tasks in values.values() for array in tasks.values())
    return SuiteResult(
        suite,
        aggregates,
        order,
        thresholds,
        comparison.profiles(scores, thresholds),
        steps,
        comparison.sample_efficiency(values) if finite and steps[0] < steps[-1] else {},
        comparison.improvement(scores, _pairs(order)),
    )


def _pairs(order: list[str]) -> list[tuple[str, str]]:
    pairs = list(itertools.combinations(order, 2))
    return pairs if len(pairs) <= MOST_PAIRS else [(order[0], other) for other in order[1:]]
