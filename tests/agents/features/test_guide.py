"""The draw that docs/new_agent.md shows does what the page says."""

from __future__ import annotations

import functools
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from tests.helpers.counting import dataset

GUIDE = Path(__file__).parents[3] / "docs" / "new_agent.md"


@functools.cache
def windows() -> Any:
    """The draw that the guide shows."""
    (code,) = re.findall(
        r"```python\n(@buffers\.declaration\n.+?)```", GUIDE.read_text(), re.DOTALL
    )
    names: dict[str, Any] = {"buffers": buffers, "np": np, "jnp": jnp}
    exec(code, names)
    return names["Windows"](length=3)


@pytest.mark.parametrize("on_host", [True, False])
def test_the_draw_of_the_guide_cuts_windows_at_trajectories(on_host: bool) -> None:
    numbers, no = np.arange(6, dtype=np.float32), np.zeros(6, bool)
    seen, ends = numbers[:, None], np.array([False, False, False, True, False, False])
    data = windows().prepare(Transition(seen, seen, numbers, no, ends, seen, {}))
    rows = np.array([[0, 1, 3], [4, 5, 2]], np.int32)  # [U, B]
    if on_host:
        batch = windows().take(data, rows)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(batch))
    else:
        batch = jax.jit(windows().take)(jax.tree.map(jnp.asarray, data), rows)
    expected = [[[0, 0, 0], [0, 0, 1], [1, 2, 3]], [[4, 4, 4], [4, 4, 5], [0, 1, 2]]]
    np.testing.assert_array_equal(batch.reward, expected)
    np.testing.assert_array_equal(batch.observation[..., 0], expected)
    mask = [[[0, 0, 1], [0, 1, 1], [1, 1, 1]], [[0, 0, 1], [0, 1, 1], [1, 1, 1]]]
    np.testing.assert_array_equal(batch.extras["mask"], np.array(mask, bool))


def test_the_draw_of_the_guide_is_drawn_by_a_declaration() -> None:
    """For two learners."""
    data = windows().prepare(dataset(10))
    declared = buffers.Dataset(batch_size=4, num_updates=3, draw=windows())
    keys = jax.eval_shape(jax.vmap(jax.random.key), np.zeros(2, np.uint32))
    batch = jax.eval_shape(lambda keys, data: declared.sample(None, data, keys), keys, data)
    assert batch.reward.shape == batch.extras["mask"].shape == (2, 3, 4, 3)
    assert batch.observation.shape == (2, 3, 4, 3, 2)
