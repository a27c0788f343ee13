"""OGBench's agents of goals on its point mazes, scored as OGBench scores them.

The score is the success over five goals, in the mean over the last three of ten evaluations. All
agents have the presets of their authors for the data set, but for smaller networks and batches and
fewer updates: --hidden 512 512 512 --batch-size 1024 --updates 1000000 is the published size.

  rljax data record ogbench/pointmaze-medium-navigate-v0
  python scripts/studies/offline/goals.py --mazes medium-navigate

All seeds of an agent are learners of one program. The results are written after each run. Complete
runs are not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import folders
from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

MAZES = tuple(f"{size}-{kind}" for kind in ("navigate", "stitch") for size in ("medium", "large"))
NAMES = {"gciql": "GCIQL"}
# Park et al., arXiv:2410.20092, table 2: per cent, mean of 8 seeds, in the order of `MAZES`.
PUBLISHED: Mapping[str, Sequence[int]] = {"gciql": (53, 34, 21, 31)}
EVALUATIONS, LAST = 10, 3


def config_of(options: argparse.Namespace) -> dict[str, Any]:
    """Settings in place of the presets'."""
    return {"hidden": tuple(options.hidden), "batch_size": options.batch_size}


def trained(agent: str, maze: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out, data = options.runs / f"{agent}-{maze}", data_of(maze, options)
    every = options.updates // EVALUATIONS
    begin = functools.partial(
        run.train,
        agent,
        options.env,
        options.updates,
        data=data,
        seeds=options.seeds,
        config=config_of(options),
        out=out,
        eval_every=every,
        eval_episodes=options.episodes,
        checkpoint_every=every,
        quiet=False,
    )
    return shared.trained(out, options.updates, begin, data, config_of(options))


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
    for agent, name in NAMES.items():
        cells = []
        for maze in mazes:
            scores = study["scores"][maze].get(agent)
            published = PUBLISHED[agent][MAZES.index(maze)]
            cells += [over_seeds(scores["score"]) if scores else "-", str(published)]
        lines.append(f"| {name} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw mean success over updates: one picture for each maze."""
    from matplotlib.figure import Figure

    mazes = study["scores"]
    figure = Figure(figsize=(1.5 + 3.2 * len(mazes), 3.2), layout="constrained")
    axes = np.atleast_1d(figure.subplots(1, len(mazes), sharey=True))
    for axis, (maze, agents) in zip(axes, mazes.items(), strict=True):
        for i, name in enumerate(NAMES):
            if name in agents:
                mean = np.mean(agents[name]["success"], axis=0)
                axis.plot(agents[name]["steps"], mean, color=f"C{i}", label=NAMES[name])
        axis.set(title=f"point maze, {maze}", xlabel="updates", ylim=(-3, 103))
    axes[0].set_ylabel("success in %")
    figure.legend(*axes[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--mazes", nargs="+", default=list(MAZES), choices=MAZES)
    parser.add_argument("--agents", nargs="+", default=list(NAMES), choices=list(NAMES))
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
    study = {name: getattr(options, name) for name in names} | provenance() | {"scores": {}}
    for maze in options.mazes:
        for agent in options.agents:
            scores = outcome(trained(agent, maze, options))
            study["scores"].setdefault(maze, {})[agent] = scores
            shared.write(study, options.output / "mazes", table, draw)


if __name__ == "__main__":
    main()
