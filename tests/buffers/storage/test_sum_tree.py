"""Sum trees: their sums, and how often rows are drawn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.buffers.storage import sum_tree
from tests.buffers.reference import assert_drawn, chi_square

write = jax.jit(sum_tree.write)


def tree(mass: Any) -> Any:
    mass = jnp.asarray(mass, jnp.float32)
    return write(jnp.zeros(sum_tree.size(len(mass))), jnp.arange(len(mass)), mass)


@pytest.mark.parametrize(("rows", "leaves"), [(1, 2), (2, 2), (3, 4), (8, 8), (9, 16)])
def test_sizes(rows: int, leaves: int) -> None:
    assert sum_tree.size(rows) == 2 * leaves
    assert sum_tree.levels(jnp.zeros(2 * leaves)) == int(np.log2(leaves))


def test_sums_after_many_changes_are_those_of_the_rows() -> None:
    """Rows may be given twice, and be negative; there is no drift."""
    generator = np.random.default_rng(0)
    mass, sums = np.zeros(21), jnp.zeros(sum_tree.size(21))
    for _ in range(300):
        rows, new = generator.integers(-2, 21, 8), 10.0 ** generator.uniform(-5, 5, 8)
        for row, value in zip(rows, np.float32(new), strict=True):
            if row >= 0:
                mass[row] = value
        sums = write(sums, rows, np.float32(new))
    found = np.asarray(sums)
    np.testing.assert_array_equal(found[32 : 32 + 21], np.float32(mass))
    assert not found[32 + 21 :].any()
    np.testing.assert_array_equal(found[1:32], found[2::2] + found[3::2])
    np.testing.assert_allclose(found[1], mass.sum(), rtol=1e-6)


def test_rows_are_drawn_in_proportion_to_their_mass() -> None:
    mass = np.random.default_rng(1).exponential(size=37) * (np.arange(37) % 5 != 2)
    drawn = jax.jit(lambda key: sum_tree.draw(tree(mass), key, (500, 400)))(jax.random.key(0))
    assert drawn.shape == (500, 400)
    assert_drawn(drawn, mass)
    pairs = np.asarray(drawn[:, :2])  # of a batch: draws do not depend on each other
    joint = np.bincount(pairs[:, 0] // 19 * 2 + pairs[:, 1] // 19, minlength=4) / 500
    half = mass[:19].sum() / mass.sum()
    np.testing.assert_allclose(
        joint, np.outer([half, 1 - half], [half, 1 - half]).ravel(), atol=0.09
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("capacity", [13, 16])
def test_windows(capacity: int) -> None:
    """Of every window of a ring; what lies outside is never drawn."""
    mass = np.random.default_rng(2).exponential(size=capacity) + 0.1
    ends = np.array([(first, last) for first in range(capacity) for last in range(capacity)])
    sums = tree(mass)

    @jax.jit
    @jax.vmap
    def draw(key: Any, window: Any) -> Any:
        return sum_tree.draw(sums, key, (4_000,), (window[0], window[1]))

    drawn = np.asarray(draw(jax.random.split(jax.random.key(3), len(ends)), ends))
    far = []
    for (first, last), rows in zip(ends, drawn, strict=True):
        inside = (first + np.arange((last - first) % capacity + 1)) % capacity
        expected = np.zeros(capacity)
        expected[inside] = mass[inside] / mass[inside].sum()
        far.append(chi_square(rows, expected))
    assert max(far) < 6
    assert abs(np.mean(far)) < 0.3


@pytest.mark.slow
def test_the_last_of_many_rows_is_as_likely_as_the_first() -> None:
    """With one float32 number for the whole way down, some of a million would never be drawn."""
    rows = 2**20
    sums = jnp.concatenate(
        [jnp.zeros(1), 2.0 ** (20 - jnp.floor(jnp.log2(jnp.arange(1, 2 * rows))))]
    )
    drawn = np.asarray(jax.jit(lambda key: sum_tree.draw(sums, key, (100_000,)))(jax.random.key(0)))
    assert_drawn(drawn % 256, np.ones(256))
    assert_drawn(drawn // 4096, np.ones(256))


@pytest.mark.parametrize("rows", [1, 3, 8])
def test_a_tree_of_ones_is_as_if_it_were_written(rows: int) -> None:
    np.testing.assert_array_equal(sum_tree.ones(rows), tree(np.ones(rows)))
