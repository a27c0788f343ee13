"""The sections about single runs: what looks wrong, metrics, films and all settings."""

from __future__ import annotations

import base64
import warnings
from collections.abc import Iterator, Sequence
from html import escape
from typing import Any

import numpy as np

from rljax.analysis import diagnosis, figures, formatting, labels
from rljax.analysis.diagnosis.history import History, quiet
from rljax.analysis.folders import RunRecord
from rljax.analysis.formatting import count
from rljax.analysis.report.drawings import Drawing
from rljax.analysis.report.elements import CaptionedTable, Section, TableCell
from rljax.learning import registry
from rljax.runs import records
from rljax.trust import printable

MOST_DIAGNOSES = 20  # runs of a report
MOST_METRICS = 24  # of a figure
FIRST = ("episode", "actor", "critic", "value", "cost", "temperature")  # parts, in this order
FILMS = {".mp4": "video/mp4", ".gif": "image/gif"}
MOST_BYTES = 20_000_000  # of a film inside the page
PROTOCOL = ("env", "data", "steps", "then_online", "seeds", "eval_env", "eval_every")
PROTOCOL += ("eval_episodes", "log_every", "preset", "base", "from_run", "schedule")


def _history(run: RunRecord) -> History | None:
    """The records of a run; None without readable ones. A warning names damaged metrics."""
    try:
        return History.read(run.folder)
    except (ValueError, OSError) as error:
        metrics = run.folder / records.FILES["metrics"]
        if metrics.exists() and metrics.stat().st_size:
            warnings.warn(f"the report shows no metrics: {error}", stacklevel=2)
        return None


def of_findings(runs: Sequence[RunRecord]) -> Section | None:
    """What looks wrong in the first runs; None without readable metrics."""
    rows, healthy = [], 0
    for run in runs[:MOST_DIAGNOSES]:
        history = _history(run)
        if history is None:
            continue
        findings = diagnosis.of_history(history)
        healthy += not findings
        for finding in findings:
            rows.append(
                [
                    TableCell.of(finding.name, printable(run.folder)),
                    *(
                        TableCell.of(text, text=True)
                        for text in (finding.title, printable(finding.evidence), finding.remedy)
                    ),
                ]
            )
    if not rows and not healthy:
        return None
    more = len(runs) - MOST_DIAGNOSES
    note = f"Nothing looks wrong in {count(healthy, 'run')}." if healthy else ""
    note += f" {count(more, 'more run')} not diagnosed: rljax diagnose RUN" if more > 0 else ""
    caption = "What the records of runs show, with the evidence. docs/diagnosis.md explains it."
    tables = (
        [CaptionedTable(caption, ["finding", "what looks wrong", "evidence", "try"], rows)]
        if rows
        else []
    )
    return Section("What looks wrong", tables, note=note.strip())


def of_metrics(run: RunRecord) -> Section | None:
    """The curves of a run's metrics; None without any."""
    history = _history(run)
    if history is None:
        return None
    names = sorted(
        (name for name, x in history.metrics.items() if np.isfinite(x).any()), key=_place
    )
    lines = {printable(name): _line(history, name) for name in names[:MOST_METRICS]}
    if not lines:
        return None
    figure = figures.panels(lines, ("-", figures.COLOURS[0]), "steps")
    last = "; ".join(f"{printable(name)} {_mean(history, name)}" for name in names[:MOST_METRICS])
    caption = "Line: mean over learners" + (
        "; thin: single learners." if history.learners > 1 else "."
    )
    drawing = Drawing("", figure, f"Metrics of training. At the end: {last}.", caption)
    left_out = ", ".join(map(printable, names[MOST_METRICS:]))
    note = f"Not drawn: {left_out}. One of them: rljax plot RUN --metric NAME" if left_out else ""
    return Section("Metrics", [], [drawing], note)


def _place(name: str) -> tuple[int, str]:
    part = name.partition("/")[0]
    return FIRST.index(part) if part in FIRST else len(FIRST), name


def _line(history: History, name: str) -> figures.Line:
    """A metric over steps; lines of metrics without a value are left out."""
    column = history.metrics[name]
    few = 1 < history.learners <= figures.MOST_SINGLE_LEARNERS
    single = [_known(history.steps, values) for values in column.T] if few else ()
    steps, mean = _known(history.steps, quiet(np.nanmean, column, axis=1))
    nothing = np.full(len(steps), np.nan)
    return figures.Line(name, steps, mean, nothing, nothing, single)


def _known(steps: np.ndarray, values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    known = np.isfinite(values)
    return steps[known], values[known]


def of_settings(run: RunRecord) -> Section:
    """All settings of a run."""
    of_agent = [(name, value) for name, value in run.config["config"].items()]
    of_run = [(name, run.config[name]) for name in PROTOCOL if run.config.get(name)]
    captions = {"Hyperparameters of the agent.": of_agent, "Settings of the run.": of_run}
    tables = [
        CaptionedTable(
            caption,
            ["setting", "value"],
            [
                [TableCell.of(printable(name)), TableCell.of(_shown(value), text=True)]
                for name, value in pairs
            ],
        )
        for caption, pairs in captions.items()
        if pairs
    ]
    return Section("All settings", tables)


def _shown(value: Any) -> str:
    return printable(value) if isinstance(value, dict | str) else formatting.setting(value)


def of_unevaluated(runs: Sequence[RunRecord]) -> Section | None:
    """Runs that had no environment: their estimates and losses; None without any."""
    if not runs:
        return None
    rows = []
    for run in runs:
        estimate = (run.summary.get("estimate") or {}).get("mean")
        rows.append(
            [
                TableCell.of(registry.agent_name(run.agent), printable(run.folder)),
                TableCell.of(labels.task_name("none", run.config.get("data")), text=True),
                TableCell.of("-" if estimate is None else f"{estimate:,.4g}"),
                TableCell([(text, "") for text in _losses(run)] or [("-", "")], text=True),
            ]
        )
    columns = ["run", "data", "estimate of the discounted return", "losses at the end"]
    caption = (
        "Runs without an environment have no returns. Compare them by an estimate (rljax train fqe "
        "--base RUN) or by losses on held-out data: rljax select RUNS --validation DATA"
    )
    return Section("Runs without evaluations", [CaptionedTable(caption, columns, rows)])


def _losses(run: RunRecord) -> Iterator[str]:
    history = _history(run)
    if history is None:
        return
    for name in sorted(history.metrics, key=_place):
        if name.endswith("/loss") and np.isfinite(history.level(name)).any():
            yield f"{printable(name)} {_mean(history, name)}"


def _mean(history: History, name: str) -> str:
    """The level of a metric, as a mean over learners."""
    return formatting.plain(float(quiet(np.nanmean, history.level(name))))


def films(run: RunRecord) -> str:
    """The films in a run's folder as HTML; empty without any."""
    figures_html = []
    for path in sorted(run.folder.iterdir()):
        kind = FILMS.get(path.suffix)
        if kind is None or path.is_symlink() or not path.is_file():
            continue
        name = escape(printable(path.name))
        if path.stat().st_size > MOST_BYTES:
            figures_html.append(f"<p>{name} is too large for this page.</p>")
            continue
        source = f"data:{kind};base64,{base64.b64encode(path.read_bytes()).decode()}"
        film = f'<video controls loop muted playsinline src="{source}"></video>'
        if kind.startswith("image"):
            film = f'<img alt="{name}" src="{source}">'
        figures_html.append(f"<figure>{film}<figcaption>{name}</figcaption></figure>")
    return "".join(figures_html)
