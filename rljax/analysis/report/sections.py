"""The sections with results."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from rljax.analysis import formatting, tables
from rljax.analysis.figures import LineStyle
from rljax.analysis.formatting import count, plain
from rljax.analysis.report import drawings, results
from rljax.analysis.report.elements import CaptionedTable, Section, TableCell
from rljax.analysis.report.results import RowResult, SuiteResult, TaskResult
from rljax.analysis.tables import Row

PUBLISHED = "published, mean ± std"
NOT_FINITE = TableCell.of("not finite", flag=True)


def at_a_glance(task_results: Sequence[TaskResult]) -> Section | None:
    """The best two rows of each task, if any has two."""
    rows = [_leaders(result) for result in task_results if len(result.leaders) > 1]
    if not rows:
        return None
    columns = ["task", "highest IQM", "IQM", "next", "P(highest > next)"]
    caption = (
        "The highest interquartile mean of each task and the next one. Below each number is its "
        "95 % interval. P is the probability that a learner of the first scores above a learner of "
        "the second; it is 0.5 where they are equal."
    )
    return Section("At a glance", [CaptionedTable(caption, columns, rows)])


def _leaders(result: TaskResult) -> list[TableCell]:
    (first, estimate), (second, _), *_ = result.leaders
    return [
        TableCell.of(result.table.task, f"{result.table.budget:,} steps"),
        TableCell.of(first.label, count(len(first.counted), "learner"), text=True),
        TableCell.of_estimate(estimate, result.decimals),
        TableCell.of(second.label, count(len(second.counted), "learner"), text=True),
        TableCell.of_estimate(result.lead, 2),
    ]


def of_suite(result: SuiteResult, styles: Mapping[str, LineStyle]) -> Section:
    """The section over several tasks."""
    suite = result.suite
    tables = [_aggregates(result)] + ([_improvement(result)] if result.improvement else [])
    left_out = ", ".join(suite.left_out)
    note = left_out and (
        f"Left out, because one of these tasks or a reference is missing: {left_out}."
    )
    return Section(suite.title, tables, drawings.of_suite(result, styles), note)


def _aggregates(result: SuiteResult) -> CaptionedTable:
    suite = result.suite
    measures = ("iqm", "median", "mean", "optimality_gap")
    rows = [
        [
            TableCell.of(label),
            *(TableCell.of_estimate(result.aggregates[label][name], 2) for name in measures),
            TableCell.of(
                str(sum(len(row.counted) for row in suite.rows[label])),
                f"{len(suite.tables)} tasks",
            ),
        ]
        for label in result.order
    ]
    caption = (
        f"Scores over {', '.join(table.task for table in suite.tables)}; {suite.explanation} Below "
        "each number is its 95 % interval over learners, which are resampled within each task. The "
        "optimality gap is how far learners stay below 1 on average."
    )
    return CaptionedTable(
        caption, ["agent", "IQM", "median", "mean", "optimality gap", "learners"], rows
    )


def _improvement(result: SuiteResult) -> CaptionedTable:
    rows = [
        [
            TableCell.of(f"{x} > {y}"),
            TableCell.of_estimate(estimate, 2),
            TableCell.of(formatting.span(*estimate.runs), "in each task"),
        ]
        for (x, y), estimate in result.improvement.items()
    ]
    caption = "The probability that a learner of X scores above one of Y, as the mean over tasks."
    return CaptionedTable(caption, ["X > Y", "P", "learners"], rows)


def of_task(
    result: TaskResult, styles: Mapping[str, LineStyle], sources: Mapping[str, int]
) -> Section:
    """The section of one task. `sources` numbers the sources of published results."""
    signals = result.table.signals
    columns = ["agent", "IQM", "median", "mean", *signals, "learners", "diverged", "step"]
    rows = [_task_row(each, result, signals) for each in result.rows]
    note = ""
    if any(each.published for each in result.rows):
        columns.append(PUBLISHED)
        for row, each in zip(rows, result.rows, strict=True):
            row.append(_published(each, result, sources))
        note = (
            "Published numbers are the points nearest to the row's step. They come from other "
            "seeds, and from the environment versions that are named with them. If a version "
            "differs from ours, returns differ too."
        )
    table = CaptionedTable(_task_caption(result), columns, rows)
    return Section(result.table.task, [table], drawings.of_task(result, styles), note)


def _task_row(result: RowResult, task: TaskResult, signals: Sequence[str]) -> list[TableCell]:
    row, estimates = result.row, result.estimates
    if estimates is None:
        numbers = [NOT_FINITE] * 3
    else:
        numbers = [TableCell.of_estimate(each, task.decimals) for each in estimates.values()]
    seeds = len({learner.seed for learner, _ in row.counted})
    state = "" if row.complete else f"incomplete: of {task.table.budget:,}"
    return [
        TableCell.of(row.label),
        *numbers,
        *(_of_signal(row, name) for name in signals),
        TableCell.of(str(len(row.counted)), f"{seeds} seeds" if seeds < len(row.counted) else ""),
        TableCell.of(str(row.diverged), flag=row.diverged > 0),
        TableCell.of(f"{row.step:,}", state, flag=not row.complete),
    ]


def _of_signal(row: Row, signal: str) -> TableCell:
    estimate = tables.of_signal(row, signal)
    return NOT_FINITE if estimate is None else TableCell.of_estimate(estimate, 1)


def _published(result: RowResult, task: TaskResult, sources: Mapping[str, int]) -> TableCell:
    lines = []
    for point in result.published:
        spread = "" if point.std is None else f" ± {formatting.number(point.std, task.decimals)}"
        step = "steps unknown" if point.step is None else f"at {formatting.steps(point.step)}"
        environment = "" if task.table.data else f", {point.environment}"
        number = sources[results.source(point)]
        mean = f"{formatting.number(point.mean, task.decimals)}{spread}"
        lines.append((mean, f"{step}, {count(point.seeds, 'seed')}{environment} [{number}]"))
    return TableCell(lines or [("-", "")], text=True, points=True)


def _task_caption(result: TaskResult) -> str:
    table = result.table
    metric = (
        "return"
        if table.metric == "returns"
        else "score (100: the data set's reference policy, 0: the random one)"
    )
    environment = f", in {table.environment}" if table.data else ""
    signals = " and ".join(table.signals)
    signals = signals and f" The table also has the interquartile mean of {signals} per episode."
    level = result.random_return
    signals += "" if level is None else f" Uniform actions return {plain(level)}."
    return (
        f"Evaluation {metric} over {count(table.episodes, 'episode')} without "
        f"exploration{environment}. Below each number is its 95 % bootstrap interval over "
        f"learners; fewer than five have none.{signals}"
    )
