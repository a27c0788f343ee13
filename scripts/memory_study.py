"""Which memories of PPO keep one bit for how long: MemoryChain of several lengths, with each memory and without one.

  python scripts/memory_study.py

The first observation of `gymnax/MemoryChain-bsuite` is a bit, and the action of the last step must tell it: the return
is 1 if it does and -1 if not, so that guessing earns 0. Chains of 100 steps have twice the training. All seeds of a
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


def trained(memory: str, length: int, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    num_steps = 64 if length < 50 else 128  # no gradient reaches beyond a rollout
    config = CONFIG | {"memory": memory, "num_steps": num_steps, "batch_size": 16 * num_steps}
    if memory == "gtrxl":
        config["memory_length"] = length
    steps = options.steps * max(1, length // 50)
    out = options.runs / f"{memory}-{length}"
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
    for memory in study["speeds"]:
        cells = [MEMORIES[memory]]
        for length in lengths:
            solved = sum(x >= SOLVED for x in study["returns"][length][memory])
            result = studies.with_interval(study["intervals"][length][memory], 2)
            cells.append(f"{result}, {solved} of {study['seeds']}")
        lines.append(f"| {' | '.join(cells)} | {study['speeds'][memory]:,.0f} |")
    return "\n".join(lines) + "\n"


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw mean returns over what must be remembered, a line for each memory and a dot for each learner."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    lengths = np.arange(len(study["returns"]))
    memories = list(study["speeds"])
    for i, memory in enumerate(memories):
        values = np.array([returns[memory] for returns in study["returns"].values()])  # [length, learner]
        places = lengths + 0.12 * (i - (len(memories) - 1) / 2)
        axes.plot(places, values.mean(axis=1), "_", markersize=14, color=COLOURS[memory], label=MEMORIES[memory])
        axes.plot(places, values, ".", markersize=4, alpha=0.5, color=COLOURS[memory])
    axes.set_xticks(lengths, list(study["returns"]))
    axes.set(xlabel="steps between the bit and the question", ylabel="return")
    axes.set_title("PPO on MemoryChain")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON, Markdown and PNG into the folder `--output`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--memories", nargs="+", default=list(MEMORIES), choices=list(MEMORIES))
    parser.add_argument("--lengths", type=int, nargs="+", default=[5, 20, 50, 100])
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/memory"))
    parser.add_argument("--output", type=Path, default=Path("results/memory"))
    options = parser.parse_args()
    folders = {
        length: {memory: trained(memory, length, options) for memory in options.memories} for length in options.lengths
    }
    returns = {
        str(length): {memory: studies.last(out, sys.maxsize, "returns", 1) for memory, out in of.items()}
        for length, of in folders.items()
    }
    speeds = {
        memory: np.median([records.read_summary(of[memory])["steps_per_second"] for of in folders.values()])
        for memory in options.memories
    }
    study = {
        "steps": options.steps,
        "seeds": options.seeds,
        **provenance(),
        "speeds": {memory: round(float(speed)) for memory, speed in speeds.items()},
        "returns": {
            length: {memory: x.round(3).tolist() for memory, x in of.items()} for length, of in returns.items()
        },
        "intervals": {length: {memory: mean_interval(x) for memory, x in of.items()} for length, of in returns.items()},
    }
    studies.write(study, options.output / "chain", table, draw)


if __name__ == "__main__":
    main()
