"""Train every agent with the defaults of its file on one task that no preset knows,
and list what it learns.

  python scripts/studies/defaults.py

The task is the tests' point on a line that is to come near a goal, with continuous or with three
actions. Agents from data learn from 300 recorded episodes. Each has the steps of its test
(tests/agents/contract/test_defaults.py), two seeds and 30 episodes without exploration at the end.
Those with the largest networks have their full sizes here, and a few hundred steps after their
warm-up. Complete runs are not repeated, and rows of other agents than `--agents` stay in the file.
Agents that learn of goals, of values alone, from two sources or under a limit on a cost are not
here.
"""

from __future__ import annotations

import argparse
import functools
import json
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

# Agents whose tests have smaller networks than by default: environment steps, most of them of the
# warm-up, and settings.
LARGE: dict[str, tuple[int, dict[str, Any]]] = {
    "crossq": (6_000, {}),
    "xqc": (6_000, {}),
    "simbav2": (6_000, {}),
    "bro": (3_000, {}),
    "flashsac": (11_000, {}),
    "tqc": (11_000, {}),
    # Here returns depend most on where an episode begins: its best policies would be the luckiest.
    "td7": (28_000, {"checkpoints": False}),
}
STEPS = ONLINE | {agent: steps for agent, (steps, _) in LARGE.items()} | FROM_DATA


def task_of(agent: str) -> str:
    """The task's class."""
    return "ReachDiscrete" if agent in DISCRETE else "Reach"


def trained(agent: str, options: argparse.Namespace) -> list[float]:
    """The mean return of each learner's last policy."""
    steps = STEPS[agent]
    task = f"{reach.__file__}:{task_of(agent)}"
    settings: dict[str, Any] = {"seeds": options.seeds, "eval_every": steps, "eval_episodes": 30}
    settings["config"] = LARGE[agent][1] if agent in LARGE else {}
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


def earlier(path: Path) -> dict[str, Any]:
    """The rows of a file that is there, each with the revision that it is of."""
    if not path.exists():
        return {}
    file = json.loads(path.read_text())
    revision = {"git_revision": file["git_revision"]}
    return {agent: revision | row for agent, row in file["agents"].items()}


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
    parser.add_argument("--agents", nargs="+", default=list(STEPS), choices=list(STEPS))
    parser.add_argument("--seeds", type=int, default=2)
    parser.add_argument("--runs", type=Path, default=Path("runs/defaults"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/defaults"))
    options = parser.parse_args()
    options.runs.mkdir(parents=True, exist_ok=True)
    here = provenance()
    agents = earlier(options.output / "reach.json") | {
        agent: {
            "from": "data" if agent in FROM_DATA else "an environment",
            "steps": STEPS[agent],
            "returns": [round(x, 2) for x in trained(agent, options)],
            "git_revision": here["git_revision"],
        }
        for agent in options.agents
    }
    agents = {agent: agents[agent] for agent in STEPS if agent in agents}
    study = {"levels": reach.LEVELS, **here, "agents": agents}
    shared.write(study, options.output / "reach", table, draw)


if __name__ == "__main__":
    main()
