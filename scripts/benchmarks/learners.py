"""Updates per second of recent off-policy agents, compared with their authors' learners in JAX.

Measurements alternate (ours, theirs, ours, ...), each in a separate process, with the sizes and
settings of the authors on HalfCheetah's shapes. Several updates are one call in both. Medians are
reported.
The authors' checkouts are unmodified; see scripts/updates/stand_ins.py for what stands in for
their other imports:

  taskset -c 1 python scripts/benchmarks/learners.py --xqc xqc \\
      --output results/speed/measurements/learners.json
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from scripts.benchmarks import measuring
from scripts.benchmarks.measuring import add_sample, conclude, options_of

BATCH, SIZE = 256, (17, 6)  # rows; sizes of observations and actions, as in HalfCheetah
TOGETHER = 10  # updates of one call
AGENTS = ("xqc",)  # each with an option for its authors' checkout


def rows(updates: int) -> Any:
    """Random transitions [updates, BATCH, ...]."""
    import numpy as np

    from rljax.agent import Transition

    generator = np.random.default_rng(0)
    observation, action = SIZE

    def normal(*shape: int) -> Any:
        return generator.normal(size=(updates, BATCH, *shape)).astype(np.float32)

    never: Any = np.zeros((updates, BATCH), bool)
    return Transition(
        observation=normal(observation),
        action=np.tanh(normal(action)),  # pyright: ignore[reportArgumentType]
        reward=normal(),
        terminated=never,
        truncated=never,
        next_observation=normal(observation),
    )


def timed(call: Callable[[], Any], calls: int) -> dict[str, Any]:
    """Updates per second of a call that makes `TOGETHER` of them."""
    import jax

    jax.block_until_ready(call())
    began = time.perf_counter()
    for _ in range(calls):
        result = call()
    jax.block_until_ready(result)
    return {"updates_per_second": calls * TOGETHER / (time.perf_counter() - began)}


def ours(agent: str, calls: int) -> dict[str, Any]:
    """Our agent, with its defaults."""
    import jax
    import jax.numpy as jnp

    from rljax.agent import EnvSpec
    from rljax.learning import registry

    module = registry.load_agent(agent)
    changes = {"rate_updates": 1e6} if hasattr(module.Config(), "rate_updates") else {}
    config = module.Config(batch_size=BATCH, **changes)
    observation, action = SIZE
    spec = EnvSpec("test/Example-v0", (observation,), action)
    batches = jax.tree.map(jnp.asarray, rows(TOGETHER))

    @jax.jit
    def several(state: Any, first: Any) -> Any:
        def one(state: Any, inputs: Any) -> Any:
            i, batch = inputs
            key = jax.random.fold_in(jax.random.key(1), first + i)
            return module.update(state, batch, key, first + i, config)[0], None

        return jax.lax.scan(one, state, (jnp.arange(TOGETHER), batches))[0]

    state = jax.jit(module.init, static_argnums=1)(jax.random.key(0), spec, config)
    step = 0

    def call() -> Any:
        nonlocal state, step
        state = several(state, jnp.asarray(step))
        step += TOGETHER
        return state

    return timed(call, calls)


def theirs_xqc(checkout: str, calls: int) -> dict[str, Any]:
    """The authors' XQC."""
    import numpy as np

    from scripts.updates import compare_xqc

    sizes = compare_xqc.Sizes(*SIZE, (256,) * 4, (512,) * 4)
    learner = compare_xqc.their_learner(Path(checkout), 10**6, {}, sizes)
    batch = rows(TOGETHER)
    fields = {
        "observations": batch.observation,
        "actions": batch.action,
        "rewards": batch.reward,
        "masks": 1.0 - batch.terminated,
        "next_observations": batch.next_observation,
        "discount": np.full((TOGETHER, BATCH, 1), 0.99),
    }
    fields = {name: np.asarray(x, np.float32)[None] for name, x in fields.items()}
    batches = compare_xqc.Batch(**fields)

    def call() -> Any:
        learner.update(batches, num_updates=TOGETHER)
        return learner.critic.params

    return timed(call, calls)


WORKERS: dict[str, Callable[..., dict[str, Any]]] = {"ours": ours, "xqc": theirs_xqc}


def main() -> None:
    """Measure every agent whose checkout is given, print medians and write the samples."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    for agent in AGENTS:
        parser.add_argument(f"--{agent}", help="checkout of its authors' code")
    parser.add_argument("--calls", type=int, default=5, help=f"each of {TOGETHER} updates")
    options = options_of(parser, WORKERS)
    checkouts = {agent: getattr(options, agent) for agent in AGENTS if getattr(options, agent)}
    if not checkouts:
        parser.error(f"give the checkout of an agent's authors: --{' or --'.join(AGENTS)}")
    samples: dict[str, list[float]] = {}
    for _ in range(options.rounds):
        for agent, checkout in checkouts.items():
            for name, words in (("ours", ("ours", agent)), ("authors", (agent, checkout))):
                figures = measuring.measure(sys.executable, *words, options.calls, script=__file__)
                add_sample(samples, f"{agent} {name} updates/s", figures["updates_per_second"])
    medians = {name: statistics.median(values) for name, values in samples.items()}
    ratios = {
        f"{agent} ours / authors": medians[f"{agent} ours updates/s"]
        / medians[f"{agent} authors updates/s"]
        for agent in checkouts
    }
    conclude(medians, ratios, samples, options.output)


if __name__ == "__main__":
    main()
