"""What several tests of buffers compare draws and drivers with."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.helpers import counting
from tests.helpers.replay_buffers import Row


def chi_square(rows: Any, probabilities: np.ndarray) -> float:
    """How far counts are from what they should be, in standard deviations;
    infinite where they can never be.
    """
    counts = np.bincount(np.ravel(rows), minlength=len(probabilities))
    expected = probabilities * counts.sum()
    possible = expected > 0
    if counts[~possible].any():
        return np.inf
    freedom = possible.sum() - 1
    found = np.square(counts[possible] - expected[possible]) / expected[possible]
    return float((found.sum() - freedom) / np.sqrt(2 * max(freedom, 1)))


def assert_drawn(rows: Any, weights: Any) -> None:
    weights = np.asarray(weights, np.float64)
    assert abs(chi_square(rows, weights / weights.sum())) < 5


def located(rows: list[list[Row]], slots: int, drawn: Any) -> tuple[list[Row], int]:
    """What a ring of so many slots holds of a drawn row's environment, and the row's place."""
    _, environment, episode, time = drawn.observation[:4].astype(int)
    stored = rows[environment][-slots:]
    (place,) = [i for i, x in enumerate(stored) if (x.episode, x.time) == (episode, time)]
    return stored, place


def assert_restored_exactly(module: Any, changes: dict[str, Any]) -> None:
    once, again = (
        counting.driven([1, 2], iterations, module, counting.Counter(5), **changes)
        for iterations in (20, 7)
    )
    again.restore(jax.tree.map(jnp.copy, once.arrays()), None)
    for driver in (once, again):
        driver.advance(5)
    counting.assert_equal(once.learners, again.learners)
