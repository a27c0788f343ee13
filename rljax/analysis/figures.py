"""Figures with one panel, and the parts of all figures."""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax.analysis.comparison import Estimate

# Okabe and Ito's without yellow. An SVG does not name pure black, so a page could not change it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#111111")
# The report replaces them with the colours of its page.
INK, GRID, PAPER = "#222222", "#e5e5e5", "#ffffff"
MOST_SINGLE_LEARNERS = 10  # a curve of more learners shows only its band

LineStyle = tuple[str, str]  # dashes and colour, as matplotlib names them

RC: Any = {
    "font.size": 9,
    "svg.hashsalt": "rljax",  # makes the same figure the same SVG
    "svg.fonttype": "none",
    "text.parse_math": False,  # a "$" in a name is a "$"
    "axes.facecolor": "none",
    **dict.fromkeys(
        ("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK
    ),
}


@dataclasses.dataclass
class Line:
    """A curve and its band: arrays [S], NaN where there is no band."""

    label: str
    steps: Any
    centre: Any
    low: Any
    high: Any
    learners: Sequence[tuple[Any, Any]] = ()  # steps and values of each, drawn as thin lines


def line_styles(names: Iterable[str]) -> dict[str, LineStyle]:
    """A line style for each name; up to 21 are different."""
    styles = itertools.cycle(itertools.product(("-", "-.", ":"), COLOURS))
    return dict(zip(names, styles, strict=False))


def save(figure: Any, output: Path) -> Path:
    """Write a figure to a file, on white. Makes a missing folder."""
    import matplotlib

    output.parent.mkdir(parents=True, exist_ok=True)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower())
    with matplotlib.rc_context(RC):
        figure.savefig(output, dpi=160, metadata=metadata)
    return output


def curves(
    title: str,
    lines: Mapping[str, Line],
    styles: Mapping[str, LineStyle],
    references: Mapping[str, tuple[str, ArrayLike, ArrayLike, ArrayLike]],
    axes: tuple[str, str] = ("environment steps", "evaluation return"),
) -> Any:
    """A figure with one panel of learning curves.

    `references` by name are published: label, steps, mean and standard deviation.
    """
    with _figure(2.9 + 0.17 * (len(lines) + len(references))) as (figure, panel):
        for name, line in lines.items():
            draw_line(panel, line, styles[name])
        for name, (label, steps, mean, std) in references.items():
            draw_reference(panel, label, styles[name][1], *map(np.asarray, (steps, mean, std)))
        finish_panel(panel, title, *axes)
        _move_legend(figure)
    return figure


def profiles(
    thresholds: ArrayLike,
    estimates: Mapping[str, Estimate],
    styles: Mapping[str, LineStyle],
    axis: str,
    title: str,
) -> Any:
    """A figure of performance profiles with bands, by name."""
    with _figure(2.9 + 0.17 * len(estimates)) as (figure, panel):
        for name, estimate in estimates.items():
            line = Line(wrapped(name), thresholds, estimate.value, estimate.low, estimate.high)
            draw_line(panel, line, styles[name])
        finish_panel(panel, title, axis, "share of runs above")
        panel.set_ylim(-0.02, 1.02)
        _move_legend(figure)
    return figure


def intervals(
    estimates: Mapping[str, Estimate],
    styles: Mapping[str, LineStyle],
    axis: str,
    title: str,
    mark: float | None = None,
) -> Any:
    """A figure of numbers with their intervals, and a `mark`."""
    labels = [wrapped(name, 24) for name in estimates]
    height = 0.9 + sum(0.18 + 0.15 * (1 + label.count("\n")) for label in labels)
    with _figure(height) as (figure, panel):
        if mark is not None:
            panel.axvline(mark, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        for place, (name, estimate) in enumerate(estimates.items()):
            bar: dict[str, Any] = {"linewidth": 6, "alpha": 0.35, "solid_capstyle": "butt"}
            colour = styles[name][1]
            panel.plot([estimate.low, estimate.high], [place] * 2, color=colour, zorder=2, **bar)
            panel.plot([estimate.value], [place], "o", color=colour, markersize=6, zorder=3)
        panel.set_yticks(range(len(estimates)), labels)
        panel.set_ylim(len(estimates) - 0.5, -0.5)
        panel.tick_params(axis="y", length=0)
        finish_panel(panel, title, axis, None)
        panel.margins(x=0.05)
    return figure


def panels(lines: Mapping[str, Line], style: LineStyle, x_label: str) -> Any:
    """A figure with a small panel for each line, two in a row."""
    import matplotlib
    from matplotlib.figure import Figure

    rows = -(-len(lines) // 2)
    with matplotlib.rc_context(RC | {"font.size": 7}):
        figure = Figure(figsize=(5.2, 0.4 + 1.35 * rows), layout="constrained")
        axes = figure.subplots(rows, 2, squeeze=False).ravel()
        for panel in axes[len(lines) :]:
            panel.set_axis_off()
        for panel, (name, line) in zip(axes, lines.items(), strict=False):
            draw_line(panel, line, style)
            finish_panel(panel, name, x_label, None)
            panel.set_title(name, fontsize=8)
            panel.grid(color=GRID, linewidth=0.6)
    return figure


@contextlib.contextmanager
def _figure(height: float) -> Iterator[tuple[Any, Any]]:
    """`height` is in inches; the width fits a telephone."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(RC):
        figure = Figure(figsize=(4.2, height), layout="constrained")
        yield figure, figure.subplots()


def _move_legend(figure: Any) -> None:
    (panel,) = figure.axes
    panel.get_legend().remove()
    figure.legend(loc="outside lower left", frameon=False, fontsize=8)


def draw_line(panel: Any, line: Line, style: LineStyle) -> None:
    """Draw a curve with its band and its single learners into a panel."""
    dashes, colour = style
    for steps, values in line.learners:
        thin = {"marker": "." if len(steps) == 1 else None, "linewidth": 0.7, "alpha": 0.45}
        panel.plot(steps, values, dashes, color=colour, zorder=2, **thin)
    steps, single = line.steps, len(line.steps) == 1
    if single and np.isfinite(line.low).all():
        bars = [line.centre - line.low, line.high - line.centre]
        panel.errorbar(steps, line.centre, bars, color=colour, capsize=3, zorder=3)
    panel.fill_between(steps, line.low, line.high, color=colour, alpha=0.2, linewidth=0, zorder=1)
    thick = {"marker": "o" if single else None, "linewidth": 1.8, "label": line.label}
    panel.plot(steps, line.centre, dashes, color=colour, zorder=4, **thick)


def draw_reference(
    panel: Any, label: str, colour: str, steps: np.ndarray, mean: np.ndarray, std: np.ndarray
) -> None:
    """Draw a published curve into a panel. Its band is hatched."""
    label = f"{label}, published (mean ± standard deviation)"
    if len(steps) == 1:
        panel.errorbar(
            steps,
            mean,
            std,
            fmt="D",
            color=colour,
            label=label,
            zorder=5,
            clip_on=False,
            markerfacecolor="white",
            markersize=5,
            elinewidth=1.1,
            capsize=4,
        )
        return
    panel.fill_between(
        steps, mean - std, mean + std, facecolor="none", edgecolor=colour, alpha=0.25, hatch="////"
    )
    panel.plot(steps, mean, "--", color=colour, linewidth=1.3, label=label, zorder=3)


def finish_panel(panel: Any, title: str, x_label: str, y_label: str | None) -> None:
    """Add title, axes and grid, and a legend where there is a `y_label`."""
    from matplotlib.ticker import EngFormatter

    panel.set_title(title, fontsize=10)
    panel.set_xlabel(x_label)
    if "steps" in x_label:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.margins(x=0.02)
    panel.grid(color=GRID, linewidth=0.6, axis="both" if y_label else "x")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    if y_label:
        panel.set_ylabel(y_label)
        labels = panel.get_legend_handles_labels()[1]
        columns = 2 if len(labels) > 4 and max(map(len, labels)) < 24 else 1
        panel.legend(
            loc="upper center",
            bbox_to_anchor=(0.5, -0.18),
            frameon=False,
            fontsize=8,
            ncols=columns,
        )


def wrapped(text: str, width: int = 60) -> str:
    """Text in lines of at most `width` characters."""
    return textwrap.fill(text, width)
