"""Speed of `rljax.make_train` inside the program, beside rejax: PPO on gymnax's Pendulum, for
several seeds at once under `vmap`, of the same sizes.

  taskset -c 0 python scripts/benchmarks/functions.py --rejax rejax/bin/python \\
      --output results/speed/measurements/functions.json

`--rejax` is the Python of an environment that has rejax and gymnax < 1. Neither evaluates nor
normalises. Ours is also measured as the loop of `rljax train` with as many learners. Measurements
alternate, each in a separate process, after compilation. Medians are reported.
"""

from __future__ import annotations

import argparse
import functools
import statistics
import sys
import time
from typing import Any

from scripts.benchmarks import measuring
from scripts.benchmarks.measuring import add_sample, conclude, options_of, prepared, timed
from scripts.benchmarks.online import PENDULUM, PLAIN

ROLLOUT = PENDULUM["num_envs"] * PENDULUM["num_steps"]
OURS = PENDULUM | PLAIN | {"batch_size": ROLLOUT // 8}
ENVIRONMENT = "gymnax/Pendulum-v1"


def seconds_of(train: Any, keys: Any) -> float:
    """Seconds of the second call of a compiled training."""
    import jax

    compiled = jax.jit(train)
    jax.block_until_ready(compiled(keys))
    began = time.perf_counter()
    jax.block_until_ready(compiled(keys))
    return time.perf_counter() - began


def function(seeds: int, rollouts: int) -> dict[str, Any]:
    """Steps per second of all learners in `make_train`."""
    import jax

    import rljax

    steps = rollouts * ROLLOUT
    train = rljax.make_train(
        "ppo", ENVIRONMENT, OURS, steps=steps, eval_every=steps, eval_episodes=0
    )
    seconds = seconds_of(jax.vmap(train), jax.random.split(jax.random.key(0), seeds))
    return {"steps_per_second": seeds * steps / seconds}


def loop(seeds: int, rollouts: int) -> dict[str, Any]:
    """The same in the loop of `rljax train`."""
    total = 2 * rollouts * ROLLOUT
    with prepared("ppo", seeds, total, OURS, ENVIRONMENT) as training:
        timed(training.driver, rollouts)
        seconds = timed(training.driver, rollouts)
    return {"steps_per_second": seeds * rollouts * ROLLOUT / seconds}


def rejax(seeds: int, rollouts: int) -> dict[str, Any]:
    """The same in rejax."""
    import jax
    from rejax import PPO  # pyright: ignore[reportMissingImports]

    steps = rollouts * ROLLOUT
    sizes: dict[str, Any] = {"num_minibatches": 8, "total_timesteps": steps, "eval_freq": steps}
    ppo = PPO.create(env="Pendulum-v1", skip_initial_evaluation=True, **sizes, **PENDULUM)
    ppo = ppo.replace(eval_callback=lambda algorithm, state, key: ())
    keys = jax.random.split(jax.random.PRNGKey(0), seeds)
    seconds = seconds_of(jax.vmap(lambda key: PPO.train(ppo, key)), keys)
    return {"steps_per_second": seeds * steps / seconds}


WORKERS = {"function": function, "loop": loop, "rejax": rejax}


def main() -> None:
    """Measure in turns, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rejax", help="Python that has rejax; without it only ours is measured")
    parser.add_argument("--seeds", type=int, default=8)
    parser.add_argument("--rollouts", type=int, default=24)
    options = options_of(parser, WORKERS, rounds=3)
    measure = functools.partial(measuring.measure, script=__file__)
    sides = {"make_train": "function", "rljax train": "loop"}
    pythons = {name: sys.executable for name in sides}
    if options.rejax:
        sides["rejax"], pythons["rejax"] = "rejax", options.rejax
    samples: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, worker in sides.items():
            result = measure(pythons[name], worker, options.seeds, options.rollouts)
            add_sample(
                samples, f"{name}, {options.seeds} seeds, steps/s", result["steps_per_second"]
            )
    medians = {name: statistics.median(values) for name, values in samples.items()}
    first, *others = medians
    ratios = {f"{first} / {other}": medians[first] / medians[other] for other in others}
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
