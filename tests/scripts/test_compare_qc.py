"""The comparison of QC and QC-FQL with their authors' agent: its names, the rows, the numbers."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from scripts.updates.offline import compare_qc
from tests.agents import trees


def their_layers(params: Any) -> dict[str, Any]:
    """Layers of ours by their names."""
    last = f"Dense_{sum(name.startswith('hidden') for name in params)}"
    renamed = {
        name: name.replace("hidden", "Dense").replace("norm", "LayerNorm") for name in params
    }
    return {last if name == "output" else renamed[name]: x for name, x in params.items()}


def their_field(network: Any) -> dict[str, Any]:
    """A flow or a policy of ours as theirs, which reads the observation first."""
    layers = their_layers(network.params["body"])
    kernel = np.roll(layers["Dense_0"]["kernel"], compare_qc.OBSERVATION, axis=0)
    return {"mlp": layers | {"Dense_0": {**layers["Dense_0"], "kernel": kernel}}}


@pytest.mark.parametrize("name", ["QC", "QC-FQL, ten critics"])
def test_their_parameters_come_under_our_names(name: str) -> None:
    case = compare_qc.CASES[name]
    config = compare_qc.config_of(case)
    first, other = (
        case.agent.init(jax.random.key(seed), compare_qc.SMALL, config) for seed in range(2)
    )
    actor = first.actor.parameters
    critic = {"value_net": their_layers(first.critic.parameters.params["members"])}
    theirs = {
        "modules_critic": critic,
        "modules_target_critic": critic,
        "modules_actor_bc_flow": their_field(getattr(actor, "flow", actor)),
    }
    if hasattr(actor, "one_step"):
        theirs["modules_actor_onestep_flow"] = their_field(actor.one_step)
    copy = compare_qc.with_their_parameters(other, theirs)
    for part in ("actor", "critic"):
        assert trees.equal(getattr(copy, part).parameters, getattr(first, part).parameters)
    assert trees.equal(copy.target_critic, first.critic.parameters)


def test_recorded_rows_have_ends_of_both_kinds_and_equal_numbers_do_not_depend_on_keys() -> None:
    rows = compare_qc.recorded()
    assert rows.terminated.any()
    assert rows.truncated.any()
    assert (rows.terminated | rows.truncated)[-1]
    with compare_qc.same_numbers():
        for draw in (jax.random.uniform, jax.random.normal):
            one, other = (draw(jax.random.key(seed), (3, 2)) for seed in range(2))
            np.testing.assert_array_equal(one, other)
