"""One cloned flow, and five ways to improve it with the same steps in the environment.

A flow imitates a data set and is cloned once. Each way begins with this flow:

  dsrl      DSRL: a policy of the noise from which the flow makes actions; the flow stays as it is
  dsrl-sac  DSRL-SAC: SAC of that noise, whose critics see noise alone
  resfit    ResFiT: small corrections of the flow's actions; the flow stays as it is
  resfit-settled
            the same as its authors begin: corrections of half the size, 10,000 steps of the flow
            with noise, and 10,000 updates of the critics alone
  expo      EXPO: edits of the flow's actions, and the best of these; the flow stays as it is
  expo-settled
            the same with its authors' size of edits, a quarter, and 10,000 updates from the data
  qc        QC of chunks of one action: the best of many actions; the flow goes on imitating
  reinflow  ReinFlow: PPO moves the flow itself, with learnt noise in its steps
  sac       SAC from scratch, for comparison

EXPO and QC learn their critics from the data before the first step in the environment, and see the
data in half of each batch after it. The others see no data. ReinFlow learns from rollouts, and has
`--longer` times as many steps: its authors have millions.

  rljax train sac --env HalfCheetah-v5 --steps 30000 --out runs/sac
  rljax data record runs/sac medium.npz --steps 100000 --from exploring
  python scripts/studies/offline/cloned_flow.py --data medium.npz --env HalfCheetah-v5

All seeds of a way are learners of one program. The results are written after each way. Complete
runs are not repeated, and interrupted runs continue.
"""

from __future__ import annotations

import argparse
import functools
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import rljax
from rljax.analysis import comparison, folders
from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.studies import shared

FLOW: dict[str, Any] = {"flow_steps": 5}  # as the clone is played
EXPO: dict[str, Any] = FLOW | {"actor_lr": 0.0, "num_candidates": 4, "num_critics": 5}


class Way(NamedTuple):
    """A way to improve the flow."""

    name: str  # in the table
    agent: str
    begins: str  # "base": with --base; "from": with --from; "": from scratch
    config: Mapping[str, Any]
    parts: tuple[str, ...] = ()  # that --from takes
    data: bool = False  # whether it learns from the data, too
    longer: bool = False  # whether it has more steps than the others
    warms_up: bool = True  # whether it begins with steps without updates, if it has no data
    # In place of --warmup and in addition to --steps: steps without updates; of a way with data in
    # place of --updates.
    head_start: int = 0


WAYS = {
    "dsrl": Way(
        "DSRL",
        "dsrl",
        "base",
        {
            "decoder": "base",
            "noise_scale": 1.5,  # its authors' for HalfCheetah
            "target_entropy_share": 0.0,
            "num_critics": 2,
            "pessimism": 1.0,  # of two critics: the smallest
            "distillation_steps": 2,
        },
    ),
    "dsrl-sac": Way("DSRL-SAC", "dsrl_sac", "base", {"noise_scale": 1.5}),
    "resfit": Way(
        "ResFiT",
        "resfit",
        "base",
        {
            "residual_scale": 0.2,
            "num_updates": 2,
            "num_critics": 5,
            "critic_updates": 2_000,
        },
    ),
    "resfit-settled": Way(
        "ResFiT, critics first",
        "resfit",
        "base",
        {"residual_scale": 0.1, "num_updates": 2, "num_critics": 5, "critic_updates": 10_000},
        head_start=10_000,
    ),
    "expo": Way("EXPO", "expo", "from", EXPO | {"edit_scale": 0.2}, parts=("actor",), data=True),
    "expo-settled": Way(
        "EXPO, critics first",
        "expo",
        "from",
        EXPO | {"edit_scale": 0.05},
        parts=("actor",),
        data=True,
        head_start=10_000,
    ),
    "qc": Way(
        "QC, chunks of 1",
        "qc",
        "from",
        FLOW | {"chunk_length": 1, "num_candidates": 4, "num_critics": 5},
        parts=("actor",),
        data=True,
    ),
    "reinflow": Way(
        "ReinFlow",
        "reinflow",
        "from",
        FLOW | {"num_steps": 125, "batch_size": 250},  # of each environment
        parts=("actor.flow=actor",),
        longer=True,
        warms_up=False,
    ),
    "sac": Way("SAC from scratch", "sac", "", {}),
}
COLOURS = {
    "dsrl": "#D55E00",
    "dsrl-sac": "#882255",
    "resfit": "#009E73",
    "resfit-settled": "#E69F00",
    "expo": "#0072B2",
    "expo-settled": "#8B4513",
    "qc": "#56B4E9",
    "reinflow": "#CC79A7",
    "sac": "#999999",
}


def clone(options: argparse.Namespace) -> Path:
    """The run of the flow that imitates the data, and sees no value."""
    config = FLOW | {
        "chunk_length": 1,
        "num_candidates": 1,  # no choice by the critics
        "hidden": tuple(options.hidden),
    }
    out = options.runs / "clone"
    begin = functools.partial(
        run.train,
        "qc",
        options.env,
        options.clone_updates,
        data=options.data,
        config=config,
        out=out,
        eval_every=max(options.clone_updates // 4, 1),
        eval_episodes=5 * options.episodes,
        quiet=False,
    )
    return shared.trained(out, options.clone_updates, begin, options.data, config)


def improved(key: str, base: Path, options: argparse.Namespace) -> Path:
    """The folder of a complete run of a way."""
    way, out = WAYS[key], options.runs / key
    warms_up = way.warms_up and not way.data
    warmup = {"warmup_steps": way.head_start or options.warmup} if warms_up else {}
    config = {**way.config, **warmup, "hidden": tuple(options.hidden)}
    begins: dict[str, Any] = {}
    if way.begins == "base":
        begins = {"base": str(base)}
    elif way.begins == "from":
        begins = {"from_run": str(base), "from_parts": way.parts}
    times = options.longer if way.longer else 1
    online = steps = times * options.steps + (0 if way.data else way.head_start)
    if way.data:
        begins |= {"data": options.data, "then_online": online, "offline_share": 0.5}
        steps = updates_from_data(way, options)
    begin = functools.partial(
        run.train,
        way.agent,
        options.env,
        steps,
        seeds=options.seeds,
        config=config,
        out=out,
        eval_every=times * options.eval_every,
        eval_episodes=options.episodes,
        checkpoint_every=times * options.eval_every,
        quiet=False,
        **begins,
    )
    total = online + updates_from_data(way, options)
    return shared.trained(out, total, begin, options.data if way.data else None, config)


def updates_from_data(way: Way, options: argparse.Namespace) -> int:
    """The updates before the first step in the environment."""
    return (way.head_start or options.updates) if way.data else 0


def milliseconds(out: Path, calls: int = 200) -> float:
    """The median time of one action of a run's policy, for one observation."""
    policy = rljax.load(out)
    observation = np.zeros(policy.spec.observation_shape, np.float32)
    times = []
    for _ in range(calls + 1):
        begin = time.perf_counter()
        policy(observation)
        times.append(time.perf_counter() - begin)
    return round(1000 * float(np.median(times[1:])), 3)  # the first one compiles


def outcome(key: str, out: Path, options: argparse.Namespace) -> dict[str, Any]:
    """What a way came to: mean returns [seed][evaluation] over environment steps."""
    record = folders.read(out)
    before = updates_from_data(WAYS[key], options)
    steps = record.learners[0].steps - before
    returns = np.array([x.returns for x in record.learners])[:, steps >= 0]
    return {
        "steps": steps[steps >= 0].tolist(),
        "returns": returns.round(1).tolist(),
        "final": returns[:, -3:].mean(axis=1).round(1).tolist(),
        "lowest": returns.min(axis=1).round(1).tolist(),
        "milliseconds": milliseconds(out),
        "wall_seconds": record.summary["wall_seconds"],
        "git_revision": record.config["git_revision"],
    }


def cloned(out: Path) -> dict[str, Any]:
    """The clone's return in its last evaluation."""
    return {
        "return": round(float(folders.read(out).learners[0].returns[-1]), 1),
        "milliseconds": milliseconds(out),
    }


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    base = study["clone"]
    lines = [
        "| way | steps | return, mean of the last 3 evaluations | gain over the clone "
        "| lowest evaluation, each seed | ms for an action | wall seconds |",
        "|---|---|---|---|---|---|---|",
        f"| the clone | | {base['return']:,.0f} | | | {base['milliseconds']:.2f} | |",
    ]
    for key, way in study["ways"].items():
        final = shared.with_interval(comparison.mean_interval(way["final"]))
        gain = [x - base["return"] for x in way["final"]]
        gained = shared.with_interval(comparison.mean_interval(gain), sign="+")
        lowest = ", ".join(f"{x:,.0f}" for x in way["lowest"])
        lines.append(
            f"| {WAYS[key].name} | {way['steps'][-1]:,} | {final} | {gained} | {lowest} | "
            f"{way['milliseconds']:.2f} | {way['wall_seconds']:,.0f} |"
        )
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw each way's mean return over the share of its steps, with the range of its seeds."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    for key, way in study["ways"].items():
        returns, steps = np.array(way["returns"]), np.array(way["steps"])
        share, label = steps / steps[-1], f"{WAYS[key].name}, {steps[-1]:,} steps"
        axes.plot(share, returns.mean(axis=0), color=COLOURS[key], label=label)
        low, high = returns.min(axis=0), returns.max(axis=0)
        axes.fill_between(share, low, high, color=COLOURS[key], alpha=0.15, linewidth=0)
    axes.axhline(study["clone"]["return"], color="k", lw=0.8, linestyle="--", label="the clone")
    axes.set(xlabel="share of its environment steps", ylabel="return", title=study["env"])
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into `--output`."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--data", required=True, help="data set of the clone, a name or a file")
    parser.add_argument("--env", required=True, help="the environment")
    parser.add_argument("--clone-updates", type=int, default=20_000)
    parser.add_argument("--updates", type=int, default=2_000, help="of EXPO and QC from the data")
    parser.add_argument("--steps", type=int, default=20_000, help="in the environment")
    parser.add_argument("--longer", type=int, default=25, help="times as many steps of ReinFlow")
    parser.add_argument("--warmup", type=int, default=2_000, help="steps without updates")
    parser.add_argument("--hidden", type=int, nargs="+", default=[128, 128, 128])
    parser.add_argument("--episodes", type=int, default=10, help="of an evaluation")
    parser.add_argument("--eval-every", type=int, default=2_000)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--ways", nargs="+", default=list(WAYS), choices=list(WAYS))
    parser.add_argument("--runs", type=Path, default=Path("runs/cloned_flow"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/cloned_flow"))
    options = parser.parse_args()
    sizes = ("clone_updates", "updates", "steps", "longer", "warmup", "hidden", "episodes", "seeds")
    study = {name: getattr(options, name) for name in ("env", *sizes)} | provenance()
    study["data"] = Path(options.data).name
    base, file = clone(options), options.env.partition("-")[0].lower()
    study |= {"clone": cloned(base), "ways": {}}
    for key in options.ways:
        study["ways"][key] = outcome(key, improved(key, base, options), options)
        shared.write(study, options.output / file, table, draw)


if __name__ == "__main__":
    main()
