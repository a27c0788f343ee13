"""Speed of lights out and box pick: parallel environments under random actions,
which reset at the end of episodes.

  python scripts/benchmarks/grids.py --output results/speed/measurements/grids.json

A scan draws actions and keys and steps all environments, like training without an agent. Episodes
begin at different times, so some end in every step. Each measurement is a separate process,
compiled before the clock starts. Medians are reported. The table gives steps per second of
wall-clock time and per second of processor time. Other programs on the machine slow the first, and
hardly the second.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from typing import Any

from scripts.benchmarks.measuring import conclude, measure, options_of

SIZES = {  # parallel environments
    "rljax/LightsOut-5x5": 2_048,
    "rljax/LightsOut-5x5-dense": 2_048,
    "rljax/LightsOut-10x10-test": 2_048,
    "rljax/BoxPick-6x6": 1_024,
    "rljax/BoxPick-6x6-quarter": 1_024,
}


def random_actions(name: str, number: int, steps: int, repetitions: int) -> dict[str, Any]:
    """Environment steps per second of `number` environments in scans of `steps` steps;
    the best repetition.
    """
    import jax
    import jax.numpy as jnp

    from rljax import envs

    environment = envs.make(name)

    @jax.jit
    def scan(key: Any, state: Any) -> Any:
        def body(carry: Any, _: None) -> Any:
            key, state, _ = carry
            key, key_action, key_step = jax.random.split(key, 3)
            action = jax.random.randint(key_action, (number,), 0, environment.spec.action_size)
            step, state = environment.step(jax.random.split(key_step, number), state, action)
            return (key, state, (step.observation, step.next_observation)), step.reward.sum()

        nothing = jnp.zeros((number, *environment.spec.observation_shape))
        return jax.lax.scan(body, (key, state, (nothing, nothing)), None, length=steps)

    _, state = jax.jit(environment.reset)(jax.random.split(jax.random.key(0), number))
    state = state.replace(
        episode_length=jnp.arange(number) % (environment.spec.max_episode_steps or 1)
    )
    (key, state, _), _ = jax.block_until_ready(scan(jax.random.key(1), state))
    wall, processor = [], []
    for _ in range(repetitions):
        began, used = time.perf_counter(), time.process_time()
        (key, state, _), _ = jax.block_until_ready(scan(key, state))
        wall.append(time.perf_counter() - began)
        processor.append(time.process_time() - used)
    return {
        "steps/s": number * steps / min(wall),
        "steps/s of the processor": number * steps / min(processor),
    }


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"random_actions": random_actions}


def main() -> None:
    """Measure everything, print a table and write the numbers to a file."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--steps", type=int, default=1_000)
    parser.add_argument("--repetitions", type=int, default=5)
    options = options_of(parser, WORKERS)

    samples: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for name, number in SIZES.items():
            result = measure(
                sys.executable,
                "random_actions",
                name,
                number,
                options.steps,
                options.repetitions,
                script=__file__,
            )
            for what, value in result.items():
                full = f"{name} {what}"
                samples.setdefault(full, []).append(value)
                print(f"{full:<56} {value:>14,.0f}", flush=True)
    medians = {name: statistics.median(values) for name, values in samples.items()}
    conclude(medians, {}, samples, options.output)


if __name__ == "__main__":
    main()
