"""PPO with each of its surrogates, on the same tasks, steps and seeds.

  python scripts/studies/surrogates.py

Each has the preset of PPO for the task. The mirror's step and epsilon of the last three fall over
the run, as MDPO's do; MDPO is there too with its authors' passes over whole rollouts. All seeds of
a cell are learners of one program. Complete runs are not repeated, and interrupted runs continue.
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
from scripts.studies import shared


class Variant(NamedTuple):
    """A surrogate's name in the table, and its settings."""

    name: str
    config: Mapping[str, Any]


ROLLOUT = 2_048  # steps of a rollout by PPO's presets for these tasks
FALLS = {"trust_steps": 1.0}
VARIANTS = {
    "clip": Variant("clip (PPO)", {}),
    "mdpo": Variant("MDPO", {"surrogate": "mdpo", **FALLS}),
    "mdpo-whole": Variant(
        "MDPO, whole rollouts", {"surrogate": "mdpo", "batch_size": ROLLOUT, **FALLS}
    ),
    "pmd": Variant("PMD-mean", {"surrogate": "pmd", **FALLS}),
    "dpo": Variant("DPO's drift", {"surrogate": "dpo"}),
}
TASKS = ("HalfCheetah-v5", "Hopper-v5", "Walker2d-v5")


def trained(task: str, key: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out, each = options.runs / f"{task}-{key}", max(options.steps // 20, ROLLOUT)
    begin = functools.partial(
        run.train,
        "ppo",
        task,
        options.steps,
        seeds=options.seeds,
        out=out,
        config=dict(VARIANTS[key].config),
        eval_every=each,
        eval_episodes=10,
        checkpoint_every=5 * each,
        quiet=False,
    )
    return shared.trained(out, options.steps, begin)


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = ["| return [95 % interval] | " + " | ".join(study["tasks"]) + " |"]
    lines.append("|---|" + "---|" * len(study["tasks"]))
    for key in study["variants"]:
        returns = [
            shared.seeds_with_interval(cells[key]["last"]) for cells in study["tasks"].values()
        ]
        lines.append(f"| {VARIANTS[key].name} | " + " | ".join(returns) + " |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the curves: means over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(3.6 * len(study["tasks"]), 3.2), layout="constrained")
    panels = figure.subplots(1, len(study["tasks"]), squeeze=False)[0]
    for axes, (task, cells) in zip(panels, study["tasks"].items(), strict=True):
        for i, key in enumerate(study["variants"]):
            mean = np.mean(cells[key]["curves"], axis=0)
            label = VARIANTS[key].name
            axes.plot(cells[key]["steps"], mean, color=f"C{i}", linewidth=1.2, label=label)
        axes.set(title=task, xlabel="environment steps", ylabel="return")
    panels[0].legend(fontsize="x-small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(TASKS), choices=TASKS)
    parser.add_argument("--surrogates", nargs="+", default=list(VARIANTS), choices=list(VARIANTS))
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/surrogates"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/surrogates"))
    options = parser.parse_args()
    tasks: dict[str, Any] = {}
    for task in options.tasks:
        tasks[task] = {}
        for key in options.surrogates:
            out = trained(task, key, options)
            curves = shared.curves(out, 1)
            tasks[task][key] = {
                "config": dict(VARIANTS[key].config),
                "steps": curves["steps"],
                "curves": curves["returns"],
                "last": shared.last(out, curves["steps"][-1], "returns", 3).round(1).tolist(),
            }
    study = {"seeds": options.seeds, "steps": options.steps, "variants": options.surrogates}
    study |= provenance() | {"tasks": tasks}
    shared.write(study, options.output / "surrogates", table, draw)


if __name__ == "__main__":
    main()
