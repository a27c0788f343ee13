"""Agents with `review` see each episode of training that ends, once, in every driver."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Step
from tests.helpers.counting import Fake, assert_equal, one
from tests.learning.drivers import kinds
from tests.learning.drivers.test_memory import Saved

LIMIT = 3
SIZES: dict[str, Any] = {"num_envs": 2, "warmup_steps": 4}


class Reviewing(Fake):
    """It counts episodes in `count`, adds their lengths in `firsts`, and keeps the time in
    `total`.
    """

    def review(self, state: Any, outcome: Step, time: Any, config: Any) -> Any:
        assert outcome.observation is None
        assert outcome.next_observation is None
        ended = outcome.terminated | outcome.truncated
        latest = jnp.stack([time, outcome.episode_return.sum()]).astype(jnp.float32)
        return state.replace(
            count=state.count + ended.sum(),
            firsts=state.firsts + jnp.where(ended, outcome.episode_length, 0).sum(),
            total=latest,
        )


def driver(kind: str, iterations: int, seeds: Any = (1, 2)) -> Any:
    return kinds.driven(kind, seeds, iterations, Reviewing(), Saved(LIMIT), LIMIT, **SIZES)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_every_ended_episode_is_reviewed_once(kind: str) -> None:
    driven = driver(kind, 2 * LIMIT + 1)
    state = jax.tree.map(np.asarray, driven.agent_state.state)
    np.testing.assert_array_equal(state.count, [4, 4])
    np.testing.assert_array_equal(state.firsts, [4 * LIMIT, 4 * LIMIT])
    np.testing.assert_array_equal(state.total[:, 0], [2 * LIMIT, 2 * LIMIT])
    metrics = driven.report().metrics
    np.testing.assert_array_equal(metrics["episode/length"], [LIMIT, LIMIT])
    # Two episodes of each environment; the State has seen the last ones.
    assert np.all(state.total[:, 1] > 0.0)


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.KINDS)
def test_reviews_are_restored(kind: str) -> None:
    whole, broken, restored = (driver(kind, iterations) for iterations in (2, 2, 0))
    for made in (whole, broken):  # in the middle of an episode
        made.report()
    restored.restore(jax.tree.map(jnp.array, broken.arrays()), broken.environments())
    for made in (whole, restored):
        made.advance(LIMIT)
        made.report()
    assert_equal(whole.arrays(), restored.arrays())


@pytest.mark.slow
def test_a_learner_is_reviewed_alone_as_in_company() -> None:
    together, alone = (driver("compiled", 2 * LIMIT, seeds) for seeds in ([1, 2], [2]))
    states = (one(together.agent_state.state, 1), one(alone.agent_state.state, 0))
    assert_equal(*states, rtol=1e-5)


def test_a_step_without_an_end_changes_nothing() -> None:
    state = driver("compiled", LIMIT - 1).agent_state.state
    np.testing.assert_array_equal(state.count, [0, 0])
