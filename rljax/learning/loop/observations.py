"""How steady the statistics of normalised observations are."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import numpy as np

from rljax.distributed.devices import local
from rljax.networks.normalise import Moments, Statistics

DRIFT = "observations/drift"


class Snapshot(NamedTuple):
    """Statistics of one part of the observations, on the host."""

    count: np.ndarray  # [P] samples so far
    mean: np.ndarray  # [P, F], features in one axis
    std: np.ndarray  # [P, F]


def snapshots(statistics: Any) -> list[Snapshot]:
    """Those of an agent's `statistics`, stacked over P; none where it has none."""
    kinds = (Moments, Statistics)
    nodes = jax.tree.leaves(statistics, is_leaf=lambda node: isinstance(node, kinds))
    return [_snapshot(node) for node in nodes if isinstance(node, kinds)]


def _snapshot(statistics: Moments | Statistics) -> Snapshot:
    squares = isinstance(statistics, Moments)
    spread = statistics.squares if squares else statistics.variance
    # The next chunk donates the arrays: copies.
    count, mean, variance = (
        np.array(x, np.float64) for x in local((statistics.count, statistics.mean, spread))
    )
    rows = (len(count), -1)
    variance = variance.reshape(rows)
    if squares:
        variance = variance / np.maximum(count - 1, 1)[:, None]
    return Snapshot(count, mean.reshape(rows), np.sqrt(variance))


def drift(before: list[Snapshot], after: list[Snapshot]) -> dict[str, np.ndarray]:
    """The metric `DRIFT` [P]: how far the statistics moved, by the feature that moved most.

    A feature moves by |change of mean| / std + |change of log std|. NaN before the first sample;
    features that have not varied yet do not count.
    """
    moved = [_moved(old, new) for old, new in zip(before, after, strict=True)]
    return {DRIFT: np.max(moved, axis=0)} if moved else {}


def _moved(old: Snapshot, new: Snapshot) -> np.ndarray:
    varies = (old.std > 0) & (new.std > 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        moves = np.abs(new.mean - old.mean) / old.std + np.abs(np.log(new.std / old.std))
    largest = np.where(varies, moves, 0.0).max(axis=1, initial=0.0)
    return np.where(old.count > 0, largest, np.nan)
