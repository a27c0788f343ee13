"""Files in D4RL's layout, and real ones."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets

SHARED = Path(__file__).parents[3] / "shared" / "data"


def shared(*parts: str) -> Path:
    """A real file, without which the test is skipped."""
    path = SHARED.joinpath(*parts)
    if not path.exists():
        pytest.skip(f"the real data are absent: no {'/'.join(('..', 'shared', 'data', *parts))}")
    return path


def arrays(
    lengths: list[int], ends: str, size: int = 3, actions: int = 2, seed: int = 0
) -> dict[str, np.ndarray]:
    """Random episodes in D4RL's layout, with the ends that the letters of `ends` name: terminal,
    (timed) out, both, or none.
    """
    rng = np.random.default_rng(seed)
    total = sum(lengths)
    last = np.cumsum(lengths) - 1
    terminals, timeouts = np.zeros(total, np.bool_), np.zeros(total, np.bool_)
    terminals[[row for row, end in zip(last, ends, strict=True) if end in "tb"]] = True
    timeouts[[row for row, end in zip(last, ends, strict=True) if end in "ob"]] = True
    observations = rng.normal(size=(total, size)).astype(np.float32)
    following = np.concatenate([observations[1:], observations[:1]])
    following[last] = rng.normal(size=(len(last), size))
    return {
        "observations": observations,
        "actions": rng.uniform(-1, 1, (total, actions)).astype(np.float32),
        "rewards": rng.normal(size=total).astype(np.float32),
        "terminals": terminals,
        "timeouts": timeouts,
        "next_observations": following,
    }


def hdf5(path: Path, values: dict[str, Any]) -> Path:
    """Keys may hold slashes."""
    import h5py

    with h5py.File(path, "w") as file:
        for key, value in values.items():
            file[key] = value
    return path


def npz(path: Path, values: dict[str, Any]) -> Path:
    np.savez(path, **values)
    return path


def without(values: dict[str, Any], *keys: str) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key not in keys}


def load(folder: Path, values: dict[str, Any], name: str = "a.npz", **options: Any) -> Any:
    write = npz if name.endswith("npz") else hdf5
    return datasets.load(str(write(folder / name, values)), **options)


FIELDS = ("observation", "action", "reward", "terminated", "truncated", "next_observation")


def same(one: Any, other: Any, *names: str) -> None:
    """Two datasets hold the same transitions, of the same types."""
    for name in names or FIELDS:
        left, right = getattr(one.transitions, name), getattr(other.transitions, name)
        assert left.dtype == right.dtype, name
        np.testing.assert_array_equal(left, right, err_msg=name)


def findings(dataset: Any, severity: str | None = None) -> dict[str, Any]:
    every = datasets.check(dataset)
    assert len({finding.name for finding in every}) == len(every)
    return {finding.name: finding for finding in every if severity in (None, finding.severity)}
