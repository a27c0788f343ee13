"""Expectiles by hand and by what they balance."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax.networks.optimisation import expectiles
from tests.agents import reference


def test_loss_by_hand() -> None:
    value = lambda observation: jnp.array([[1.0], [3.0]])  # noqa: E731
    loss, metrics = expectiles.loss(value, jnp.array([3.0, 2.0]), jnp.zeros((2, 3)), 0.7)
    # 0.7 * 2^2 above, 0.3 * 1^2 below
    np.testing.assert_allclose([loss, metrics["value/v"]], [(2.8 + 0.3) / 2.0, 2.0], rtol=1e-6)


def test_both_values_come_of_one_pass() -> None:
    batch = reference.transitions()
    passes = []

    def value(observation: Any) -> Any:
        passes.append(observation.shape)
        return observation[:, :1]

    v, next_v = expectiles.state_values(value, batch)
    np.testing.assert_array_equal(v, batch.observation[:, 0])
    np.testing.assert_array_equal(next_v, batch.next_observation[:, 0])
    assert passes == [(10, 3)]
