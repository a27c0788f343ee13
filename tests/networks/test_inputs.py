"""What is counted when, and what an agent sees."""

from __future__ import annotations

import itertools
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.networks import inputs
from tests.networks.reference import assert_close, doubles, normal, standardised

SPEC = EnvSpec("test/Example-v0", (3,), 2)
ROWS = np.random.default_rng(1).normal(0.3, 0.1, size=(12, 3)).astype(np.float32)
FAR = normal(5, 3, seed=2)
FIRST = jnp.zeros(6, bool)


def transition(observation: Any, next_observation: Any, **extras: Any) -> Transition:
    shape = np.shape(observation)[:-1]
    flags = jnp.zeros(shape, bool)
    return Transition(
        jnp.asarray(observation),
        jnp.zeros((*shape, 2)),
        jnp.zeros(shape),
        flags,
        flags,
        jnp.asarray(next_observation),
        extras,
    )


def scores(counted: np.ndarray, observation: Any) -> np.ndarray:
    """Within +-10."""
    rows = doubles(counted)
    return np.clip((doubles(observation) - rows.mean(axis=0)) / rows.std(axis=0), -10.0, 10.0)


def test_raw_observations_stay_as_they_are() -> None:
    raw = inputs.Raw()
    assert raw.create(SPEC) is None
    batch = transition(FAR, FAR + 1.0)
    seen, statistics = raw.batch(None, batch)
    np.testing.assert_array_equal(seen.observation, batch.observation)
    np.testing.assert_array_equal(seen.next_observation, batch.next_observation)
    assert statistics is None
    assert not raw.perceives


def test_running_statistics_count_what_is_perceived() -> None:
    running = inputs.Running()
    statistics = running.create(SPEC)
    for rows in (ROWS[:6], ROWS[6:]):
        statistics = running.perceive(statistics, jnp.asarray(rows), FIRST)
    expected = scores(ROWS, FAR)
    assert 0.0 < (np.abs(expected) == 10.0).mean() < 1.0, "some are clipped, not all"
    assert_close(running(statistics, FAR), expected, rtol=1e-4, atol=1e-4)
    seen, after = running.batch(statistics, transition(FAR, ROWS[:5]))
    observations = (seen.observation, seen.next_observation)
    assert_close(observations, (expected, scores(ROWS, ROWS[:5])), rtol=1e-4, atol=1e-4)
    assert after is statistics, "learning counts nothing"


def test_a_rollout_is_seen_by_the_statistics_before_it() -> None:
    of_rollout = inputs.OfRollout()
    first = transition(ROWS.reshape(4, 3, 3), ROWS.reshape(4, 3, 3))
    seen, statistics = of_rollout.batch(of_rollout.create(SPEC), first)
    np.testing.assert_allclose(seen.observation, first.observation, rtol=1e-6)
    again = transition(ROWS[:6].reshape(2, 3, 3) + 1.0, ROWS[:6].reshape(2, 3, 3))
    seen, after = of_rollout.batch(statistics, again)
    assert_close(seen.observation, scores(ROWS, again.observation), rtol=1e-4, atol=1e-4)
    both = np.concatenate([ROWS, ROWS[:6] + 1.0])
    np.testing.assert_allclose(after.mean, both.mean(axis=0), rtol=1e-5)
    assert not of_rollout.perceives


def test_rows_of_data_beside_a_rollout_are_normalised_too() -> None:
    of_rollout = inputs.OfRollout()
    rows = ROWS[:, None]
    _, statistics = of_rollout.batch(of_rollout.create(SPEC), transition(rows, rows))
    seen, _ = of_rollout.batch(statistics, transition(rows, rows, data=transition(FAR, FAR)))
    assert_close(seen.extras["data"].observation, scores(ROWS, FAR), rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("successors", [False, True])
def test_data_are_standardised_without_clipping(successors: bool) -> None:
    of_data = inputs.OfData(successors=successors)
    data = transition(ROWS, ROWS + 1.0)
    statistics = of_data.prepare(of_data.create(SPEC), data)
    counted = np.concatenate([ROWS, ROWS + 1.0]) if successors else ROWS
    expected = standardised(counted, FAR)
    assert_close(of_data(statistics, FAR), expected, rtol=1e-4, atol=1e-4)
    assert of_data.batch(statistics, transition(FAR, FAR))[1] is statistics
    assert not of_data.perceives, "nothing is counted online"


def test_goals_have_the_statistics_of_states() -> None:
    of_data = inputs.OfData(pairs=("actor_observation",))
    spec = EnvSpec("test/Goals-v0", (6,), 2)
    statistics = of_data.prepare(of_data.create(spec), transition(ROWS, ROWS))
    pairs = np.concatenate([FAR, FAR + 1.0], axis=-1)
    batch = transition(pairs, pairs, actor_observation=jnp.asarray(pairs))
    seen, _ = of_data.batch(statistics, batch)
    expected = np.concatenate([standardised(ROWS, x) for x in (FAR, FAR + 1.0)], axis=-1)
    for observation in (seen.observation, seen.next_observation, seen.extras["actor_observation"]):
        assert_close(observation, expected, rtol=1e-4, atol=1e-4)


def test_the_last_step_stays_as_it_is() -> None:
    of_data, after = inputs.OfData(last_step=True), np.full((*ROWS.shape[:-1], 3), 7.0, np.float32)
    statistics = of_data.create(EnvSpec("test/After-v0", (6,), 2))
    statistics = of_data.prepare(statistics, transition(np.concatenate([ROWS, after], -1), ROWS))
    seen = of_data(statistics, np.concatenate([FAR, np.full((*FAR.shape[:-1], 3), 5.0)], axis=-1))
    assert_close(seen[..., :3], standardised(ROWS, FAR), rtol=1e-4, atol=1e-4)
    np.testing.assert_array_equal(seen[..., 3:], 5.0)


@pytest.mark.parametrize("time_feature", [False, True])
def test_each_observation_of_a_stream_is_counted_once(time_feature: bool) -> None:
    of_stream = inputs.OfStream(time_feature)
    moments = of_stream.create(SPEC)
    moments = of_stream.perceive(moments, jnp.asarray(ROWS[:1]), jnp.ones(1, bool))
    for observation, successor in itertools.pairwise(ROWS):
        moments = of_stream.perceive(moments, jnp.asarray(observation[None]), jnp.zeros(1, bool))
        seen, after = of_stream.batch(moments, transition(observation, successor))
        np.testing.assert_allclose(
            seen.observation, of_stream(moments, jnp.asarray(observation)), rtol=1e-6
        )
        moments = after
    assert int(moments.count) == len(ROWS)
    rows = doubles(ROWS)
    expected = (FAR[0] - rows.mean(axis=0)) / np.sqrt(rows.var(axis=0, ddof=1) + 1e-8)
    if time_feature:
        expected[-1] = FAR[0, -1]
    np.testing.assert_allclose(of_stream(moments, jnp.asarray(FAR[0])), expected, rtol=1e-4)
