"""Networks of many layers with sums against float64 NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.networks.blocks.residual import SkipMLP


def normalised(x: np.ndarray, params: Any) -> np.ndarray:
    x = (x - x.mean(axis=1, keepdims=True)) / np.sqrt(x.var(axis=1, keepdims=True) + 1e-6)
    return x * params["scale"] + params["bias"]


@pytest.mark.parametrize("norm", [False, True])
@pytest.mark.parametrize("skip", [0, 2, 4])
def test_each_so_many_layers_are_added_to_what_went_into_them(skip: int, norm: bool) -> None:
    generator = np.random.default_rng(0)
    x = generator.normal(size=(6, 3))
    module = SkipMLP((5,) * 8, 2, skip, layer_norm=norm)
    network = networks.create(module, jax.random.key(0), jnp.zeros(2), jnp.zeros(1))
    params = jax.tree.map(lambda p: np.asarray(p) + generator.normal(size=p.shape), network.params)

    def layer(i: int, x: np.ndarray) -> np.ndarray:
        x = x @ params[f"hidden_{i}"]["kernel"] + params[f"hidden_{i}"]["bias"]
        x = normalised(x, params[f"norm_{i}"]) if norm else x
        return x / (1.0 + np.exp(-x))

    # Of 8 layers the first stands alone, and 7 come in blocks.
    y = layer(0, x)
    blocks = {0: [range(1, 8)], 2: [(1, 2), (3, 4), (5, 6), (7,)], 4: [(1, 2, 3, 4), (5, 6, 7)]}
    for block in blocks[skip]:
        into = y
        for i in block:
            y = layer(i, y)
        y = into + y if skip and len(block) == skip else y
    expected = y @ params["output"]["kernel"] + params["output"]["bias"]
    moved = network.replace(params=jax.tree.map(jnp.float32, params))
    actual = moved(jnp.asarray(x[:, :2], jnp.float32), jnp.asarray(x[:, 2:], jnp.float32))
    np.testing.assert_allclose(actual, expected, rtol=2e-4, atol=2e-4)
