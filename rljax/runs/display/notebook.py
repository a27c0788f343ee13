"""The display of a running run below a cell of a notebook: a bar and a learning curve."""

from __future__ import annotations

import html
import io
import math
import sys
import time
from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljax.runs import records
from rljax.runs.display.console import View, evaluation_text, summary_lines
from rljax.trust import LINES, printable

if TYPE_CHECKING:
    from rljax.learning.settings import Settings

SECONDS = 0.25  # between two drawings of the bar


def is_notebook() -> bool:
    """Whether this process is the kernel of a notebook."""
    ipython = sys.modules.get("IPython")
    shell = None if ipython is None else ipython.get_ipython()
    return getattr(shell, "kernel", None) is not None


class Notebook(View):
    """A bar, and from the first evaluation on a curve; both are redrawn in place."""

    is_python = True

    def __init__(self) -> None:
        from IPython import display  # type: ignore[import-not-found]

        self._display = display
        self._bar: Any = None
        self._curve: Any = None

    def start(self, folder: Path, total: int, settings: Settings, needed: int) -> None:
        self._total, self._environment = total, settings.evaluated_in
        self._title = f"{settings.agent} on {settings.env}, in {folder}"
        self._began, self._drawn = time.perf_counter(), -math.inf
        self._first: int | None = None  # the step at which this display began
        self._step, self._numbers, self._activity = 0, "", "compiling"
        self._chance: float | None = None
        self._returns: dict[int, np.ndarray] = _returns(folder)  # [P] by step
        self._bar = self._display.display(self._drawing(), display_id=True)

    def status(self, text: str) -> None:
        self._activity = text
        self._draw()

    def update(self, step: int, speed: float, latest: float) -> None:
        self._step, self._activity = step, "training"
        self._numbers = f"{speed:,.0f} steps/s"
        if not math.isnan(latest):
            self._numbers += f", return {latest:,.1f}"
        self._draw()

    def evaluated(
        self,
        step: int,
        returns: np.ndarray,
        signals: Mapping[str, np.ndarray],
        success: np.ndarray | None = None,
        random: float | None = None,
    ) -> None:
        self._chance = self._chance if random is None else random
        self._step, self._activity = step, "training"
        self._returns[step] = returns
        picture = self._display.Image(data=self._figure(), format="png")
        if self._curve is None:
            self._curve = self._display.display(picture, display_id=True)
        else:
            self._curve.update(picture)
        self._numbers = evaluation_text(returns, signals, success, random)
        self._draw(at_once=True)

    def say(self, text: str) -> None:
        print(printable(text, keep=LINES))

    def finished(self, summary: dict[str, Any]) -> None:
        self._activity = "ended"
        self._draw(at_once=True)
        for line in summary_lines(summary):
            self.say(line)

    def _draw(self, at_once: bool = False) -> None:
        now = time.perf_counter()
        if self._bar is not None and (at_once or now - self._drawn > SECONDS):
            self._drawn = now
            self._bar.update(self._drawing())

    def _drawing(self) -> Any:
        line = f"{self._step:,}/{self._total:,} {self._activity} {self._numbers} {self._clock()}"
        title, line = (html.escape(printable(text)) for text in (self._title, line))
        bar = f'<progress value="{self._step}" max="{self._total}" style="width:40%"></progress>'
        return self._display.HTML(f"<div>{title}</div><div>{bar} {line}</div>")

    def _clock(self) -> str:
        seconds = time.perf_counter() - self._began
        if self._first is None and self._step:
            self._first, self._began_first = self._step, seconds
        if self._first in (None, self._step):
            return f"({_minutes(seconds)})"
        each = (seconds - self._began_first) / (self._step - self._first)
        return f"({_minutes(seconds)}, left {_minutes(each * (self._total - self._step))})"

    def _figure(self) -> bytes:
        from matplotlib.figure import Figure

        figure = Figure(figsize=(6.0, 2.7), layout="constrained")
        axes = figure.subplots()
        steps = sorted(self._returns)
        learners = [self._returns[step] for step in steps]
        axes.plot(steps, [each.mean() for each in learners], marker="o", markersize=3)
        if len(learners[0]) > 1:
            least, most = [each.min() for each in learners], [each.max() for each in learners]
            axes.fill_between(steps, least, most, alpha=0.2, linewidth=0)
        if self._chance is not None:
            axes.axhline(self._chance, color="grey", linestyle=":", label="uniform actions")
            axes.legend(frameon=False)
        axes.set(xlim=(0, self._total), xlabel="steps", ylabel="evaluation return")
        axes.set_title(printable(self._environment).replace("$", r"\$"))
        axes.spines[["top", "right"]].set_visible(False)
        stream = io.BytesIO()
        figure.savefig(stream, format="png", dpi=90)
        return stream.getvalue()


def _returns(folder: Path) -> dict[int, np.ndarray]:
    """The mean returns [P] of a run's evaluations so far, by step."""
    means = defaultdict(list)
    for record in records.read(folder, "evaluations"):
        means[record["step"]].append(np.mean(record["returns"]))
    return {step: np.array(each) for step, each in means.items()}


def _minutes(seconds: float) -> str:
    return f"{seconds // 60:.0f}:{seconds % 60:02.0f}"
