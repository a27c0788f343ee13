"""Speed of PPO with a GRU inside the program, beside purejaxrl's ppo_rnn.py.

  git clone https://github.com/luchris429/purejaxrl peer/purejaxrl
  peer/bin/pip install jax==0.10.2 flax optax distrax gymnax==0.0.9
  taskset -c 0 python scripts/benchmarks/memory.py --peer peer/bin/python \\
      --code peer/purejaxrl/purejaxrl --output results/speed/measurements/memory.json

Ours needs gymnax: pip install 'rljax-suite[gymnax]'. All train on CartPole-v1 in 64 environments,
rollouts of 128 steps, 4 passes in 4 minibatches of 16 environments, a dense layer of 128 and a GRU
of 128 units. purejaxrl's actor and critic have one more dense layer of 128 each after it: two of
ten products. It takes values from acting, and treats time limits as ends; ours computes the values
of all successors once per rollout. None evaluates. Measurements alternate, each in a separate
process, after compilation. Medians are reported. `taskset` limits them to one core.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
import types
from collections.abc import Callable
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

ENVS, LENGTH = 64, 128
ROLLOUT = ENVS * LENGTH


def ours(rollouts: int) -> dict[str, Any]:
    """Steps per second of our training loop."""
    sizes = {"num_envs": ENVS, "num_steps": LENGTH, "batch_size": ROLLOUT // 4, "num_epochs": 4}
    network = {
        "actor_hidden": (128,),
        "memory": "gru",
        "memory_hidden": (128,),
        "activation": "relu",
    }
    plain = {
        "recompute_advantages": False,
        "normalise_rewards": False,
        "normalise_observations": False,
    }
    settings: dict[str, Any] = sizes | network | plain | {"entropy_cost": 0.01, "clip_values": True}
    with prepared("ppo", 1, 100 * ROLLOUT, settings, "gymnax/CartPole-v1") as training:
        timed(training.driver, rollouts)
        seconds = timed(training.driver, rollouts)
    return {"steps_per_second": rollouts * ROLLOUT / seconds}


def peer(rollouts: int, code: str) -> dict[str, Any]:
    """Steps per second of purejaxrl's training function."""
    use_code(code)
    # Its wrappers import it, for other environments.
    sys.modules.setdefault("navix", types.ModuleType("navix"))
    import flax.linen as nn
    import jax

    class GRUCell(nn.GRUCell):
        """Flax's cell as versions before 0.7 had it, for which purejaxrl was written."""

        features: int = 128

        @staticmethod
        def initialize_carry(  # pyright: ignore[reportIncompatibleMethodOverride]
            rng: Any, batch_dims: tuple[int, ...], size: int
        ) -> Any:
            """Zeros."""
            del rng
            return jax.numpy.zeros((*batch_dims, size))

    nn.GRUCell = GRUCell  # pyright: ignore[reportAttributeAccessIssue]
    import ppo_rnn  # pyright: ignore[reportMissingImports]

    settings = {
        "LR": 3e-4,
        "NUM_ENVS": ENVS,
        "NUM_STEPS": LENGTH,
        "TOTAL_TIMESTEPS": rollouts * ROLLOUT,
    }
    settings |= {
        "UPDATE_EPOCHS": 4,
        "NUM_MINIBATCHES": 4,
        "GAMMA": 0.99,
        "GAE_LAMBDA": 0.95,
        "CLIP_EPS": 0.2,
    }
    settings |= {"ENT_COEF": 0.01, "VF_COEF": 0.5, "MAX_GRAD_NORM": 0.5, "ENV_NAME": "CartPole-v1"}
    settings |= {"ANNEAL_LR": False, "DEBUG": False}
    key = jax.random.PRNGKey(0)
    train = jax.jit(ppo_rnn.make_train(settings)).lower(key).compile()
    jax.block_until_ready(train(key))
    began = time.perf_counter()
    jax.block_until_ready(train(key))
    return {"steps_per_second": rollouts * ROLLOUT / (time.perf_counter() - began)}


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": ours, "peer": peer}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--peer",
        help="Python of an environment that has what purejaxrl needs; without it only ours",
    )
    parser.add_argument("--code", help="folder of purejaxrl's ppo_rnn.py")
    parser.add_argument("--rollouts", type=int, default=10)
    options = options_of(parser, WORKERS)
    if options.peer and not options.code:
        raise SystemExit(
            "--peer needs the folder of purejaxrl's ppo_rnn.py: --code peer/purejaxrl/purejaxrl"
        )

    samples: dict[str, list[float]] = {}

    def note(name: str, python: str, worker: str, *arguments: Any) -> None:
        figures = measure(python, worker, *arguments, script=__file__)
        add_sample(samples, f"{name} steps/s", figures["steps_per_second"])

    for _ in range(options.rounds):
        note("ours", sys.executable, "ours", options.rollouts)
        if options.peer:
            note("purejaxrl", options.peer, "peer", options.rollouts, options.code)

    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = (
        {"ours / purejaxrl": medians["ours steps/s"] / medians["purejaxrl steps/s"]}
        if options.peer
        else {}
    )
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
