"""The comparisons of agents with goals with OGBench's: names of networks, and of batches."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax.networks.goals.bilinear import Bilinear
from rljax.networks.goals.quasimetrics import Quasimetric
from scripts.updates.offline import compare_crl, compare_ogbench, compare_qrl, goals
from tests.agents import trees
from tests.scripts.test_compare_qc import their_layers

QUICK = ("GCIVL", "HIQL")
CASES = {
    **{name: compare_ogbench.CASES[name] for name in QUICK},
    "CRL, awr": compare_crl.CASES["CRL, awr"],
    "QRL": compare_qrl.CASES["QRL"],
}


def theirs(name: str, network: Any) -> dict[str, Any]:
    """A network of ours as theirs."""
    if isinstance(network, Bilinear):
        both = (network.state_features, network.goal_features)
        phi, psi = (their_layers(net.params["members"]) for net in both)
        if name == "value":  # is no ensemble there
            phi, psi = jax.tree.map(lambda x: x[0], (phi, psi))
        return {"phi": phi, "psi": psi}
    if isinstance(network, Quasimetric):
        return {"phi": their_layers(network.embedding.params), "alpha": {"value": network.mixing}}
    params = network.params
    if name == "dynamics":
        return their_layers(params)
    if "members" in params:
        return {"value_net": their_layers(params["members"])}
    if "actor" in name:
        hidden = {x: y for x, y in params.items() if x != "output"}
        return {"actor_net": their_layers(hidden), "mean_net": params["output"]}
    layers = their_layers(params)
    return {"layers_0": layers} if name == "representation" else {"value_net": layers}


@pytest.mark.parametrize("name", CASES)
def test_their_parameters_come_under_our_names(name: str) -> None:
    case = CASES[name]
    init = jax.jit(case.agent.init, static_argnums=1)
    first, other = (init(jax.random.key(seed), goals.SPEC, case.config) for seed in range(2))
    parts = goals.networks_of(first)
    params = {f"modules_{case.names.get(x, x)}": theirs(x, part) for x, part in parts.items()}
    copy = goals.networks_of(goals.with_their_parameters(other, params, case.names))
    assert copy.keys() == parts.keys()
    for part, network in parts.items():
        assert trees.equal(copy[part], network), part
        assert not trees.equal(goals.networks_of(other)[part], network), part


@pytest.mark.parametrize("name", QUICK)
def test_batches_have_their_names(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(goals, "exact", lambda tree: tree)  # float32 is enough
    case = compare_ogbench.CASES[name]
    one, other = goals.our_batches(case.agent, case.config, 2)
    assert one.observation.shape == (goals.BATCH, 2 * goals.OBSERVATION)
    assert not np.array_equal(one.observation, other.observation)
    batch = goals.their_batch(one)
    np.testing.assert_array_equal(batch["masks"], -batch["rewards"])
    both = np.concatenate([batch["observations"], batch["value_goals"]], axis=1)
    np.testing.assert_array_equal(both, one.observation)
    names = {"actor_goals"} if name == "GCIVL" else {"high_actor_goals", "high_actor_targets"}
    assert names <= batch.keys()
    assert batch["actor_goals"].shape == (goals.BATCH, goals.OBSERVATION)
