"""Parts of observations that critics alone see: every agent with `critic_parts`."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Part
from rljax.agents import ppo
from rljax.learning import registry
from rljax.networks.encoders import WithCriticParts
from rljax.runs.export import checks, exporting
from rljax.runs.export.program import Program
from rljax.runs.policies.policy import Policy
from tests.runs.export import untrained

PARTS = (Part("noisy", (3,)), Part("privileged", (2,)))
SPEC = EnvSpec("test/Parts-v0", (), 2, parts=PARTS)
AGENTS = [
    name
    for name in registry.names()
    if issubclass(registry.load_agent(name).Config, WithCriticParts)
]
OBSERVATION = {"noisy": np.ones((4, 3)), "privileged": np.zeros((4, 2))}
OTHER = OBSERVATION | {"privileged": np.ones((4, 2))}


def critics(name: str, state: Any) -> Any:
    """The critics of a State, as a function of observations."""
    if name == "ppo":
        return state.actor_critic.parameters.critic
    return lambda observation: state.critic(observation, jnp.zeros((4, 2)))


def test_who_has_the_setting() -> None:
    assert {"ppo", "reppo", "sac", "td3", "fasttd3", "fastsac", "flashsac"} <= set(AGENTS)


@pytest.mark.parametrize("name", AGENTS)
def test_the_policy_neither_sees_nor_asks_for_what_is_for_critics_alone(name: str) -> None:
    policies = untrained.policies(name, SPEC, critic_parts=("privileged",))
    policies.module.check(SPEC, policies.config)
    policy = Policy(policies, 0)
    actions = [policy(x) for x in (OBSERVATION, OTHER, {"noisy": OBSERVATION["noisy"]})]
    np.testing.assert_array_equal(actions[0], actions[1])
    np.testing.assert_array_equal(actions[0], actions[2])
    assert policy({"noisy": np.ones(3)}).shape == (2,)
    with pytest.raises(ValueError, match="observation"):
        policy({"privileged": np.zeros((4, 2))})
    state = jax.tree.map(lambda x: jnp.abs(x[0]), policies.state).state  # variances are positive
    values = [jax.tree.leaves(critics(name, state)(x))[0] for x in (OBSERVATION, OTHER)]
    assert np.abs(values[0] - values[1]).max() > 0


def test_an_exported_policy_does_not_ask_for_them() -> None:
    policies = untrained.policies("sac", SPEC, critic_parts=("privileged",))
    program = Program(policies, 0)
    assert [value.name for value in program.inputs] == ["observation/noisy"]
    trial = checks.SampledCheck(policies, program)
    for to in exporting.FORMATS:
        _, run = exporting.made(program, to)
        assert trial.largest_difference(run) <= checks.TOLERANCE


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (("goal",), "names 'goal', and 'test/Parts-v0' shows noisy, privileged"),
        (("noisy", "privileged"), "the actor would see nothing"),
    ],
)
def test_parts_for_critics_must_be_there(names: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ppo.check(SPEC, ppo.Config(critic_parts=names))


def test_a_shared_torso_has_no_parts_for_critics_alone() -> None:
    with pytest.raises(ValueError, match=r"without --config.shared and --config.memory"):
        ppo.check(SPEC, ppo.Config(critic_parts=("privileged",), shared=True))
