"""The comparisons of agents of chunks with their authors' agents: names, rows, numbers."""

from __future__ import annotations

import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agents import dsrl, expo, idql, ifql, qam, qsm
from scripts.updates.offline import (
    compare_dsrl,
    compare_expo,
    compare_idql,
    compare_qam,
    compare_qam_others,
    compare_qc,
    compare_qsm,
)
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


def their_edit(network: Any) -> dict[str, Any]:
    """A policy of edits of ours as theirs, whose outputs are two layers."""
    layers = their_field(network)["mlp"]
    *_, last = sorted(layers)
    output = layers.pop(last)
    heads = {part: jnp.split(x, 2, axis=-1) for part, x in output.items()}
    mean, log_std = ({part: x[i] for part, x in heads.items()} for i in range(2))
    return {"MLP_0": layers, "OutputDenseMean": mean, "OutputDenseLogStd": log_std}


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
        theirs["modules_edit_actor"] = their_edit(learnt.edit)
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


def fedit(state: expo.State) -> Any:
    """The agent of QAM's authors with the numbers of our State."""
    critic = {"value_net": their_layers(state.critic.parameters.params["members"])}
    params = {
        "modules_critic": critic,
        "modules_target_critic": critic,
        "modules_actor_bc_flow": their_field(state.actor.parameters),
        "modules_edit_actor": their_edit(state.edit.parameters),
        "modules_alpha": {"log_value": state.log_temperature.parameters},
    }
    return types.SimpleNamespace(network=types.SimpleNamespace(params=params))


def expos(state: expo.State) -> Any:
    """EXPO's agent with the numbers of our State."""
    layers = their_layers(state.critic.parameters.params["members"])
    *_, last = sorted(layers)
    critic = {"VmapStateActionValue_0": {"Dense_0": layers.pop(last), "MLP_0": layers}}
    temperature = {"log_temp": state.log_temperature.parameters}
    params = {"critic": critic, "target_critic": critic, "temp": temperature}
    params["edit_actor"] = their_edit(state.edit.parameters)
    return types.SimpleNamespace(
        **{name: types.SimpleNamespace(params=x) for name, x in params.items()}
    )


@pytest.mark.parametrize(
    ("name", "theirs", "made"),
    [
        ("QAM's authors", compare_expo.FlowsAndEdits, fedit),
        ("EXPO's authors", compare_expo.Authors, expos),
    ],
    ids=["fedit", "expo"],
)
def test_names_of_expo(name: str, theirs: Any, made: Any) -> None:
    config = compare_expo.config_of(compare_expo.CASES[name])
    first, other = (expo.init(jax.random.key(seed), compare_qc.SMALL, config) for seed in range(2))
    copy = theirs.like(types.SimpleNamespace(agent=made(first)), other)
    flow = first if theirs is compare_expo.FlowsAndEdits else other
    assert trees.equal(copy.actor.parameters, flow.actor.parameters)
    for part in ("edit", "critic", "log_temperature"):
        assert trees.equal(getattr(copy, part).parameters, getattr(first, part).parameters)
    assert trees.equal(copy.target_critic, first.target_critic)


def test_names_of_dsrl() -> None:
    config = compare_dsrl.config_of({})
    first, other = (dsrl.init(jax.random.key(seed), compare_qc.SMALL, config) for seed in range(2))
    actor = their_layers(first.actor.parameters.params)
    *_, last = sorted(actor)
    output = actor.pop(last)
    heads = {part: np.split(output[part], 2, axis=-1) for part in ("kernel", "bias")}
    critic, noise_critic = (
        {"value_net": their_layers(x.parameters.params["members"])}
        for x in (first.critic, first.noise_critic)
    )
    flow = their_field(first.flow.parameters)
    theirs = {
        "modules_critic": critic,
        "modules_target_critic": critic,
        "modules_z_critic": noise_critic,
        "modules_actor": {
            "MLP_0": actor,
            "OutputDenseMean": {part: both[0] for part, both in heads.items()},
            "OutputDenseLogStd": {part: both[1] for part, both in heads.items()},
        },
        "modules_actor_bc_flow": flow,
        "modules_target_actor_bc_flow": flow,
        "modules_alpha": {"log_value": first.log_temperature.parameters},
    }
    copy = compare_dsrl.with_their_parameters(other, theirs)
    for name in ("actor", "critic", "noise_critic", "flow"):
        assert trees.equal(getattr(copy, name).parameters, getattr(first, name).parameters)
    assert trees.equal(copy.target_flow, first.flow.parameters)


@pytest.mark.parametrize("name", ["IFQL", "ReBRAC"])
def test_names_of_ifql_and_rebrac(name: str) -> None:
    case = compare_qam_others.CASES[name]
    config = case.agent.Config(hidden=compare_qc.ACTOR, **case.ours)
    first, other = (
        case.agent.init(jax.random.key(seed), compare_qc.SMALL, config) for seed in range(2)
    )
    parts: dict[str, Any] = {
        "critic": {"value_net": their_layers(first.critic.parameters.params["members"])}
    }
    if case.agent is ifql:
        parts["actor_flow"] = their_field(first.actor.parameters)
        parts["value"] = {"value_net": their_layers(first.value.parameters.params)}
    else:
        layers = their_layers(first.actor.parameters.params)
        *_, last = sorted(layers)
        mean = layers.pop(last)
        parts["actor"] = parts["target_actor"] = {"actor_net": layers, "mean_net": mean}
    parts["target_critic"] = parts["critic"]
    theirs = {f"modules_{part}": x for part, x in parts.items()}
    copy = compare_qam_others.with_their_parameters(other, theirs)
    for part in ("actor", "critic", "value"):
        if hasattr(first, part):
            assert trees.equal(getattr(copy, part).parameters, getattr(first, part).parameters)
    assert trees.equal(copy.target_critic, first.critic.parameters)
    if hasattr(first, "target_actor"):
        assert trees.equal(copy.target_actor, first.actor.parameters)


def test_names_of_idql() -> None:
    config = compare_idql.config_of({"decay_steps": None})
    first, other = (idql.init(jax.random.key(seed), compare_idql.SPEC, config) for seed in range(2))

    def their_critic(network: Any) -> dict[str, Any]:
        layers = dict(network.params["members"])
        output = layers.pop("output")
        hidden = {name.replace("hidden", "Dense"): x for name, x in layers.items()}
        return {"VmapStateActionValue_0": {"MLP_0": hidden, "Dense_0": output}}

    def their_denoiser(network: Any) -> dict[str, Any]:
        params = network.params
        body, kernel = params["body"], params["body"]["input"]["kernel"]
        ends = [compare_idql.ACTION, len(kernel) - compare_idql.OBSERVATION]
        action, time, observation = np.split(kernel, ends)
        kernel = np.concatenate([action, observation, time])
        blocks: dict[str, Any] = {
            f"MLPResNetBlock_{i}": {
                "LayerNorm_0": body[f"norm_{i}"],
                "Dense_0": body[f"inner_{i}"],
                "Dense_1": body[f"outer_{i}"],
            }
            for i in range(2)
        }
        blocks |= {"Dense_0": {**body["input"], "kernel": kernel}, "Dense_1": body["output"]}
        times = params["time_0"]
        return {
            "FourierFeatures_0": {"kernel": params["frequencies_0"][:, None]},
            "MLP_0": {"Dense_0": times["hidden_0"], "Dense_1": times["output"]},
            "MLPResNet_0": blocks,
        }

    params = first.value.parameters.params
    layers = {name.replace("hidden", "Dense"): x for name, x in params["net"].items()}
    value = {
        "OutputVDense": layers.pop("output"),
        "MLP_0": {**layers, "LayerNorm_0": params["norm"]},
    }
    parts = {
        "critic": their_critic(first.critic.parameters),
        "target_critic": their_critic(first.target_critic),
        "value": value,
        "score_model": their_denoiser(first.actor.parameters),
        "target_score_model": their_denoiser(first.average_actor),
    }
    theirs = types.SimpleNamespace(
        **{name: types.SimpleNamespace(params=x) for name, x in parts.items()}
    )
    copy = compare_idql.with_their_parameters(other, theirs)
    for name in ("actor", "critic", "value"):
        assert trees.equal(getattr(copy, name).parameters, getattr(first, name).parameters)
    assert trees.equal(copy.average_actor, first.average_actor)
    assert trees.equal(copy.target_critic, first.target_critic)
