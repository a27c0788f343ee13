"""Chunks of actions and many critics: FQL without and with them, QC and QAM, from data and then in
the environment.

  fql         FQL as its authors have it: two critics, their mean, one action at a time
  fql-critics with five critics, whose target is mean - 0.5 std
  fql-chunks  the same in chunks of five actions
  qc          QC, chunks of five, the mean of five critics
  qam         QAM, chunks of five, five critics with mean - 0.5 std
  qam-fql     the same in its form "fql"

Settings are the authors' for OGBench's cube, in smaller networks. Online all transitions are drawn
uniformly from the data and the new ones together, and each step has one update.

  rljax data record ogbench/cube-single-play-v0 --envs 1
  python scripts/studies/offline/chunks.py --hidden 128 128 128 --updates 30000

A seed is a run, and all cells have their first seed before any has its second, in the order of
`--cells`. The results are written after each run. Complete runs are not repeated, and interrupted
runs continue.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.analysis import folders
from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared


class Cell(NamedTuple):
    """A form of an agent, and its success in QAM's comparison, if it is there: on cube-double in
    per cent, from data and after going on online.
    """

    name: str  # in the table
    agent: str
    config: Mapping[str, Any]
    published: tuple[int, int] | None = None


FQL: dict[str, Any] = {"distillation_weight": 300.0}
CRITICS: dict[str, Any] = {"num_critics": 5, "pessimism": 0.5}
CHUNKS: dict[str, Any] = {"chunk_length": 5}
QAM: dict[str, Any] = CRITICS | CHUNKS | {"inverse_temperature": 1.0}
CELLS = {
    "fql": Cell("FQL", "fql", FQL),
    "fql-critics": Cell("FQL, 5 critics", "fql", FQL | CRITICS),
    "fql-chunks": Cell("FQL, 5 critics, chunks", "fql", FQL | CRITICS | CHUNKS, (46, 100)),
    "qc": Cell("QC, 5 critics", "qc", CHUNKS | {"num_critics": 5}),
    "qam": Cell("QAM", "qam", QAM, (64, 100)),
    # The authors switch this form off on cube-double; the weight is that of their scene.
    "qam-fql": Cell("QAM, form FQL", "qam", QAM | {"form": "fql"} | FQL),
}
COLOURS = dict(
    zip(CELLS, ("#999999", "#56B4E9", "#0072B2", "#009E73", "#D55E00", "#E69F00"), strict=True)
)
DATA = "ogbench/cube-single-play-singletask-task2-v0"  # the default task


def config_of(key: str, options: argparse.Namespace) -> dict[str, Any]:
    """The settings of a cell that are not its agent's defaults."""
    candidates = {"num_candidates": options.candidates} if CELLS[key].agent == "qc" else {}
    return {**CELLS[key].config, **candidates, "hidden": tuple(options.hidden)}


def trained(key: str, seed: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out, config = options.runs / f"{key}-seed-{seed}", config_of(key, options)
    _require_same_length(out, options)
    begin = functools.partial(
        run.train,
        CELLS[key].agent,
        options.env,
        options.updates,
        data=options.data,
        seeds=[seed],
        config=config,
        then_online=options.online,
        offline_share="pooled",
        out=out,
        eval_every=options.eval_every,
        eval_episodes=options.episodes,
        checkpoint_every=options.eval_every,
        quiet=False,
    )
    return shared.trained(out, options.updates + options.online, begin, options.data, config)


def _require_same_length(out: Path, options: argparse.Namespace) -> None:
    file = out / "config.json"
    described = json.loads(file.read_text()) if file.exists() else {}
    expected = {"steps": options.updates, "then_online": options.online}
    there = {name: described.get(name) for name in expected}
    if described and there != expected:
        raise SystemExit(
            f"'{out}' has {there}, and not {expected}: name another folder for these runs, --runs."
        )


def outcome(out: Path, updates: int) -> dict[str, Any]:
    """What a run came to: its success in per cent at each evaluation, at the hand-over and at the
    end.
    """
    record = folders.read(out)
    (learner,) = record.learners
    if learner.evaluations[0].get("success") is None:
        raise SystemExit(f"'{out}' tells no success: name a task that does, --data and --env.")
    success = [round(100 * float(np.mean(x["success"])), 1) for x in learner.evaluations]
    steps = learner.steps.tolist()
    return {
        "seed": learner.seed,
        "git_revision": record.config["git_revision"],
        "wall_seconds": record.summary["wall_seconds"],
        "steps": steps,
        "success": success,
        "from_data": success[steps.index(updates)],
        "after": success[-1],
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| agent | success from data, each seed | after going on online, each seed | wall seconds "
        "of a seed | published, cube-double |",
        "|---|---|---|---|---|",
    ]
    for key, seeds in study["cells"].items():
        cell = CELLS[key]
        published = f"{cell.published[0]}; {cell.published[1]}" if cell.published else "-"
        before, after = (over_seeds([x[name] for x in seeds]) for name in ("from_data", "after"))
        seconds = ", ".join(f"{x['wall_seconds']:,.0f}" for x in seeds)
        lines.append(f"| {cell.name} | {before} | {after} | {seconds} | {published} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the success of every seed over updates."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for key, seeds in study["cells"].items():
        for i, each in enumerate(seeds):
            label = None if i else CELLS[key].name
            axes.plot(each["steps"], each["success"], color=COLOURS[key], lw=1.2, label=label)
    axes.axvline(study["updates"], color="k", linewidth=0.8, linestyle="--")
    axes.annotate(" online", (study["updates"], 97), fontsize="small")
    axes.set(
        xlabel="updates, one per step when online",
        ylabel="success in %",
        title=study["data"],
        ylim=(-3, 103),
    )
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", default=DATA, help="data set, a name or a file")
    parser.add_argument("--env", help="the environment, by default that of the data")
    parser.add_argument("--updates", type=int, default=50_000, help="from the data alone")
    parser.add_argument("--online", type=int, default=30_000, help="environment steps after that")
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256, 256])
    parser.add_argument("--candidates", type=int, default=32, help="chunks that QC chooses from")
    parser.add_argument("--episodes", type=int, default=50, help="of an evaluation")
    parser.add_argument("--eval-every", type=int, default=5_000)
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--cells", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--runs", type=Path, default=Path("runs/chunks"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/chunks"))
    options = parser.parse_args()
    names = ("data", "updates", "online", "hidden", "candidates", "episodes")
    study = {name: getattr(options, name) for name in names} | provenance()
    study["settings"] = {key: config_of(key, options) for key in options.cells}
    cells: dict[str, list[dict[str, Any]]] = {key: [] for key in CELLS if key in options.cells}
    for seed in range(options.seeds):
        for key in options.cells:
            cells[key].append(outcome(trained(key, seed, options), options.updates))
            complete = {name: seeds for name, seeds in cells.items() if seeds}
            shared.write(study | {"cells": complete}, options.output / "chunks", table, draw)


if __name__ == "__main__":
    main()
