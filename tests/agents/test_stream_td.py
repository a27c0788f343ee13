"""Stream TD against float64 NumPy written from the paper, and on a random walk."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import EnvSpec
from rljax.agents import stream_td
from rljax.learning import configuration
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.learner import Learner
from tests.agents import streaming

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = stream_td.Config(hidden=(8, 8), initialisation="torch")
KEY = jax.random.key(0)
POLICY_IS_A_DRAW = True  # also without exploring


def example() -> Any:
    return SPEC, CONFIG, streaming.first(streaming.transitions(0, 5, SPEC))


def test_a_stream_equals_the_paper() -> None:
    streaming.assert_equals(stream_td, SPEC, CONFIG, streaming.transitions(0, 30, SPEC))


@pytest.mark.learn
@pytest.mark.parametrize("trace_decay", [0.0, 0.8, 1.0])
def test_finds_the_values_of_a_random_walk(trace_decay: float) -> None:
    config = stream_td.Config(
        hidden=(), learning_rate=3e-3, discount=1.0, trace_decay=trace_decay,
        normalise_rewards=False, normalise_observations=False,
    )  # fmt: skip
    environment = envs.make("rljax/RandomWalk")
    learner = Learner(stream_td, environment.spec, 16)
    stacked = configuration.stack(config, 16)
    driver = CompiledDriver(learner, environment, stacked)
    driver.start(range(16))
    driver.advance(60_000)
    state = driver.agent_state.state
    states = jnp.eye(5)
    found = jax.vmap(stream_td.values, in_axes=(0, None, 0))(state, states, stacked)
    known = environment.environment.value(states)  # pyright: ignore[reportAttributeAccessIssue]
    np.testing.assert_allclose(found.mean(axis=0), known, atol=0.025)
    np.testing.assert_allclose(known, np.arange(1, 6) / 6)


def test_values_are_in_the_units_of_rewards() -> None:
    state = streaming.state(stream_td, SPEC, CONFIG)
    # A variance of 9.
    moments = state.returns.moments.replace(count=jnp.asarray(3), squares=jnp.asarray(18.0))
    state = state.replace(returns=state.returns.replace(moments=moments))
    plain = dataclasses.replace(CONFIG, normalise_rewards=False)
    observation = jnp.ones((4, 3))
    scaled, raw = (stream_td.values(state, observation, config) for config in (CONFIG, plain))
    np.testing.assert_allclose(scaled, 3.0 * raw, rtol=1e-6)


def test_behaves_uniformly() -> None:
    state = stream_td.init(KEY, SPEC, CONFIG)
    action, _ = stream_td.act(state, jnp.zeros((10_000, 3)), KEY, CONFIG, explore=False)
    np.testing.assert_allclose(
        np.quantile(action, [0.25, 0.5, 0.75], axis=0).T, [[-0.5, 0.0, 0.5]] * 2, atol=0.05
    )
