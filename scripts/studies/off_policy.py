"""Recent off-policy agents in networks that a CPU can bear, beside SAC at equal updates
and at equal time.

  python scripts/studies/off_policy.py --tasks double_pendulum hopper

Widths are a quarter of the papers' (an eighth for CrossQ), all other settings are the agents'
defaults and presets. SAC has its own widths too, and goes on for `--longer` times as many steps, so
that its return after as many seconds as another agent took is known. Seconds are those of the
training loop, by the median rate of its chunks. All seeds of a cell are learners of one program.
Complete runs are not repeated, and interrupted runs continue.
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
from scripts.results.shared import over_seeds
from scripts.studies import shared


class Cell(NamedTuple):
    """An agent, its settings and its variant of presets."""

    name: str  # in the table
    agent: str
    config: Mapping[str, Any]
    variant: str | None = None


SMALL: dict[str, Any] = {"hidden": (64, 64), "critic_hidden": (64, 64)}
WIDE: dict[str, Any] = {"hidden": (64,) * 3, "encoder_hidden": (64, 64), "embedding_size": 64}
DEEP: dict[str, Any] = {"hidden": (64,) * 4, "critic_hidden": (128,) * 4}
CELLS = {
    "sac": Cell("SAC, layers of 256", "sac", {}),
    "sac-small": Cell("SAC", "sac", SMALL),
    "tqc": Cell("TQC", "tqc", {"hidden": (64, 64), "critic_hidden": (128,) * 3}),
    "droq": Cell("DroQ", "sac", SMALL, "droq"),
    "crossq": Cell("CrossQ", "crossq", {"hidden": (64, 64), "critic_hidden": (256, 256)}),
    "xqc": Cell("XQC", "xqc", DEEP),
    "flashsac": Cell("FlashSAC", "flashsac", {"hidden": (32, 32), "critic_hidden": (64, 64)}),
    "simbav2": Cell("SimbaV2", "simbav2", {"hidden": (32,), "critic_hidden": (128, 128)}),
    "bro": Cell("BRO", "bro", {"hidden": (64,), "critic_hidden": (128, 128)}, "fast"),
    "td7": Cell("TD7", "td7", WIDE | {"checkpoints": False}),
}
BASE = "sac-small"
ENVIRONMENTS = {"double_pendulum": "InvertedDoublePendulum-v5", "hopper": "Hopper-v5"}
WARMUP = 1_000  # uniform actions before the first update, for all


def trained(task: str, key: str, steps: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    cell, out = CELLS[key], options.runs / f"{task}-{key}"
    steps *= options.longer if key == BASE else 1
    each = options.steps // 20
    begin = functools.partial(
        run.train,
        cell.agent,
        ENVIRONMENTS[task],
        steps,
        seeds=options.seeds,
        out=out,
        preset=cell.variant,
        config={"warmup_steps": WARMUP, **cell.config},
        eval_every=each,
        eval_episodes=10,
        checkpoint_every=10 * each,
        quiet=False,
    )
    return shared.trained(out, steps, begin)


def outcome(key: str, out: Path, steps: int) -> dict[str, Any]:
    """The results of a run: its curve, the last three evaluations of each learner until `steps`,
    and the time. Steps are those of each learner.
    """
    curves, config = shared.curves(out, 1), records.read_config(out)
    rate = shared.steps_per_second(out, WARMUP)
    return {
        "config": dict(CELLS[key].config),
        "git_revision": config["git_revision"],
        "updates_per_step": config["config"]["num_updates"],
        "steps": curves["steps"],
        "curves": curves["returns"],
        "last": shared.last(out, steps, "returns", 3).round(1).tolist(),
        "seconds": steps / rate,
        "steps_per_second": rate,
    }


def in_seconds(base: Mapping[str, Any], seconds: float) -> tuple[list[float], float]:
    """The returns of the base's learners after as many seconds, or at its end if that comes before;
    and the seconds until then.
    """
    until = min(seconds * base["steps_per_second"], base["steps"][-1])
    index = max(int(np.searchsorted(base["steps"], until, side="right")) - 1, 0)
    first = max(index - 2, 0)
    returns = [float(np.mean(curve[first : index + 1])) for curve in base["curves"]]
    return returns, until / base["steps_per_second"]


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| agent | updates per step | steps | return, each seed | seconds | SAC after the same "
        "seconds, each seed |",
        "|---|---|---|---|---|---|",
    ]
    cells = study["cells"]
    for key, cell in cells.items():
        beside = ""
        if BASE in cells and key != BASE:
            returns, after = in_seconds(cells[BASE], cell["seconds"])
            beside = over_seeds(returns)
            if after < cell["seconds"]:
                beside += f" at its end, after {after:,.0f} s"
        lines.append(
            f"| {CELLS[key].name} | {cell['updates_per_step']} | {study['steps']:,} | "
            f"{over_seeds(cell['last'])} | {cell['seconds']:,.0f} | {beside} |"
        )
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the curves over steps and over seconds: means over seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.4), layout="constrained")
    by_steps, by_time = figure.subplots(1, 2)
    for i, (key, cell) in enumerate(study["cells"].items()):
        steps, mean = np.array(cell["steps"]), np.mean(cell["curves"], axis=0)
        style = {"color": f"C{i}", "linewidth": 1.2}
        until = steps <= study["steps"]
        by_steps.plot(steps[until], mean[until], label=CELLS[key].name, **style)
        by_time.plot(steps / cell["steps_per_second"], mean, **style)
    by_steps.set(title=study["task"], xlabel="environment steps", ylabel="return")
    by_time.set(xlabel="seconds of the training loop", ylabel="return")
    by_steps.legend(fontsize="x-small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(ENVIRONMENTS), choices=ENVIRONMENTS)
    parser.add_argument("--agents", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--steps", type=int, default=50_000)
    parser.add_argument("--longer", type=int, default=4, help="times as many steps of SAC")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--runs", type=Path, default=Path("runs/off_policy"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/off_policy"))
    options = parser.parse_args()
    for task in options.tasks:
        outs = {key: trained(task, key, options.steps, options) for key in options.agents}
        cells = {key: outcome(key, out, options.steps) for key, out in outs.items()}
        study = {"task": ENVIRONMENTS[task], "seeds": options.seeds, "steps": options.steps}
        shared.write(study | provenance() | {"cells": cells}, options.output / task, table, draw)


if __name__ == "__main__":
    main()
