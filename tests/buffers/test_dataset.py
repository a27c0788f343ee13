"""Batches from a data set alone: every row equally often and whole, and what the declaration adds to the rows."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax import buffers
from rljax.buffers.dataset import trajectory_ends
from tests.fakes import ROWS, dataset

sample = jax.jit(lambda declared, data, keys: declared.sample(None, data, keys))


def test_every_row_is_drawn_equally_often_and_whole() -> None:
    keys = jax.random.split(jax.random.key(0), 2)
    batches = sample(buffers.Dataset(batch_size=64, num_updates=50), dataset(), keys)
    assert batches.observation.shape == (2, 50, 64, 2)
    for learner in np.asarray(batches.reward).reshape(2, -1):
        values, counts = np.unique(learner, return_counts=True)
        assert values.tolist() == list(range(1, ROWS + 1))
        expected = learner.size / ROWS
        chi_square = float((np.square(counts - expected) / expected).sum())
        assert abs(chi_square - (ROWS - 1)) < 5 * np.sqrt(2 * (ROWS - 1)), "uniform, and not a rotation"
    assert np.any(np.asarray(batches.reward)[0] != np.asarray(batches.reward)[1]), "each learner draws its own"
    np.testing.assert_array_equal(batches.observation[..., 0], batches.reward)
    np.testing.assert_array_equal(batches.next_observation[..., 1], -batches.reward + 0.5)


def test_what_is_random_and_what_is_taken_are_the_batches() -> None:
    """So that the host can take rows of data that the device does not hold."""
    declared, keys = buffers.Dataset(batch_size=8, num_updates=3), jax.random.split(jax.random.key(1), 2)
    drawn = jax.tree.map(np.asarray, declared.draw.random(keys, ROWS, declared))
    on_host = declared.draw.take(dataset(), drawn)
    assert isinstance(on_host.reward, np.ndarray)
    jax.tree.map(np.testing.assert_array_equal, on_host, sample(declared, dataset(), keys))


def test_trajectories_end_at_ends_at_limits_and_with_the_data() -> None:
    data: Any = dataset(6)
    ends = np.array([False, True, False, False, False, False])
    limits = np.array([False, False, False, True, False, False])
    given = data.replace(terminated=ends, truncated=limits)
    np.testing.assert_array_equal(trajectory_ends(given), [False, True, False, True, False, True])
    assert not given.terminated[-1], "what was given stays as it was"
    assert not given.truncated[-1]


def test_a_data_set_says_what_it_is() -> None:
    declared = buffers.Dataset(batch_size=8, num_updates=3, reward_transform="minus_one", learns_until=100.0)
    assert (declared.kind, declared.needs_data, declared.mixes_data) == ("dataset", True, True)
    assert (declared.steps_per_iteration, declared.goals, declared.online) == (3, False, None)
    assert declared.create(None) is None  # type: ignore[arg-type]
    assert declared.ready(0)
    prepared = declared.prepare(dataset())
    jax.tree.map(np.testing.assert_array_equal, prepared, dataset())


def test_rows_keep_the_extras_of_the_file() -> None:
    data: Any = dataset().replace(extras={"number": np.arange(1, ROWS + 1)})
    declared = buffers.Dataset(batch_size=8, columns=(buffers.Source(),))
    batch = sample(declared, declared.prepare(data), jax.random.split(jax.random.key(0), 2))
    assert set(batch.extras) == {"number", "offline"}
    np.testing.assert_array_equal(batch.extras["number"], batch.reward)
    assert batch.extras["offline"].all()


def test_columns_that_a_draw_would_lose_are_refused() -> None:
    goals = buffers.Goals(
        discount=0.9,
        value_current=0.2,
        value_future=0.5,
        value_times="even",
        actor_current=0.0,
        actor_future=1.0,
        actor_times="even",
    )
    buffers.Dataset(batch_size=8, draw=goals).check()
    buffers.Dataset(batch_size=8, columns=(buffers.NextAction(),)).check()
    with pytest.raises(ValueError, match=r"^Goals draws rows without columns, and the agent asks for NextAction\."):
        buffers.Dataset(batch_size=8, draw=goals, columns=(buffers.NextAction(),)).check()
