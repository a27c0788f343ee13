"""Critics that classify values, compared on one data set:
squared error, two-hot and HL-Gauss in TD3+BC and IQL.

  rljax train sac --env HalfCheetah-v5 --steps 51000 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.temperature-lr 1e-3 --config.warmup-steps 5000 \
      --config.initialisation lecun_uniform --out runs/trained
  python scripts/studies/value_heads.py --data replay.hdf5

`--data` is any set with an environment, for example the replay of a run. Complete runs are not
repeated, and interrupted runs continue. All seeds of a cell are learners of one program.

Method: Farebrother et al., Stop Regressing: Training Value Functions via Classification,
arXiv:2403.03950; see docs/agents/iql.md.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis.comparison import mean_interval
from rljax.runs import records, run
from rljax.system.hardware import provenance
from scripts.studies import shared

AGENTS = {"td3_bc": "TD3+BC", "iql": "IQL"}
HEADS = {"squared": "squared error", "two_hot": "two-hot", "hl_gauss": "HL-Gauss"}
COLOURS = {"squared": "#999999", "two_hot": "#0072B2", "hl_gauss": "#D55E00"}


def trained(agent: str, head: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    out, config = options.runs / f"{agent}-{head}", {"value_head": head}
    begin = functools.partial(
        run.train,
        agent,
        data=options.data,
        steps=options.steps,
        seeds=options.seeds,
        out=out,
        config=config,
        eval_every=options.steps,
        eval_episodes=options.episodes,
        checkpoint_every=options.steps,
        quiet=False,
    )
    return shared.trained(out, options.steps, begin, options.data, config)


def clipped(out: Path) -> float | None:
    """The share of targets beyond the bins at the end of a run, the mean over learners;
    None without bins.
    """
    lines = [line for line in records.read(out, "metrics") if "critic/clipped" in line]
    last = [line["critic/clipped"] for line in lines if line["step"] == lines[-1]["step"]]
    return float(np.mean(last)) if last else None


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        "| critics learn by | " + " | ".join(f"{name} | clipped" for name in AGENTS.values()) + " |"
    ]
    lines.append("|---|" + "---|---|" * len(AGENTS))
    for head, name in HEADS.items():
        cells = [name]
        for agent in AGENTS:
            interval, share = study["intervals"][agent][head], study["clipped"][agent][head]
            cells += [
                shared.with_interval(interval, 1),
                "" if share is None else f"{100 * share:.1f} %",
            ]
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw scores by agent and head: a bar for the mean, a dot for each learner."""
    shared.draw_scores(study, path, AGENTS, HEADS, COLOURS)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="data set, a name or a file")
    parser.add_argument("--steps", type=int, default=10_000, help="updates of each learner")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10, help="of the evaluation")
    parser.add_argument("--runs", type=Path, default=Path("runs/value_heads"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/value_heads"))
    options = parser.parse_args()
    folders = {agent: {head: trained(agent, head, options) for head in HEADS} for agent in AGENTS}
    scores = {
        agent: {head: shared.last(out, options.steps, "scores", 1) for head, out in of.items()}
        for agent, of in folders.items()
    }
    described = json.loads((folders["iql"]["squared"] / "config.json").read_text())
    study = {
        "env": described["env"],
        "data": described["dataset"],
        "steps": options.steps,
        **provenance(),
        "clipped": {
            agent: {head: clipped(out) for head, out in of.items()} for agent, of in folders.items()
        },
        "scores": {
            agent: {head: x.round(2).tolist() for head, x in of.items()}
            for agent, of in scores.items()
        },
        "intervals": {
            agent: {head: mean_interval(x) for head, x in of.items()}
            for agent, of in scores.items()
        },
    }
    shared.write(study, options.output / "halfcheetah", table, draw)


if __name__ == "__main__":
    main()
