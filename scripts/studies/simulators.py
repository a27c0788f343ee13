"""Agents for many environments inside the program, beside those for few, at equal steps and at
equal time: REPPO beside PPO, and FastTD3 with 256 environments beside TD3 with one.

  python scripts/studies/simulators.py --pairs reppo fasttd3

Each pair has tasks, settings that a CPU can bear, and steps of its own. PPO and TD3 have their
presets. Seconds are those of the training loop, by the median rate of its chunks. All seeds of a
cell are learners of one program. Complete runs are not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared


class Cell(NamedTuple):
    """An agent and its settings, the same for all tasks, and its steps as a share."""

    name: str  # in the table
    agent: str
    config: Mapping[str, Any]
    share: float = 1.0


class Pair(NamedTuple):
    """Agents on the same tasks, each with a number of steps."""

    tasks: Mapping[str, int]
    cells: Mapping[str, Cell]


ROBOT = {"num_envs": 64, "num_steps": 64, "batch_size": 512}
PENDULUM = "gymnax/Pendulum-v1"
# The supports hold the discounted returns of Pendulum.
SMALL: dict[str, Any] = {
    "num_envs": 256,
    "batch_size": 2_048,
    "warmup_steps": 12 * 256,
    "hidden": (128, 64, 32),
    "critic_hidden": (256, 128, 64),
    "v_min": -1_500.0,
    "v_max": 0.0,
}
PAIRS = {
    "reppo": Pair(
        {PENDULUM: 200_000, "gymnax/Reacher-misc": 200_000, "brax/inverted_pendulum": 200_000},
        {"ppo": Cell("PPO", "ppo", ROBOT, 4.0), "reppo": Cell("REPPO", "reppo", ROBOT)},
    ),
    "fasttd3": Pair(
        {PENDULUM: 200_000},
        {
            "td3": Cell("TD3, 1 environment", "td3", {}, 0.1),
            "fasttd3": Cell("FastTD3, 256 environments", "fasttd3", SMALL),
        },
    ),
}


def trained(task: str, steps: int, cell: Cell, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out = options.runs / f"{task.replace('/', '-')}-{cell.agent}"
    steps = round(steps * cell.share * options.share)
    begin = functools.partial(
        run.train,
        cell.agent,
        task,
        steps,
        seeds=options.seeds,
        out=out,
        config=dict(cell.config),
        log_every=steps // 20,
        eval_every=steps // 20,
        eval_episodes=10,
        checkpoint_every=steps,
        quiet=False,
    )
    return shared.trained(out, steps, begin)


def after(cell: Mapping[str, Any], position: float, by: str) -> list[float] | None:
    """Each learner's mean of the last three evaluations until so many steps or seconds (`by`), None
    beyond the run's end.
    """
    places = np.array(cell["steps"]) / (cell["steps_per_second"] if by == "seconds" else 1.0)
    if position > places[-1] * 1.001:
        return None
    last = max(int(np.searchsorted(places, position * 1.001, side="right")), 1)
    return np.mean([curve[max(last - 3, 0) : last] for curve in cell["curves"]], axis=1).tolist()


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown: at the fewest steps and at the fewest seconds of a task's runs."""
    lines = [
        "| task | agent | steps/s | return at equal steps | return at equal time |",
        "|---|---|---|---|---|",
    ]
    for task, cells in study["tasks"].items():
        ends = [cell["steps"][-1] for cell in cells.values()]
        seconds = [cell["steps"][-1] / cell["steps_per_second"] for cell in cells.values()]
        for key, cell in cells.items():
            row = [f"{study['names'][key]}", f"{cell['steps_per_second']:,.0f}"]
            for by, position, unit in (
                ("steps", min(ends), f"{min(ends):,} steps"),
                ("seconds", min(seconds), f"{min(seconds):,.0f} s"),
            ):
                returns = after(cell, position, by)
                row.append("" if returns is None else f"{over_seeds(returns)} after {unit}")
            lines.append(f"| {task} | " + " | ".join(row) + " |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the curves over steps and over seconds: means over seeds, with 95 % intervals of the
    mean.
    """
    from matplotlib.figure import Figure

    tasks = study["tasks"]
    figure = Figure(figsize=(8, 2.8 * len(tasks)), layout="constrained")
    panels = figure.subplots(len(tasks), 2, squeeze=False)
    for row, (task, cells) in zip(panels, tasks.items(), strict=True):
        for i, (key, cell) in enumerate(cells.items()):
            steps, curves = np.array(cell["steps"]), np.array(cell["curves"])
            mean = curves.mean(axis=0)
            # Student's t of four degrees of freedom, for five seeds.
            half = 2.776 * curves.std(axis=0, ddof=1) / np.sqrt(len(curves))
            for axes, places in zip(row, (steps, steps / cell["steps_per_second"]), strict=True):
                axes.plot(places, mean, color=f"C{i}", label=study["names"][key])
                axes.fill_between(places, mean - half, mean + half, color=f"C{i}", alpha=0.2)
                axes.set(xscale="log", ylabel="return")
                axes.xaxis.set_minor_formatter("")
        row[0].set(title=task, xlabel="environment steps")
        row[1].set(xlabel="seconds of the training loop")
    panels[0][0].legend(fontsize="x-small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", nargs="+", default=list(PAIRS), choices=PAIRS)
    parser.add_argument("--tasks", nargs="+", help="of the pair; by default all")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--share", type=float, default=1.0, help="of all steps")
    parser.add_argument("--runs", type=Path, default=Path("runs/simulators"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/simulators"))
    options = parser.parse_args()
    for name in options.pairs:
        pair, tasks = PAIRS[name], {}
        for task in options.tasks or pair.tasks:
            cells = {}
            for key, cell in pair.cells.items():
                out = trained(task, pair.tasks[task], cell, options)
                rate = shared.steps_per_second(out)
                cells[key] = shared.curves(out, 1) | {"steps_per_second": rate}
                cells[key]["curves"] = cells[key].pop("returns")
            tasks[task] = cells
        names = {key: cell.name for key, cell in pair.cells.items()}
        study = {"seeds": options.seeds, "names": names, **provenance(), "tasks": tasks}
        study["configs"] = {key: dict(cell.config) for key, cell in pair.cells.items()}
        shared.write(study, options.output / name, table, draw)


if __name__ == "__main__":
    main()
