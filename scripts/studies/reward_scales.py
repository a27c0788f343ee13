"""The scale of rewards and SAC with each kind of critic, DSAC-T and the first DSAC:
a task with rewards times 0.01 to 100.

Every scale and seed is a learner of one program. Returns are those of the task itself, without the
factor.

  python scripts/studies/reward_scales.py --output results/studies/reward_scales/pendulum
  python scripts/studies/reward_scales.py --env InvertedPendulum-v5 --steps 60000 \
      --agents sac sac-deep dsact --learning-rate 3e-4 --runs runs/reward_scales_inverted_pendulum \
      --output results/studies/reward_scales/inverted_pendulum
  python scripts/studies/reward_scales.py --steps 12000 --runs runs/reward_scales_heads \
      --agents sac sac-two_hot sac-hl_gauss sac-c51 sac-quantile \
      --output results/studies/reward_scales/heads
"""

from __future__ import annotations

import argparse
import functools
import json
from pathlib import Path
from typing import Any

import numpy as np

from rljax.runs import run
from rljax.system.hardware import provenance
from scripts.results.shared import over_seeds
from scripts.studies import shared

SCALES = (0.01, 0.1, 1.0, 10.0, 100.0)
ENDS = {"v_min": -1_400.0, "v_max": 100.0}
# The agents' own depths, small enough for a laptop. The first DSAC bounds errors in units of
# return.
AGENTS: dict[str, tuple[str, dict[str, Any]]] = {
    "sac": ("sac", {"hidden": (64, 64)}),
    # DSAC-T's networks
    "sac-deep": ("sac", {"hidden": (64, 64, 64), "activation": "gelu", "initialisation": "torch"}),
    "dsact": ("dsact", {"hidden": (64, 64, 64)}),
    "dsac-v1": ("dsact", {"hidden": (64, 64, 64), "critic_loss": "v1", "num_critics": 1}),
    # Heads of SAC's critics. The ends hold Pendulum's returns at a factor of 1.
    **{
        f"sac-{head}": ("sac", {"hidden": (64, 64), "value_head": head, **ENDS})
        for head in ("two_hot", "hl_gauss", "c51", "quantile")
    },
}
COLOURS = {
    "sac": "#0072B2",
    "sac-deep": "#56B4E9",
    "dsact": "#D55E00",
    "dsac-v1": "#009E73",
    "sac-two_hot": "#E69F00",
    "sac-hl_gauss": "#D55E00",
    "sac-c51": "#009E73",
    "sac-quantile": "#CC79A7",
}


def trained(
    name: str, env: str, steps: int, seeds: int, folder: Path, more: dict[str, Any]
) -> Path:
    """The folder of a complete run with a learner per scale and seed, and `more` settings.

    The run is started or continued if necessary.
    """
    out, (agent, changes) = folder / name, AGENTS[name]
    scales = tuple(scale for scale in SCALES for _ in range(seeds))
    begin = functools.partial(
        run.train,
        agent,
        env,
        steps,
        seeds=len(scales),
        config={"reward_scale": scales} | changes | more,
        out=out,
        eval_every=steps // 10,
        checkpoint_every=steps // 10,
        quiet=False,
    )
    return shared.trained(out, steps, begin)


def draw(scores: dict[str, np.ndarray], env: str, path: Path) -> None:
    """Draw scores over scales, with a dot for each seed."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(5.5, 3.8), layout="constrained")
    axes = figure.subplots()
    for agent, values in scores.items():
        axes.plot(SCALES, values.mean(axis=1), color=COLOURS[agent], label=agent)
        for seed in values.T:
            axes.plot(SCALES, seed, ".", color=COLOURS[agent], alpha=0.5)
    axes.set(
        xscale="log", xlabel="factor on rewards", ylabel="return, without the factor", title=env
    )
    axes.legend()
    figure.savefig(path, dpi=130)


def main() -> None:
    """Train, print, draw, and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="rljax/Pendulum")
    parser.add_argument("--steps", type=int, default=30_000)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--agents", nargs="+", default=["sac", "dsact", "dsac-v1"], choices=AGENTS)
    parser.add_argument(
        "--learning-rate", type=float, help="of actors and critics; each agent's own by default"
    )
    parser.add_argument("--runs", type=Path, default=Path("runs/reward_scales"))
    parser.add_argument("--output", type=Path, default=Path("results/studies/reward_scales"))
    options = parser.parse_args()
    rate = options.learning_rate
    more = {} if rate is None else {"actor_lr": rate, "critic_lr": rate}
    scores: dict[str, np.ndarray] = {}
    table: dict[str, Any] = {}
    for agent in options.agents:
        out = trained(agent, options.env, options.steps, options.seeds, options.runs, more)
        scores[agent] = shared.last(out, options.steps, "returns", 3).reshape(
            len(SCALES), options.seeds
        )
        table[agent] = {}
        for scale, values in zip(SCALES, scores[agent], strict=True):
            table[agent][str(scale)] = {"seeds": values.round(1).tolist()}
            print(f"{agent:<8} x {scale:<6g} {over_seeds(values, 1)}", flush=True)
    options.output.mkdir(parents=True, exist_ok=True)
    agents = {name: (AGENTS[name][0], AGENTS[name][1] | more) for name in options.agents}
    described = {
        "env": options.env,
        "steps": options.steps,
        "agents": agents,
        **provenance(),
        "scores": table,
    }
    (options.output / "scores.json").write_text(json.dumps(described, indent=1) + "\n")
    draw(scores, options.env, options.output / "scores.png")


if __name__ == "__main__":
    main()
