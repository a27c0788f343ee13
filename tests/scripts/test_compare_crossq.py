"""The comparison of CrossQ with its authors' code: their names, the start of renormalisation."""

from __future__ import annotations

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.agents import crossq
from scripts.updates import compare_crossq, shared

SPEC = EnvSpec("test/Example-v0", (shared.OBSERVATION,), shared.ACTION)


@pytest.fixture(scope="module")
def state() -> crossq.State:
    sizes = {"hidden": shared.ACTOR, "critic_hidden": shared.CRITIC}
    return crossq.init(jax.random.key(0), SPEC, crossq.Config(**sizes))


@pytest.mark.slow
def test_networks_have_their_names(state: crossq.State) -> None:
    network = state.actor.parameters
    tree, statistics = compare_crossq.by_their_names(network, shared.ACTOR)
    assert set(statistics) == {f"BatchRenorm_{i}" for i in range(3)}
    mean, log_std = tree["Dense_2"]["kernel"], tree["Dense_3"]["kernel"]
    both = network.params["output"]["kernel"]
    np.testing.assert_array_equal(np.concatenate([mean, log_std], axis=-1), both)
    network = state.critic.parameters
    tree, statistics = compare_crossq.by_their_names(network, shared.CRITIC)
    assert set(tree["VmapCritic_0"]) == set(statistics["VmapCritic_0"]) | {
        f"Dense_{i}" for i in range(4)
    }


@pytest.mark.slow
def test_renormalisation_begins_after_the_passes_of_a_case(state: crossq.State) -> None:
    network = compare_crossq.after(state.critic.parameters, compare_crossq.CASES["renormalised"])
    _, statistics = compare_crossq.by_their_names(network, shared.CRITIC)
    layer = statistics["VmapCritic_0"]["BatchRenorm_0"]
    np.testing.assert_array_equal(layer["steps"], [100_000, 100_000])
    np.testing.assert_array_equal(layer["mean"], np.zeros_like(layer["mean"]))
