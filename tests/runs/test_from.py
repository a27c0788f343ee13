"""Learners that begin with what another run has learnt."""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax import envs, networks
from rljax.learning.agent_state import AgentState, with_parts
from rljax.learning.loop import Training
from rljax.learning.population import inheritance
from rljax.networks.inputs import Raw, Running
from rljax.networks.optimisation.trained import parameters_of
from rljax.runs import experiments, records, run
from tests.helpers import small_runs
from tests.runs import parts
from tests.runs.export import untrained


class Old(struct.PyTreeNode):
    actor: networks.Trained
    critic: Any


class New(struct.PyTreeNode):
    """Another agent's State, with another optimiser and a temperature."""

    critic: Any
    actor: Any
    log_temperature: Any


def numbers(*shape: int) -> jax.Array:
    return jnp.arange(float(np.prod(shape))).reshape(shape)


class Other(struct.PyTreeNode):
    """Another agent's State, with all networks under one optimiser, as PPO's."""

    actor_critic: networks.Trained


ACTOR = networks.Trained({"w": numbers(2, 3)}, numbers(2))
GIVEN = AgentState(Old(ACTOR, critic={"w": numbers(2, 4, 5)}), None, Raw())
FRESH = AgentState(
    New(
        critic={"w": jnp.zeros((2, 4, 5))},
        actor=networks.Trained({"w": jnp.zeros((2, 3))}, jnp.zeros((2, 9))),
        log_temperature=jnp.zeros(2),
    ),
    None,
    Raw(),
)


def with_state(**changes: Any) -> AgentState:
    return FRESH.replace(state=FRESH.state.replace(**changes))


def test_all_parts_that_both_have_are_inherited_by_name() -> None:
    parts = inheritance(FRESH, GIVEN, (), "run")
    assert list(parts) == ["critic", "actor"]
    np.testing.assert_array_equal(parts["critic"]["w"], GIVEN.state.critic["w"])
    begun = with_parts(FRESH, parts).state
    np.testing.assert_array_equal(begun.actor.parameters["w"], ACTOR.parameters["w"])
    np.testing.assert_array_equal(begun.actor.optimiser_state, jnp.zeros((2, 9)), "its own")
    assert list(inheritance(FRESH, GIVEN, ("actor",), "run")) == ["actor"]


def test_a_part_of_another_place_is_inherited() -> None:
    """Only the policy of one is the other's, which keeps its critic and its optimiser."""
    fresh = New(critic=numbers(2), actor={"w": jnp.zeros((2, 3))}, log_temperature=None)
    wanted = AgentState(Other(networks.Trained(fresh, numbers(2))), None, Raw())
    parts = inheritance(wanted, GIVEN, ("actor_critic.actor=actor",), "run")
    begun = with_parts(wanted, parts).state.actor_critic
    np.testing.assert_array_equal(begun.parameters.actor["w"], ACTOR.parameters["w"])
    np.testing.assert_array_equal(begun.parameters.critic, numbers(2))
    np.testing.assert_array_equal(begun.optimiser_state, numbers(2))
    for name in ("actor_critic.policy=actor", "actor_critic.actor=policy", "actor"):
        with pytest.raises(ValueError, match=f"^--from run: --from-parts {name} is not in both"):
            inheritance(wanted, GIVEN, (name,), "run")


def test_ppo_begins_with_the_policy_of_bc() -> None:
    spec, sizes = envs.make("rljax/CombinationLock-10-discrete").spec, (8, 8)
    given = untrained.policies("bc", spec, hidden=sizes, activation="tanh").state
    wanted = untrained.policies("ppo", spec, actor_hidden=sizes).state
    wanted = jax.tree.map(jnp.zeros_like, wanted)
    parts = inheritance(wanted, given, ("actor_critic.actor=actor.mean",), "run")
    begun = with_parts(wanted, parts).state.actor_critic.parameters
    theirs = parameters_of(given.state.actor).mean.params
    jax.tree.map(np.testing.assert_array_equal, begun.actor.params, theirs)
    assert not any(x.any() for x in jax.tree.leaves(begun.critic.params)), "its own"


def test_one_learner_gives_to_all() -> None:
    one = jax.tree.map(lambda x: x[1:], GIVEN)
    parts = inheritance(FRESH, one, (), "run")
    for learner in range(2):
        np.testing.assert_array_equal(parts["actor"]["w"][learner], ACTOR.parameters["w"][1])


def test_statistics_of_observations_are_inherited_by_their_name() -> None:
    counted = GIVEN.replace(statistics={"mean": numbers(2, 3)}, inputs=Running())
    fresh = FRESH.replace(statistics={"mean": jnp.zeros((2, 3))}, inputs=Running())
    parts = inheritance(fresh, counted, (), "run")
    assert list(parts) == ["critic", "actor", "statistics"]
    np.testing.assert_array_equal(with_parts(fresh, parts).statistics["mean"], numbers(2, 3))
    assert "statistics" not in inheritance(FRESH, counted, (), "run")


def test_what_does_not_fit_is_said() -> None:
    with pytest.raises(
        ValueError,
        match=r"^--from run: --from-parts value is not in both States\. In both are: critic,",
    ):
        inheritance(FRESH, GIVEN, ("value",), "run")
    nothing = AgentState(Other(ACTOR), None, Raw())
    with pytest.raises(ValueError, match=r"no part of this agent's.* here are actor_critic, there"):
        inheritance(nothing, GIVEN, (), "run")
    with pytest.raises(
        ValueError, match=r"^--from run has 2 learners: give --seeds 2, or name a run of one"
    ):
        inheritance(jax.tree.map(lambda x: jnp.concatenate([x, x]), FRESH), GIVEN, (), "run")
    other = with_state(critic={"w": jnp.zeros((2, 10, 5))})
    message = (
        r"critic does not fit: critic\['w'\] is \(4, 5\) there and \(10, 5\) here\. "
        r".*--from-parts: of critic, actor"
    )
    with pytest.raises(ValueError, match=message):
        inheritance(other, GIVEN, (), "run")
    assert list(inheritance(other, GIVEN, ("actor",), "run")) == ["actor"]
    wider = networks.Trained({"w": jnp.zeros((2, 3)), "b": jnp.zeros((2, 3))}, jnp.zeros(2))
    deeper = with_state(actor=wider)
    with pytest.raises(ValueError, match=r"actor\['b'\] is absent there and \(3,\) here"):
        inheritance(deeper, GIVEN, (), "run")


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.train("td3", "rljax/Pendulum", 100, tmp_path_factory.mktemp("source") / "run")


@pytest.mark.slow
def test_learners_begin_with_it_and_their_policy_warms_up(source: Path) -> None:
    how: Any = {"from_run": str(source), "config": small_runs.SMALL, **small_runs.EVERY}
    training = Training(experiments.prepare("td3", "rljax/Pendulum", 100, seeds=2, **how))
    training.start()
    given = small_runs.arrays(source)
    for part in ("actor", "critic", "target_actor", "target_critic"):
        assert part in (training.inherited or {})
        network = getattr(training.driver.agent_state.state, part)
        own = jax.tree.leaves(parameters_of(network))
        field = "parameters" if parameters_of(network) is not network else "params"
        place_of_part = f"['agent']['state']['{part}']['{field}']"
        others = [x for place, x in given.items() if place.startswith(place_of_part)]
        for ours, theirs in zip(own, others, strict=True):
            np.testing.assert_array_equal(ours, np.stack([theirs[0]] * 2))
    experience = training.driver.hyper.experience
    assert (experience.random_steps, experience.steps_before_updates) == (
        0,
        small_runs.SMALL["warmup_steps"],
    )
    training.close()


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/Pendulum", "Pendulum-v1"])
def test_stopped_and_resumed_equals_uninterrupted(source: Path, env: str, tmp_path: Path) -> None:
    td3 = partial(small_runs.train, "td3", env, from_run=str(source), seeds=2)
    whole, _ = parts.resumed(td3, 200, 300, tmp_path)
    assert records.read(whole, "evaluations")[0]["step"] == 0
    assert set(records.read_config(whole)["inherited"]) >= {"actor", "critic"}


@pytest.mark.learn
def test_a_run_that_begins_anew_inherits_the_same_or_is_refused(
    source: Path, tmp_path: Path
) -> None:
    own = Path(shutil.copytree(source, tmp_path / "source"))
    whole = small_runs.train("td3", "rljax/Pendulum", 200, tmp_path / "whole", from_run=str(own))
    killed, other = tmp_path / "killed", tmp_path / "other"
    for folder in (killed, other):  # as they are before the first checkpoint
        folder.mkdir()
        shutil.copy(whole / "config.json", folder)
    small_runs.assert_same(whole, run.resume(killed))
    run.resume(own, 200)
    with pytest.raises(
        ValueError, match=r"begins anew, and the run of its --from has changed since\. Restore"
    ):
        run.resume(other)
