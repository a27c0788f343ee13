"""Train an agent with the defaults of its file, without any preset,
for the tables "defaults" of the results' pages.

  python scripts/results/default_runs.py dqn gymnax/CartPole-v1 500000 --seeds 4 --eval-every 25000
  python scripts/results/online.py runs/results/dqn-gymnax-CartPole-v1-defaults

The run's folder is runs/results/AGENT-TASK-defaults.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from rljax import envs
from rljax.learning import registry
from rljax.runs import run


def main() -> None:
    """Train one agent in one environment."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("agent")
    parser.add_argument("env")
    parser.add_argument("steps", type=int)
    parser.add_argument("--seeds", type=int, default=4)
    parser.add_argument("--eval-every", type=int, default=10_000)
    options = parser.parse_args()
    config = registry.load_agent(options.agent).Config()  # a whole Config: presets are not read
    out = Path("runs", "results", f"{options.agent}-{envs.short(options.env)}-defaults")
    settings = {
        "seeds": options.seeds,
        "eval_every": options.eval_every,
        "out": out,
        "quiet": False,
    }
    run.train(options.agent, options.env, options.steps, config=config, **settings)


if __name__ == "__main__":
    main()
