"""Contrastive RL with networks of several depths, beside SAC with goals in hindsight.

  python scripts/studies/goal_depth.py

All learn to reach goals in `rljax/GoalMaze`, in layers of 64 units, with as many environments,
steps and updates. What goes into four layers is added to what comes out where there are that many.
All seeds of a cell are learners of one program. Complete runs are not repeated, and interrupted
runs continue.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.runs import records, run
from rljax.system.hardware import provenance
from scripts.studies import shared


class Cell(NamedTuple):
    """An agent and its settings."""

    name: str  # in the table
    agent: str
    config: Mapping[str, Any]


ENV = "rljax/GoalMaze"
WIDTH: dict[str, Any] = {
    "hidden": (64,),
    "critic_hidden": (64,),
    "latent_size": 32,
    "batch_size": 128,
}
NORMS = WIDTH | {"layer_norm": True}
SAC: dict[str, Any] = {
    "hidden": (64, 64),
    "batch_size": 128,
    "hindsight": 0.8,
    "reward_shift": -1.0,
    "warmup_steps": 10_000,
    "num_envs": 64,
    "num_updates": 4,
}
CELLS = {
    "sac": Cell("SAC with hindsight, 2 layers", "sac", SAC),
    "2": Cell("CRL-online, 2 layers", "crl_online", WIDTH),
    "4": Cell("4 layers, no sum", "crl_online", WIDTH | {"depth": 4}),
    "9-norms": Cell("9 layers, two sums, norms", "crl_online", NORMS | {"depth": 9}),
    "9": Cell("9 layers, two sums", "crl_online", WIDTH | {"depth": 9}),
    "17-norms": Cell("17 layers, four sums, norms", "crl_online", NORMS | {"depth": 17}),
}
SHOWN = 3  # evaluations in the table, as far apart as they can be


def trained(key: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    cell, out = CELLS[key], options.runs / key
    begin = functools.partial(
        run.train,
        cell.agent,
        ENV,
        options.steps,
        seeds=options.seeds,
        out=out,
        config=dict(cell.config),
        eval_every=options.steps // 6,
        eval_episodes=50,
        checkpoint_every=options.steps // 2,
        quiet=False,
    )
    return shared.trained(out, options.steps, begin)


def outcome(key: str, out: Path) -> dict[str, Any]:
    """The shares of episodes that ended at their goals, in per cent, of each learner."""
    found: dict[int, list[float]] = {}
    lines = records.read(out, "evaluations")
    for line in lines:
        share = round(100 * float(np.mean(line["success"])), 1)
        found.setdefault(line["learner"], []).append(share)
    return {
        "config": dict(CELLS[key].config),
        "steps": [line["step"] for line in lines if line["learner"] == 0],
        "success": [found[learner] for learner in sorted(found)],
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    steps = next(iter(study["cells"].values()))["steps"]
    places = [len(steps) * (i + 1) // SHOWN - 1 for i in range(SHOWN)]
    header = [f"after {steps[place]:,} steps" for place in places]
    lines = ["| success, % [95 % interval] | " + " | ".join(header) + " |"]
    lines.append("|---|" + "---|" * SHOWN)
    for key, cell in study["cells"].items():
        each = [[curve[place] for curve in cell["success"]] for place in places]
        columns = " | ".join(map(shared.seeds_with_interval, each))
        lines.append(f"| {CELLS[key].name} | {columns} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the curves: means over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.2, 3.4), layout="constrained")
    axes = figure.subplots()
    for i, (key, cell) in enumerate(study["cells"].items()):
        mean = np.mean(cell["success"], axis=0)
        style = "--" if key == "sac" else "-"
        axes.plot(cell["steps"], mean, style, color=f"C{i}", linewidth=1.2, label=CELLS[key].name)
    axes.set(title=ENV, xlabel="environment steps", ylabel="success, %", ylim=(0, 101))
    axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--steps", type=int, default=300_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/goal_depth"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/goal_depth"))
    options = parser.parse_args()
    cells = {key: outcome(key, trained(key, options)) for key in options.cells}
    study = {"seeds": options.seeds, "steps": options.steps, "cells": cells}
    shared.write(study | provenance(), options.output / "goal_depth", table, draw)


if __name__ == "__main__":
    main()
