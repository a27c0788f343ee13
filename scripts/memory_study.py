"""Which memories of PPO keep one bit for how long: MemoryChain of several lengths, with each memory and without one.

  python scripts/memory_study.py

The first observation of `gymnax/MemoryChain-bsuite` is a bit, and the action of the last step must tell it: the return
is 1 if it does and -1 if not, so that guessing earns 0. Chains of 100 steps have twice the training. Chains of 50 and
more are also learnt by memories whose units begin with spans up to the chain's length (`memory_span`). All seeds of a
cell are learners of one program. Complete runs are not repeated, and interrupted runs continue. Needs gymnax:
pip install 'rljax[gymnax]'.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import studies

from rljax.analysis.comparison import mean_interval
from rljax.distributed.hardware import provenance
from rljax.runs import records, run

MEMORIES = {"none": "none", "gru": "GRU", "lstm": "LSTM", "lru": "LRU", "gtrxl": "GTrXL", "iru": "IRU"}
COLOURS = dict(zip(MEMORIES, ("#999999", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00"), strict=True))
LONG = 50  # steps of a chain, from which on rollouts are longer, and spans are tried
SPAN = "-span"  # of the name of a memory with `memory_span`
VARIANTS = [*MEMORIES, *(memory + SPAN for memory in ("gru", "lstm", "lru", "iru"))]
SOLVED = 0.9  # of 1: the mean return from which a learner counts as one that remembers
CONFIG: dict[str, Any] = {
    "num_envs": 64,
    "num_epochs": 4,
    "learning_rate": 1e-3,
    "discount": 0.999,
    "normalise_rewards": False,
    "normalise_observations": False,
    "actor_hidden": (64,),
    "critic_hidden": (64,),
    "memory_hidden": (64,),
}


def trained(variant: str, length: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    memory = variant.removesuffix(SPAN)
    num_steps = 64 if length < LONG else 128  # no gradient reaches beyond a rollout
    config = CONFIG | {"memory": memory, "num_steps": num_steps, "batch_size": 16 * num_steps}
    if memory == "gtrxl":
        config["memory_length"] = length
    if variant.endswith(SPAN):
        config["memory_span"] = length
    steps = options.steps * max(1, length // 50)
    out = options.runs / f"{variant}-{length}"
    begin = functools.partial(
        run.train,
        "ppo",
        f'gymnax/MemoryChain-bsuite?{{"memory_length": {length}}}',
        steps,
        seeds=options.seeds,
        out=out,
        config=config,
        eval_every=steps // 4,
        eval_episodes=50,
        checkpoint_every=steps,
        quiet=False,
    )
    return studies.trained(out, steps, begin, config={"memory": memory})


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    lengths = list(study["returns"])
    lines = ["| memory | " + " | ".join(f"{length} steps" for length in lengths) + " | steps/s |"]
    lines.append("|---|" + "---|" * (len(lengths) + 1))
    for variant in study["speeds"]:
        cells = [label(variant)]
        for length in lengths:
            if variant not in study["returns"][length]:
                cells.append("-")
                continue
            solved = sum(x >= SOLVED for x in study["returns"][length][variant])
            result = studies.with_interval(study["intervals"][length][variant], 2)
            cells.append(f"{result}, {solved} of {study['seeds']}")
        lines.append(f"| {' | '.join(cells)} | {study['speeds'][variant]:,.0f} |")
    return "\n".join(lines) + "\n"


def label(variant: str) -> str:
    """What a table or a plot calls a memory."""
    memory = variant.removesuffix(SPAN)
    return MEMORIES[memory] + (", span" if variant != memory else "")


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw mean returns over what must be remembered, a dash for each memory and a dot for each learner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    variants = list(study["speeds"])
    for i, variant in enumerate(variants):
        memory, trained = variant.removesuffix(SPAN), [variant in returns for returns in study["returns"].values()]
        values = np.array([returns[variant] for returns in study["returns"].values() if variant in returns])
        places = np.flatnonzero(trained) + 0.08 * (i - (len(variants) - 1) / 2)
        dash, dot = ("_", ".") if variant == memory else ("|", "x")
        axes.plot(places, values.mean(axis=1), dash, markersize=12, color=COLOURS[memory], label=label(variant))
        axes.plot(places, values, dot, markersize=4, alpha=0.5, color=COLOURS[memory])
    axes.set_xticks(range(len(study["returns"])), list(study["returns"]))
    axes.set(xlabel="steps between the bit and the question", ylabel="return")
    axes.set_title("PPO on MemoryChain")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into the folder `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--lengths", type=int, nargs="+", default=[5, 20, 50, 100])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/memory"))
    parser.add_argument("--output", type=Path, default=Path("results/memory"))
    options = parser.parse_args()
    returns, speeds = {}, {}  # of each length and variant; of each variant
    for length in options.lengths:
        returns[str(length)] = {}
        for variant in options.memories:
            if length < LONG and variant.endswith(SPAN):
                continue
            out = trained(variant, length, options)
            returns[str(length)][variant] = studies.last(out, sys.maxsize, "returns", 1)
            speeds.setdefault(variant, []).append(records.read_summary(out)["steps_per_second"])
    study = {
        "steps": options.steps,
        "seeds": options.seeds,
        **provenance(),
        "speeds": {variant: round(float(np.median(values))) for variant, values in speeds.items()},
        "returns": {length: {name: x.round(3).tolist() for name, x in of.items()} for length, of in returns.items()},
        "intervals": {length: {name: mean_interval(x) for name, x in of.items()} for length, of in returns.items()},
    }
    studies.write(study, options.output / "chain", table, draw)


if __name__ == "__main__":
    main()
