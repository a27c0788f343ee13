"""The comparisons of QC, QC-FQL, QAM and QSM with their authors' agents: names, rows, numbers."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agents import qam, qsm
from scripts.updates.offline import compare_qam, compare_qc, compare_qsm
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


@pytest.mark.parametrize("form", ["flow", "fql", "edit"])
def test_names_of_qam(form: str) -> None:
    config = compare_qam.config_of({"form": form})
    first, other = (qam.init(jax.random.key(seed), compare_qc.SMALL, config) for seed in range(2))
    learnt = first.networks.parameters
    critic = {"value_net": their_layers(learnt.critic.params["members"])}
    theirs: dict[str, Any] = {
        "modules_critic": critic,
        "modules_target_critic": critic,
        "modules_actor_slow": their_field(learnt.base),
        "modules_target_actor_slow": their_field(learnt.base),
        "modules_actor_fast": their_field(learnt.tuned),
    }
    if learnt.one_step is not None:
        theirs["modules_one_step_actor"] = their_field(learnt.one_step)
    if learnt.edit is not None:
        layers = their_field(learnt.edit)["mlp"]
        *_, last = sorted(layers)
        output = layers.pop(last)
        heads = {part: jnp.split(x, 2, axis=-1) for part, x in output.items()}
        mean, log_std = ({part: x[i] for part, x in heads.items()} for i in range(2))
        outputs = {"OutputDenseMean": mean, "OutputDenseLogStd": log_std}
        theirs["modules_edit_actor"] = {"MLP_0": layers} | outputs
        theirs["modules_edit_alpha"] = {"log_value": learnt.log_temperature}
    copy = compare_qam.with_their_parameters(other, theirs)
    assert trees.equal(copy.networks.parameters, learnt)
    assert trees.equal(copy.target_base, learnt.base)


def test_names_of_qsm() -> None:
    config = compare_qsm.config_of({})
    first, other = (qsm.init(jax.random.key(seed), compare_qc.SMALL, config) for seed in range(2))
    learnt = first.networks.parameters
    critic = {"value_net": their_layers(learnt.critic.params["members"])}
    params, actions = learnt.denoiser.params, first.spec.action_size
    body = their_layers(params["body"])
    # Theirs reads actions, observations and times, ours actions, times and observations.
    kernel = body["Dense_0"]["kernel"]
    action, time, observation = np.split(kernel, [actions, len(kernel) - compare_qc.OBSERVATION])
    kernel = np.concatenate([action, observation, time])
    theirs = {
        "modules_critic": critic,
        "modules_target_critic": critic,
        "modules_actor": {
            "FourierFeatures_0": {"kernel": params["frequencies_0"][:, None]},
            "MLP_0": their_layers(params["time_0"]),
            "MLP_1": body | {"Dense_0": {**body["Dense_0"], "kernel": kernel}},
        },
    }
    copy = compare_qsm.with_their_parameters(other, theirs)
    assert trees.equal(copy.networks.parameters, learnt)
    assert trees.equal(copy.target_critic, learnt.critic)


def test_equal_numbers_of_qsm_do_not_depend_on_leading_axes() -> None:
    with compare_qsm.same_numbers():
        one, many = (jax.random.normal(jax.random.key(0), shape) for shape in ((3, 2), (4, 3, 2)))
        np.testing.assert_array_equal(many, np.broadcast_to(one, (4, 3, 2)))
        zero, later = (jax.random.randint(jax.random.key(0), (9,), i, i + 5) for i in range(2))
        np.testing.assert_array_equal(zero + 1, later)
