"""What comparisons of updates share: options, sizes, batches, noise, measures of differences, and
the file of results.
"""

from __future__ import annotations

import argparse
import contextlib
import functools
import json
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Transition

OBSERVATION, ACTION, BATCH = 5, 2, 32
ACTOR, CRITIC = (16, 16), (24, 24, 24)


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
