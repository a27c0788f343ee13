"""RvS against float64 NumPy written from its loss and the authors' code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition, first_memory
from rljax.agents import rvs
from tests.agents import reference, trees

O, A, MOST = 3, 2, 10.0  # noqa: E741
SPEC = EnvSpec("test/Example-v0", (O + A + 1,), A)
CONFIG = rvs.Config(hidden=(8, 8), batch_size=5, actor_lr=1e-2, dropout=0.0)
KEY = jax.random.key(0)


def transitions(seed: int = 0) -> Transition:
    """A batch whose observations show the last action and reward."""
    batch = reference.transitions(seed, observations=O + A + 1, actions=A)
    extras = {
        "return_to_go": jnp.asarray(np.random.default_rng(seed).normal(size=5), jnp.float32),
        "has_return_to_go": jnp.ones(5, bool),
        "time": jnp.arange(5, dtype=jnp.int32),
    }
    return batch.replace(extras=extras)


def example() -> Any:
    return SPEC, dataclasses.replace(CONFIG, dropout=0.1, target_return=1.0), transitions()


class Reference:
    """Maximum likelihood with one std for all states, which is learnt."""

    def __init__(self, state: rvs.State, config: rvs.Config) -> None:
        self.config = config
        self.actor, self.adam = reference.actor(state.actor), reference.Adam(config.actor_lr)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        w = np.asarray(batch.extras["return_to_go"], np.float64)
        if self.config.outcome == "average":
            w = w / (MOST - np.asarray(batch.extras["time"]))
        observation = np.asarray(batch.observation, np.float64)[:, :O]
        inputs, settings = np.concatenate([observation, w[:, None]], axis=1), Bounds(self.config)
        action = np.asarray(batch.action, np.float64)
        distance, gradient = reference.imitation(
            self.actor, inputs, action, 1.0, settings, key, squashed=False
        )
        log_std = self.actor[1].mean()
        self.actor = self.adam.step(self.actor, gradient)
        return {"actor/loss": distance.mean(), "actor/log_std": log_std}


class Bounds:
    """The settings that `reference.imitation` reads: log std is not bounded."""

    log_std_min, log_std_max = -np.inf, np.inf

    def __init__(self, config: rvs.Config) -> None:
        self.dropout = config.dropout or None


update = jax.jit(rvs.update)
act = jax.jit(rvs.act, static_argnames="explore")


def fresh(config: rvs.Config = CONFIG) -> rvs.State:
    made = reference.state(rvs, SPEC, config)
    return made.replace(best_return=jnp.asarray(4.0), most_steps=jnp.asarray(MOST))


@pytest.mark.parametrize("changes", [{}, {"outcome": "sum"}, {"dropout": 0.4}], ids=str)
def test_updates_equal_supervised_learning(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.actor(state.actor), expected.actor, "actor")


@pytest.mark.parametrize("outcome", ["average", "sum"])
@pytest.mark.parametrize("target", [None, 2.5])
def test_acts_by_the_target(outcome: Any, target: float | None) -> None:
    """An average stays as it is; a sum loses the rewards of the episode."""
    config = dataclasses.replace(CONFIG, outcome=outcome, target_return=target)
    state, generator = fresh(), np.random.default_rng(0)
    actor, memory = reference.actor(state.actor), first_memory(rvs, SPEC, config, 2)
    left = np.full(2, 4.0 if target is None else target)
    for step in range(3):
        observation = generator.normal(size=(2, O + A + 1))
        left = left - (observation[:, -1] if step else 0.0)
        w = left if outcome == "sum" else np.full(2, (4.0 if target is None else target) / MOST)
        inputs = np.concatenate([observation[:, :O], w[:, None]], axis=1)
        expected = np.clip(reference.forward(actor[0], inputs)[0], -1.0, 1.0)
        shown = jnp.asarray(observation, jnp.float32)
        action, _, memory = act(state, shown, KEY, config, False, memory)
        np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)


def test_the_data_tell_the_target_and_the_most_steps() -> None:
    extras = {"return_to_go": jnp.asarray([3.0, 9.0, 5.0]), "time": jnp.asarray([0, 1, 0])}
    data = jax.tree.map(lambda x: x[:3], transitions()).replace(extras=extras)
    state = rvs.prepare(fresh(), data, CONFIG)
    assert (state.best_return, state.most_steps) == (5.0, 2.0)


def test_only_states_actions_and_returns_are_read() -> None:
    batch, other = transitions(), transitions(1)
    observation = batch.observation.at[:, O:].set(7.0)
    mixed = other.replace(observation=observation, action=batch.action, extras=batch.extras)
    assert trees.equal(*(update(fresh(), x, KEY, 0, CONFIG) for x in (batch, mixed)))
