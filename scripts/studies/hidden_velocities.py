"""What a memory gives back where velocities are hidden:
PPO on Hopper, and R2D2 beside DQN on CartPole.

  python scripts/studies/hidden_velocities.py

Each task is learnt with its velocities, without them, and without them by an agent that remembers.
On Hopper all three have PPO's preset for Hopper, with larger minibatches. On CartPole DQN has its
preset, and R2D2 its defaults with more updates and an exploration that falls, which were chosen on
two other seeds. All seeds of a cell are learners of one program. Complete runs are not repeated,
and interrupted runs continue. CartPole needs gymnax: pip install 'rljax-suite[gymnax]'.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.analysis.comparison import mean_interval
from rljax.runs import records, run
from rljax.system.hardware import provenance
from scripts.studies import shared


class Cell(NamedTuple):
    """One agent on one task."""

    name: str  # in the table
    agent: str
    env: str
    config: Mapping[str, Any]


# Minibatches are whole rollouts of 8 environments, so that a memory's gradients reach back 32
# steps.
ROLLOUT: dict[str, Any] = {"num_envs": 64, "num_steps": 32, "batch_size": 256}
R2D2: dict[str, Any] = {"num_updates": 16, "exploration": "falling", "epsilon_steps": 0.3}
HIDDEN = "without-velocities/"
CELLS = {
    "hopper": {
        "full": Cell("PPO, all is seen", "ppo", "Hopper-v5", ROLLOUT),
        "none": Cell("PPO without a memory", "ppo", HIDDEN + "Hopper-v5", ROLLOUT),
        "gru": Cell("PPO with a GRU", "ppo", HIDDEN + "Hopper-v5", ROLLOUT | {"memory": "gru"}),
    },
    "cartpole": {
        "full": Cell("DQN, all is seen", "dqn", "gymnax/CartPole-v1", {}),
        "none": Cell("DQN without a memory", "dqn", HIDDEN + "gymnax/CartPole-v1", {}),
        "gru": Cell("R2D2 with a GRU", "r2d2", HIDDEN + "gymnax/CartPole-v1", R2D2),
    },
}
TITLES = {"hopper": "Hopper-v5", "cartpole": "CartPole-v1"}
COLOURS = {"full": "#999999", "none": "#D55E00", "gru": "#0072B2"}


def trained(task: str, variant: str, steps: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    cell, out = CELLS[task][variant], options.runs / f"{task}-{variant}"
    begin = functools.partial(
        run.train,
        cell.agent,
        cell.env,
        steps,
        seeds=options.seeds,
        out=out,
        config=dict(cell.config),
        eval_every=steps // 10,
        eval_episodes=10,
        checkpoint_every=steps // 2,
        quiet=False,
    )
    return shared.trained(out, steps, begin)


def outcome(task: str, variant: str, out: Path) -> dict[str, Any]:
    """The results of a run: its curve, the last three evaluations of each learner,
    and its speed.
    """
    curves, last = shared.curves(out, 1), shared.last(out, sys.maxsize, "returns", 3)
    return {
        "env": CELLS[task][variant].env,
        "config": dict(CELLS[task][variant].config),
        "steps": curves["steps"],
        "curves": curves["returns"],
        "last": last.round(1).tolist(),
        "interval": mean_interval(last),
        "steps_per_second": round(records.read_summary(out)["steps_per_second"]),
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| task | agent | steps | seeds | return [95 % interval] | each seed | steps/s |",
        "|---|---|---|---|---|---|---|",
    ]
    for task, cells in study["tasks"].items():
        for variant, cell in cells.items():
            each = ", ".join(f"{x:,.0f}" for x in cell["last"])
            hidden = ", velocities hidden" if cell["env"].startswith(HIDDEN) else ""
            lines.append(
                f"| {TITLES[task]}{hidden} | {CELLS[task][variant].name} | {cell['steps'][-1]:,} | "
                f"{study['seeds']} | {shared.with_interval(cell['interval'])} | {each} "
                f"| {cell['steps_per_second']:,} |"
            )
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the curves: the mean over seeds as a line, each seed thin."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panels = figure.subplots(1, len(study["tasks"]), squeeze=False)[0]
    for axes, (task, cells) in zip(panels, study["tasks"].items(), strict=True):
        for variant, cell in cells.items():
            curves = np.array(cell["curves"])
            axes.plot(cell["steps"], curves.T, color=COLOURS[variant], linewidth=0.5, alpha=0.5)
            axes.plot(
                cell["steps"],
                curves.mean(axis=0),
                color=COLOURS[variant],
                label=CELLS[task][variant].name,
            )
        axes.set(title=TITLES[task], xlabel="environment steps", ylabel="return")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--tasks", nargs="+", default=list(CELLS), choices=list(CELLS))
    parser.add_argument("--hopper-steps", type=int, default=1_000_000)
    parser.add_argument("--cartpole-steps", type=int, default=50_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/hidden_velocities"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/memory"))
    options = parser.parse_args()
    steps = {"hopper": options.hopper_steps, "cartpole": options.cartpole_steps}
    tasks = {
        task: {
            variant: outcome(task, variant, trained(task, variant, steps[task], options))
            for variant in CELLS[task]
        }
        for task in options.tasks
    }
    study = {"seeds": options.seeds, **provenance(), "tasks": tasks}
    shared.write(study, options.output / "hidden_velocities", table, draw)


if __name__ == "__main__":
    main()
