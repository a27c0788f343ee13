"""Learning curves of runs: one panel per environment, one curve per agent, with intervals.

Runs of the same agent in the same environment are pooled, all their learners together.
"""

from __future__ import annotations

import dataclasses
import itertools
import json
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax import record, statistics

# Okabe and Ito's colours, which colour-blind readers tell apart, without the yellow: too pale for a line on white.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9", "#000000")
SUFFIXES = (".png", ".svg", ".pdf")
STATISTICS = {"mean": (statistics.mean, "mean"), "iqm": (statistics.iqm, "interquartile mean")}

References = Mapping[tuple[str, str], tuple[ArrayLike, ArrayLike, ArrayLike]]


def plot(
    paths: Sequence[Path], output: Path | None = None, references: References | None = None, statistic: str = "mean"
) -> Path:
    """Draw the evaluation returns of runs against environment steps, and return the file's path.

    A curve is the mean (or IQM) over learners, its band the 95 % bootstrap interval of that over learners, its thin
    lines the single learners. The band of a single learner is over its episodes, and the legend says so.

    Args:
        paths: folders of runs, finished or not.
        output: a .png, .svg or .pdf file, replaced if it exists; curve.png in the first run's folder by default.
        references: published curves by (agent, environment): steps [S], mean [S] and standard deviation [S], each
            drawn as a dashed line with a band in the panel of its environment; single points as error bars.
        statistic: "mean" or "iqm".

    Raises:
        ValueError: no paths, a path that is not a run or has no evaluations yet, a suffix or statistic that is not
            known, a reference whose arrays differ in shape.
    """
    if not paths:
        raise ValueError("there is no run to plot. Name the folder of one or more: rljax plot runs/sac/Hopper-v5/*")
    output = Path(output) if output is not None else Path(paths[0]) / "curve.png"
    distinct = {Path(path).resolve(): Path(path) for path in paths}  # a run named twice is no further evidence
    return draw([_load(path) for path in distinct.values()], output, references, statistic)


@dataclasses.dataclass
class Curve:
    """The evaluations of one agent in one environment, of one run or of several."""

    agent: str
    environment: str
    evaluations: list[dict[str, Any]]  # lines of evaluations.jsonl: learner, seed, step, returns
    episodes: set[int]  # per evaluation; not the lengths of `returns` where only their mean was kept


def draw(curves: Sequence[Curve], output: Path, references: References | None = None, statistic: str = "mean") -> Path:
    """Draw as `plot` does, whose other arguments these are, from evaluations that are at hand already."""
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
    looks = itertools.cycle(itertools.product(("-", "-.", ":"), COLOURS))  # past seven agents the line changes
    styles = dict(zip(agents, looks, strict=False))
    columns = 2 if len(environments) == 4 else min(3, len(environments))
    rows = -(-len(environments) // columns)
    # No pyplot: neither a display nor a global state is touched. The salt makes the same runs the same SVG.
    with matplotlib.rc_context({"font.size": 9, "svg.hashsalt": "rljax", "svg.fonttype": "none"}):
        width = max(5.6, 4.4 * columns)
        figure = Figure(figsize=(width, 3.9 * rows), layout="constrained")
        panels = figure.subplots(rows, columns, squeeze=False).ravel()
        for panel in panels[len(environments) :]:
            panel.set_axis_off()
        for panel, environment in zip(panels, environments, strict=False):
            for curve in curves:
                if curve.environment == environment:
                    _draw(panel, curve, statistic, *styles[curve.agent])
            for (agent, where), points in references.items():
                if where == environment:
                    _draw_reference(panel, _label(agent), styles[agent][1], *points)
            _finish(panel, environment)
        caption = textwrap.fill(_caption(curves, statistic), int(16 * width))
        figure.supxlabel(caption, fontsize=7.5, color="0.35")
        output.parent.mkdir(parents=True, exist_ok=True)
        metadata = {".svg": {"Date": None}, ".pdf": {"CreationDate": None}}.get(output.suffix.lower())
        figure.savefig(output, dpi=160, metadata=metadata)
    return output


def _load(path: Path) -> Curve:
    """The evaluations of the run in `path`."""
    if not path.is_dir():
        raise ValueError(f"'{path}' is not a run: there is no such folder. Where runs are kept: ls -d runs/*/*/*")
    if not (path / "config.json").exists():
        inside = [found for depth in (1, 2, 3) for found in sorted(path.glob("*/" * depth + "config.json"))]
        hint = "The folder that rljax train names as its output is one."
        if inside:
            hint = f"Runs in it: {', '.join(repr(str(found.parent)) for found in inside[:3])}."
        raise ValueError(f"'{path}' is not a run: it has no config.json. {hint}")
    try:
        config = json.loads((path / "config.json").read_text(encoding="utf-8"))
        agent, environment = str(config["agent"]), str(config["environment"])
    except (ValueError, KeyError, TypeError) as error:
        raise ValueError(f"'{path}' is not a run: its config.json names no 'agent' and 'environment'.") from error
    evaluations = record.read(path, "evaluations")
    if not evaluations:
        raise ValueError(
            f"'{path}' has no evaluations yet: its evaluations.jsonl is missing or empty. "
            f"Wait for the first, or go on with the training: rljax resume {path}"
        )
    return Curve(agent, environment, evaluations, {len(entry["returns"]) for entry in evaluations})


def _pool(curves: Sequence[Curve]) -> list[Curve]:
    """One curve per agent and environment, in the order in which they are first met."""
    pooled: dict[tuple[str, str], Curve] = {}
    for run, curve in enumerate(curves):
        target = pooled.setdefault((curve.agent, curve.environment), Curve(curve.agent, curve.environment, [], set()))
        target.evaluations += [entry | {"learner": (run, entry["learner"])} for entry in curve.evaluations]
        target.episodes |= curve.episodes
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


def _draw(panel: Any, curve: Curve, statistic: str, line: str, colour: str) -> None:
    """One agent's curve, band and single learners."""
    learners: dict[Any, list[dict[str, Any]]] = {}
    for entry in curve.evaluations:
        learners.setdefault(entry["learner"], []).append(entry)
    steps, centre, low, high = statistics.curves(curve.evaluations, STATISTICS[statistic][0])
    seeds = len({entry["seed"] for entry in curve.evaluations})
    label = f"{_label(curve.agent)} ({_count(seeds, 'seed')}"
    if seeds < len(learners):
        label += f", {len(learners)} learners"
    if len(learners) == 1:
        label += ", band over its episodes" if np.isfinite(low).any() else ", no band"
    else:
        thin: dict[str, Any] = {"linewidth": 0.7, "alpha": 0.45, "zorder": 2}
        for evaluations in learners.values():
            own = {entry["step"]: float(statistics.mean(entry["returns"])) for entry in evaluations}
            point = "." if len(own) == 1 else None
            panel.plot(*zip(*sorted(own.items()), strict=True), line, color=colour, marker=point, **thin)
    if len(steps) == 1 and np.isfinite(low).all():
        panel.errorbar(steps, centre, [centre - low, high - centre], color=colour, capsize=3, zorder=3)
    panel.fill_between(steps, low, high, color=colour, alpha=0.2, linewidth=0, zorder=1)
    marker = "o" if len(steps) == 1 else None
    panel.plot(steps, centre, line, color=colour, linewidth=1.8, marker=marker, label=label + ")", zorder=4)


def _draw_reference(panel: Any, label: str, colour: str, steps: np.ndarray, mean: np.ndarray, std: np.ndarray) -> None:
    """A published curve: what it is drawn with differs from ours also in a print without colours."""
    label = f"{label}, published (mean ± standard deviation)"
    if len(steps) == 1:
        face: dict[str, Any] = {"markerfacecolor": "white", "markersize": 5, "elinewidth": 1.1, "capsize": 4}
        panel.errorbar(steps, mean, std, fmt="D", color=colour, label=label, zorder=5, clip_on=False, **face)
        return
    panel.fill_between(steps, mean - std, mean + std, facecolor="none", edgecolor=colour, alpha=0.25, hatch="////")
    panel.plot(steps, mean, "--", color=colour, linewidth=1.3, label=label, zorder=3)


def _finish(panel: Any, environment: str) -> None:
    from matplotlib.ticker import EngFormatter

    panel.set_title(environment, fontsize=10)
    panel.set_xlabel("environment steps")
    panel.set_ylabel("evaluation return")
    panel.xaxis.set_major_formatter(EngFormatter(sep=""))
    panel.margins(x=0.02)
    panel.grid(color="0.9", linewidth=0.6)
    panel.set_axisbelow(True)
    panel.spines[["top", "right"]].set_visible(False)
    columns = 2 if len(panel.get_legend_handles_labels()[0]) > 4 else 1
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
