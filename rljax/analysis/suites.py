"""Suites: several tasks with comparable scores."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence

import numpy as np

from rljax.analysis import formatting, published
from rljax.analysis.tables import Row, Table

POINTS = 30  # steps at which a curve over several tasks has a value


@dataclasses.dataclass
class Suite:
    """Rows that share several tasks."""

    title: str
    axis: str  # the label of an axis with scores
    explanation: str  # of the scores 0 and 1
    tables: list[Table]
    rows: dict[str, list[Row]]  # by label, one row of each table
    left_out: list[str]  # labels of rows, tasks that rows lack, tasks without a reference

    def score(self, table: Table, values: np.ndarray) -> np.ndarray:
        """Returns or scores, scaled so that 1 is the task's reference."""
        if table.metric == "scores":
            return values / 100
        reference = published.reference(table.published_task)
        assert reference is not None
        return values / reference.mean

    def scores(
        self, values: Callable[[Row, str], np.ndarray] = Row.values
    ) -> dict[str, dict[str, np.ndarray]]:
        """The score of each learner [learners], by label and task, from `values` of a metric."""
        return {
            label: {
                table.task: self.score(table, values(row, table.metric))
                for table, row in zip(self.tables, rows, strict=True)
            }
            for label, rows in self.rows.items()
        }

    def scores_over_time(self) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
        """Steps [S] that all curves cover, and scores [learners, S] by label and task."""
        learners = [
            learner for rows in self.rows.values() for row in rows for learner, _ in row.counted
        ]
        first = max(learner.steps[0] for learner in learners)
        last = min(
            min(learner.steps[-1] for learner in learners),
            min(table.budget for table in self.tables),
        )
        steps = np.linspace(first, last, POINTS)

        def curves(row: Row, metric: str) -> np.ndarray:
            counted = [learner for learner, _ in row.counted]
            return np.stack([np.interp(steps, x.steps, getattr(x, metric)) for x in counted])

        return steps, self.scores(curves)


def find(tables: Sequence[Table]) -> tuple[list[Suite], list[str]]:
    """The suites among the tables, and remarks on those that form none.

    Data sets with reference scores form one, environments with a published reference another.
    """
    suites, remarks = [], []
    for kind, metric in (("data sets", "scores"), ("environments", "returns")):
        comparable = [table for table in tables if table.metric == metric]
        if len(comparable) < 2:
            continue
        suite = _suite(kind, comparable)
        (remarks if isinstance(suite, str) else suites).append(suite)
    return suites, remarks


def _suite(kind: str, tables: Sequence[Table]) -> Suite | str:
    known = [table for table in tables if _has_reference(table)]
    unknown = [table.task for table in tables if table not in known]
    if len(known) < 2:
        return (
            f"No score over {', '.join(table.task for table in tables)} together: returns of "
            "different tasks cannot be averaged, and there is no published reference to "
            f"normalise those of {', '.join(unknown)}."
        )
    shared, labels = _largest(known)
    if len(shared) < 2:
        return (
            f"No score over all {len(tables)} {kind}: no two of them have a complete row in common."
        )
    others = sorted({row.label for table in known for row in table.rows} - set(labels))
    left_out = [*others, *(table.task for table in known if table not in shared), *unknown]
    rows = {label: [_comparable(table)[label] for table in shared] for label in labels}
    axis = "return / published SAC" if kind == "environments" else "score / 100"
    return Suite(
        f"Over {len(shared)} {kind}", axis, _explanation(kind, shared), shared, rows, left_out
    )


def _has_reference(table: Table) -> bool:
    if table.metric == "scores":
        return True
    return table.data is None and published.reference(table.published_task) is not None


def _explanation(kind: str, tables: Sequence[Table]) -> str:
    if kind == "data sets":
        return "1 is the reference policy of each data set, 0 the random one."
    points = [(table.task, published.reference(table.published_task)) for table in tables]
    references = "; ".join(
        f"{task} {point.mean:,.0f} ({point.environment}, "
        f"{formatting.count(point.seeds, 'seed')}, {point.source})"
        for task, point in points
        if point is not None
    )
    return f"1 is the published return of SAC at 1M steps, 0 a return of 0: {references}."


def _comparable(table: Table) -> dict[str, Row]:
    return {
        row.label: row
        for row in table.rows
        if row.complete and np.isfinite(row.values(table.metric)).all()
    }


def _largest(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """Tables and labels with a comparable row for each pair."""
    tables_of = {
        label: {i for i, table in enumerate(tables) if label in _comparable(table)}
        for table in tables
        for label in _comparable(table)
    }
    choices = {frozenset(one & other) for one in tables_of.values() for other in tables_of.values()}
    best = max(
        (choice for choice in choices if len(choice) > 1),
        key=lambda choice: (
            len(choice) * sum(choice <= tables_of_label for tables_of_label in tables_of.values()),
            len(choice),
        ),
        default=frozenset(),
    )
    return [tables[i] for i in sorted(best)], sorted(
        label for label, tables_of_label in tables_of.items() if best <= tables_of_label
    )
