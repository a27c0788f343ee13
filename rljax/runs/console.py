"""The display of a running run: a live line in the terminal, or nothing.

Importing this module imports nothing heavy: the command line uses it for its errors.
"""

from __future__ import annotations

import contextlib
import math
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljax.trust import LINES, printable

if TYPE_CHECKING:
    import numpy as np

    from rljax.training.settings import Settings


class View:
    """A view that shows no progress: the base class of views, and the view of the Python API."""

    def start(self, folder: Path, total: int, settings: Settings, needed: int) -> None:
        """A run begins in `folder` with `total` steps per learner and a state of `needed` bytes."""

    def status(self, text: str) -> None:
        """Show the current activity."""

    def compiling(self, seconds: float) -> None:
        """A compilation has taken this long."""

    def update(self, step: int, speed: float, latest: float) -> None:
        """A chunk has ended: steps and steps per second of one learner,
        the latest return (NaN if none yet).
        """

    def evaluated(self, step: int, returns: np.ndarray, signals: Mapping[str, np.ndarray]) -> None:
        """An evaluation has ended: mean returns [P], and means of signals by name, [P] each."""

    def say(self, text: str) -> None:
        """Show a message that stays on the screen."""
        print(printable(text, keep=LINES), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Show a warning."""
        print(f"warning: {printable(text, keep=LINES)}", file=sys.stderr)

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended."""

    def stop(self) -> None:
        """Restore the terminal."""


class Silent(View):
    """A view that shows nothing at all, for all processes except the first."""

    def say(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""


class Terminal(View):
    """A live progress line, and one line per evaluation above it."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, soft_wrap=True, highlight=False)

    def start(self, folder: Path, total: int, settings: Settings, needed: int) -> None:
        """Print the agent, the environment and the folder, and open the live line."""
        from rich.progress import (
            BarColumn,
            Progress,
            TextColumn,
            TimeElapsedColumn,
            TimeRemainingColumn,
        )

        learners = len(settings.seeds)
        evaluated_in = (
            ""
            if settings.eval_env is None
            else f", judged in [bold]{_plain(settings.eval_env)}[/bold]"
        )
        self.console.print(
            f"[bold]{_plain(settings.agent)}[/bold] on "
            f"[bold]{_plain(settings.env)}[/bold]{evaluated_in}, {learners} "
            f"learner{'s' if learners > 1 else ''} x {total:,} steps, {needed / 1e6:,.0f} MB "
            f"of state, in {_plain(folder)}"
        )
        self.progress = Progress(
            TextColumn("{task.description:<10}"),
            BarColumn(),
            TextColumn("{task.completed:,}/{task.total:,}"),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[latest]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(elapsed_when_finished=False),
            console=self.console,
            transient=False,
            refresh_per_second=4,
        )
        self.task = self.progress.add_task("compiling", total=total, speed="", latest="")
        self.progress.start()
        self.printed = time.monotonic()

    def status(self, text: str) -> None:
        """Put a word in front of the bar."""
        self.progress.update(self.task, description=text)

    def update(self, step: int, speed: float, latest: float) -> None:
        """Move the bar."""
        self.progress.update(
            self.task,
            completed=step,
            description="training",
            speed=f"{speed:,.0f} steps/s",
            latest="" if math.isnan(latest) else f"return {latest:,.1f}",
        )

    def evaluated(self, step: int, returns: np.ndarray, signals: Mapping[str, np.ndarray]) -> None:
        """Print the evaluation: the mean over learners,
        and the range where there are several learners.
        """
        spread = (
            f" (learners {returns.min():,.1f} to {returns.max():,.1f})" if len(returns) > 1 else ""
        )
        sums = "".join(f", {_plain(name)} {means.mean():,.1f}" for name, means in signals.items())
        self.console.print(
            f"step {step:>10,}  evaluation return {returns.mean():>10,.1f}{spread}{sums}"
        )
        self.status("training")

    def say(self, text: str) -> None:
        """Print above the bar."""
        self.console.print(printable(text, keep=LINES), markup=False)

    def warn(self, text: str) -> None:
        """Print above the bar, marked."""
        self.console.print(f"[yellow]warning:[/yellow] {_plain(text)}")

    def finished(self, summary: dict[str, Any]) -> None:
        """Print the results of the run, and the commands to go on with."""
        from rljax.training import population

        self.stop()
        speed = summary["steps_per_second"]
        if summary["final"] is not None:
            self.console.print(f"final return {_final(summary['final'])}")
        for entry in _best_first(summary.get("settings", [])):
            self.console.print(
                f"{_plain(population.label(entry['values']))}: final return "
                f"{_final(entry['final'])}"
            )
        for learner in summary["diverged"]:
            self.console.print(f"[yellow]diverged:[/yellow] {_plain(learner['cause'])}")
        self.console.print(
            (
                f"{summary['wall_seconds']:,.0f} s, of which {summary['compile_seconds']:.1f} "
                "s compiling"
            )
            + (f"; {speed:,.0f} steps/s in the training loop" if speed else "")
            + f"; {summary['peak_memory_bytes'] / 1e6:,.0f} MB at most"
        )

    def stop(self) -> None:
        """Close the live line."""
        with contextlib.suppress(AttributeError):
            self.progress.stop()


def _plain(text: object) -> str:
    """Text without markup of rich, and without control characters."""
    from rich.markup import escape

    return escape(printable(text, keep=LINES))


def _final(final: dict[str, Any]) -> str:
    """The final evaluation of several learners, or of one."""
    number = len(final["learners"])
    from rljax.runs.statistics.summaries import shown

    sums = "".join(f", {name} {shown(mean)}" for name, mean in final.get("signals", {}).items())
    text = f"{final['mean']:,.1f}{sums} at {final['step']:,} steps"
    if final["interval"] is None or number == 1:
        return text
    low, high = final["interval"]
    return (
        text
        + f" ({number} learners; 95 % interval of the interquartile mean {low:,.1f} to {high:,.1f})"
    )


def _best_first(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Evaluated settings of a population by their final return, at most 20."""
    evaluated = [
        entry
        for entry in settings
        if entry["final"] is not None and entry["final"]["iqm"] is not None
    ]
    return sorted(evaluated, key=lambda entry: -entry["final"]["iqm"])[:20]


def create(quiet: bool) -> View:
    """A quiet view or the terminal's view.

    Where a run has several processes, only the first shows anything.
    """
    from rljax.distributed import processes

    if not processes.is_first():
        return Silent()
    return View() if quiet else Terminal()
