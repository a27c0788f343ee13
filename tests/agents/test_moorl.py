"""MOORL against float64 NumPy: SAC on one source's rows, and Reptile's step around it."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import moorl
from rljax.runs import records, run
from tests.agents import actor_critic, reference
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = moorl.Config(
    hidden=(8, 8),
    batch_size=8,
    inner_steps=1,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
    meta_rate=0.3,
)
AVERAGES = ("meta_actor", "meta_critic")
OFFLINE = np.array([True, False, True, False, False, True, False, False])


def example() -> tuple[EnvSpec, moorl.Config, Transition]:
    """What the contract's tests run on: every update ends an epoch."""
    return SPEC, CONFIG, transitions()


transitions = functools.partial(reference.two_sources, offline=OFFLINE)


def rows_of_source(offline: np.ndarray, source: bool) -> list[int]:
    """The rows of a source, over and over, until they are half of the batch."""
    mine = [row for row, value in enumerate(offline) if value == source]
    return [mine[i % len(mine)] for i in range(len(offline) // 2)]


class Reference(actor_critic.SAC):
    """SAC's on the rows of one source, and Reptile's steps."""

    def __init__(self, state: moorl.State, config: moorl.Config) -> None:
        super().__init__(state, config)
        self.meta_actor, self.meta_critic = self.actor, self.critic
        self.source, self.sources = bool(state.source), set()

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, source = self.config, self.source
        self.sources.add(source)
        rows = np.array(rows_of_source(OFFLINE, source))
        part = jax.tree.map(lambda x: x[rows], batch)
        key_critic, key_actor, key_source = jax.random.split(key, 3)
        metrics = self.learn(part, key_critic, key_actor, step)
        if (step + 1) % config.inner_steps == 0:
            change = zip(self.actor, self.meta_actor, strict=True)
            metrics["meta/distance"] = np.sqrt(sum(np.square(x - y).sum() for x, y in change))
            self.meta_actor = reference.towards(self.actor, self.meta_actor, config.meta_rate)
            self.meta_critic = reference.towards(self.critic, self.meta_critic, config.meta_rate)
            self.actor, self.critic = self.meta_actor, self.meta_critic
            self.source = bool(jax.random.bernoulli(key_source, config.offline_epochs))
        self.follow("critic")
        return metrics | {"meta/offline": float(source)}


update = jax.jit(moorl.update)


def fresh(config: moorl.Config) -> moorl.State:
    """A State to start from; epochs begin with the meta-parameters."""
    state = reference.state(moorl, SPEC, config, source=jnp.asarray(True))
    actor = state.actor.replace(parameters=state.meta_actor)
    return state.replace(actor=actor, critic=state.critic.replace(parameters=state.meta_critic))


CASES: dict[str, dict[str, Any]] = {
    "two steps": {"inner_steps": 2},
    "delayed": {"inner_steps": 3, "policy_delay": 2},
}


@reference.cases(CASES)
def test_updates_equal_sacs_and_reptiles(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    _, expected = reference.assert_updates(
        update, state, config, Reference, transitions, steps=range(6)
    )
    assert expected.sources == {True, False}, "both have been seen"


def test_an_epoch_of_k_updates_comes_with_one_transition() -> None:
    """Algorithm 1: collect a transition, K inner updates, the meta-update."""
    config = moorl.Config()
    declared = moorl.experience(config)
    assert declared.num_updates == config.inner_steps == 10
    assert declared.steps_per_iteration == 1


def test_sources_are_drawn_once_per_epoch_with_the_given_probability() -> None:
    config = dataclasses.replace(CONFIG, offline_epochs=0.25)
    state = fresh(config)
    end = jax.jit(jax.vmap(lambda key: moorl.reptile(state, key, config)[0].source))
    assert abs(np.mean(end(jax.random.split(jax.random.key(0), 4_000))) - 0.25) < 0.03
    slow = dataclasses.replace(CONFIG, inner_steps=2, offline_epochs=0.0)
    for step, source in ((0, True), (1, False)):  # an epoch goes on, and ends
        assert update(state, transitions(), jax.random.key(0), step, slow)[0].source == source


@pytest.mark.parametrize("number", [1, 3, 7])
def test_rows_of_one_source_are_taken_as_often_as_there_are_too_few(number: int) -> None:
    offline = np.arange(8) < number
    batch = transitions(offline=offline)
    for source in (True, False):
        rewards = moorl.rows_of_source(batch, jnp.asarray(source)).reward
        expected = batch.reward[np.array(rows_of_source(offline, source))]
        np.testing.assert_array_equal(rewards, expected)


def test_the_meta_policy_acts() -> None:
    state = fresh(CONFIG)
    other = state.replace(actor=jax.tree.map(lambda x: x + 1.0, state.actor))
    observation = transitions().observation
    key = jax.random.key(0)
    one, two = (moorl.act(x, observation, key, CONFIG, explore=False)[0] for x in (state, other))
    np.testing.assert_array_equal(one, two)


@pytest.mark.learn
def test_learns_from_data_and_new_experience_with_defaults(tmp_path: Path) -> None:
    """Far above uniform actions' -13.6 and above the data's mean, -9."""
    data = str(reach.journeys(tmp_path / "reach.npz"))
    settings: dict[str, Any] = {"data": data, "seeds": 2, "eval_every": 1_300, "eval_episodes": 40}
    out = run.train("moorl", f"{reach.__file__}:Reach", 1_300, out=tmp_path / "run", **settings)
    last = [line for line in records.read(out, "evaluations") if line["step"] == 1_300]
    assert min(np.mean(line["returns"]) for line in last) > -6.0
