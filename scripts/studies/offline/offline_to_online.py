"""Ways from one data set into its environment, and what happens where they enter it.

  none    SAC from scratch, without the data
  rlpd    SAC from scratch, half of each batch from the data
  iql     IQL learns from the data, then half of each batch is from them
  mixed   --first (Cal-QL or TD3+BC) learns from the data, then half of each batch is from them
  wsrl    an agent without data begins with what --first has learnt: SAC after Cal-QL, or TD3 after
          TD3+BC. Its policy acts in a warm-up without updates
  wsrl-0  the same without a warm-up

All ways make one update per environment step and have two critics, far fewer than their papers:
`wsrl` and `rlpd` have the ideas of WSRL and RLPD and not their settings, and say nothing of these
methods as published. With `--presets` they have their settings (10 critics, 4 and 20 updates per
step, WSRL's learning from data by CQL) and Cal-QL those of its authors, all in networks of 64 units
with batches of 128. On two cores, three learners of Cal-QL make 3 updates a second, those of TD3+BC
a hundred. With `--small` those of Cal-QL made 28 on one busy core.

  rljax train sac --env HalfCheetah-v5 --steps 70000 --config.actor-lr 1e-3 \
      --config.critic-lr 1e-3 --config.temperature-lr 1e-3 --config.warmup-steps 5000 \
      --config.initialisation lecun_uniform --out runs/trained
  rljax data record runs/trained runs/replay.hdf5 --from replay
  python scripts/studies/offline/offline_to_online.py --data runs/replay.hdf5

Complete runs are not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import handover
from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

WAYS = {
    "none": "none: SAC from scratch",
    "rlpd": "SAC with the data from the start",
    "iql": "IQL, then online with the data",
    "mixed": "{first}, then online with the data",
    "wsrl": "{then} from {first}, with a warm-up",
    "wsrl-0": "{then} from {first}, without one",
}
PUBLISHED = {  # with --presets
    "rlpd": "RLPD",
    "mixed": "Cal-QL, then online with the data",
    "wsrl": "WSRL: SAC from CQL, with its warm-up",
    "wsrl-0": "WSRL without a warm-up",
}
FIRST = "first"  # the folder of what learns from the data alone
COLOURS = dict(
    zip(WAYS, ("#999999", "#009E73", "#0072B2", "#CC79A7", "#D55E00", "#E69F00"), strict=True)
)
CRITICS: dict[str, Any] = {"layer_norm": True, "num_critics": 2}
# What learns first, and what begins with it. Their networks are the same: SAC's actor has no
# offset, and TD3's observations are as they come.
AGENTS = {"calql": "sac", "td3_bc": "td3"}
NAMES = {"calql": "Cal-QL", "sac": "SAC", "td3_bc": "TD3+BC", "td3": "TD3"}
SETTINGS: dict[str, dict[str, Any]] = {
    "calql": {"critic_hidden": (256, 256), "log_std_offset": 0.0, "log_std_min": -5.0, **CRITICS},
    "td3_bc": {"normalise_observations": False},
    "sac": {
        **CRITICS,
        **{"entropy_backup": False, "log_std_min": -5.0},
        **{"actor_lr": 1e-4, "temperature_lr": 1e-4},
    },
    "td3": {},
}

SMALL: dict[str, Any] = {"hidden": (64, 64), "batch_size": 128, "actor_lr": 1e-3, "critic_lr": 1e-3}
SMALL_AGENTS: dict[str, dict[str, Any]] = {
    "calql": {"critic_hidden": (64, 64), "num_actions": 4, "temperature_lr": 1e-3},
    "sac": {"temperature_lr": 1e-3},
    "iql": {"value_lr": 1e-3},
}


# With --presets: WSRL and RLPD with all their settings but the networks and the batch. WSRL learns
# locomotion from the data with CQL, and Cal-QL has the settings of its authors.
SMALL_NETWORKS: dict[str, Any] = {"hidden": (64, 64), "batch_size": 128}
SMALL_CRITICS: dict[str, Any] = {"critic_hidden": (64, 64)}


def reduced(way: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The agent of a way and its settings: one update per step and two critics."""
    agent = "sac"
    settings: dict[str, Any] = {"config": CRITICS, "data": None}
    if way == "none":
        settings["config"] = CRITICS | {"warmup_steps": options.warmup}
    elif way == "rlpd":
        settings["config"] = CRITICS | {
            "warmup_steps": options.warmup,
            "target_entropy_share": 0.5,
        }
        settings["data"] = options.data
    elif way in ("iql", "mixed"):
        agent = "iql" if way == "iql" else options.first
        settings = {"config": SETTINGS.get(agent, {"layer_norm": True}), "data": options.data}
        settings["then_online"] = options.online
    elif way == FIRST:
        agent = options.first
        settings = {"config": SETTINGS[agent], "data": options.data}
    else:
        agent, warmup = AGENTS[options.first], options.warmup if way == "wsrl" else 0
        settings["config"] = SETTINGS[agent] | {"warmup_steps": warmup}
        settings["from_run"] = str(train(FIRST, options))
    if options.small:
        settings["config"] = settings["config"] | SMALL | SMALL_AGENTS.get(agent, {})
    return agent, settings


def published(way: str, options: argparse.Namespace) -> tuple[str, dict[str, Any]]:
    """The agent of a way and its settings: those of the presets, in smaller networks."""
    warmup = 0 if way == "wsrl-0" else options.warmup
    alone = SMALL_NETWORKS | {"warmup_steps": warmup}
    if way == "none":
        return "sac", {"config": alone}
    if way == "rlpd":
        return "sac", {"preset": "rlpd", "config": alone, "data": options.data}
    if way == FIRST:
        config = SMALL_NETWORKS | SMALL_CRITICS
        return "cql", {"preset": "wsrl", "config": config, "data": options.data}
    if way in ("iql", "mixed"):
        agent = "iql" if way == "iql" else "calql"
        config = SMALL_NETWORKS | (SMALL_CRITICS if way == "mixed" else {})
        return agent, {"config": config, "data": options.data, "then_online": options.online}
    return "sac", {"preset": "wsrl", "config": alone, "from_run": str(train(FIRST, options))}


def train(way: str, options: argparse.Namespace) -> Path:
    """The folder of a way's complete run."""
    out = options.runs / way
    agent, settings = (published if options.presets else reduced)(way, options)
    from_data = way == FIRST or "then_online" in settings
    begin = functools.partial(
        run.train,
        agent,
        options.env,
        options.updates if from_data else options.online,
        seeds=options.seeds,
        out=out,
        eval_every=options.eval_every,
        eval_episodes=5,
        checkpoint_every=options.eval_every,
        quiet=False,
        **settings,
    )
    total = from_data * options.updates + (way != FIRST) * options.online
    return shared.trained(out, total, begin, settings.get("data"))


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown, with each seed where there are few; "back after" is always each."""
    lines = [
        "| way | at the hand-over | dip | back after, each seed | mean since | at the end |",
        "|---|---|---|---|---|---|",
    ]
    for way, curves in study["curves"].items():
        steps = np.array(curves["steps"])
        learners = [handover.Handover(steps, np.array(values)) for values in curves["values"]]
        before, dip, average, final = (
            over_seeds([getattr(learner, name) for learner in learners])
            for name in ("before", "dip", "average", "final")
        )
        recoveries = [learner.recovery for learner in learners]
        back = ", ".join("not" if x is None else f"{x:,}" for x in recoveries)
        lines.append(f"| {study['names'][way]} | {before} | {dip} | {back} | {average} | {final} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw the mean over learners of each way, from the hand-over on,
    and each learner as a thin line.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for way, curves in study["curves"].items():
        steps, values = np.array(curves["steps"]), np.array(curves["values"])
        axes.plot(steps, values.mean(axis=0), color=COLOURS[way], label=study["names"][way])
        axes.plot(steps, values.T, color=COLOURS[way], linewidth=0.5, alpha=0.5)
    axes.set(
        xlabel="environment steps since the hand-over",
        ylabel="evaluation return",
        title=study["env"],
    )
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="data set, a name or a file")
    parser.add_argument("--env", default="HalfCheetah-v5")
    parser.add_argument(
        "--first",
        default="calql",
        choices=list(AGENTS),
        help="what learns first for mixed and wsrl",
    )
    parser.add_argument("--updates", type=int, default=5_000, help="from the data alone")
    parser.add_argument(
        "--online", type=int, default=10_000, help="environment steps after the hand-over"
    )
    parser.add_argument(
        "--warmup", type=int, default=2_000, help="environment steps before the first update"
    )
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--eval-every", type=int, default=1_000)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument(
        "--small", action="store_true", help="64 units, batches of 128, 4 candidates, rates of 1e-3"
    )
    parser.add_argument(
        "--presets", action="store_true", help="RLPD's, WSRL's and Cal-QL's settings, 64 units"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/offline_to_online"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/offline_to_online"))
    options = parser.parse_args()
    handovers = {way: handover.handovers(train(way, options)) for way in options.ways}
    described = json.loads((options.runs / options.ways[0] / "config.json").read_text())
    names = {"first": NAMES[options.first], "then": NAMES[AGENTS[options.first]]}
    ways = WAYS | PUBLISHED if options.presets else WAYS
    study = {
        "env": described["env"],
        "names": {way: ways[way].format(**names) for way in handovers},
        **{
            name: getattr(options, name)
            for name in ("updates", "online", "warmup", "seeds", "small", "presets")
        },
        **provenance(),
        "curves": {
            way: {
                "steps": learners[0].steps.tolist(),
                "values": [each.values.round(2).tolist() for each in learners],
            }
            for way, learners in handovers.items()
        },
    }
    name = options.env.lower().partition("-")[0]
    name += "-small" * options.small + "-presets" * options.presets
    shared.write(study, options.output / name, table, draw)


if __name__ == "__main__":
    main()
