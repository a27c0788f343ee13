"""What a limit on costs costs: CPO, PPO-Lagrangian and SAC-Lagrangian beside PPO without a limit.

  python scripts/studies/constraints.py

The tasks are Hopper and HalfCheetah with the speed limits of Safety-Gymnasium's velocity tasks,
where a step above the limit costs 1, and a point among hazards. All agents have their presets; on
Hopper PPO-Lagrangian also learns with the minibatches of its defaults. PPO does not see the cost.
All seeds of an agent are learners of one program. Complete runs are not repeated, and interrupted
runs continue. Cells of the result that are not named stay as they are, with the revision of their
runs.

Costs are reported twice: of the last policy without exploration, and of the episodes in training,
which are those that the agents limit.
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
from rljax.analysis.comparison import mean_interval
from rljax.runs import records, run
from rljax.system.hardware import provenance
from scripts.studies import shared


class Variant(NamedTuple):
    """An agent with settings of its own."""

    name: str  # in the table
    agent: str
    config: Mapping[str, Any] = {}
    limited: bool = True  # it sees the cost


class Task(NamedTuple):
    """An environment with a limit on the cost of an episode."""

    env: str
    limit: float
    steps: Mapping[str, int]  # of each learner, by variant
    episodes: int  # of an evaluation


VARIANTS = {
    "cpo": Variant("CPO", "cpo"),
    "ppo_lagrangian": Variant("PPO-Lagrangian", "ppo_lagrangian"),
    "ppo_lagrangian-64": Variant(
        "PPO-Lagrangian, minibatches of 64", "ppo_lagrangian", {"batch_size": 64}
    ),
    "sac_lagrangian": Variant("SAC-Lagrangian", "sac_lagrangian"),
    "ppo": Variant("PPO", "ppo", limited=False),
}
SHORT, FEW = 200_000, 20_000  # steps, for about an hour of one core in all
TASKS = {
    "Hopper": Task(
        "velocity/Hopper-v5",
        25.0,
        dict.fromkeys(("cpo", "ppo_lagrangian", "ppo_lagrangian-64", "ppo"), SHORT)
        | {"sac_lagrangian": FEW},
        10,
    ),
    "HalfCheetah": Task(
        "velocity/HalfCheetah-v5",
        25.0,
        dict.fromkeys(("cpo", "ppo_lagrangian", "ppo"), SHORT) | {"sac_lagrangian": FEW},
        10,
    ),
    "PointHazards": Task(
        "rljax/PointHazards",
        10.0,
        dict.fromkeys(("cpo", "ppo_lagrangian", "ppo"), 256_000) | {"sac_lagrangian": 40_000},
        50,
    ),
}
CELLS = [f"{name}-{variant}" for name, task in TASKS.items() for variant in task.steps]
FIRST_SEED = 2_000  # of those that no other table has used
LAST = 0.2  # share of the steps over whose end training is averaged
# Return and cost of episodes in training after SHORT or FEW steps, mean of 5 seeds, as read from
# OmniSafe's pictures of curves to about 50 and 2: Gaiejj/omnisafe_benchmarks_cruve 9e1f612,
# on-policy/benchmarks/{first,second}_order_{hopper,halfcheetah}_1e6.png and
# off-policy/benchmarks/lag_{hopper,halfcheetah}_1e6.png. Its robots are Gymnasium's v4, ours v5.
CURVES = {
    ("Hopper", "cpo"): "980 (29)",
    ("Hopper", "ppo_lagrangian"): "1,020 (30)",
    ("Hopper", "sac_lagrangian"): "130 (42)",
    ("Hopper", "ppo"): "1,350 (above 100)",
    ("HalfCheetah", "cpo"): "1,050 (21)",
    ("HalfCheetah", "ppo_lagrangian"): "980 (39)",
    ("HalfCheetah", "sac_lagrangian"): "-10 (0)",
    ("HalfCheetah", "ppo"): "940 (49)",
}
COLOURS = {
    "cpo": "#CC79A7",
    "ppo_lagrangian": "#0072B2",
    "ppo_lagrangian-64": "#56B4E9",
    "sac_lagrangian": "#009E73",
    "ppo": "#D55E00",
}


def trained(name: str, variant: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    task = TASKS[name]
    _, agent, config, limited = VARIANTS[variant]
    steps = options.steps or task.steps[variant]
    out = options.runs / f"{name}-{variant}"
    begin = functools.partial(
        run.train,
        agent,
        task.env,
        steps,
        seeds=list(range(FIRST_SEED, FIRST_SEED + options.seeds)),
        out=out,
        config=dict(config) | ({"cost_limit": task.limit} if limited else {}),
        eval_every=max(steps // 2, 1),
        eval_episodes=task.episodes,
        quiet=False,
    )
    return shared.trained(out, steps, begin)


def in_training(out: Path, number: int, metric: str, share: float) -> list[float]:
    """For each of so many learners the mean of a metric of episodes, such as "episode/cost".

    It is over the chunks in the last `share` of its steps in which episodes ended; nan where there
    are none.
    """
    lines = records.read(out, "metrics")
    first = (1.0 - share) * lines[-1]["step"]
    chunks = [x[metric] for x in lines if x["step"] > first and metric in x]
    values = np.array(chunks, float).reshape(-1, number)  # [chunk, learner]
    counts = np.isfinite(values).sum(axis=0)
    return (np.nansum(values, axis=0) / np.where(counts > 0, counts, np.nan)).tolist()


def outcome(out: Path, limit: float) -> dict[str, Any]:
    """Returns and costs of each learner: of its last evaluation, and in training."""
    learners = folders.read(out).learners
    costs = np.array([learner.signals["cost"][-1] for learner in learners])
    returns = np.array([learner.returns[-1] for learner in learners])
    mean = functools.partial(in_training, out, len(learners))
    training = mean("episode/cost", LAST)
    return {
        "steps": int(learners[0].steps[-1]),
        "seeds": [learner.seed for learner in learners],
        "returns": returns.round(1).tolist(),
        "costs": costs.round(1).tolist(),
        "training_returns": mean("episode/return", LAST),
        "training_costs": training,
        "training_costs_in_all": mean("episode/cost", 1.0),
        "within": int((costs <= limit).sum()),
        "training_within": int((np.array(training) <= limit).sum()),
        "return": mean_interval(returns),
        "cost": mean_interval(costs),
        "steps_per_second": round(records.read_summary(out)["steps_per_second"]),
        "git_revision": records.read_config(out)["git_revision"],
    }


def former(path: Path) -> dict[str, dict[str, Any]]:
    """The cells of an earlier result, by task, each with its revision."""
    if not path.exists():
        return {}
    study = json.loads(path.read_text())
    revision = {"git_revision": study["git_revision"]}
    return {
        name: {variant: revision | cell for variant, cell in cells.items()}
        for name, cells in study["tasks"].items()
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        (
            "| task, limit | agent | steps | return [95 % interval] | cost [95 % interval] "
            "| within | training: return | cost | within | cost, whole run "
            "| each seed: return (cost; in training) "
            "| OmniSafe at these steps, in training: return (cost) |"
        ),
        "|---" * 12 + "|",
    ]
    for name, cells in study["tasks"].items():
        for variant, cell in cells.items():
            spans = [shared.with_interval(cell[x]) for x in ("return", "cost")]
            number = len(cell["seeds"])
            rows = zip(cell["returns"], cell["costs"], cell["training_costs"], strict=True)
            each = ", ".join(f"{x:,.0f} ({y:.0f}; {z:.0f})" for x, y, z in rows)
            means = [
                f"{np.mean(cell[x]):,.0f}"
                for x in ("training_returns", "training_costs", "training_costs_in_all")
            ]
            parts = [
                f"{name}, {TASKS[name].limit:.0f}",
                VARIANTS[variant].name,
                f"{cell['steps']:,}",
                *spans,
                f"{cell['within']} of {number}",
                *means[:2],
                f"{cell['training_within']} of {number}",
                means[2],
                each,
                CURVES.get((name, variant), "-"),
            ]
            lines.append(f"| {' | '.join(parts)} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw returns over costs, and the limit as a line: for each learner a dot for its evaluation
    and a cross for training.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(4 * len(study["tasks"]), 3.4), layout="constrained")
    panels = figure.subplots(1, len(study["tasks"]), squeeze=False)[0]
    for axes, (name, cells) in zip(panels, study["tasks"].items(), strict=True):
        for variant, cell in cells.items():
            colour = {"color": COLOURS[variant], "alpha": 0.8}
            axes.plot(cell["costs"], cell["returns"], "o", label=VARIANTS[variant].name, **colour)
            axes.plot(cell["training_costs"], cell["training_returns"], "x", **colour)
        axes.axvline(TASKS[name].limit, color="k", linewidth=0.8, linestyle="--", label="limit")
        axes.set_xscale("symlog", linthresh=10)
        axes.set(title=name, xlabel="cost of an episode", ylabel="return", xlim=(-1, None))
        axes.legend(fontsize="x-small")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--cells", nargs="+", default=CELLS, choices=CELLS, help="tasks and agents")
    parser.add_argument("--steps", type=int, help="of all runs; default: as in the table")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/constraints"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/constraints"))
    options = parser.parse_args()
    before = former(options.output / "limits.json")
    tasks: dict[str, dict[str, Any]] = {name: before.get(name, {}) for name in TASKS}
    for cell in options.cells:
        name, variant = cell.split("-", 1)
        tasks[name][variant] = outcome(trained(name, variant, options), TASKS[name].limit)
    study = {
        "limits": {name: task.limit for name, task in TASKS.items()},
        **provenance(),
        "tasks": {name: cells for name, cells in tasks.items() if cells},
    }
    shared.write(study, options.output / "limits", table, draw)


if __name__ == "__main__":
    main()
