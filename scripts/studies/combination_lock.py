"""What data are worth to an on-policy learner: combination locks of two horizons,
whose optimum is known.

PPO, HNPG without data and HNPG with data learn for the same number of environment steps; SAC and
DQN with half of each batch from the same data for an eighth of these, with one update in each; BC
learns from the data alone, and PPO goes on from its policy. The data are episodes by those who know
the combination, of whose actions 1 in H is uniform. All seeds of a cell are learners of one
program.

  python scripts/studies/combination_lock.py
  python scripts/studies/combination_lock.py --learners ppo after sac dqn \
      --output results/studies/combination_lock_after

Complete runs are not repeated, and interrupted runs continue. Data sets are written once, into
`--runs`; anyone can write them alone, too: rljax data record rljax/CombinationLock-10-discrete
lock.npz --steps 20000

Task, method and published figure: Zhou et al., Offline Data Enhanced On-Policy Policy Gradient with
Provable Guarantees, arXiv:2311.08384; see docs/agents/hnpg.md.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax import datasets, envs
from rljax.analysis import comparison
from rljax.runs import run
from rljax.runs.policies import collect
from rljax.system.hardware import provenance
from scripts.studies import shared

STEPS = {10: 163_840, 20: 327_680}  # environment steps by horizon: whole rollouts of 2,048
UPDATES = 2_000  # of BC
OFF_POLICY = 8  # SAC and DQN have this part of the steps
FIRST_SEED = 100  # HNPG's kl_limit was chosen on seeds 0 to 3
AGENTS = {
    "ppo": "PPO",
    "none": "HNPG without data",
    "data": "HNPG with data",
    "after": "PPO after BC",
    "sac": "SAC with data",
    "dqn": "DQN with data",
}
COLOURS = {
    "ppo": "#222222",
    "none": "#D55E00",
    "data": "#0072B2",
    "after": "#E69F00",
    "sac": "#CC79A7",
    "dqn": "#56B4E9",
}
SMALL: dict[str, Any] = {"discount": 1.0, "hidden": (64, 64), "batch_size": 128}
SMALL |= {"warmup_steps": 1_000, "replay_size": 100_000}
SETTINGS: dict[str, tuple[str, dict[str, Any]]] = {
    "ppo": ("ppo", {"discount": 1.0}),
    "none": ("hnpg", {"data_size": 0}),
    "data": ("hnpg", {}),
    "sac": ("sac_discrete", SMALL),
    "dqn": ("dqn", SMALL | {"num_steps": 1}),
    "after": ("ppo", {"discount": 1.0, "normalise_observations": False}),
    "bc": ("bc", {"hidden": (64, 64), "activation": "tanh", "normalise_observations": False}),
}
FROM_BC = ("actor_critic.actor=actor.mean",)  # the policy; PPO's critic is fresh
FROM_DATA = ("data", "sac", "dqn", "bc")
EVALUATIONS = 16  # of each run


def task(horizon: int) -> str:
    """The lock's name."""
    return f"rljax/CombinationLock-{horizon}-discrete"


def recorded(horizon: int, options: argparse.Namespace) -> str:
    """The file of the data. It is written if it is missing."""
    path = options.runs / f"lock-{horizon}.npz"
    if not path.exists():
        options.runs.mkdir(parents=True, exist_ok=True)
        datasets.write(
            collect.demonstrated(task(horizon), steps=horizon * options.episodes, name=str(path)),
            path,
        )
    return str(path)


def steps_of(label: str, horizon: int) -> int:
    """Environment steps of a run; updates of BC."""
    if label == "bc":
        return UPDATES
    return STEPS[horizon] // (OFF_POLICY if label in ("sac", "dqn") else 1)


def trained(label: str, horizon: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    agent, config = SETTINGS[label]
    steps = steps_of(label, horizon)
    data = recorded(horizon, options) if label in FROM_DATA else None
    out = options.runs / f"{label}-{horizon}"
    every = steps // (1 if label == "bc" else EVALUATIONS)
    settings: dict[str, Any] = {
        "seeds": range(FIRST_SEED, FIRST_SEED + options.seeds),
        "data": data,
        "config": config,
        "eval_every": every,
    }
    if label == "after":
        start = trained("bc", horizon, options)
        settings |= {"from_run": str(start), "from_parts": FROM_BC}
    begin = functools.partial(
        run.train,
        agent,
        task(horizon),
        steps,
        out=out,
        eval_episodes=100,
        checkpoint_every=steps // 4,
        quiet=False,
        **settings,
    )
    return shared.trained(out, steps, begin, data)


def opened(curve: Mapping[str, Any], optimum: float) -> list[int | None]:
    """For each learner the steps until its evaluations stay above half of the optimum;
    None where they do not.
    """
    steps = []
    for returns in curve["returns"]:
        below = [i for i, value in enumerate(returns) if value <= 0.5 * optimum]
        first = below[-1] + 1 if below else 0
        steps.append(curve["steps"][first] if first < len(returns) else None)
    return steps


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lines = [
        (
            "| horizon | steps | learner | final return, of at most 1 | seeds that open it | after "
            "steps, median |"
        )
    ]
    lines.append("|---|---|---|---|---|---|")
    for horizon, cell in study["locks"].items():
        for label in cell["opened"]:
            name = AGENTS[label]
            steps = [x for x in cell["opened"][label] if x is not None]
            after = f"{np.median(steps):,.0f}" if steps else ""
            number = f"{len(steps)} of {len(cell['opened'][label])}"
            result = shared.with_interval(cell["intervals"][label], 2)
            lines.append(
                f"| {horizon} | {cell['steps'][label]:,} | {name} | {result} | {number} | {after} |"
            )
        lines.append(f"| {horizon} | | BC from the data alone | {cell['bc']:.2f} | | |")
        lines.append(f"| {horizon} | | the data | {cell['data']:.2f} | | |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the returns over steps: a panel for each horizon, a thin line for each learner,
    a thick one for the mean.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 3.2), layout="constrained")
    panels: Any = figure.subplots(1, len(study["locks"]), sharey=True, squeeze=False)[0]
    for axes, (horizon, cell) in zip(panels, study["locks"].items(), strict=True):
        for label in cell["curves"]:
            name = AGENTS[label]
            steps = cell["curves"][label]["steps"]
            returns = np.asarray(cell["curves"][label]["returns"])
            axes.plot(steps, returns.T, color=COLOURS[label], linewidth=0.7, alpha=0.5)
            # It lies on HNPG without data.
            top = {"zorder": 5, "linestyle": ":"} if label == "ppo" else {}
            axes.plot(
                steps, returns.mean(axis=0), color=COLOURS[label], linewidth=2, label=name, **top
            )
        axes.axhline(cell["optimum"], color="k", linewidth=0.8, linestyle="--", label="optimum")
        axes.axhline(cell["data"], color="#009E73", linewidth=0.8, linestyle="-.", label="the data")
        axes.set(xlabel="environment steps", title=f"horizon {horizon}")
        axes.ticklabel_format(axis="x", style="sci", scilimits=(3, 3))
    panels[0].set_ylabel("return, no exploration")
    figure.legend(*panels[0].get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def result(horizon: int, options: argparse.Namespace) -> dict[str, Any]:
    """What came of one horizon."""
    lock: Any = envs.make(task(horizon)).environment
    outs = {label: trained(label, horizon, options) for label in (*options.learners, "bc")}
    curves = {label: shared.curves(outs[label], 3) for label in options.learners}
    finals = {
        label: [returns[-1] for returns in curve["returns"]] for label, curve in curves.items()
    }
    described = json.loads((outs["bc"] / "config.json").read_text())
    return {
        "env": task(horizon),
        "optimum": lock.optimum,
        "steps": {label: steps_of(label, horizon) for label in options.learners},
        "seeds": [FIRST_SEED + i for i in range(options.seeds)],
        "episodes": options.episodes,
        "dataset": described["dataset"],
        "data": float(np.mean(datasets.load(recorded(horizon, options)).returns())),
        "bc": float(shared.last(outs["bc"], UPDATES, "returns", 1).mean()),
        "finals": finals,
        "intervals": {
            label: comparison.mean_interval(np.asarray(x)) for label, x in finals.items()
        },
        "opened": {label: opened(curve, lock.optimum) for label, curve in curves.items()},
        "curves": curves,
    }


def main() -> None:
    """Record, train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--horizons", type=int, nargs="+", choices=tuple(STEPS), default=tuple(STEPS)
    )
    parser.add_argument("--learners", nargs="+", choices=tuple(AGENTS), default=tuple(AGENTS))
    parser.add_argument("--episodes", type=int, default=2_000, help="of each data set")
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--runs", type=Path, default=Path("runs/combination_lock"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/combination_lock"))
    options = parser.parse_args()
    study = {
        **provenance(),
        "locks": {str(horizon): result(horizon, options) for horizon in options.horizons},
    }
    shared.write(study, options.output / "locks", table, draw)


if __name__ == "__main__":
    main()
