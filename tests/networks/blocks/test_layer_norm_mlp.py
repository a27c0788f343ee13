"""Acme's networks against float64 NumPy, and how their weights begin."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.networks.blocks.layer_norm_mlp import LayerNormEnsemble, LayerNormMLP


def test_the_first_layer_alone_is_normalised() -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(4, 3)).astype(np.float32)
    network = networks.create(LayerNormMLP((5, 6), 2), jax.random.key(0), x[0, :2], x[0, 2:])
    moved = jax.tree.map(lambda p: p + generator.normal(size=p.shape), network.params)
    params = jax.tree.map(np.asarray, moved)
    y = x @ params["hidden_0_kernel"] + params["hidden_0_bias"]
    y = (y - y.mean(axis=1, keepdims=True)) / np.sqrt(y.var(axis=1, keepdims=True) + 1e-5)
    y = np.tanh(y * params["norm_0"]["scale"] + params["norm_0"]["bias"])
    y = y @ params["hidden_1_kernel"] + params["hidden_1_bias"]
    y = np.where(y > 0, y, np.expm1(y))
    expected = y @ params["output_kernel"] + params["output_bias"]
    actual = network.replace(params=moved)(x[:, :2], x[:, 2:])
    np.testing.assert_allclose(actual, expected, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("output", "std"),
    [("policy", 0.01 / 16.0), ("value", 0.01 * 0.88), ("classes", 1e-5**0.5 / 16)],
)
def test_last_layers_begin_small(output: str, std: float) -> None:
    """A normal distribution cut at 2 std has 0.88 of its std."""
    module = LayerNormMLP((256, 256), 40, output=output)  # type: ignore[arg-type]
    params = networks.create(module, jax.random.key(1), jnp.zeros(3)).params
    np.testing.assert_allclose(params["output_kernel"].std(), std, rtol=0.05)
    bound = np.abs(params["hidden_1_kernel"]).max()
    np.testing.assert_allclose(bound, np.sqrt(0.999 / 256.0), rtol=0.01)
    assert not np.any(params["output_bias"])


def test_members_of_an_ensemble_are_independent() -> None:
    module = LayerNormEnsemble(2, (4,), 3)
    network = networks.create(module, jax.random.key(0), jnp.zeros(3), jnp.zeros(2))
    outputs = network(jnp.ones((5, 3)), jnp.ones((7, 5, 2)))
    assert outputs.shape == (2, 7, 5, 3)
    assert not np.allclose(outputs[0], outputs[1])
    params = jax.tree.map(lambda x: x[1], network.params["members"])
    alone = network.replace(params=params, module=LayerNormMLP((4,), 3, output="value"))
    np.testing.assert_allclose(alone(jnp.ones((5, 3)), jnp.ones((5, 2))), outputs[1, 0], rtol=1e-5)
