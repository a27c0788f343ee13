"""Which memories of PPO keep one bit for how long: MemoryChain of several lengths,
with each memory and without one.

  python scripts/studies/memory.py

The first observation of `gymnax/MemoryChain-bsuite` is a bit, and the action of the last step must
tell it: the return is 1 if it does and -1 if not, so that guessing earns 0. Chains of 100 steps
have twice the training. Chains of 50 and more are also learnt by memories whose units begin with
spans up to the chain's length (`memory_span`), and those of 100 steps by these in a longer run,
beside a GRU without one. All seeds of a cell are learners of one program. Complete runs are not
repeated, and interrupted runs continue. Needs gymnax: pip install 'rljax-suite[gymnax]'.
"""

from __future__ import annotations

import argparse
import functools
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis.comparison import mean_interval
from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.studies import shared

MEMORIES = {
    "none": "none",
    "gru": "GRU",
    "lstm": "LSTM",
    "lru": "LRU",
    "gtrxl": "GTrXL",
    "iru": "IRU",
}
COLOURS = dict(
    zip(MEMORIES, ("#999999", "#0072B2", "#009E73", "#D55E00", "#CC79A7", "#E69F00"), strict=True)
)
# Steps between the bit and the question, and multiples of --steps for which a learner trains.
CHAINS = {"5": (5, 1), "20": (20, 1), "50": (50, 1), "100": (100, 2), "100-long": (100, 5)}
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


def learns(variant: str, chain: str) -> bool:
    """Whether a memory learns a chain in this study: a span is for long ones,
    and the longest run is for spans.
    """
    spans = variant.endswith(SPAN)
    return (
        (spans or variant in ("none", "gru"))
        if chain == "100-long"
        else CHAINS[chain][0] >= LONG or not spans
    )


def trained(variant: str, chain: str, options: argparse.Namespace) -> Path:
    """The folder of a complete run."""
    memory, (length, times) = variant.removesuffix(SPAN), CHAINS[chain]
    num_steps = 64 if length < LONG else 128  # no gradient reaches beyond a rollout
    config = CONFIG | {"memory": memory, "num_steps": num_steps, "batch_size": 16 * num_steps}
    if memory == "gtrxl":
        config["memory_length"] = length
    if variant.endswith(SPAN):
        config["memory_span"] = length
    steps = options.steps * times
    out = options.runs / f"{variant}-{chain}"
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
    return shared.trained(out, steps, begin, config={"memory": memory})


def table(study: Mapping[str, Any]) -> str:
    """The results as Markdown."""
    chains = list(study["returns"])
    budgets = [(CHAINS[chain][0], study["steps"] * CHAINS[chain][1]) for chain in chains]
    columns = [f"{length} steps, after {steps // 1000:,}k" for length, steps in budgets]
    lines = [f"| memory | {' | '.join(columns)} |", "|---|" + "---|" * len(chains)]
    for variant in study["variants"]:
        cells = [label(variant)]
        for chain in chains:
            if variant not in study["returns"][chain]:
                cells.append("-")
                continue
            solved = sum(x >= SOLVED for x in study["returns"][chain][variant])
            result = shared.with_interval(study["intervals"][chain][variant], 2)
            cells.append(f"{result}, {solved} of {study['seeds']}")
        lines.append(f"| {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def label(variant: str) -> str:
    """What a table or a plot calls a memory."""
    memory = variant.removesuffix(SPAN)
    return MEMORIES[memory] + (", span" if variant != memory else "")


def draw(study: Mapping[str, Any], path: Path) -> None:
    """Draw mean returns over what must be remembered,
    a dash for each memory and a dot for each learner.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(8, 3.6), layout="constrained")
    axes = figure.subplots()
    variants = study["variants"]
    for i, variant in enumerate(variants):
        memory = variant.removesuffix(SPAN)
        trained = [variant in returns for returns in study["returns"].values()]
        values = np.array(
            [returns[variant] for returns in study["returns"].values() if variant in returns]
        )
        places = np.flatnonzero(trained) + 0.08 * (i - (len(variants) - 1) / 2)
        dash, dot = ("_", ".") if variant == memory else ("|", "x")
        axes.plot(
            places,
            values.mean(axis=1),
            dash,
            markersize=12,
            color=COLOURS[memory],
            label=label(variant),
        )
        axes.plot(places, values, dot, markersize=4, alpha=0.5, color=COLOURS[memory])
    axes.set_xticks(
        range(len(study["returns"])), [name.replace("-", ",\n") for name in study["returns"]]
    )
    axes.set(xlabel="steps between the bit and the question", ylabel="return")
    axes.set_title("PPO on MemoryChain")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the results as JSON,
    Markdown and PNG into the folder `--output`.
    """
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--memories", nargs="+", default=VARIANTS, choices=VARIANTS)
    parser.add_argument("--chains", nargs="+", default=CHAINS, choices=CHAINS)
    parser.add_argument("--steps", type=int, default=200_000)
    parser.add_argument("--seeds", type=int, default=10)
    parser.add_argument("--runs", type=Path, default=Path("runs/memory"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/memory"))
    options = parser.parse_args()
    returns: dict[str, dict[str, np.ndarray]] = {}  # of each chain and variant
    for chain in options.chains:
        returns[chain] = {}
        for variant in options.memories:
            if not learns(variant, chain):
                continue
            out = trained(variant, chain, options)
            returns[chain][variant] = shared.last(out, sys.maxsize, "returns", 1)
    study = {
        "steps": options.steps,
        "seeds": options.seeds,
        **provenance(),
        "variants": list(dict.fromkeys(name for of in returns.values() for name in of)),
        "returns": {
            chain: {name: x.round(3).tolist() for name, x in of.items()}
            for chain, of in returns.items()
        },
        "intervals": {
            chain: {name: mean_interval(x) for name, x in of.items()}
            for chain, of in returns.items()
        },
    }
    shared.write(study, options.output / "chain", table, draw)


if __name__ == "__main__":
    main()
