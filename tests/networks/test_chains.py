"""Chains of Gaussian steps by hand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Transition
from rljax.networks.heads import chains

T, E, K, A = 3, 2, 4, 2


def moments(point: Any, time: Any) -> tuple[Any, Any]:
    return 0.5 * point + time[..., None], jnp.full((*point.shape[:-1], 1), 0.1)


def test_walk_adds_noise_of_at_least_that_std() -> None:
    generator = np.random.default_rng(0)
    start, noise = generator.normal(size=(E, A)), generator.normal(size=(K, E, A))
    times = jnp.asarray([3, 2, 1, 0])
    chain, mean, std = chains.walk(moments, times, jnp.asarray(start), jnp.asarray(noise), 0.2)
    assert chain.shape == (E, K + 1, A)
    assert mean.shape == std.shape == (E, K, A)
    x = start
    for k in range(K):
        np.testing.assert_allclose(chain[:, k], x, rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(mean[:, k], 0.5 * x + 3 - k, rtol=1e-5, atol=1e-6)
        x = 0.5 * x + 3 - k + 0.2 * noise[k]
    np.testing.assert_allclose(chain[:, K], x, rtol=1e-5)
    np.testing.assert_allclose(std, 0.1)  # as it is


def test_walk_of_no_step_stays() -> None:
    start = jnp.ones((E, A))
    chain, mean, _ = chains.walk(moments, jnp.zeros(0), start, jnp.zeros((0, E, A)))
    np.testing.assert_array_equal(chain, start[:, None])
    assert mean.shape == (E, 0, A)


def test_numbers_of_a_step_have_limits() -> None:
    settings = chains.WithDenoising(density_min=0.5)
    mean, std = jnp.zeros((1, 3)), jnp.array([[0.1, 1.0, 1e-3]])
    following = jnp.array([[0.5, 10.0, 0.0]])
    log_density = -0.5 - np.log(0.5) - 0.5 * np.log(2 * np.pi)
    best = -np.log(0.5) - 0.5 * np.log(2 * np.pi)
    expected = (log_density - 5.0 + best) / 3
    np.testing.assert_allclose(settings.log_prob(following, mean, std), [expected], rtol=1e-6)


def test_steps_are_those_of_their_transitions() -> None:
    """Each number says where it stands."""
    row = jnp.arange(T * E).reshape(T, E)
    points = 100.0 * row[..., None, None] + jnp.arange(K + 1)[:, None] + jnp.zeros(A)
    extras = {
        "chain": points,
        "log_prob": 100.0 * row[..., None] + jnp.arange(K),
        "advantage": row * 1.0,
    }
    zeros = jnp.zeros((T, E))
    rollout = Transition(row[..., None] * 1.0, zeros, zeros, zeros, zeros, None, extras)
    index = jnp.asarray([0, K - 1, K, 5 * K + 2])
    steps = jax.jit(chains.steps_at)(rollout, index)
    np.testing.assert_array_equal(steps.observation[:, 0], [0, 0, 1, 5])
    np.testing.assert_array_equal(steps.extras["advantage"], [0, 0, 1, 5])
    np.testing.assert_array_equal(steps.extras["step"], [0, 3, 0, 2])
    np.testing.assert_array_equal(steps.extras["log_prob"], [0, 3, 100, 502])
    ends = [[0, 1], [3, 4], [100, 101], [502, 503]]
    np.testing.assert_array_equal(steps.extras["chain"][..., 0], ends)
