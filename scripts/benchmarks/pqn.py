"""Speed of PQN on MinAtar inside the program, beside the authors' code (purejaxql),
with the same sizes.

  git clone https://github.com/mttga/purejaxql peer/purejaxql
  peer/bin/pip install jax==0.4.38 jaxlib==0.4.38 gymnax==0.0.6 flax optax chex hydra-core \
      omegaconf wandb six
  taskset -c 0 python scripts/benchmarks/pqn.py --peer peer/bin/python --code peer/purejaxql \\
      --output results/speed/measurements/pqn.json

Ours needs gymnax: pip install 'rljax-suite[gymnax]'. Both run the settings of the authors'
config/alg/pqn_minatar.yaml: the same network, 128 environments, rollouts of 32 steps, 2 passes in
32 minibatches. Neither evaluates. Measurements alternate, each in a separate process, after
compilation. Medians are reported. `taskset` limits both to one core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.benchmarks.measuring import (
    add_sample,
    conclude,
    measure,
    options_of,
    prepared,
    timed,
    use_code,
)

ROLLOUT = 128 * 32  # environments x steps
STEPS = 10_000_000  # of the run, over which schedules fall


def ours(environment: str, rollouts: int) -> dict[str, Any]:
    """Steps per second of our training loop."""
    from rljax.learning import registry

    name = f"gymnax/{environment}"
    settings = vars(registry.preset("pqn", registry.load_agent("pqn"), name))
    assert settings["num_envs"] * settings["num_steps"] == ROLLOUT
    with prepared("pqn", 1, STEPS, settings, name) as training:
        timed(training.driver, rollouts)
        seconds = timed(training.driver, rollouts)
    return {"steps_per_second": rollouts * ROLLOUT / seconds}


def peer(environment: str, rollouts: int, code: str) -> dict[str, Any]:
    """Steps per second of the authors' training function, compiled as their command compiles it."""
    use_code(code)
    import jax
    from omegaconf import OmegaConf  # pyright: ignore[reportMissingImports]
    from purejaxql import pqn_minatar  # pyright: ignore[reportMissingImports]

    settings: Any = OmegaConf.to_container(
        OmegaConf.load(Path(code, "purejaxql/config/alg/pqn_minatar.yaml"))
    )
    settings |= {"ENV_NAME": environment, "TEST_DURING_TRAINING": False, "WANDB_MODE": "disabled"}
    settings |= {"TOTAL_TIMESTEPS": rollouts * ROLLOUT, "TOTAL_TIMESTEPS_DECAY": STEPS}
    assert settings["NUM_ENVS"] * settings["NUM_STEPS"] == ROLLOUT
    keys = jax.random.split(jax.random.PRNGKey(0), 1)
    train = jax.jit(jax.vmap(pqn_minatar.make_train(settings))).lower(keys).compile()
    jax.block_until_ready(train(keys))
    began = time.perf_counter()
    jax.block_until_ready(train(keys))
    return {"steps_per_second": rollouts * ROLLOUT / (time.perf_counter() - began)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": ours, "peer": peer}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer",
        help="Python of an environment that has what purejaxql needs; without it only ours",
    )
    parser.add_argument("--code", help="folder of purejaxql's code")
    parser.add_argument(
        "--environments", nargs="+", default=["Breakout-MinAtar", "SpaceInvaders-MinAtar"]
    )
    parser.add_argument("--rollouts", type=int, default=10)
    options = options_of(parser, WORKERS)
    if options.peer and not options.code:
        raise SystemExit("--peer needs the folder of purejaxql's code: --code peer/purejaxql")

    samples: dict[str, list[float]] = {}

    def note(name: str, python: str, worker: str, *arguments: Any) -> None:
        figures = measure(python, worker, *arguments, script=__file__)
        add_sample(samples, f"{name} steps/s", figures["steps_per_second"])

    for _ in range(options.rounds):
        for environment in options.environments:
            note(f"{environment} ours", sys.executable, "ours", environment, options.rollouts)
            if options.peer:
                note(
                    f"{environment} purejaxql",
                    options.peer,
                    "peer",
                    environment,
                    options.rollouts,
                    options.code,
                )

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {
        f"{environment}, ours / purejaxql": medians[f"{environment} ours steps/s"]
        / medians[f"{environment} purejaxql steps/s"]
        for environment in options.environments
        if options.peer
    }
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
