"""Cost of thinking steps: one update of PPO on lights out with the interpolation recurrent unit and
with an MLP.

  python scripts/benchmarks/torsos.py --output results/speed/measurements/torsos.json

The MLP has four layers and as many parameters as the unit. Updates of all torsos alternate in one
process. Medians are reported.
"""

from __future__ import annotations

import argparse
import bisect
import dataclasses
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.benchmarks.measuring import conclude

THINKING = (1, 2, 3, 5, 8, 12, 16)
SIZES: dict[str, Any] = {"num_envs": 512, "num_steps": 16, "batch_size": 1024, "num_epochs": 2}


def updates(env: str, config: Any) -> tuple[Callable[[], float], int]:
    """A function that times one update, on all minibatches of a rollout,
    and the number of parameters.
    """
    import jax
    import jax.numpy as jnp

    from rljax import envs
    from rljax.agent import Transition
    from rljax.agents import ppo

    spec, key = envs.make(env).spec, jax.random.key(0)
    rows = (config.num_steps, config.num_envs)
    state = jax.jit(lambda key: ppo.init(key, spec, config))(key)
    observation = jax.random.bernoulli(key, 0.5, (*rows, *spec.observation_shape)).astype(
        jnp.float32
    )
    act = jax.jit(lambda state, observation: ppo.act(state, observation, key, config, explore=True))
    action, extras, _ = act(state, observation)
    ended = jax.random.bernoulli(key, 0.1, rows)
    batch = Transition(
        observation, action, -0.1 * jnp.ones(rows), ended, ended, observation, extras
    )
    update = jax.jit(lambda state: ppo.update(state, batch, key, jnp.int32(0), config)[0])
    jax.block_until_ready(update(state))

    def seconds() -> float:
        began = time.perf_counter()
        jax.block_until_ready(update(state))
        return time.perf_counter() - began

    return seconds, sum(leaf.size for leaf in jax.tree.leaves(state.actor_critic.parameters))


def main() -> None:
    """Measure, print and write the results."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--env", default="rljax/LightsOut-5x5")
    parser.add_argument("--repetitions", type=int, default=9)
    parser.add_argument("--output", type=Path)
    options = parser.parse_args()
    from rljax.agents import ppo
    from rljax.learning import registry

    preset = registry.preset("ppo", ppo, options.env, None)
    base: Any = dataclasses.replace(preset, **SIZES, initialisation="lecun_uniform")
    unit = dataclasses.replace(base, torso="iru", actor_hidden=(64,))
    measured = {
        f"iru-{steps}": updates(options.env, dataclasses.replace(unit, compute=steps))
        for steps in THINKING
    }
    _, parameters = measured["iru-1"]
    width = nearest(options.env, base, parameters)
    measured["mlp"] = updates(options.env, dataclasses.replace(base, actor_hidden=(width,) * 4))
    taken: dict[str, list[float]] = {name: [] for name in measured}
    for _ in range(options.repetitions):
        for name, (seconds, _) in measured.items():
            taken[name].append(seconds())
    medians = {
        f"milliseconds, {name}": 1e3 * statistics.median(values) for name, values in taken.items()
    }
    mlp = medians["milliseconds, mlp"]
    ratios = {f"{name} of the MLP": x / mlp for name, x in named(medians)}
    sizes = {f"parameters, {name}": float(parameters) for name, (_, parameters) in measured.items()}
    conclude(medians | sizes, ratios, taken, options.output)


def named(medians: dict[str, float]) -> list[tuple[str, float]]:
    """Milliseconds of each torso with thinking steps, by name."""
    return [(name.split(", ")[1], value) for name, value in medians.items() if "iru" in name]


def nearest(env: str, config: Any, parameters: int) -> int:
    """The width of four layers whose number of parameters is nearest to the given number."""
    import jax

    from rljax import envs
    from rljax.agents import ppo

    spec = envs.make(env).spec

    def size(width: int) -> int:
        wide = dataclasses.replace(config, actor_hidden=(width,) * 4)
        state = jax.eval_shape(lambda key: ppo.init(key, spec, wide), jax.random.key(0))
        return sum(leaf.size for leaf in jax.tree.leaves(state.actor_critic.parameters))

    widths = range(8, 257)
    above = bisect.bisect_left(widths, parameters, key=size)
    return min(
        widths[max(above - 1, 0) : above + 1], key=lambda width: abs(size(width) - parameters)
    )


if __name__ == "__main__":
    main()
