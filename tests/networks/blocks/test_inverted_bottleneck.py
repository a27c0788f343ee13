"""Blocks of inverted bottlenecks and what projections set, against float64 NumPy."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.networks.blocks import inverted_bottleneck as blocks
from rljax.networks.blocks.ensemble import BlockEnsemble

KEY = jax.random.key(0)


def layer(number: int, **shapes: tuple[int, ...]) -> dict[str, Any]:
    generator = np.random.default_rng(number)
    return {name: jnp.asarray(generator.normal(size=shape)) for name, shape in shapes.items()}


def test_norms_are_set_and_biases_left_alone() -> None:
    params: dict[str, Any] = {
        "output": layer(0, kernel=(2, 3, 4), bias=(2, 4)),
        "block": {"norm": layer(1, scale=(2, 5), shift=(2, 5))},
        "last": layer(2, scale=(2, 5)),
    }
    moved = blocks.unit_layers(params)
    for member in range(2):
        kernel = np.asarray(params["output"]["kernel"][member], np.float64)
        expected = kernel / np.sqrt((kernel**2).sum(axis=0))
        np.testing.assert_allclose(moved["output"]["kernel"][member], expected, rtol=1e-6)
        for before, after in (
            (params["block"]["norm"], moved["block"]["norm"]),
            (params["last"], moved["last"]),
        ):
            parts = np.concatenate([np.asarray(x[member], np.float64) for x in before.values()])
            after = np.concatenate([np.asarray(x[member]) for x in after.values()])
            np.testing.assert_allclose(
                after, parts * np.sqrt(5.0 / (parts**2).sum()), rtol=1e-6, atol=1e-7
            )
    np.testing.assert_array_equal(moved["output"]["bias"], params["output"]["bias"])


def test_weights_of_nothing_stay_finite() -> None:
    moved = blocks.unit_layers({"kernel": jnp.zeros((3, 2))})
    np.testing.assert_array_equal(moved["kernel"], 0.0)


def test_fresh_networks_have_these_norms_only_if_asked() -> None:
    for unit_norm in (True, False):
        module = blocks.InvertedBottleneckMLP((4, 4), 3, unit_norm=unit_norm)
        network = networks.create(module, KEY, jnp.zeros((1, 2)))
        wide = np.asarray(network.params["embedding"]["kernel"], np.float64)
        lengths = np.linalg.norm(wide, axis=0)  # of two inputs to four units
        assert np.allclose(lengths, 1.0, rtol=1e-5) == unit_norm
        assert set(network.params) == {
            "norm_input", "embedding", "block_0", "block_1", "norm_output", "output",
        }  # fmt: skip


@pytest.mark.slow
def test_members_of_an_ensemble_are_networks_of_their_own() -> None:
    member = blocks.InvertedBottleneckMLP((4,), 3, expansion=2)
    module = BlockEnsemble(2, member)
    network = networks.create(module, KEY, jnp.zeros((1, 3)), jnp.zeros((1, 1)))
    x = jnp.asarray(np.random.default_rng(0).normal(1.0, 3.0, (6, 4)), jnp.float32)
    outputs, moved = network.apply_mutable(x[:, :3], x[:, 3:], train=True)
    assert outputs.shape == (2, 6, 3)
    one = networks.create(member, KEY, jnp.zeros((1, 4)))
    for c in range(2):
        part = one.replace(params=jax.tree.map(lambda x, c=c: x[c], network.params["member"]))
        expected, part = part.apply_mutable(x, train=True)
        np.testing.assert_allclose(outputs[c], expected, rtol=1e-4, atol=1e-5)
        statistics = moved.collections["batch_stats"]["member"]["block_0"]["norm_1"]
        own = part.collections["batch_stats"]["block_0"]["norm_1"]
        np.testing.assert_allclose(statistics["variance"][c], own["variance"], rtol=1e-5)
