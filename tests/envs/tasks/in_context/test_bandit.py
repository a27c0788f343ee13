"""Bandits, beside their rules in NumPy."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks.in_context.bandit import NOISE, Bandit

TASK = Bandit("rljax/Bandit-4", 4)
NUMBER = 2_000


def test_rewards_are_noisy_means_and_regret_is_what_is_lost() -> None:
    keys = jax.random.split(jax.random.key(0), NUMBER)
    observation, states = jax.vmap(TASK.reset)(keys)
    actions = jnp.arange(NUMBER) % 4
    shown, after, reward, terminated, truncated, info = jax.vmap(TASK.step)(keys, states, actions)
    means = np.asarray(states.means)
    np.testing.assert_array_equal(observation, np.ones((NUMBER, 1)))
    np.testing.assert_array_equal(shown, observation)
    np.testing.assert_array_equal(after.means, means)
    assert not (terminated | truncated).any()
    own = means[np.arange(NUMBER), actions]
    np.testing.assert_allclose(info["regret"], means.max(axis=1) - own, atol=1e-6)
    noise = np.asarray(reward) - own
    assert abs(noise.mean()) < 4 * NOISE / np.sqrt(NUMBER)
    assert abs(noise.std() - NOISE) < 0.02
    assert abs(means.mean() - 0.5) < 0.02
    assert abs(means.std() - np.sqrt(1 / 12)) < 0.02
    optimal = jax.vmap(TASK.optimal_action)(states)
    np.testing.assert_array_equal(optimal, means.argmax(axis=1))


def test_behaviour_is_a_mixture_of_random_arms() -> None:
    keys = jax.random.split(jax.random.key(1), NUMBER)
    probabilities = np.asarray(jax.vmap(TASK.behaviour)(keys))
    np.testing.assert_allclose(probabilities.sum(axis=1), 1.0, atol=1e-5)
    assert (probabilities >= 0).all()
    np.testing.assert_allclose(probabilities.mean(axis=0), 0.25, atol=0.03)
    alone = (probabilities.max(axis=1) > 1 - 1e-6).mean()
    assert 0.06 < alone < 0.13, "one of eleven shares is 1"


@pytest.mark.parametrize(
    ("name", "message"),
    [("rljax/Bandit-1", "has 1 arms: there must be 2 to 1000"), ("rljax/Bandit-x", "the form is")],
)
def test_wrong_names_are_refused(name: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        envs.make(name)
