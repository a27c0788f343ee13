"""Small runs, and when two are the same."""

from __future__ import annotations

import hashlib
import inspect
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax.runs import checkpoints, records, run

SMALL: dict[str, Any] = {
    "hidden": (16, 16),
    "batch_size": 32,
    "warmup_steps": 64,
    "replay_size": 300,
}
ON_POLICY: dict[str, Any] = {
    "actor_hidden": (16, 16),
    "critic_hidden": (16, 16),
    "num_envs": 2,
    "num_steps": 25,
    "batch_size": 25,
}
STREAM: dict[str, Any] = {"hidden": (16, 16)}
# Steps: a share of the run would differ in one that is killed and then ends earlier.
EXPLORING: dict[str, Any] = STREAM | {"epsilon_steps": 200.0}
SEQUENCES: dict[str, Any] = SMALL | {
    "batch_size": 8,
    "num_envs": 2,
    "length": 4,
    "burn_in": 2,
    "overlap": 2,
}
EVERY: dict[str, Any] = {
    "log_every": 50,
    "eval_every": 100,
    "eval_episodes": 2,
    "checkpoint_every": 100,
}


def small(agent: str) -> dict[str, Any]:
    if agent == "r2d2":
        return SEQUENCES
    if agent in ("stream_q", "stream_sarsa"):
        return EXPLORING
    return (
        ON_POLICY if agent.startswith("ppo") else STREAM if agent.startswith("stream_") else SMALL
    )


def flags(agent: str, but: str | None = None) -> list[str]:
    """The same for the command line."""
    words = [f"--{name.replace('_', '-')}={value}" for name, value in EVERY.items()]
    for name, value in small(agent).items():
        if name == but:
            continue
        words += [
            f"--config.{name.replace('_', '-')}",
            *map(str, value if isinstance(value, tuple) else (value,)),
        ]
    return words


def train(
    agent: str,
    env: str,
    steps: int,
    out: Path,
    config: dict[str, Any] | None = None,
    **settings: Any,
) -> Path:
    return run.train(
        agent, env, steps, config=small(agent) | (config or {}), out=out, **(EVERY | settings)
    )


def once(train: Callable[..., Path]) -> Callable[..., Path]:
    """A `train` that trains once in a process for the same arguments but `out`, and then copies
    the run: for tests of what comes after it.
    """
    signature = inspect.signature(train)
    made = tempfile.TemporaryDirectory(
        prefix="rljax-tests-", dir=os.environ.get("PYTEST_DEBUG_TEMPROOT")
    )

    def trained(*arguments: Any, **settings: Any) -> Path:
        bound = signature.bind(*arguments, **settings)
        out, bound.arguments["out"] = bound.arguments["out"], None
        first = Path(made.name) / hashlib.sha256(repr(bound).encode()).hexdigest()
        if not first.exists():
            bound.arguments["out"] = first
            train(*bound.args, **bound.kwargs)
        return Path(shutil.copytree(first, out))

    return trained


trained = once(train)


def command(*arguments: Any, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "rljax", *map(str, arguments)],
        capture_output=True,
        text=True,
        env=os.environ | environment,
        check=False,
    )


def arrays(out: Path) -> dict[str, np.ndarray]:
    """Every array of a run's newest checkpoint, by its place, as it was written."""
    import orbax.checkpoint as ocp

    path = checkpoints.newest(out / "checkpoints").absolute()
    place = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    trees = {}
    with ocp.StandardCheckpointer() as checkpointer:
        for folder in sorted(entry for entry in path.iterdir() if entry.is_dir()):
            written = checkpointer.metadata(folder).item_metadata.tree
            abstract = jax.tree.map(
                lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=place), written
            )
            trees[folder.name] = checkpointer.restore(folder, abstract)
    leaves = jax.tree_util.tree_leaves_with_path(trees)
    return {jax.tree_util.keystr(place): _plain(leaf) for place, leaf in leaves}


def _plain(leaf: Any) -> np.ndarray:
    if jax.dtypes.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = jax.random.key_data(leaf)
    return np.asarray(leaf)


def lines(out: Path) -> list[dict[str, Any]]:
    """Without what depends on the clock."""
    written = records.read(out, "metrics") + records.read(out, "evaluations")
    clock = ("wall_seconds", "steps_per_second")
    return [{name: value for name, value in line.items() if name not in clock} for line in written]


def different_arrays(one: Path, other: Path) -> list[str]:
    """The places of arrays that differ at the ends of two runs, or that one of them lacks."""
    first, second = arrays(one), arrays(other)
    lacking = sorted(first.keys() ^ second.keys())
    return lacking + [x for x in first if x in second and first[x].tobytes() != second[x].tobytes()]


def assert_same(one: Path, other: Path) -> None:
    """Two runs ended in the same bits and wrote the same lines."""
    assert different_arrays(one, other) == []
    assert lines(one) == lines(other)
