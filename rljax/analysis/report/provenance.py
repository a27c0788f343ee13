"""The provenance of the results: settings, costs and commands."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from typing import Any

from rljax.analysis import formatting, labels
from rljax.analysis.folders import RunRecord, group_by
from rljax.analysis.formatting import count, distinct
from rljax.analysis.report.elements import CaptionedTable, Section, TableCell, markdown
from rljax.analysis.tables import Row, Table
from rljax.trust import printable


def settings(tables: Sequence[Table]) -> Section | None:
    """The settings in which rows of one agent differ, if any."""
    sections = []
    rows = group_by([row for table in tables for row in table.rows], lambda row: row.agent)
    for agent, of_agent in rows.items():
        names = labels.differing_settings([each for row in of_agent for each in row.learners])
        if names:
            first = {row.label: row.learners[0].settings for row in of_agent}
            lines = [
                [
                    TableCell.of(label),
                    *(TableCell.of(formatting.setting(x[name])) for name in names),
                ]
                for label, x in first.items()
            ]
            caption = f"All settings in which runs of {agent} differ on one task."
            sections.append(CaptionedTable(caption, ["agent", *names], lines))
    return Section("Settings", sections) if sections else None


def cost(tables: Sequence[Table], runs: Sequence[RunRecord]) -> Section:
    """Time, memory, hardware and versions behind each row."""
    columns = ["agent", "task", "runs", "steps/s", "compiling", "wall", "memory"]
    columns.append("processor and devices")
    caption = (
        "The cost of each run, as a range where a row has several. Steps per second are those of "
        "all learners of a run in its training loop, without compilation, evaluations and "
        "checkpoints. Wall time includes everything."
    )
    rows = [_cost_row(row, table.task) for table in tables for row in table.rows]
    versions = _versions(runs)
    note = f"Made with {', '.join(versions)}." if versions else ""
    return Section("Cost", [CaptionedTable(caption, columns, rows)], note=note)


def _cost_row(row: Row, task: str) -> list[TableCell]:
    summaries = [run.summary for run in row.runs]
    processors = distinct(run.config.get("processor") for run in row.runs)
    devices = distinct(device for run in row.runs for device in run.config.get("devices") or ())
    return [
        TableCell.of(row.label),
        TableCell.of(task, text=True),
        TableCell.of(str(len(row.runs)), count(len(row.learners), "learner")),
        TableCell.of(_range(summaries, "steps_per_second", lambda x: f"{x:,.0f}")),
        TableCell.of(_range(summaries, "compile_seconds", formatting.seconds)),
        TableCell.of(_range(summaries, "wall_seconds", formatting.seconds)),
        TableCell.of(_range(summaries, "peak_memory_bytes", lambda x: f"{x / 1e9:.1f} GB")),
        TableCell.of(", ".join(processors) or "-", ", ".join(devices), text=True),
    ]


def _range(summaries: Iterable[Mapping[str, Any]], name: str, write: Callable[[float], str]) -> str:
    values = [value for summary in summaries if (value := summary.get(name)) is not None]
    return formatting.span(write(min(values)), write(max(values))) if values else "-"


def _versions(runs: Sequence[RunRecord]) -> list[str]:
    recorded = [run.config.get("versions") or {} for run in runs]
    versions = [
        f"{printable(name)} {' or '.join(distinct(packages.get(name) for packages in recorded))}"
        for name in dict.fromkeys(name for packages in recorded for name in packages)
    ]
    revisions = distinct((run.config.get("git_revision") or "")[:12] for run in runs)
    if revisions:
        versions.append(f"revision {' or '.join(revisions)} of rljax")
    return versions


def commands_html(tables: Sequence[Table]) -> str:
    """The commands of the runs behind each row, which opens."""
    html = ["<p>The commands of the runs behind each row, and the folders of these runs.</p>"]
    for table in tables:
        for row in table.rows:
            html.append(
                f"<details><summary>{escape(row.label)} on {escape(table.task)} "
                f"<small>{count(len(row.runs), 'run')}</small></summary>"
            )
            for run in row.runs:
                commands = "\n".join(_commands(run))
                html.append(
                    f'<p class="soft">{escape(printable(run.folder))}, {escape(progress(run))}, '
                    f"seeds {escape(formatting.seeds(run.config['seeds']))}</p><div "
                    'class="command">'
                    f"<pre>{escape(commands)}</pre>"
                    '<button type="button" data-copy aria-live="polite">copy</button></div>'
                )
            html.append("</details>")
    return "\n".join(html)


def commands_markdown(tables: Sequence[Table]) -> list[str]:
    """The commands of the runs behind each row, a paragraph each."""
    return [
        markdown(f"{row.label} on {table.task}:")
        + "\n\n"
        + "\n".join(f"    {command}" for run in row.runs for command in _commands(run))
        for table in tables
        for row in table.rows
    ]


def _commands(run: RunRecord) -> list[str]:
    resumed = run.config.get("resumed") or []
    commands = [
        str(run.config.get("command") or "not recorded"),
        *dict.fromkeys(f"{each['command']}  # from step {each['step']:,}" for each in resumed),
    ]
    return list(map(printable, commands))


def progress(run: RunRecord) -> str:
    """A run's progress in words."""
    steps = max(int(learner.steps[-1]) for learner in run.learners)
    if steps >= run.budget:
        return "complete"
    return f"evaluated up to {steps:,} of {run.budget:,} steps"
