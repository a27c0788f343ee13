"""Weights of rows compared on one data set: random actions of which a small share is a trained
policy's.

The set has two parts by D4RL's recipe: complete episodes of uniform actions, and `--share` of all
episodes by a run's policy, exploring. Each agent learns from it with uniform rows, with Harness's
weights by advantage, and from the best tenth of the trajectories. All seeds of a cell are learners
of one program.

  rljax train sac --env HalfCheetah-v5 --steps 60000 --config.hidden 64 64 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.temperature-lr 1e-3 --config.warmup-steps 5000 \
      --config.initialisation lecun_uniform --eval-every 20000 --out runs/recorded
  python scripts/studies/offline/weights.py --policy runs/recorded

Complete runs are not repeated, and interrupted runs continue. The set is written once, into
`--runs`.

Method and published scores: Hong et al., Harnessing Mixed Offline Reinforcement Learning Datasets
via Trajectory Weighting, arXiv:2306.13085; see docs/datasets.md.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax import datasets
from rljax.analysis import comparison
from rljax.runs import run
from rljax.runs.policies import collect
from rljax.system.hardware import provenance
from scripts.studies import shared

AGENTS = {"td3_bc": "TD3+BC", "iql": "IQL"}
WEIGHTS = {
    "uniform": "uniform",
    "advantage": "advantage, alpha 0.1",
    "top": "best tenth",
}
# Last policies on halfcheetah, random with 5 % expert, in the order of WEIGHTS:
# Improbable-AI/harness-offline-rl.
PUBLISHED = {"td3_bc": (20.6, 50.2, 5.7), "iql": (9.1, 74.0, 4.4)}
COLOURS = {"uniform": "#999999", "advantage": "#0072B2", "top": "#D55E00"}


def mixed(options: argparse.Namespace) -> str:
    """The file of the mixed data set. It is written if it is missing."""
    path = options.runs / "mixed.hdf5"
    if not path.exists():
        options.runs.mkdir(parents=True, exist_ok=True)
        good = round(options.share * options.episodes)
        parts: list[tuple[collect.Source, int]] = [
            ("random", options.episodes - good),
            ("exploring", good),
        ]
        recorded = [
            collect.record(
                options.policy,
                steps=number * options.length,
                source=source,  # pyright: ignore[reportArgumentType]
                num_envs=10,
                name=source,
            )
            for source, number in parts
        ]
        datasets.write(datasets.join(recorded, "mixed"), path)
    return str(path)


def trained(agent: str, weights: str, data: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out = options.runs / f"{agent}-{weights}"
    begin = functools.partial(
        run.train,
        agent,
        data=data,
        steps=options.steps,
        seeds=options.seeds,
        out=out,
        weights=weights,
        eval_every=options.eval_every,
        eval_episodes=10,
        checkpoint_every=options.eval_every,
        quiet=False,
    )
    return shared.trained(out, options.steps, begin, data)


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| rows | effective episodes | "
        + " | ".join(f"{name} | published" for name in AGENTS.values())
        + " |"
    ]
    lines.append("|---|---|" + "---|---|" * len(AGENTS))
    for i, (weights, name) in enumerate(WEIGHTS.items()):
        cells = [name, f"{study['effective'][weights]:.0f} of {study['episodes']}"]
        for agent in AGENTS:
            cells += [
                shared.with_interval(study["intervals"][agent][weights], 1),
                f"{PUBLISHED[agent][i]:g}",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw scores by agent and weights: a bar for the mean, a dot for each learner."""
    shared.draw_scores(
        study, path, AGENTS, WEIGHTS, COLOURS, {"the good episodes": study["good_score"]}
    )


def main() -> None:
    """Record, train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--policy", type=Path, required=True, help="run whose policy plays the good episodes"
    )
    parser.add_argument("--share", type=float, default=0.05, help="of the episodes that are good")
    parser.add_argument(
        "--episodes", type=int, default=200, help="of the set; a multiple of 10 of each kind"
    )
    parser.add_argument("--length", type=int, default=1_000, help="steps of an episode")
    parser.add_argument("--steps", type=int, default=6_000, help="updates of each learner")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--eval-every", type=int, default=3_000)
    parser.add_argument("--runs", type=Path, default=Path("runs/weights"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/weights"))
    options = parser.parse_args()
    data = mixed(options)
    folders = {agent: {w: trained(agent, w, data, options) for w in WEIGHTS} for agent in AGENTS}
    scores = {
        agent: {w: shared.last(out, options.steps, "scores", 1) for w, out in of.items()}
        for agent, of in folders.items()
    }
    dataset = datasets.load(data)
    good = np.sort(dataset.score(dataset.returns()))[-round(options.share * options.episodes) :]
    first = folders["td3_bc"]
    described = json.loads((first["uniform"] / "config.json").read_text())
    summaries = {
        w: json.loads((out / "summary.json").read_text())["weights"] for w, out in first.items()
    }
    study = {
        "env": described["env"],
        "data": described["dataset"],
        "episodes": options.episodes,
        "good_score": float(good.mean()),
        "steps": options.steps,
        **provenance(),
        "effective": {
            w: options.episodes if x is None else x["effective_trajectories"]
            for w, x in summaries.items()
        },
        "scores": {
            agent: {w: x.round(2).tolist() for w, x in of.items()} for agent, of in scores.items()
        },
        "intervals": {
            agent: {w: comparison.mean_interval(x) for w, x in of.items()}
            for agent, of in scores.items()
        },
    }
    shared.write(study, options.output / "halfcheetah", table, draw)


if __name__ == "__main__":
    main()
