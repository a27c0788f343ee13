"""RIQL compared with IQL on one data set: clean, and under each of the eight corruptions of RIQL's
paper.

Both agents have the settings of RIQL's authors. RIQL has those that they chose for each corruption
of a task. IQL has those of the authors' own IQL, whose policy is deterministic and whose rewards
are unchanged. The attacker is EDAC with 10 critics, trained here on the clean data. All seeds of an
agent are learners of one program.

  python scripts/studies/offline/corruptions.py --data sets/HalfCheetah-medium-replay.hdf5 \
      --task halfcheetah
  python scripts/studies/offline/corruptions.py --data d4rl/hopper-medium-replay-v2 --task hopper \
      --steps 3000000 --attacker-steps 3000000 --seeds 4

Complete runs are not repeated, and interrupted runs continue.

Protocol, settings and published scores: Yang et al., Towards Robust Offline Reinforcement Learning
under Diverse Data Corruption, arXiv:2310.12955; see docs/agents/riql.md.
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
from rljax.datasets.tools.corruption import corrupt
from rljax.runs import run
from rljax.runs.policies.attackers import load_attacker
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

# For each task and corruption: RIQL's sigma, alpha and number of critics, and the published scores
# of IQL and RIQL.
PROTOCOL = {
    "halfcheetah": {
        ("random", "observation"): (0.1, 0.1, 5, 21.4, 27.3),
        ("random", "action"): (0.5, 0.25, 3, 42.2, 42.9),
        ("random", "reward"): (3.0, 0.25, 5, 42.3, 43.6),
        ("random", "dynamics"): (3.0, 0.25, 5, 36.7, 43.1),
        ("adversarial", "observation"): (0.1, 0.1, 5, 32.6, 35.7),
        ("adversarial", "action"): (1.0, 0.1, 5, 27.5, 31.7),
        ("adversarial", "reward"): (1.0, 0.1, 5, 42.6, 44.1),
        ("adversarial", "dynamics"): (1.0, 0.1, 5, 26.7, 35.8),
    },
    "walker2d": {
        ("random", "observation"): (0.1, 0.25, 5, 27.2, 28.4),
        ("random", "action"): (0.5, 0.1, 5, 71.3, 84.6),
        ("random", "reward"): (3.0, 0.1, 5, 65.3, 83.2),
        ("random", "dynamics"): (1.0, 0.25, 3, 17.7, 78.2),
        ("adversarial", "observation"): (1.0, 0.25, 5, 37.7, 70.0),
        ("adversarial", "action"): (1.0, 0.1, 5, 27.5, 66.1),
        ("adversarial", "reward"): (3.0, 0.1, 5, 73.5, 85.0),
        ("adversarial", "dynamics"): (1.0, 0.25, 5, -0.1, 60.6),
    },
    "hopper": {
        ("random", "observation"): (0.1, 0.25, 3, 52.0, 62.4),
        ("random", "action"): (0.1, 0.25, 5, 76.3, 90.6),
        ("random", "reward"): (1.0, 0.25, 3, 69.7, 84.8),
        ("random", "dynamics"): (1.0, 0.5, 5, 1.3, 51.5),
        ("adversarial", "observation"): (1.0, 0.25, 5, 32.8, 50.8),
        ("adversarial", "action"): (1.0, 0.25, 5, 37.9, 63.6),
        ("adversarial", "reward"): (0.1, 0.25, 5, 57.3, 65.8),
        ("adversarial", "dynamics"): (1.0, 0.5, 5, 1.3, 65.7),
    },
}
HOW = ("random", "adversarial")
CLEAN = "none"
AGENTS = ("iql", "riql")
# Settings of RIQL's authors' IQL that differ from those of IQL's authors (YangRui2015/RIQL cc07d81,
# IQL.py).
BASELINE = {
    "reward_transform": "none",
    "policy": "deterministic",
    "values": "old",
    "initialisation": "torch",
    "decay_steps": 3e6,
}
COLOURS = {"iql": "#D55E00", "riql": "#0072B2"}


def trained(
    agent: str,
    data: str,
    out: Path,
    options: argparse.Namespace,
    steps: int,
    seeds: int,
    config: Any = None,
) -> Path:
    """The folder of a complete run on `data`. The run is started or continued if necessary."""
    begin = functools.partial(
        run.train,
        agent,
        data=data,
        steps=steps,
        seeds=seeds,
        config=config,
        out=out,
        eval_every=options.eval_every,
        eval_episodes=options.episodes,
        checkpoint_every=options.eval_every,
        quiet=False,
    )
    return shared.trained(out, steps, begin, data, config)


def corrupted(how: Any, what: Any, options: argparse.Namespace) -> str:
    """The file with the corrupted data set. It is created if it is missing."""
    path = options.runs / f"{how}-{what}.hdf5"
    if not path.exists():
        attacker = None
        if how == "adversarial" and what != "reward":
            config = {"num_critics": 10}
            folder = trained(
                "edac",
                options.data,
                options.runs / "edac",
                options,
                options.attacker_steps,
                1,
                config,
            )
            attacker = load_attacker(folder)
        print(f"writing {path}", flush=True)
        data = datasets.load(options.data)
        datasets.write(corrupt(data, what=what, how=how, attacker=attacker), path)
    return str(path)


def studied(options: argparse.Namespace) -> dict[str, dict[str, np.ndarray]]:
    """Scores [learner] by corruption and agent."""
    scores: dict[str, dict[str, np.ndarray]] = {}
    cases: list[tuple[str, str, dict[str, Any]]] = [(CLEAN, options.data, {})]
    for (how, what), (sigma, alpha, critics, *_) in PROTOCOL[options.task].items():
        if how in options.how:
            config = {
                "huber_sigma": sigma,
                "quantile": alpha,
                "num_critics": critics,
                "critic_initialisation": "edac",
            }
            cases.append((f"{how} {what}", corrupted(how, what, options), config))
    for name, data, config in cases:
        scores[name] = {}
        for agent in AGENTS:
            out = options.runs / f"{agent}-{name.replace(' ', '-')}"
            settings = config if agent == "riql" else BASELINE
            trained(agent, data, out, options, options.steps, options.seeds, settings)
            scores[name][agent] = shared.last(out, options.steps, "scores", 1)
    return scores


def compared(scores_by_case: Mapping[str, Mapping[str, np.ndarray]]) -> dict[str, dict[str, Any]]:
    """For random, adversarial and all corruptions: each agent's IQM,
    and how often RIQL is better than IQL.
    """
    groups = {
        how: names
        for how in HOW
        if (names := [name for name in scores_by_case if name.startswith(how)])
    }
    if len(groups) > 1:
        groups["all"] = [name for names in groups.values() for name in names]
    entries = {}
    for group, names in groups.items():
        scores = {agent: {name: scores_by_case[name][agent] for name in names} for agent in AGENTS}
        aggregated = comparison.aggregate(scores, {"iqm": comparison.iqm})
        estimates = {agent: aggregated[agent]["iqm"] for agent in AGENTS}
        estimates["riql above iql"] = comparison.improvement(scores, [("riql", "iql")])[
            "riql", "iql"
        ]
        entries[group] = {name: [float(x.value)] for name, x in estimates.items()}
        if all(np.isfinite(x.low) for x in estimates.values()):
            for name, x in estimates.items():
                entries[group][name] += [float(x.low), float(x.high)]
    return entries


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    published = {f"{how} {what}": row[3:] for (how, what), row in PROTOCOL[study["task"]].items()}
    lines = ["| corrupted | IQL | RIQL | published: IQL | RIQL |", "|---|---|---|---|---|"]
    for name, scores in study["scores"].items():
        cells = [
            name,
            *(over_seeds(scores[agent], 1) for agent in AGENTS),
            *map(str, published.get(name, ("-", "-"))),
        ]
        lines.append(f"| {' | '.join(cells)} |")
    lines.append("")
    for group, of in study["compared"].items():
        iql, riql = (shared.with_interval(of[name], 1) for name in AGENTS)
        above = shared.with_interval(of["riql above iql"], 2)
        lines.append(f"- {group}: IQM of IQL {iql}, of RIQL {riql}; P(RIQL > IQL) = {above}")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw scores by corruption: a bar for the mean, a dot for each learner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.8), layout="constrained")
    axes = figure.subplots()
    names = list(study["scores"])
    for i, agent in enumerate(AGENTS):
        places = np.arange(len(names)) + 0.4 * (i - 0.5)
        values = [study["scores"][name][agent] for name in names]
        axes.bar(
            places,
            [np.mean(x) for x in values],
            0.36,
            color=COLOURS[agent],
            alpha=0.6,
            label=agent.upper(),
        )
        for place, of in zip(places, values, strict=True):
            axes.plot([place] * len(of), of, "k.", markersize=4)
    axes.set_xticks(np.arange(len(names)), [name.replace(" ", "\n") for name in names], fontsize=8)
    axes.set(ylabel="normalised score", title=f"{study['env']}, {study['steps']:,} updates")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Corrupt, train, print, draw, and write TASK.json,
    TASK.md and TASK.png into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="name or file of the data as they are")
    parser.add_argument("--task", required=True, choices=PROTOCOL, help="whose settings RIQL has")
    parser.add_argument("--how", nargs="+", choices=HOW, default=HOW, help="which corruptions")
    parser.add_argument("--steps", type=int, default=30_000, help="updates of each learner")
    parser.add_argument(
        "--attacker-steps", type=int, default=30_000, help="updates of the attacker"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--episodes", type=int, default=10, help="of each learner's evaluations")
    parser.add_argument("--eval-every", type=int, default=5_000)
    parser.add_argument("--runs", type=Path, help="default: runs/corruptions/TASK")
    parser.add_argument("--output", type=Path, default=Path("results/studies/corruptions"))
    options = parser.parse_args()
    options.runs = options.runs or Path("runs/corruptions", options.task)
    if datasets.load(options.data).reference is None:
        parser.error(f"'{options.data}' has no reference returns, by which scores are normalised.")
    scores_by_case = studied(options)
    described = json.loads((options.runs / f"iql-{CLEAN}" / "config.json").read_text())
    study = {
        "task": options.task,
        "env": described["env"],
        "data": described["dataset"],
        "steps": options.steps,
        "attacker_steps": options.attacker_steps if "adversarial" in options.how else None,
        **provenance(),
        "scores": {
            name: {agent: x.round(2).tolist() for agent, x in of.items()}
            for name, of in scores_by_case.items()
        },
        "compared": compared(scores_by_case),
    }
    shared.write(study, options.output / options.task, table, draw)


if __name__ == "__main__":
    main()
