"""Train every agent with the defaults of its file on one task that no preset knows,
and list what it learns.

  python scripts/studies/defaults.py

The task is the tests' point on a line that is to come near a goal, with continuous or with three
actions. Agents from data learn from 300 recorded episodes. Each has the steps of its test
(tests/agents/contract/test_defaults.py), two seeds and 30 episodes without exploration at the end.
Complete runs are not repeated. Agents with tests of their own are not here: they learn of goals, of
values alone, or under a limit on a cost.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.studies import shared
from tests.agents.contract.test_defaults import DISCRETE, FROM_DATA, ONLINE
from tests.environments import reach


def task_of(agent: str) -> str:
    """The task's class."""
    return "ReachDiscrete" if agent in DISCRETE else "Reach"


def trained(agent: str, options: argparse.Namespace) -> list[float]:
    """The mean return of each learner's last policy."""
    steps = (ONLINE | FROM_DATA)[agent]
    task = f"{reach.__file__}:{task_of(agent)}"
    settings: dict[str, Any] = {"seeds": options.seeds, "eval_every": steps, "eval_episodes": 30}
    if agent in FROM_DATA:
        record, file = (
            (reach.choices, "choices.npz")
            if agent in DISCRETE
            else (reach.journeys, "journeys.npz")
        )
        path = options.runs / file
        settings["data"] = str(path if path.exists() else record(path))
    out = options.runs / agent
    begin = functools.partial(
        run.train, agent, task, steps, out=out, checkpoint_every=steps, quiet=False, **settings
    )
    done = shared.trained(out, steps, begin, settings.get("data"))
    # A run may end later, with a whole rollout.
    return shared.last(done, sys.maxsize, "returns", 1).tolist()


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| agent | learns from | steps or updates | return, each seed | share of the way |",
        "|---|---|---|---|---|",
    ]
    for agent, row in study["agents"].items():
        returns = ", ".join(f"{value:.1f}" for value in row["returns"])
        uniform, best = study["levels"][task_of(agent)]
        share = (np.mean(row["returns"]) - uniform) / (best - uniform)
        lines.append(f"| {agent} | {row['from']} | {row['steps']:,} | {returns} | {share:.0%} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw a dot per learner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(6, 5.5), layout="constrained")
    axes = figure.subplots()
    for place, row in enumerate(study["agents"].values()):
        axes.plot(row["returns"], [place] * len(row["returns"]), "o", color="#0072B2", markersize=4)
    for value, name in zip(
        study["levels"]["Reach"], ("uniform actions", "straight to the goal"), strict=True
    ):
        axes.axvline(value, color="k", linewidth=0.8, linestyle="--")
        axes.annotate(name, (value, len(study["agents"]) - 0.3), fontsize=7, ha="center")
    axes.set_yticks(range(len(study["agents"])), list(study["agents"]), fontsize=7)
    axes.set(xlabel="evaluation return", title="Defaults, on a task that no preset knows")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/defaults"))
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    agents = {
        agent: {
            "from": "data" if agent in FROM_DATA else "an environment",
            "steps": (ONLINE | FROM_DATA)[agent],
            "returns": [round(x, 2) for x in trained(agent, options)],
        }
        for agent in [*ONLINE, *FROM_DATA]
    }
    study = {"levels": reach.LEVELS, **provenance(), "agents": agents}
    shared.write(study, options.output / "reach", table, draw)


if __name__ == "__main__":
    main()
