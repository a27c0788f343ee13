"""Networks on the unit sphere: how they begin, and copies of them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.networks.blocks import hypersphere
from rljax.networks.blocks.ensemble import BlockEnsemble
from tests.agents import hyperspheres

KEY = jax.random.key(0)


@pytest.mark.slow
def test_members_of_an_ensemble_are_the_papers_networks() -> None:
    member = hypersphere.HypersphereMLP((8, 8), (3, 2))
    network = networks.create(BlockEnsemble(2, member), KEY, jnp.zeros(3), jnp.zeros(1))
    x = np.random.default_rng(0).normal(1.0, 3.0, (6, 4)).astype(np.float32)
    outputs = network(x[:, :3], x[:, 3:])
    assert outputs.shape == (2, 6, 5)
    for c in range(2):
        params = jax.tree.map(lambda x, c=c: x[c], network.params["member"])
        expected = hyperspheres.forward(params, x, blocks=2, heads=2)
        np.testing.assert_allclose(outputs[c], expected, rtol=1e-4, atol=1e-6)


def test_factors_begin_as_published() -> None:
    network = networks.create(hypersphere.HypersphereMLP((8, 8), (3,)), KEY, jnp.zeros(4))
    stored = {
        name: part["factors"][0]
        for name, part in network.params.items()
        if name.startswith("step_") or name.endswith("_scaler")
    }
    np.testing.assert_allclose(stored.pop("head_0_scaler"), 1.0)
    np.testing.assert_allclose(stored.pop("input_scaler"), 0.5)  # sqrt(2 / 8)
    for i in range(2):
        np.testing.assert_allclose(stored.pop(f"inner_{i}_scaler"), 0.25)
        np.testing.assert_allclose(stored.pop(f"step_{i}"), 1.0 / np.sqrt(8.0))
    assert not stored


def test_a_vector_of_zeros_has_a_finite_slope() -> None:
    slope = jax.grad(lambda x: hypersphere.unit(x).sum())(jnp.zeros(3))
    assert np.isfinite(slope).all()
