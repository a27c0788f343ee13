"""What comparisons of updates share: options, sizes, batches, noise, measures of differences, the
file of results, and times of one update at full size, ours and authors', on the same batch.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import functools
import json
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec, Transition

OBSERVATION, ACTION, BATCH = 5, 2, 32
ACTOR, CRITIC = (16, 16), (24, 24, 24)
HUMANOID = EnvSpec("test/Humanoid", (376,), 17)  # its shapes


def batches(updates: int) -> list[Transition]:
    """Batches of random transitions."""
    generator = np.random.Generator(np.random.PCG64(0))

    def normal(*shape: int) -> Any:
        return generator.normal(size=(BATCH, *shape)).astype(np.float32)

    return [
        Transition(
            observation=normal(OBSERVATION) * 3.0 + 1.0,
            action=np.tanh(normal(ACTION)),  # pyright: ignore[reportArgumentType]
            reward=normal(),
            terminated=generator.random(BATCH) < 0.2,  # pyright: ignore[reportArgumentType]
            truncated=np.zeros(BATCH, bool),  # pyright: ignore[reportArgumentType]
            next_observation=normal(OBSERVATION) * 3.0 + 1.0,
        )
        for _ in range(updates)
    ]


@contextlib.contextmanager
def fixed_noise() -> Iterator[None]:
    """Inside, JAX's normal numbers are those of NumPy's seed 1, whatever the key."""

    def normal(key: Any, shape: Any = (), *_: Any, **__: Any) -> Any:
        size = int(np.prod(shape))
        return jnp.asarray(np.random.RandomState(1).normal(size=size)).reshape(shape)

    with mock.patch.object(jax.random, "normal", normal):
        yield


def exact(tree: Any) -> Any:
    """A tree whose float32 are float64."""
    return jax.tree.map(lambda x: x.astype(np.float64) if x.dtype == np.float32 else x, tree)


def relative(one: Any, other: Any) -> float:
    """The difference relative to `other`."""
    return float(np.abs(one - other) / max(float(np.abs(other)), 1e-2))


def distance(before: Any, after: Any, other: Any) -> float:
    """How far parameters lie apart, relative to how far the others have moved."""
    parts = [
        np.concatenate([np.ravel(x) for x in jax.tree.leaves(t)]) for t in (before, after, other)
    ]
    return float(np.linalg.norm(parts[1] - parts[2]) / np.linalg.norm(parts[2] - parts[0]))


def cut_out(script: Path, names: Sequence[str], namespace: dict[str, Any]) -> dict[str, Any]:
    """Functions of these names, nested in others or in classes of a `script` that cannot be
    imported; their source is unchanged, and they see the `namespace`.
    """
    functions = (x for x in ast.walk(ast.parse(script.read_text())) if hasattr(x, "args"))
    nodes: Any = [x for x in functions if getattr(x, "name", None) in names]
    exec(compile(ast.Module(nodes, []), script.name, "exec"), namespace)
    return {name: namespace[name] for name in names}


def parser(description: str | None, updates: int = 12) -> argparse.ArgumentParser:
    """The options that comparisons have: `peer`, `updates` and `output`."""
    result = argparse.ArgumentParser(
        description=description, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    result.add_argument("--peer", type=Path, required=True, help="checkout of the other code")
    result.add_argument("--updates", type=int, default=updates)
    result.add_argument("--output", type=Path, help="the JSON file to write")
    return result


def timed_parser(description: str | None) -> argparse.ArgumentParser:
    """The same with `times`."""
    result = parser(description)
    result.add_argument("--times", action="store_true", help="seconds of one update instead")
    return result


def report(
    options: argparse.Namespace,
    cases: Mapping[str, Any],
    compared: Callable[[int, Any], Mapping[str, Any]],
) -> None:
    """Compare all cases in float64, print the differences, and write them.

    `compared` is given a number of updates and a case.
    """
    jax.config.update("jax_enable_x64", True)
    differences = {}
    for name, case in cases.items():
        differences[name] = compared(options.updates, case)
        print(name, json.dumps(differences[name]))
    write(options.output, {"updates": options.updates, "cases": differences})


def report_or_time(
    options: argparse.Namespace,
    cases: Mapping[str, Any],
    compared: Callable[..., Mapping[str, Any]],
    times: Callable[[Any], Mapping[str, Any]],
    code: Any,
) -> None:
    """What the options of `timed_parser` ask for; both functions take the other `code` first."""
    if options.times:
        publish(options.output, times(code))
    else:
        report(options, cases, functools.partial(compared, code))


def publish(path: Path | None, results: Mapping[str, Any]) -> None:
    """Print results, and write them as `write` does."""
    print(json.dumps(results))
    write(path, results)


def write(path: Path | None, results: Mapping[str, Any]) -> None:
    """Write results with versions and hardware, if there is a path."""
    if path is None:
        return
    from rljax.system.hardware import provenance

    path.write_text(json.dumps({**provenance(), **results}, indent=1) + "\n")


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


def in_float32(tree: Any) -> Any:
    """The tree with float32 in place of float64."""
    return jax.tree.map(lambda x: x.astype(jnp.float32) if x.dtype == jnp.float64 else x, tree)


def update_times(
    module: Any, state: Any, rows: Transition, config: Any, theirs: Callable[[], Any]
) -> dict[str, Any]:
    """Seconds of one update of an agent's `module` and of `theirs` in turns, in float32."""
    rows, update = in_float32(rows), jax.jit(module.update)
    step, key = jnp.asarray(0), jax.random.key(0)
    config = jax.tree.map(jnp.float32, config)

    def ours() -> Any:
        return update(state, rows, key, step, config)

    seconds = seconds_in_turns({"ours": ours, "theirs": theirs}, rounds=9)
    return {"seconds of an update": seconds, "ratio": seconds["theirs"] / seconds["ours"]}


def seconds_in_turns(
    updates: Mapping[str, Callable[[], Any]], rounds: int = 5, calls: int = 3
) -> dict[str, float]:
    """Seconds of processor (on an accelerator, of the clock) for one call of each function: the
    median of rounds in turns.
    """
    times: dict[str, list[float]] = {name: [] for name in updates}
    now = time.process_time if jax.default_backend() == "cpu" else time.perf_counter
    for update in updates.values():
        jax.block_until_ready(update())
    for _ in range(rounds):
        for name, update in updates.items():
            start = now()
            for _ in range(calls):
                output = update()
                jax.block_until_ready(output)
            times[name].append((now() - start) / calls)
    return {name: float(np.median(each)) for name, each in times.items()}
