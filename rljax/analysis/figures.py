"""Figures: learning curves with intervals, and what a report shows beside them, all from numbers at hand.

`draw` makes a file with one panel per task and one curve per name. The other functions make single figures, which
`save` writes to files and `inline` makes part of a page.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import re
import textwrap
from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax.analysis.comparison import Estimate
from rljax.runs import statistics

# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow: too pale for a line on white.
# Black is a little lighter: an SVG leaves pure black unsaid, and a dark page could not change it.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#111111")
SUFFIXES = (".png", ".svg", ".pdf")
INK, GRID, PAPER = "#222222", "#e5e5e5", "#ffffff"  # a page has its own for each: see `inline`
THIN = 10  # learners of a curve up to which each is drawn too; past that its band says more
STATISTICS = {"mean": (statistics.mean, "mean"), "iqm": (statistics.iqm, "interquartile mean")}

References = Mapping[tuple[str, str], tuple[ArrayLike, ArrayLike, ArrayLike]]
Look = tuple[str, str]  # line style and colour

# The salt makes the same figure the same SVG.
_STYLE: Any = {
    "font.size": 9,
    "svg.hashsalt": "rljax",
    "svg.fonttype": "none",
    "text.parse_math": False,  # names are as they are
    "axes.facecolor": "none",
    **dict.fromkeys(("text.color", "axes.edgecolor", "axes.labelcolor", "xtick.color", "ytick.color"), INK),
}


@dataclasses.dataclass
class Curve:
    """Evaluations that go into one curve, with those of others of the same name and panel."""

    agent: str  # the curve's name: an agent, or an agent and its settings
    environment: str  # the panel's title: an environment, or a data set
    evaluations: list[dict[str, Any]]  # lines of evaluations.jsonl: learner, seed, step, returns
    episodes: set[int]  # per evaluation; not the lengths of `returns` where only their mean was kept
    across: str = "environment steps"  # what steps are


def draw(curves: Sequence[Curve], output: Path, references: References | None = None, statistic: str = "mean") -> Path:
    """Draw learning curves into a file, as `learning_curves.plot` does, which says what the arguments are."""
    if statistic not in STATISTICS:
        raise ValueError(f"statistic is '{statistic}', it must be 'mean' or 'iqm'.")
    output = Path(output)
    if output.suffix.lower() not in SUFFIXES:
        raise ValueError(f"output is '{output}', its suffix must be one of {', '.join(SUFFIXES)}.")
    curves = _pool(curves)
    references = _checked({} if references is None else references)

    import matplotlib
    from matplotlib.figure import Figure

    environments = list(dict.fromkeys(curve.environment for curve in curves))
    agents = dict.fromkeys(curve.agent for curve in curves)
    agents |= dict.fromkeys(agent for agent, environment in references if environment in environments)
    styles = looks(agents)
    columns = 2 if len(environments) == 4 else min(3, len(environments))
    rows = -(-len(environments) // columns)
    with matplotlib.rc_context(_STYLE):  # no pyplot: neither a display nor a global state is touched
        width = max(5.6, 4.4 * columns)
        figure = Figure(figsize=(width, 3.9 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(environments) :]:
            panel.set_axis_off()
        for panel, environment in zip(panels, environments, strict=False):
            for curve in curves:
                if curve.environment == environment:
                    _draw(panel, _line(curve, statistic), styles[curve.agent])
            for (agent, where), points in references.items():
                if where == environment:
                    _draw_reference(panel, _label(agent), styles[agent][1], *points)
            across = {curve.across for curve in curves if curve.environment == environment}
            _finish(panel, environment, across.pop() if len(across) == 1 else "steps")
        caption = textwrap.fill(_caption(curves, statistic), int(16 * width))
        figure.supxlabel(caption, fontsize=7.5, color="0.35")
    return save(figure, output)


def looks(names: Iterable[str]) -> dict[str, Look]:
    """A line style and a colour for each name, told apart up to 21 of them."""
    styles = itertools.cycle(itertools.product(("-", "-.", ":"), COLOURS))  # past seven names the line changes
    return dict(zip(names, styles, strict=False))


def save(figure: Any, output: Path) -> Path:
    """Write a figure to a file, on white; its folder is made where it does not exist."""
    import matplotlib

    output.parent.mkdir(parents=True, exist_ok=True)
    metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower())
    with matplotlib.rc_context(_STYLE):
        figure.savefig(output, dpi=160, metadata=metadata)
    return output


def inline(file: Path, description: str) -> str:
    """An .svg file of `save` as an element for a page, in the page's colours and as wide as its place.

    The page sets the variables --ink, --grid, --paper and --series-1 to --series-7. The file's name is unique in the
    page: the identifiers inside begin with it. `description` is read out in place of the picture.
    """
    name, text = file.stem, file.read_text(encoding="utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", lambda x: f"{float(x[0]):.2f}", tag[0]), text)
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    label = escape(description, quote=True)
    text = (
        f'<svg {view[0]} role="img" aria-label="{label}" xmlns:xlink="http://www.w3.org/1999/xlink">'
        + (text[text.index(">") + 1 :])
    )
    variables = {colour: f"--series-{i}" for i, colour in enumerate(COLOURS, 1)}
    variables |= {INK: "--ink", GRID: "--grid", PAPER: "--paper"}
    for colour, variable in variables.items():
        text = text.replace(colour.lower(), f"var({variable})")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())


def curves(
    title: str,
    lines: Mapping[str, Line],
    styles: Mapping[str, Look],
    references: Mapping[str, tuple[str, ArrayLike, ArrayLike, ArrayLike]],
    axes: tuple[str, str] = ("environment steps", "evaluation return"),
) -> Any:
    """One panel of learning curves, as a figure.

    Args:
        title: above the panel.
        lines: the curves by name.
        styles: line style and colour of each name, and of each name in `references`.
        references: published points, by the name whose colour they have: label, steps, mean and standard deviation.
        axes: labels of the two axes.
    """
    with _figure(2.9 + 0.17 * (len(lines) + len(references))) as (figure, panel):
        for name, line in lines.items():
            _draw(panel, line, styles[name])
        for name, (label, steps, mean, std) in references.items():
            _draw_reference(panel, label, styles[name][1], *map(np.asarray, (steps, mean, std)))
        _finish(panel, title, *axes)
        _legend(figure)
    return figure


def profiles(
    thresholds: ArrayLike, estimates: Mapping[str, Estimate], styles: Mapping[str, Look], axis: str, title: str
) -> Any:
    """Performance profiles with bands, as a figure: the share of runs above each threshold, by name."""
    with _figure(2.9 + 0.17 * len(estimates)) as (figure, panel):
        for name, estimate in estimates.items():
            line = Line(wrapped(name), thresholds, estimate.value, estimate.low, estimate.high)
            _draw(panel, line, styles[name])
        _finish(panel, title, axis, "share of runs above")
        panel.set_ylim(-0.02, 1.02)
        _legend(figure)
    return figure


def intervals(
    estimates: Mapping[str, Estimate],
    styles: Mapping[str, Look],
    axis: str,
    title: str,
    mark: float | None = None,
) -> Any:
    """Numbers with their intervals, one below the other, as a figure; `mark` is a value to compare them with."""
    labels = [wrapped(name, 24) for name in estimates]
    with _figure(0.9 + sum(0.18 + 0.15 * (1 + label.count("\n")) for label in labels)) as (figure, panel):
        if mark is not None:
            panel.axvline(mark, color=INK, linewidth=0.8, linestyle="--", zorder=1)
        for place, (name, estimate) in enumerate(estimates.items()):
            bar: dict[str, Any] = {"color": styles[name][1], "linewidth": 6, "alpha": 0.35, "solid_capstyle": "butt"}
            panel.plot([estimate.low, estimate.high], [place, place], zorder=2, **bar)
            panel.plot([estimate.value], [place], "o", color=styles[name][1], markersize=6, zorder=3)
        panel.set_yticks(range(len(estimates)), labels)
        panel.set_ylim(len(estimates) - 0.5, -0.5)
        panel.tick_params(axis="y", length=0)
        _finish(panel, title, axis, None)
        panel.margins(x=0.05)
    return figure


@dataclasses.dataclass
class Line:
    """A curve with its band, ready to be drawn: [S] each, NaN where there is no band."""

    label: str
    steps: Any
    centre: Any
    low: Any
    high: Any
    learners: Sequence[tuple[Any, Any]] = ()  # steps and values of each, drawn thin


@contextlib.contextmanager
def _figure(height: float) -> Iterator[tuple[Any, Any]]:
    """A figure of so many inches with one panel, as wide as a telephone shows it without making it smaller."""
    import matplotlib
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_STYLE):
        figure = Figure(figsize=(4.2, height), layout="constrained")
        yield figure, figure.subplots()


def _legend(figure: Any) -> None:
    """One legend below everything; that of `_finish` goes."""
    (panel,) = figure.axes
    panel.get_legend().remove()
    figure.legend(loc="outside lower left", frameon=False, fontsize=8)


def _pool(curves: Sequence[Curve]) -> list[Curve]:
    """One curve per agent and environment, in the order in which they are first met."""
    pooled: dict[tuple[str, str], Curve] = {}
    for part, curve in enumerate(curves):
        empty = dataclasses.replace(curve, evaluations=[], episodes=set())
        target = pooled.setdefault((curve.agent, curve.environment), empty)
        target.evaluations += [entry | {"learner": (part, entry["learner"])} for entry in curve.evaluations]
        target.episodes |= curve.episodes
        target.across = curve.across if curve.across == target.across else "steps"
    return list(pooled.values())


def _checked(references: References) -> dict[tuple[str, str], tuple[np.ndarray, np.ndarray, np.ndarray]]:
    checked = {}
    for (agent, environment), points in references.items():
        steps, mean, std = (np.atleast_1d(np.asarray(values, np.float64)) for values in points)
        if not steps.shape == mean.shape == std.shape or steps.ndim != 1:
            raise ValueError(
                f"the reference of '{agent}' in '{environment}' has steps {steps.shape}, mean {mean.shape} and "
                f"standard deviation {std.shape}, all three must be [S]."
            )
        checked[agent, environment] = (steps, mean, std)
    return checked


def _line(curve: Curve, statistic: str) -> Line:
    """One agent's curve, band and single learners."""
    learners: dict[Any, dict[int, float]] = {}
    for entry in curve.evaluations:
        learners.setdefault(entry["learner"], {})[entry["step"]] = float(statistics.mean(entry["returns"]))
    steps, centre, low, high = statistics.curves(curve.evaluations, STATISTICS[statistic][0])
    seeds = len({entry["seed"] for entry in curve.evaluations})
    label = f"{_label(curve.agent)} ({_count(seeds, 'seed')}"
    if seeds < len(learners):
        label += f", {len(learners)} learners"
    if len(learners) == 1:
        label += ", band over its episodes" if np.isfinite(low).any() else ", no band"
        return Line(label + ")", steps, centre, low, high)
    thin = [(sorted(own), [own[step] for step in sorted(own)]) for own in learners.values()]
    return Line(label + ")", steps, centre, low, high, thin if len(thin) <= THIN or not len(steps) else ())


def _draw(panel: Any, line: Line, look: Look) -> None:
    style, colour = look
    for steps, values in line.learners:
        point = "." if len(steps) == 1 else None
        panel.plot(steps, values, style, color=colour, marker=point, linewidth=0.7, alpha=0.45, zorder=2)
    if len(line.steps) == 1 and np.isfinite(line.low).all():
        bars = [line.centre - line.low, line.high - line.centre]
        panel.errorbar(line.steps, line.centre, bars, color=colour, capsize=3, zorder=3)
    panel.fill_between(line.steps, line.low, line.high, color=colour, alpha=0.2, linewidth=0, zorder=1)
    marker = "o" if len(line.steps) == 1 else None
    panel.plot(line.steps, line.centre, style, color=colour, linewidth=1.8, marker=marker, label=line.label, zorder=4)


def _draw_reference(panel: Any, label: str, colour: str, steps: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """A published curve: what it is drawn with differs from ours also in a print without colours."""
    label = f"{label}, published (mean ± standard deviation)"
    if len(steps) == 1:
        face: dict[str, Any] = {"markerfacecolor": "white", "markersize": 5, "elinewidth": 1.1, "capsize": 4}
        panel.errorbar(steps, mean, std, fmt="D", color=colour, label=label, zorder=5, clip_on=False, **face)
        return
    panel.fill_between(steps, mean - std, mean + std, facecolor="none", edgecolor=colour, alpha=0.25, hatch="////")
    panel.plot(steps, mean, "--", color=colour, linewidth=1.3, label=label, zorder=3)


def _finish(panel: Any, title: str, across: str = "environment steps", up: str | None = "evaluation return") -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_title(title, fontsize=10)
    panel.set_xlabel(across)
    if "steps" in across:
        panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.margins(x=0.02)
    panel.grid(color=GRID, linewidth=0.6, axis="both" if up else "x")
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    if up:
        panel.set_ylabel(up)
        labels = panel.get_legend_handles_labels()[1]
        columns = 2 if len(labels) > 4 and max(map(len, labels)) < 24 else 1
        panel.legend(loc="upper center", bbox_to_anchor=(0.5, -0.18), frameon=False, fontsize=8, ncols=columns)


def _caption(curves: Sequence[Curve], statistic: str) -> str:
    episodes = sorted(set().union(*(curve.episodes for curve in curves)))
    number = _count(episodes[0], "episode") if len(episodes) == 1 else f"{episodes[0]} to {episodes[-1]} episodes"
    text = f"{number} per evaluation; line: {STATISTICS[statistic][1]}, band: its 95 % bootstrap interval"
    if any(len({entry["learner"] for entry in curve.evaluations}) > 1 for curve in curves):
        text += " over seeds, thin: single seeds"
    return text


def _label(agent: str) -> str:
    """An agent's name; of a user's own file, its name without folder and suffix."""
    return Path(agent).stem if agent.endswith(".py") else agent


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"


def wrapped(text: str, width: int = 60) -> str:
    """Text in lines of at most `width` characters, for a legend."""
    return textwrap.fill(text, width)
