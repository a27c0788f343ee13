"""A live table of runs in the terminal."""

from __future__ import annotations

import dataclasses
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rljax.analysis import formatting, labels
from rljax.analysis.report import searches
from rljax.analysis.tail import Tail
from rljax.learning import registry
from rljax.runs import records
from rljax.runs.statistics import estimators
from rljax.trust import printable

# In the table's order.
STATES = ("running", "starting", "stalled", "stopped", "diverged", "unreadable", "complete")
COLOURS = {
    "running": "green",
    "stalled": "yellow",
    "diverged": "red",
    "unreadable": "red",
    "complete": "dim",
}
# Seconds without a new line; at least ten chunks' time.
STALLED_AFTER = 120.0
START_LIMIT = 600.0  # seconds to the first line
RECENT_CHUNKS = 20  # from which the time left is estimated
NUMBER_COLUMNS = ("step", "steps/s", "IQM of the latest", "left")
BAR_WIDTH = 12  # characters of the progress bar
TASK_WIDTH = 16  # characters of a task's name for which the table leaves out columns
DEFAULT_WIDTH = 160  # characters of a line where the output is no terminal


def follow(
    paths: Sequence[Path], once: bool = False, every: float = 2.0, output: TextIO | None = None
) -> None:
    """Show the runs in and below `paths`, also new ones, until all are complete or Ctrl-C.

    With `once`, or where `output` is no terminal, prints once.

    Raises `ValueError` for paths without runs, or `every` seconds not above 0.
    """
    if every <= 0:
        raise ValueError(f"--every is {every:g}, it must be above 0 seconds.")
    from rich.console import Console
    from rich.live import Live

    stream = output or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else DEFAULT_WIDTH)
    sweeps = [Path(path) for path in paths if searches.is_sweep(path)]
    runs: dict[Path, WatchedRun] = {}
    _update(paths, runs)
    if not runs:
        raise ValueError(
            f"there is no run in {formatting.quoted(paths)} yet. One begins with: rljax train sac "
            "--env Hopper-v5"
        )
    if once or not stream.isatty():
        console.print(_table(runs, sweeps, console.width))
        return
    try:
        with Live(_table(runs, sweeps, console.width), console=console, auto_refresh=False) as live:
            while any(run.state != "complete" for run in runs.values()):
                time.sleep(every)
                _update(paths, runs)
                live.update(_table(runs, sweeps, console.width), refresh=True)
    except KeyboardInterrupt:  # the runs go on
        return


@dataclasses.dataclass
class WatchedRun:
    """The state of one run. `look` updates it."""

    folder: Path
    config: dict[str, Any]  # config.json; empty where it cannot be read
    metrics: Tail
    evaluations: Tail
    step: int = 0
    speed: float | None = None  # steps per second of all learners together
    latest: str = ""  # the latest evaluation: the IQM over learners with its interval
    diverged: int = 0  # learners that had diverged at the latest evaluation
    state: str = "starting"
    # Step and wall time in seconds of recent chunks.
    pace: deque[tuple[int, float]] = dataclasses.field(
        default_factory=lambda: deque(maxlen=RECENT_CHUNKS)
    )
    # latest evaluation: step, learner
    returns: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> WatchedRun:
        """The run in `folder`, before the first look."""
        try:
            config = records.read_config(folder)
        except (ValueError, OSError):
            config = {}
        metrics, evaluations = (
            Tail(folder / records.FILES[name]) for name in ("metrics", "evaluations")
        )
        return cls(folder, config, metrics, evaluations)

    @property
    def total(self) -> int:
        """Each learner's planned steps; 0 where unknown."""
        return self.config.get("steps", 0) + (self.config.get("then_online") or 0)

    @property
    def learners(self) -> int:
        """The number of learners; in a grid, more than seeds."""
        return max(len(self.config["seeds"]), *map(len, self.returns.values()), 0)

    @property
    def left(self) -> float | None:
        """Seconds until the end at the recent pace, if known."""
        if self.state not in ("running", "stalled") or len(self.pace) < 2:
            return None
        (first, began), (last, now) = self.pace[0], self.pace[-1]
        return (self.total - last) * (now - began) / (last - first) if last > first else None

    def look(self, now: float) -> None:
        """Read new lines; `now` is in seconds since the epoch."""
        if not self.config:
            self.state = "unreadable"
            return
        try:
            self._add_metrics(self.metrics.look())
            self._add_evaluations(self.evaluations.look())
            self.state = self._current_state(now)
        except (ValueError, OSError):
            self.state = "unreadable"

    def _add_metrics(self, lines: Sequence[bytes]) -> None:
        for line in lines[-RECENT_CHUNKS:]:
            record = records.parse(line, "metrics")
            if record is not None:
                self.step, self.speed = record["step"], record.get("steps_per_second")
                while self.pace and self.pace[-1][0] >= self.step:  # it was resumed
                    self.pace.pop()
                self.pace.append((self.step, record.get("wall_seconds") or 0.0))

    def _add_evaluations(self, lines: Sequence[bytes]) -> None:
        step = None
        for line in reversed(lines):
            record = records.parse(line, "evaluations")
            if record is None:
                continue
            if step is None:
                step = record["step"]
                if step not in self.returns:
                    self.returns, self.diverged = {step: {}}, 0
            if record["step"] != step:
                break
            self.returns[step][record["learner"]] = float(estimators.mean(record["returns"]))
            self.diverged += bool(record.get("diverged"))
        if step is not None:
            self.latest = _iqm(np.array(list(self.returns[step].values())))

    def _current_state(self, now: float) -> str:
        if self.step >= self.total:
            return "complete"
        if self.diverged == self.learners:
            return "diverged"
        written = [
            _write_time(self.folder / records.FILES[name]) for name in ("metrics", "evaluations")
        ]
        latest = max(filter(None, written), default=None)
        if not self.step or latest is None:
            began = latest or _write_time(self.folder / "config.json") or now
            return "starting" if now - began < START_LIMIT else "stalled"
        ended = _write_time(self.folder / records.SUMMARY)
        if ended is not None and ended >= latest:
            summary = records.read_summary(self.folder)
            return "diverged" if len(summary.get("diverged", [])) == self.learners else "stopped"
        chunks = np.diff([wall for _, wall in self.pace])  # seconds of each
        limit = max(STALLED_AFTER, 10 * max(chunks, default=0.0))
        return "running" if now - latest < limit else "stalled"


def _update(paths: Sequence[Path], runs: dict[Path, WatchedRun]) -> None:
    for folder in records.find(paths):
        if folder not in runs:
            runs[folder] = WatchedRun.open(folder)
    now = time.time()
    for run in runs.values():
        run.look(now)


def _table(runs: dict[Path, WatchedRun], sweeps: Sequence[Path], width: int) -> Any:
    """A table, running runs first, with the columns that fit into `width`, and below it a line for
    each sweep.
    """
    from rich.console import Group
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    ordered = sorted(runs.values(), key=lambda run: (STATES.index(run.state), run.folder))
    rows = [_cells(run) for run in ordered]
    columns, task_width = _fit(rows, width)
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in columns:
        table.add_column(name, justify="right" if name in NUMBER_COLUMNS else "left", no_wrap=True)
    for run, row in zip(ordered, rows, strict=True):
        special = {
            "task": Text(row["task"][:task_width]),
            "": ProgressBar(total=run.total, completed=min(run.step, run.total), width=BAR_WIDTH),
            "state": Text(row["state"], style=COLOURS.get(run.state, "")),
        }
        table.add_row(*(special.get(name) or Text(row[name]) for name in columns))
    return Group(table, *(Text(f"{printable(x)}: {_search(x)}") for x in sweeps))


def _search(sweep: Path) -> str:
    try:
        return printable(searches.text(searches.read(sweep)))
    except ValueError:  # its file is being written
        return "unreadable"


def _fit(rows: Sequence[dict[str, str]], width: int) -> tuple[list[str], int]:
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]}
    widths[""] = BAR_WIDTH
    spare = width - sum(widths.values()) - 2 * len(widths)
    longest = widths["task"]
    for name in ("run", "", "steps/s"):
        if spare + longest - min(longest, TASK_WIDTH) < 0:
            spare += widths.pop(name) + 2
    return list(widths), max(8, longest + min(0, spare))


def _cells(run: WatchedRun) -> dict[str, str]:
    empty = dict.fromkeys(("agent", "task", "run", "", *NUMBER_COLUMNS, "state"), "")
    name = printable(run.folder.name)
    if run.state == "unreadable":
        return empty | {"run": name, "state": f"unreadable{'' if run.config else ': config.json'}"}
    diverged = f", {run.diverged} of {run.learners} diverged" if run.diverged else ""
    return empty | {
        "agent": printable(registry.agent_name(run.config["agent"])),
        "task": printable(labels.task_name(run.config["environment"], run.config.get("data"))),
        "run": name,
        "step": f"{formatting.steps(run.step)}/{formatting.steps(run.total)}",
        "steps/s": "" if run.speed is None else f"{run.speed:,.0f}",
        "IQM of the latest": run.latest and f"{run.latest} of {run.learners}",
        "left": "" if run.left is None else _duration(run.left),
        "state": run.state + diverged,
    }


def _iqm(returns: np.ndarray) -> str:
    low, high = estimators.interval(returns)
    places = formatting.decimals(returns)
    centre = formatting.number(estimators.iqm(returns), places)
    if np.isnan(low):
        return centre
    return f"{centre} [{formatting.number(low, places)} to {formatting.number(high, places)}]"


def _write_time(path: Path) -> float | None:
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    if minutes >= 60:
        return f"{minutes // 60}:{minutes % 60:02d} h"
    return f"{minutes} min" if minutes else "< 1 min"
