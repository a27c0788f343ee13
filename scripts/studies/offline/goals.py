"""OGBench's agents of goals on its point mazes, scored as OGBench scores them.

The score is the success over five goals, in the mean over the last three of ten evaluations. All
agents have the presets of their authors for the data set, but for smaller networks and batches and
fewer updates: --hidden 512 512 512 --batch-size 1024 --updates 1000000 is the published size.

  rljax data record ogbench/pointmaze-medium-navigate-v0
  python scripts/studies/offline/goals.py --mazes medium-navigate

All seeds of an agent are learners of one program. Complete runs are not repeated, and interrupted
runs continue. The results are written after each run, and have all complete runs in --runs, so that
several commands can train them.
"""

from __future__ import annotations

import argparse
import functools
import itertools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.analysis import folders
from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

MAZES = tuple(f"{size}-{kind}" for kind in ("navigate", "stitch") for size in ("medium", "large"))


class Cell(NamedTuple):
    """An agent, and its published success in per cent, of 8 seeds, in the order of `MAZES`."""

    name: str  # in the table
    agent: str
    published: Sequence[int]  # arXiv:2410.20092, table 2; of OTA its paper's
    config: Mapping[str, Any] = {}


CELLS = {
    "gcbc": Cell("GCBC", "gcbc", (9, 29, 23, 7)),
    "gcivl": Cell("GCIVL", "gcivl", (63, 45, 70, 12)),
    "gciql": Cell("GCIQL", "gciql", (53, 34, 21, 31)),
    "qrl": Cell("QRL", "qrl", (82, 86, 80, 84)),
    "crl": Cell("CRL", "crl", (29, 39, 0, 0)),
    "hiql": Cell("HIQL", "hiql", (79, 58, 74, 13)),
    "ota": Cell("OTA", "hiql", (86, 85, 75, 66), {"option_steps": 5}),
}
EVALUATIONS, LAST = 10, 3


def config_of(key: str, options: argparse.Namespace) -> dict[str, Any]:
    """Settings in place of the presets'."""
    size = {"hidden": tuple(options.hidden), "batch_size": options.batch_size}
    return {**CELLS[key].config, **size}


def folder(key: str, maze: str, options: argparse.Namespace) -> Path:
    """Where a run is."""
    return options.runs / f"{key}-{maze}"


def trained(key: str, maze: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out, data = folder(key, maze, options), data_of(maze, options)
    every = options.updates // EVALUATIONS
    begin = functools.partial(
        run.train,
        CELLS[key].agent,
        options.env,
        options.updates,
        data=data,
        seeds=options.seeds,
        config=config_of(key, options),
        out=out,
        eval_every=every,
        eval_episodes=options.episodes,
        checkpoint_every=every,
        quiet=False,
    )
    return shared.trained(out, options.updates, begin, data, config_of(key, options))


def scores(options: argparse.Namespace) -> dict[str, dict[str, Any]]:
    """What became of all complete runs, by maze and agent."""
    result: dict[str, dict[str, Any]] = {}
    for maze, key in itertools.product(MAZES, CELLS):
        if shared.complete(folder(key, maze, options), options.updates):
            result.setdefault(maze, {})[key] = outcome(trained(key, maze, options))
    return result


def data_of(maze: str, options: argparse.Namespace) -> str:
    """The name of a maze's data set."""
    return options.data or f"ogbench/pointmaze-{maze}-v0"


def outcome(out: Path) -> dict[str, Any]:
    """Success in per cent of each seed, at each evaluation and in the mean of the last ones."""
    record = folders.read(out)
    success = [
        [round(100 * float(np.mean(x["success"])), 1) for x in learner.evaluations]
        for learner in record.learners
    ]
    return {
        "steps": record.learners[0].steps.tolist(),
        "success": success,
        "score": [round(float(np.mean(of[-LAST:])), 1) for of in success],
        "wall_seconds": record.summary["wall_seconds"],
        "git_revision": record.config["git_revision"],
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown: a row for each agent, with each seed and the published score."""
    mazes = list(study["scores"])
    lines = [
        "| agent | " + " | ".join(f"{maze}, each seed | published" for maze in mazes) + " |",
        "|" + "---|" * (1 + 2 * len(mazes)),
    ]
    for key, cell in CELLS.items():
        columns = []
        for maze in mazes:
            scores = study["scores"][maze].get(key)
            published = str(cell.published[MAZES.index(maze)])
            columns += [over_seeds(scores["score"]) if scores else "-", published]
        lines.append(f"| {cell.name} | " + " | ".join(columns) + " |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw mean success over updates: one picture for each maze."""
    from matplotlib.figure import Figure

    mazes = study["scores"]
    figure = Figure(figsize=(1.5 + 3.2 * len(mazes), 3.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(mazes), sharey=True))
    lines: dict[str, Any] = {}
    for axis, (maze, agents) in zip(axes, mazes.items(), strict=True):
        for i, key in enumerate(CELLS):
            if key in agents:
                mean = np.mean(agents[key]["success"], axis=0)
                (lines[key],) = axis.plot(agents[key]["steps"], mean, color=f"C{i}")
        axis.set(title=f"point maze, {maze}", xlabel="updates", ylim=(-3, 103))
    axes[0].set_ylabel("success in %")
    shown = [key for key in CELLS if key in lines]
    names = [CELLS[key].name for key in shown]
    figure.legend([lines[key] for key in shown], names, loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mazes", nargs="+", default=list(MAZES), choices=MAZES)
    parser.add_argument("--agents", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--data", help="one data set in place of the mazes'")
    parser.add_argument("--env", help="its environment, by default that of the data")
    parser.add_argument("--updates", type=int, default=30_000)
    parser.add_argument("--hidden", type=int, nargs="+", default=[256, 256, 256])
    parser.add_argument("--batch-size", type=int, default=256)
    parser.add_argument("--episodes", type=int, default=50, help="of an evaluation: ten of a goal")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/goals"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/goals"))
    options = parser.parse_args()
    names = ("updates", "hidden", "batch_size", "episodes", "seeds")
    settings = {name: getattr(options, name) for name in names}
    for maze, key in itertools.product(options.mazes, options.agents):
        trained(key, maze, options)
        study = settings | provenance() | {"scores": scores(options)}
        shared.write(study, options.output / "mazes", table, draw)


if __name__ == "__main__":
    main()
