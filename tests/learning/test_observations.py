"""How steady the statistics of observations are."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.learning.loop import observations
from rljax.networks import normalise

FIRST = np.random.default_rng(0).normal(size=(2, 50, 3)).astype(np.float32)


def of_batches(batches: Any) -> normalise.Statistics:
    """Statistics of two learners after batches [P, N, O]."""
    statistics = jax.vmap(lambda _: normalise.create((3,)))(jnp.arange(2))
    for batch in batches:
        statistics = jax.vmap(normalise.update)(statistics, batch)
    return statistics


def drift(before: Any, after: Any) -> np.ndarray:
    moved = observations.drift(observations.snapshots(before), observations.snapshots(after))
    return moved[observations.DRIFT]


def test_the_feature_that_moves_most_counts() -> None:
    later = FIRST.copy()
    later[1, :, 2] += 10.0
    before, after = of_batches([FIRST]), of_batches([FIRST, later])
    old, new = (FIRST[1, :, 2], np.concatenate([FIRST[1, :, 2], later[1, :, 2]]))
    expected = (new.mean() - old.mean()) / old.std() + np.log(new.std() / old.std())
    np.testing.assert_allclose(drift(before, after), [0.0, expected], atol=1e-4)


def test_streams_are_measured_alike() -> None:
    moments = jax.vmap(lambda _: normalise.create_moments((3,)))(jnp.arange(2))
    for sample in range(20):
        moments = jax.vmap(normalise.count)(moments, FIRST[:, sample])
    (snapshot,) = observations.snapshots(moments)
    np.testing.assert_allclose(snapshot.std, FIRST[:, :20].std(axis=1, ddof=1), rtol=1e-5)
    np.testing.assert_array_equal(drift(moments, moments), [0.0, 0.0])


def test_nothing_is_known_before_the_first_sample_and_without_statistics() -> None:
    assert np.isnan(drift(of_batches([]), of_batches([FIRST]))).all()
    assert observations.drift(observations.snapshots(None), observations.snapshots(None)) == {}


@pytest.mark.parametrize("value", [0.0, 7.0])
def test_features_without_variance_do_not_count(value: float) -> None:
    constant = np.full_like(FIRST, value)
    assert not drift(of_batches([constant]), of_batches([constant, constant])).any()


def test_parts_without_statistics_are_left_out() -> None:
    both = {"picture": None, "state": of_batches([FIRST])}
    assert len(observations.snapshots(both)) == 1
