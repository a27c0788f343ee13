"""Running runs in the terminal: one line for each, from what their files have got since the last look."""

from __future__ import annotations

import dataclasses
import json
import sys
import time
from collections import deque
from collections.abc import Sequence
from pathlib import Path
from typing import Any, TextIO

import numpy as np

from rljax.analysis import formatting, labels
from rljax.runs import records, statistics
from rljax.training import configuration

ORDER = ("running", "starting", "stalled", "stopped", "diverged", "unreadable", "complete")
STYLES = {"running": "green", "stalled": "yellow", "diverged": "red", "unreadable": "red", "complete": "dim"}
SILENCE = 120.0  # seconds without a line after which a run is stalled, or ten times those of a chunk if that is more
STARTING = 600.0  # the same before its first line, while it compiles
PACE = 20  # chunks over which the time that is left is reckoned
NUMBERS = ("step", "steps/s", "IQM of the latest", "left")  # columns
BAR, TASK = 12, 16  # characters: of the bar, and of a task before anything else is left out for it
WIDTH = 160  # where the output is no terminal


def follow(paths: Sequence[Path], once: bool = False, every: float = 2.0, output: TextIO | None = None) -> None:
    """Show the runs in and below `paths`, new ones too, until all are complete or Ctrl-C.

    Args:
        paths: folders of runs, or folders with runs at any depth.
        once: print and return; so it is anyway where `output` is no terminal.
        every: seconds between looks.
        output: where to print, by default the standard output.

    Raises:
        ValueError: a path that is no folder, no run in any of them, or a time that is not above 0.
    """
    if every <= 0:
        raise ValueError(f"--every is {every:g}, it must be above 0 seconds.")
    from rich.console import Console
    from rich.live import Live

    stream = output or sys.stdout
    console = Console(file=stream, width=None if stream.isatty() else WIDTH)
    runs: dict[Path, Run] = {}
    _look(paths, runs)
    if not runs:
        names = formatting.quoted(paths)
        raise ValueError(f"there is no run in {names} yet. One begins with: rljax train sac --env Hopper-v5")
    if once or not stream.isatty():
        console.print(_table(runs, console.width))
        return
    try:
        with Live(_table(runs, console.width), console=console, auto_refresh=False) as live:
            while any(run.state != "complete" for run in runs.values()):
                time.sleep(every)
                _look(paths, runs)
                live.update(_table(runs, console.width), refresh=True)
    except KeyboardInterrupt:  # nothing of the runs depends on being looked at
        return


@dataclasses.dataclass
class Run:
    """What is known of one run; `look` brings it up to date."""

    folder: Path
    described: dict[str, Any]
    metrics: records.Tail
    evaluations: records.Tail
    step: int = 0
    speed: float | None = None  # steps per second of all learners
    latest: str = ""  # evaluation
    diverged: int = 0  # learners, by the latest evaluation
    state: str = "starting"
    pace: deque[tuple[int, float]] = dataclasses.field(default_factory=lambda: deque(maxlen=PACE))  # step, wall seconds
    returns: dict[int, dict[int, float]] = dataclasses.field(default_factory=dict)  # by step and learner

    @classmethod
    def open(cls, folder: Path) -> Run:
        """The run in `folder`, not looked at yet."""
        try:
            described = records.read_config(folder)
        except ValueError:
            described = {}
        metrics, evaluations = (records.Tail(folder / records.FILES[name]) for name in ("metrics", "evaluations"))
        return cls(folder, described, metrics, evaluations)

    @property
    def total(self) -> int:
        """Planned steps of each learner; 0 where that is not known."""
        return self.described.get("steps", 0) + (self.described.get("then_online") or 0)

    @property
    def learners(self) -> int:
        """How many of them; a grid has more than seeds."""
        return max(len(self.described["seeds"]), *map(len, self.returns.values()), 0)

    @property
    def left(self) -> float | None:
        """Seconds until the end at the pace of late, evaluations included; None where that is not known."""
        if self.state not in ("running", "stalled") or len(self.pace) < 2:
            return None
        (first, began), (last, now) = self.pace[0], self.pace[-1]
        return (self.total - last) * (now - began) / (last - first) if last > first else None

    def look(self, now: float) -> None:
        """Read what is new; `now` is the time since the epoch in seconds."""
        if not {"agent", "environment", "steps", "seeds"} <= self.described.keys():
            self.state = "unreadable"
            return
        for line in self.metrics.look()[-PACE:]:
            entry = _record(line)
            if "step" in entry:
                self.step, self.speed = entry["step"], entry.get("steps_per_second")
                while self.pace and self.pace[-1][0] >= self.step:  # resumed from before
                    self.pace.pop()
                self.pace.append((self.step, entry.get("wall_seconds") or 0.0))
        self._evaluated(self.evaluations.look())
        self.state = self._state(now)

    def _evaluated(self, lines: Sequence[bytes]) -> None:
        """Take the lines of the last step in."""
        step = None
        for line in reversed(lines):
            entry = _record(line)
            if "returns" not in entry:
                continue
            if step is None and entry["step"] not in self.returns:
                self.returns, self.diverged = {entry["step"]: {}}, 0
            step = entry["step"] if step is None else step
            if entry["step"] != step:
                break
            self.returns[step][entry["learner"]] = float(statistics.mean(entry["returns"]))
            self.diverged += bool(entry.get("diverged"))
        if step is not None:
            self.latest = _summary(np.array(list(self.returns[step].values())))

    def _state(self, now: float) -> str:
        if self.step >= self.total:
            return "complete"
        if self.diverged == self.learners:
            return "diverged"
        written = _written(self.folder / records.FILES["metrics"]), _written(self.folder / records.FILES["evaluations"])
        latest = max(filter(None, written), default=None)
        if not self.step or latest is None:
            return (
                "starting" if now - (latest or _written(self.folder / "config.json") or now) < STARTING else "stalled"
            )
        ended = _written(self.folder / "summary.json")
        if ended is not None and ended >= latest:
            lost = json.loads((self.folder / "summary.json").read_text(encoding="utf-8")).get("diverged", [])
            return "diverged" if len(lost) == self.learners else "stopped"
        walls = [wall for _, wall in self.pace]
        patience = max(SILENCE, 10 * max(np.diff(walls), default=0.0))
        return "running" if now - latest < patience else "stalled"


def _look(paths: Sequence[Path], runs: dict[Path, Run]) -> None:
    """Bring all runs up to date, and take new ones in."""
    for folder in records.find(paths):
        if folder not in runs:
            runs[folder] = Run.open(folder)
    now = time.time()
    for run in runs.values():
        run.look(now)


def _table(runs: dict[Path, Run], width: int) -> Any:
    """The runs as rich's table, those first that are running; what does not fit into `width` characters is left out."""
    from rich.progress_bar import ProgressBar
    from rich.table import Table
    from rich.text import Text

    ordered = sorted(runs.values(), key=lambda run: (ORDER.index(run.state), run.folder))
    rows = [_cells(run) for run in ordered]
    widths = {name: max(len(name), *(len(row[name]) for row in rows)) for name in rows[0]} | {"": BAR}
    spare = width - sum(widths.values()) - 2 * len(widths)
    longest = widths["task"]
    for name in ("run", "", "steps/s"):
        if spare + longest - min(longest, TASK) < 0:
            spare += widths.pop(name) + 2
    room = max(8, longest + min(0, spare))
    table = Table(box=None, padding=(0, 2, 0, 0), header_style="bold")
    for name in widths:
        table.add_column(name, justify="right" if name in NUMBERS else "left", no_wrap=True)
    for run, row in zip(ordered, rows, strict=True):
        special = {
            "task": Text(row["task"][:room]),
            "": ProgressBar(total=run.total, completed=min(run.step, run.total), width=BAR),
            "state": Text(row["state"], style=STYLES.get(run.state, "")),
        }
        table.add_row(*(special.get(name) or Text(row[name]) for name in widths))
    return table


def _cells(run: Run) -> dict[str, str]:
    """What stands in a run's line, by the column's name; "" is the bar's."""
    empty = dict.fromkeys(("agent", "task", "run", "", *NUMBERS, "state"), "")
    if run.state == "unreadable":
        return empty | {"run": run.folder.name, "state": "unreadable: config.json"}
    return empty | {
        "agent": configuration.agent_name(run.described["agent"]),
        "task": labels.task_name(run.described["environment"], run.described.get("data")),
        "run": run.folder.name,
        "step": f"{formatting.steps(run.step)}/{formatting.steps(run.total)}",
        "steps/s": "" if run.speed is None else f"{run.speed:,.0f}",
        "IQM of the latest": run.latest and f"{run.latest} of {run.learners}",
        "left": "" if run.left is None else _duration(run.left),
        "state": run.state + (f", {run.diverged} of {run.learners} diverged" if run.diverged else ""),
    }


def _record(line: bytes) -> dict[str, Any]:
    """The record of a line; empty for a damaged one."""
    try:
        entry = json.loads(line)
    except ValueError:
        return {}
    return entry if isinstance(entry, dict) else {}


def _summary(returns: np.ndarray) -> str:
    """The IQM over learners, and its interval where there is one."""
    low, high = statistics.interval(returns)
    digits = formatting.decimals(returns)
    centre = f"{statistics.iqm(returns):,.{digits}f}"
    return centre if np.isnan(low) else f"{centre} [{low:,.{digits}f} to {high:,.{digits}f}]"


def _written(path: Path) -> float | None:
    """When a file was last written, in seconds since the epoch; None where there is none."""
    try:
        return path.stat().st_mtime
    except OSError:
        return None


def _duration(seconds: float) -> str:
    minutes = round(seconds / 60)
    return f"{minutes // 60}:{minutes % 60:02d} h" if minutes >= 60 else f"{minutes} min" if minutes else "< 1 min"
