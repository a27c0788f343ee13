"""Optimistic critics, by hand."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
from scipy.special import logsumexp

from rljax.networks.optimisation import optimism

KEY = jax.random.key(3)


def q(action: np.ndarray) -> np.ndarray:
    """Two critics [2, ..., B] of actions [..., B, 2]."""
    return np.stack([action.sum(axis=-1), action[..., 0] - 2.0 * action[..., 1] ** 2])


def test_gain_is_the_papers() -> None:
    data, action, following = np.tanh(np.random.default_rng(0).normal(size=(3, 5, 2)))
    uniform = np.asarray(jax.random.uniform(KEY, (5, 2), minval=-1.0, maxval=1.0))
    values = lambda x: jnp.stack([x.sum(-1), x[..., 0] - 2.0 * x[..., 1] ** 2])  # noqa: E731
    gains = optimism.gain(values, values(data), action, following, KEY)
    others = np.stack([q(data), q(following), q(uniform)])
    expected = (q(action) - logsumexp(others, axis=0)).mean(axis=1)
    np.testing.assert_allclose(gains, expected, rtol=1e-5)


def test_the_policy_is_not_taught() -> None:
    def total(action: jax.Array) -> jax.Array:
        values = lambda x: x.sum(-1)[None]  # noqa: E731
        return optimism.gain(values, jnp.zeros((1, 5)), action, action, KEY).sum()

    assert not np.any(jax.grad(total)(jnp.full((5, 2), 0.3)))
