"""Times of one update at full size, ours and authors', on the same batch, and the arithmetic in
ours."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition

HUMANOID = EnvSpec("test/Humanoid", (376,), 17)  # its shapes


def random_batch(size: int) -> Transition:
    """A batch of normal numbers, of Humanoid's shapes."""
    generator = np.random.default_rng(0)

    def normal(*shape: int) -> Any:
        return jnp.asarray(generator.normal(size=(size, *shape)), jnp.float32)

    terminated = jnp.asarray(generator.random(size) < 0.05)
    return Transition(
        observation=normal(*HUMANOID.observation_shape),
        action=jnp.tanh(normal(*HUMANOID.action_shape)),
        reward=normal(),
        terminated=terminated,
        truncated=jnp.zeros_like(terminated),
        next_observation=normal(*HUMANOID.observation_shape),
    )


def beside(
    theirs: Callable[[], Any], update: Any, state: Any, batch: Transition, config: Any, width: int
) -> dict[str, Any]:
    """Seconds of one of our updates and of theirs, their ratio, and the arithmetic in ours.

    Ours goes on from update to update and gives its state's memory away, as in training. The
    arithmetic is XLA's count of floating-point operations, in billions; how many of them our update
    does in a second; and how many a single product does, [256, width] by [width, 4 width].
    """
    key, first = jax.random.key(0), jnp.asarray(0)
    compiled = jax.jit(update, donate_argnums=0).lower(state, batch, key, first, config).compile()
    learner: dict[str, Any] = {"state": jax.tree.map(jnp.copy, state), "step": 0}

    def ours() -> Any:
        step = jnp.asarray(learner["step"])
        learner["state"], metrics = compiled(learner["state"], batch, key, step, config)
        learner["step"] += 1
        return learner["state"], metrics

    seconds = seconds_in_turns({"ours": ours, "theirs": theirs}, rounds=9)
    costs: Any = compiled.cost_analysis()
    counted = costs["flops"] / 1e9
    rows, kernel = jnp.ones((256, width)), jnp.ones((width, 4 * width))
    multiply = jax.jit(jnp.matmul)
    alone = seconds_in_turns({"product": lambda: multiply(rows, kernel)}, rounds=9, calls=20)
    return {
        "seconds of an update": seconds,
        "ratio": seconds["theirs"] / seconds["ours"],
        "GFLOP of an update": counted,
        "GFLOP/s of an update": counted / seconds["ours"],
        "GFLOP/s of a product": 2e-9 * rows.size * 4 * width / alone["product"],
    }


def seconds_in_turns(
    updates: Mapping[str, Callable[[], Any]], rounds: int = 5, calls: int = 3
) -> dict[str, float]:
    """Seconds of processor for one call of each function: the median of rounds in turns."""
    times: dict[str, list[float]] = {name: [] for name in updates}
    for update in updates.values():
        jax.block_until_ready(update())
    for _ in range(rounds):
        for name, update in updates.items():
            start = time.process_time()
            for _ in range(calls):
                output = update()
                jax.block_until_ready(output)
            times[name].append((time.process_time() - start) / calls)
    return {name: float(np.median(each)) for name, each in times.items()}
