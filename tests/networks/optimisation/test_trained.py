"""Trained parameters against Optax used by hand, and against float64."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import networks
from rljax.networks import Trained
from tests.networks.reference import assert_close

ADAM = optax.adam(0.1)
START = {"weight": jnp.array([1.0, -2.0]), "bias": jnp.array(0.5)}
BATCHES = jnp.array([[1.0, 2.0], [0.5, -1.0], [3.0, 0.0]])


def loss(parameters: Any, x: jax.Array) -> tuple[jax.Array, dict]:
    """(w.x + b)^2."""
    y = parameters["weight"] @ x + parameters["bias"]
    return jnp.square(y), {"part/y": y}


def test_a_step_is_the_optimisers() -> None:
    trained = Trained.create(START, ADAM)
    new, metrics = trained.step(ADAM, loss, BATCHES[0])
    gradient = jax.grad(lambda parameters: loss(parameters, BATCHES[0])[0])(START)
    changes, _ = ADAM.update(gradient, ADAM.init(START))
    expected = optax.apply_updates(START, changes)
    jax.tree.map(np.testing.assert_array_equal, new.parameters, expected)
    np.testing.assert_allclose(metrics["part/y"], 1.0 * 1.0 - 2.0 * 2.0 + 0.5)
    assert trained.parameters is START, "nothing is changed in place"


def test_to_fit_is_to_step_on_each_batch() -> None:
    fitted, metrics = Trained.create(START, ADAM).fit(ADAM, loss, (BATCHES,))
    trained = Trained.create(START, ADAM)
    for i, batch in enumerate(BATCHES):
        trained, one = trained.step(ADAM, loss, batch)
        np.testing.assert_allclose(metrics["part/y"][i], one["part/y"], rtol=1e-6)
    assert_close(fitted.parameters, trained.parameters, rtol=1e-6, atol=0.0)


def test_a_rate_can_be_traced() -> None:
    @jax.jit
    def learn(trained: Trained, rate: Any) -> Trained:
        return trained.step(optax.sgd(rate), loss, BATCHES[0])[0]

    trained = Trained.create(START, optax.sgd(0.0))
    moved = learn(trained, 0.1).parameters["bias"] - START["bias"]
    np.testing.assert_allclose(learn(trained, 0.2).parameters["bias"] - START["bias"], 2 * moved)
    assert learn._cache_size() == 1


@pytest.mark.parametrize(("limit", "length"), [(0.5, 0.5), (100.0, None), (0.0, None)])
def test_gradients_are_limited(limit: float, length: float | None) -> None:
    descent = networks.clipped(optax.sgd(1.0), limit)
    new, _ = Trained.create(START, descent).step(descent, loss, BATCHES[0])
    changes = jax.tree.map(lambda x, y: x - y, START, new.parameters)
    full = 2.0 * 2.5 * np.sqrt(1.0 + 4.0 + 1.0)  # |2 y (x, 1)|
    expected = full if length is None else length
    norm = np.sqrt(sum(np.square(change).sum() for change in jax.tree.leaves(changes)))
    np.testing.assert_allclose(norm, expected, rtol=1e-5)


def test_targets_follow_a_trained_network() -> None:
    trained = Trained.create(START, ADAM)
    target = jax.tree.map(jnp.zeros_like, START)
    moved = networks.polyak(trained, target, 0.25)
    np.testing.assert_allclose(moved["weight"], [0.25, -0.5])


def test_a_cosine_rate_falls_to_zero() -> None:
    rates = [networks.cosine_rate(0.8, jnp.asarray(step), 100.0) for step in (0, 50, 100, 150)]
    np.testing.assert_allclose(rates, [0.8, 0.4, 0.0, 0.0], atol=1e-7)
    assert networks.cosine_rate(0.8, jnp.asarray(10**7), None) == 0.8
