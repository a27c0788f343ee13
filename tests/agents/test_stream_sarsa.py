"""Stream SARSA against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec
from rljax.agents import stream_sarsa
from tests.agents import streaming, trees

SPEC = EnvSpec("test/Example-v0", (3,), 4, discrete=True)
CONFIG = stream_sarsa.Config(hidden=(8, 8), initialisation="torch")
KEY = jax.random.key(0)


def example() -> Any:
    row = streaming.first(streaming.transitions(0, 5, SPEC))
    # Else it waits for the next action.
    return SPEC, CONFIG, row.replace(terminated=jnp.asarray(True))


def test_a_stream_equals_the_paper() -> None:
    stream = streaming.transitions(0, 30, SPEC)
    state = streaming.state(stream_sarsa, SPEC, CONFIG)
    critic = streaming.Network(state.critic)
    optimiser = streaming.ObGD(critic, CONFIG.critic_kappa, CONFIG)
    found = streaming.follow(stream_sarsa, state, stream, CONFIG)
    rows = list(streaming.rows(stream, CONFIG))
    for t, (observation, action, reward, following, done, _) in enumerate(rows[:-1]):
        next_q = 0.0 if done else critic(following)[rows[t + 1][1]]
        error = reward + CONFIG.discount * next_q - critic(observation)[action]
        optimiser.step(
            lambda parameters, x=observation, a=action: critic(x, parameters)[a], error, done
        )
        # A transition is learnt from when the next action is known: with the one after it, or at
        # once where it ends.
        if not rows[t + 1][4]:
            streaming.assert_network(found[t if done else t + 1].critic, critic)


def test_the_next_action_was_drawn_before_the_update() -> None:
    # The first transition only waits; nothing is learnt before the second one is there.
    state = streaming.state(stream_sarsa, SPEC, CONFIG)
    stream = streaming.transitions(0, 2, SPEC)
    stream = stream.replace(terminated=np.zeros(2, np.bool_), truncated=np.zeros(2, np.bool_))
    first, second = streaming.follow(stream_sarsa, state, stream, CONFIG)
    assert trees.equal(state.critic.parameters, first.critic.parameters)
    assert bool(first.waiting.valid)
    biases = [x.critic.parameters.params["output"]["bias"] for x in (first, second)]
    assert not np.array_equal(*biases)


def test_what_waits_is_dropped_where_an_episode_begins() -> None:
    state = streaming.state(stream_sarsa, SPEC, CONFIG)
    waiting = state.replace(waiting=state.waiting.replace(valid=jnp.asarray(True)))
    for first in (False, True):
        after = stream_sarsa.perceive(waiting, jnp.ones((1, 3)), jnp.asarray([first]), CONFIG)
        assert bool(after.waiting.valid) is not first


def test_a_time_limit_bootstraps_on_the_mean_over_actions_where_asked() -> None:
    config = dataclasses.replace(
        CONFIG, bootstrap_truncated=True, normalise_observations=False, epsilon_start=0.5
    )
    state = streaming.state(stream_sarsa, SPEC, config)
    row = example()[2].replace(terminated=jnp.asarray(False), truncated=jnp.asarray(True))
    _, metrics = stream_sarsa.update(state, row, KEY, jnp.zeros((), jnp.int32), config)
    q = np.asarray(state.critic(row.next_observation), np.float64)
    target = row.reward + config.discount * (0.5 * q.max() + 0.5 * q.mean())
    expected = target - state.critic(row.observation)[row.action]
    np.testing.assert_allclose(metrics["critic/error"].value, np.abs(expected), rtol=1e-5)
    assert float(metrics["critic/error"].weight) == 1.0
