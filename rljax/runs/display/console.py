"""The display of a running run: a live line in the terminal, or nothing.

That of notebooks is in `rljax.runs.display.notebook`.
"""

from __future__ import annotations

import contextlib
import math
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rljax.trust import LINES, printable

if TYPE_CHECKING:
    import numpy as np

    from rljax.learning.settings import Settings


class View:
    """Without progress, for the Python API."""

    is_python = False  # the user types Python, not commands

    def start(self, folder: Path, total: int, settings: Settings, needed: int) -> None:
        """A run begins, with `total` steps per learner and `needed` bytes of state."""

    def status(self, text: str) -> None:
        """Show the current activity."""

    def update(self, step: int, speed: float, latest: float) -> None:
        """A chunk has ended: steps, steps per second and last return (or NaN)."""

    def evaluated(
        self,
        step: int,
        returns: np.ndarray,
        signals: Mapping[str, np.ndarray],
        success: np.ndarray | None = None,
        random: float | None = None,
    ) -> None:
        """Means of an evaluation's returns [P], of signals, [P] by name, of success [P], if
        reported, and at first the return of uniform actions.
        """

    def say(self, text: str) -> None:
        """Show a lasting message."""
        print(printable(text, keep=LINES), file=sys.stderr)

    def warn(self, text: str) -> None:
        """Show a warning."""
        print(f"warning: {printable(text, keep=LINES)}", file=sys.stderr)

    def finished(self, summary: dict[str, Any]) -> None:
        """The run has ended."""

    def stop(self) -> None:
        """Restore the terminal."""


class Silent(View):
    """Shows nothing at all."""

    def say(self, text: str) -> None:
        """Nothing."""

    def warn(self, text: str) -> None:
        """Nothing."""


class Terminal(View):
    """A progress line below a line per evaluation."""

    def __init__(self) -> None:
        from rich.console import Console

        self.console = Console(stderr=True, soft_wrap=True, highlight=False)

    def start(self, folder: Path, total: int, settings: Settings, needed: int) -> None:
        from rich.progress import BarColumn, Progress, TimeElapsedColumn, TimeRemainingColumn

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
            "{task.description:<10}",
            BarColumn(),
            "{task.completed:,}/{task.total:,}",
            "{task.fields[speed]}",
            "{task.fields[latest]}",
            TimeElapsedColumn(),
            "left",
            TimeRemainingColumn(),
            console=self.console,
            refresh_per_second=4,
        )
        self.task = self.progress.add_task("compiling", total=total, speed="", latest="")
        self.progress.start()

    def status(self, text: str) -> None:
        self.progress.update(self.task, description=text)

    def update(self, step: int, speed: float, latest: float) -> None:
        self.progress.update(
            self.task,
            completed=step,
            description="training",
            speed=f"{speed:,.0f} steps/s",
            latest="" if math.isnan(latest) else f"return {latest:,.1f}",
        )

    def evaluated(
        self,
        step: int,
        returns: np.ndarray,
        signals: Mapping[str, np.ndarray],
        success: np.ndarray | None = None,
        random: float | None = None,
    ) -> None:
        text = evaluation_text(returns, signals, success, random)
        self.console.print(f"step {step:>10,}  evaluation {_plain(text)}")
        self.status("training")

    def say(self, text: str) -> None:
        self.console.print(printable(text, keep=LINES), markup=False)

    def warn(self, text: str) -> None:
        self.console.print(f"[yellow]warning:[/yellow] {_plain(text)}")

    def finished(self, summary: dict[str, Any]) -> None:
        self.stop()
        for line in summary_lines(summary):
            self.say(line)

    def stop(self) -> None:
        with contextlib.suppress(AttributeError):
            self.progress.stop()


def _plain(text: object) -> str:
    """Text without rich's markup and control characters."""
    from rich.markup import escape

    return escape(printable(text, keep=LINES))


def evaluation_text(
    returns: np.ndarray,
    signals: Mapping[str, np.ndarray],
    success: np.ndarray | None,
    random: float | None,
) -> str:
    """The means of an evaluation, for users. See `View.evaluated`."""
    spread = f" (learners {returns.min():,.1f} to {returns.max():,.1f})" if len(returns) > 1 else ""
    rate = "" if success is None else f", success {success.mean():.0%}"
    sums = "".join(f", {name} {means.mean():,.1f}" for name, means in signals.items())
    chance = "" if random is None else f" (uniform actions {random:,.1f})"
    return f"return {returns.mean():>10,.1f}{spread}{rate}{sums}{chance}"


def summary_lines(summary: Mapping[str, Any]) -> list[str]:
    """What a run came to, for users."""
    from rljax.learning import population

    lines, limit = [], summary.get("cost_limit")
    if summary["final"] is not None:
        lines.append(f"final return {_final(summary['final'], limit)}")
    if "estimate" in summary:
        lines.append(f"estimate of the discounted return: {summary['estimate']['mean']:,.4g}")
    for entry in _best_first(summary.get("settings", [])):
        lines.append(f"{population.label(entry['values'])}: final return {_final(entry['final'])}")
    lines += [f"diverged: {learner['cause']}" for learner in summary["diverged"]]
    speed = summary["steps_per_second"]
    in_loop = f"; {speed:,.0f} steps/s in the training loop" if speed else ""
    lines.append(
        f"{summary['wall_seconds']:,.0f} s, of which {summary['compile_seconds']:.1f} s compiling"
        f"{in_loop}; {summary['peak_memory_bytes'] / 1e6:,.0f} MB at most"
    )
    return lines


def _final(final: dict[str, Any], cost_limit: float | None = None) -> str:
    from rljax.runs.statistics.summaries import signals_text

    number = len(final["learners"])
    rate = "" if final["success"] is None else f", success {final['success']:.0%}"
    means = f"{final['mean']:,.1f}{rate}{signals_text(final, cost_limit)}"
    text = f"{means} at {final['step']:,} steps"
    if number == 1:
        return text
    if final["interval"] is None:
        means = (learner["mean"] for learner in final["learners"])
        each = ", ".join("not finite" if x is None else f"{x:,.1f}" for x in means)
        return f"{text} ({number} learners: {each})"
    interval = "95 % interval of the interquartile mean {:,.1f} to {:,.1f}".format(
        *final["interval"]
    )
    return f"{text} ({number} learners; {interval})"


def _best_first(settings: list[dict[str, Any]]) -> list[dict[str, Any]]:
    evaluated = [
        entry for entry in settings if entry["final"] and entry["final"]["iqm"] is not None
    ]
    return sorted(evaluated, key=lambda entry: -entry["final"]["iqm"])[:20]


def create(quiet: bool | None) -> View:
    """A quiet view, or that of the terminal or of a notebook; in processes after the first
    `Silent`.

    None shows progress in a notebook alone.
    """
    from rljax.distributed import processes
    from rljax.runs.display import notebook

    if not processes.is_first():
        return Silent()
    if not quiet and notebook.is_notebook():
        return notebook.Notebook()
    return Terminal() if quiet is False else View()
