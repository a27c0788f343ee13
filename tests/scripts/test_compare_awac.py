"""AWAC beside CORL's file: its names of parameters and its batches."""

from __future__ import annotations

import jax
import numpy as np

from rljax.agent import EnvSpec
from rljax.agents import awac
from scripts.updates.offline import compare_awac
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (compare_awac.OBSERVATION,), compare_awac.ACTION)


def test_their_parameters_come_under_our_names() -> None:
    """PyTorch's weights are [outputs, inputs]."""
    state = reference.state(awac, SPEC, compare_awac.config_of({}))
    params = state.actor.parameters.mean.params
    names = ["hidden_0", "hidden_1", "hidden_2", "output"]
    theirs = [
        x for name in names for x in (np.asarray(params[name]["kernel"]).T, params[name]["bias"])
    ]
    jax.tree.map(np.testing.assert_array_equal, compare_awac.layers(theirs), dict(params))


def test_batches_have_ends_and_noise_of_their_own() -> None:
    (first, noise), (second, _) = compare_awac.batches(2)
    assert 0 < np.sum(first.terminated) < compare_awac.BATCH
    assert not np.array_equal(first.reward, second.reward)
    assert not np.array_equal(*noise)


def test_our_state_takes_known_parameters() -> None:
    config = compare_awac.config_of({"temperature": 0.1})
    one, other = (reference.state(awac, SPEC, config) for _ in range(2))
    known = jax.tree.map(lambda x: np.asarray(x) + 1.0, compare_awac.of_ours(one))
    with jax.enable_x64():
        copy = compare_awac.of_ours(compare_awac.with_parameters(other, known))
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), copy, known)
