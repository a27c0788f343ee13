"""The comparison of XQC with its authors' learner: their names, batches and noise."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import xqc
from scripts.updates import compare_xqc, shared

SPEC = EnvSpec("test/Example-v0", (shared.OBSERVATION,), shared.ACTION)


def theirs(network: Any, number: int, critic: bool) -> SimpleNamespace:
    """A network of ours by their names, with the axis of seeds."""
    params, statistics = network.params, network.collections["batch_stats"]
    if critic:
        params, statistics = params["member"], statistics["member"]

    def norm(name: str) -> tuple[dict[str, Any], dict[str, Any]]:
        part, moments = params[name], statistics[name]
        scale = {"scale": part["scale"], "bias": part["shift"]}
        return scale, {"mean": moments["mean"], "var": moments["variance"]}

    scales, moments = norm("norm_input")
    tree: dict[str, Any] = {"BatchNormEmbedder_0": {"BatchNorm_0": scales}, "MLP_0": {}}
    means: dict[str, Any] = {"BatchNormEmbedder_0": {"BatchNorm_0": moments}, "MLP_0": {}}
    for i in range(number):
        scales, moments = norm(f"norm_{i}")
        layers = {"Dense_0": params[f"hidden_{i}"], "BatchNorm_0": scales}
        tree["MLP_0"][f"XQCBlock_{i}"] = layers
        means["MLP_0"][f"XQCBlock_{i}"] = {"BatchNorm_0": moments}
    output = params["output"]
    halves = {name: jnp.split(x, 2, axis=-1) for name, x in output.items()} if not critic else {}
    tree["predictor"] = {"value": output}
    if not critic:
        mean, log_std = ({name: x[i] for name, x in halves.items()} for i in range(2))
        tree["predictor"] = {"mean": mean, "log_std": log_std}
    else:
        tree, means = {"VmapCritic_0": tree}, {"VmapCritic_0": means}
    first = jax.tree.map(lambda x: x[None], (tree, means))
    return SimpleNamespace(params=first[0], batch_stats=first[1])


@pytest.mark.slow
def test_their_numbers_come_under_our_names() -> None:
    config = xqc.Config(hidden=shared.ACTOR, critic_hidden=shared.CRITIC)
    one, other = (xqc.init(jax.random.key(seed), SPEC, config) for seed in range(2))
    for name, hidden in (("actor", shared.ACTOR), ("critic", shared.CRITIC)):
        source = getattr(one, name).parameters
        model = theirs(source, len(hidden), name == "critic")
        copy = compare_xqc.like(getattr(other, name).parameters, model, hidden)
        jax.tree.map(np.testing.assert_array_equal, copy.params, source.params)
        jax.tree.map(np.testing.assert_array_equal, copy.collections, source.collections)


def test_batches_have_ends_and_their_names() -> None:
    first, second = shared.batches(2)
    assert 0 < np.sum(first.terminated) < shared.BATCH
    assert not np.array_equal(first.reward, second.reward)
    batch = compare_xqc.theirs(first)
    assert batch.observations.shape == (1, 1, shared.BATCH, shared.OBSERVATION)
    np.testing.assert_array_equal(batch.masks[0, 0], 1.0 - first.terminated)


def test_noise_is_the_same_for_all_keys() -> None:
    with shared.fixed_noise():
        one, other = (jax.random.normal(jax.random.key(seed), (3,)) for seed in range(2))
    np.testing.assert_array_equal(one, other)
    assert not np.array_equal(one, jax.random.normal(jax.random.key(0), (3,)))


def test_distances_are_relative_to_the_way() -> None:
    before, after, other = ({"x": np.array([x, 0.0])} for x in (1.0, 3.0, 3.2))
    assert shared.distance(before, after, other) == pytest.approx(0.2 / 2.2)
    assert shared.relative(1.0, 2.0) == 0.5
