"""Batch normalisation and renormalisation against float64 NumPy, written from the papers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.networks.blocks import batch_norm
from rljax.networks.blocks.ensemble import BlockEnsemble

KEY = jax.random.key(0)


def batches(number: int) -> np.ndarray:
    return np.random.default_rng(0).normal(1.0, 3.0, (number, 6, 4))


@pytest.mark.parametrize("renormed_after", [None, 2])
def test_training_moves_statistics_and_renormalises_after_a_while(
    renormed_after: int | None,
) -> None:
    module = batch_norm.BatchNorm(0.9, 1e-3, renormed_after)
    network = networks.create(module, KEY, jnp.zeros((1, 4)))
    mean, variance = np.zeros(4), np.ones(4)
    for number, x in enumerate(batches(5)):
        m, v = x.mean(axis=0), x.var(axis=0)
        expected = (x - m) / np.sqrt(v + 1e-3)
        if renormed_after is not None and number >= renormed_after:
            running = np.sqrt(variance + 1e-3)
            r = np.clip(np.sqrt(v + 1e-3) / running, 1 / 3, 3.0)
            d = np.clip((m - mean) / running, -5.0, 5.0)
            expected = (x - m + d * np.sqrt(v) / r) / np.sqrt(v / r**2 + 1e-3)
        mean, variance = 0.9 * mean + 0.1 * m, 0.9 * variance + 0.1 * v
        output, moved = network.apply_mutable(jnp.asarray(x, jnp.float32), train=True)
        np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
        network = moved
    np.testing.assert_allclose(network.collections["batch_stats"]["mean"], mean, rtol=1e-5)
    x = batches(6)[5]
    expected = (x - mean) / np.sqrt(variance + 1e-3)
    np.testing.assert_allclose(network(jnp.asarray(x, jnp.float32)), expected, rtol=1e-4, atol=1e-5)


def test_running_variances_may_be_unbiased() -> None:
    network = networks.create(batch_norm.BatchNorm(0.9, unbiased=True), KEY, jnp.zeros((1, 4)))
    x = batches(1)[0]
    output, moved = network.apply_mutable(jnp.asarray(x, jnp.float32), train=True)
    expected = (x - x.mean(axis=0)) / np.sqrt(x.var(axis=0) + 1e-3)
    np.testing.assert_allclose(output, expected, rtol=1e-4, atol=1e-5)
    variance = 0.9 + 0.1 * x.var(axis=0, ddof=1)
    np.testing.assert_allclose(moved.collections["batch_stats"]["variance"], variance, rtol=1e-5)


def test_no_gradient_passes_the_corrections_of_renormalisation() -> None:
    """The slope of a renormed output is r times that of the plain one: r and d are constants."""
    x = jnp.asarray(batches(1)[0], jnp.float32)
    running = {"mean": jnp.ones(4), "variance": jnp.full(4, 4.0)}

    def slope(renormed_after: int | None, **more: Any) -> jax.Array:
        module = batch_norm.BatchNorm(0.9, 1e-3, renormed_after)
        network = networks.create(module, KEY, jnp.zeros((1, 4)))
        network = network.replace(collections={"batch_stats": running | more})
        weights = jnp.arange(24.0).reshape(6, 4)
        return jax.grad(lambda x: (network.apply_mutable(x, train=True)[0] * weights).sum())(x)

    r = np.sqrt(np.var(x, axis=0) + 1e-3) / np.sqrt(4.001)
    np.testing.assert_allclose(slope(0, passes=jnp.ones(())), slope(None) * r, rtol=1e-2, atol=3e-3)


def test_members_of_an_ensemble_have_statistics_of_their_own() -> None:
    member = batch_norm.BatchNormMLP((5,), 3, unit_norm=True)
    module = BlockEnsemble(2, member)
    network = networks.create(module, KEY, jnp.zeros((1, 3)), jnp.zeros((1, 1)))
    x = jnp.asarray(batches(1)[0], jnp.float32)
    outputs, moved = network.apply_mutable(x[:, :3], x[:, 3:], train=True)
    assert outputs.shape == (2, 6, 3)
    for c in range(2):
        one = networks.create(member, KEY, jnp.zeros((1, 4)))
        one = one.replace(params=jax.tree.map(lambda x, c=c: x[c], network.params["member"]))
        expected, one = one.apply_mutable(x, train=True)
        np.testing.assert_allclose(outputs[c], expected, rtol=1e-5, atol=1e-6)
        statistics = moved.collections["batch_stats"]["member"]["norm_0"]
        own = one.collections["batch_stats"]["norm_0"]
        np.testing.assert_allclose(statistics["mean"][c], own["mean"], rtol=1e-5, atol=1e-7)
