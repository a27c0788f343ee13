"""What a limit on costs costs: PPO-Lagrangian and PPO where running fast is a cost.

  python scripts/studies/constraints.py

The tasks are HalfCheetah and Hopper with the speed limits of Safety-Gymnasium's velocity tasks: a
step above the limit costs 1. Both agents have their presets; on Hopper PPO-Lagrangian also learns
with the minibatches of its defaults. PPO does not see the cost. All seeds of an agent are learners
of one program. Complete runs are not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.analysis import folders
from rljax.analysis.comparison import mean_interval
from rljax.runs import records, run
from rljax.system.hardware import provenance
from scripts.studies import shared


class Variant(NamedTuple):
    """An agent with settings of its own."""

    name: str  # in the table
    agent: str
    config: Mapping[str, Any] = {}


VARIANTS = {
    "ppo_lagrangian": Variant("PPO-Lagrangian", "ppo_lagrangian"),
    "ppo_lagrangian-64": Variant(
        "PPO-Lagrangian, minibatches of 64", "ppo_lagrangian", {"batch_size": 64}
    ),
    "ppo": Variant("PPO", "ppo"),
}
TASKS = {"HalfCheetah": ("ppo_lagrangian", "ppo"), "Hopper": tuple(VARIANTS)}
CELLS = [f"{task}-{variant}" for task, variants in TASKS.items() for variant in variants]
# On the cost of an episode: the default of PPO-Lagrangian, and that of the published results.
LIMIT = 25.0
# Return and cost, mean and std over 5 seeds after 10M steps: PKU-Alignment/omnisafe 15603dd,
# benchmarks/on-policy.
PUBLISHED = {
    ("HalfCheetah", "ppo_lagrangian"): ("2,946 +- 306", "3.4 +- 4.8"),
    ("Hopper", "ppo_lagrangian"): ("962 +- 753", "14.0 +- 19.3"),
}
COLOURS = {"ppo_lagrangian": "#0072B2", "ppo_lagrangian-64": "#009E73", "ppo": "#D55E00"}


def trained(task: str, variant: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    _, agent, config = VARIANTS[variant]
    out = options.runs / f"velocity-{task}-{variant}"
    begin = functools.partial(
        run.train,
        agent,
        f"velocity/{task}-v5",
        options.steps,
        seeds=options.free_seeds if agent == "ppo" else options.seeds,
        out=out,
        config=dict(config),
        eval_every=options.steps // 4,
        eval_episodes=10,
        quiet=False,
    )
    return shared.trained(out, options.steps, begin)


def outcome(out: Path) -> dict[str, Any]:
    """Of the last evaluation of each learner: mean returns and costs;
    and the costs of all evaluations.
    """
    learners = folders.read(out).learners
    costs = np.array([learner.signals["cost"] for learner in learners])  # [learner, evaluation]
    returns = np.array([learner.returns[-1] for learner in learners])
    return {
        "steps": learners[0].steps.tolist(),
        "returns": returns.round(1).tolist(),
        "costs": costs[:, -1].round(1).tolist(),
        "return": mean_interval(returns),
        "cost": mean_interval(costs[:, -1]),
        "costs_by_step": costs.mean(axis=0).tolist(),
        "steps_per_second": round(records.read_summary(out)["steps_per_second"]),
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        (
            "| task | agent | seeds | return [95 % interval] | cost [95 % interval] | each seed: "
            "return (cost) | published, 10M steps: return | cost | steps/s |"
        ),
        "|---" * 9 + "|",
    ]
    for task, cells in study["tasks"].items():
        for variant, cell in cells.items():
            spans = [shared.with_interval(cell[name]) for name in ("return", "cost")]
            each = ", ".join(
                f"{x:,.0f} ({y:.0f})" for x, y in zip(cell["returns"], cell["costs"], strict=True)
            )
            published = " | ".join(PUBLISHED.get((task, VARIANTS[variant].agent), ("-", "-")))
            lines.append(
                f"| {task} | {VARIANTS[variant].name} | {len(cell['returns'])} | "
                f"{' | '.join(spans)} | {each} | {published} | {cell['steps_per_second']:,} |"
            )
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw returns over costs, a dot for each learner, and the limit as a line."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.2), layout="constrained")
    panels = figure.subplots(1, len(study["tasks"]), squeeze=False)[0]
    for axes, (task, cells) in zip(panels, study["tasks"].items(), strict=True):
        for variant, cell in cells.items():
            dots = {"color": COLOURS[variant], "alpha": 0.7, "label": VARIANTS[variant].name}
            axes.plot(cell["costs"], cell["returns"], "o", **dots)
        axes.axvline(LIMIT, color="k", linewidth=0.8, linestyle="--", label="limit")
        axes.set(title=task, xlabel="cost of an episode", ylabel="return")
        axes.legend(fontsize="small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS, help="tasks and agents")
    parser.add_argument("--steps", type=int, default=1_000_000)
    parser.add_argument("--seeds", type=int, default=5, help="of PPO-Lagrangian")
    parser.add_argument("--free-seeds", type=int, default=3, help="of PPO")
    parser.add_argument("--runs", type=Path, default=Path("runs/velocity"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/constraints"))
    options = parser.parse_args()
    tasks = {
        task: {
            x: outcome(trained(task, x, options))
            for x in variants
            if f"{task}-{x}" in options.cells
        }
        for task, variants in TASKS.items()
    }
    shared.write(
        {"limit": LIMIT, **provenance(), "tasks": tasks}, options.output / "velocity", table, draw
    )


if __name__ == "__main__":
    main()
