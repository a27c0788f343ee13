"""GCBC against float64 NumPy written from its loss and the authors' code."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import gcbc
from tests.agents import chain, reference, trees, value_learning
from tests.agents.chain import KEY, SPEC, transitions

CONFIG = gcbc.Config(hidden=(8, 8), batch_size=5, actor_lr=1e-2, activation="relu")


def example() -> Any:
    return SPEC, CONFIG, transitions()


class Reference:
    """Maximum likelihood under a Gaussian of std 1, as in the authors' gcbc.py."""

    parts = {"actor": reference.mlp}  # noqa: RUF012

    def __init__(self, state: gcbc.State, config: gcbc.Config) -> None:
        self.actor, self.adam = reference.mlp(state.actor), reference.Adam(config.actor_lr)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        """L = mean |a - m|^2 / 2 + log(2 pi) A / 2, dm = (m - a) / B."""
        observation = np.asarray(batch.extras["actor_observation"], np.float64)
        action = np.asarray(batch.action, np.float64)
        mean, inputs = reference.forward(self.actor, observation)
        loss = 0.5 * np.square(mean - action).sum(axis=1) + np.log(2.0 * np.pi)
        gradient = reference.backward(self.actor, inputs, (mean - action) / len(action))[0]
        self.actor = self.adam.step(self.actor, gradient)
        return {"actor/loss": loss.mean()}


update = jax.jit(gcbc.update)
act = jax.jit(gcbc.act, static_argnames="explore")


def fresh() -> gcbc.State:
    return reference.state(gcbc, SPEC, CONFIG)


def test_updates_equal_supervised_learning() -> None:
    value_learning.assert_updates_equal(update, fresh(), CONFIG, Reference, batches=transitions)


def test_only_states_actions_and_the_actors_goals_are_read() -> None:
    batch, other = transitions(), transitions(1)
    mixed = other.replace(action=batch.action, extras=batch.extras)
    assert trees.equal(*(update(fresh(), x, KEY, 0, CONFIG) for x in (batch, mixed)))


def test_act_explores_around_the_mean_within_bounds() -> None:
    state, observation = fresh(), transitions(9).observation
    mean = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    value_learning.assert_explores_around(mean, 1.0, act, state, observation, CONFIG)


def test_refuses_more_than_all_goals() -> None:
    shares: Any = {"actor_goal_current": 0.4, "actor_goal_future": 0.7}
    with pytest.raises(ValueError, match=r"--config\.actor-goal-future .* together 1\.1"):
        gcbc.check(SPEC, gcbc.Config(**shares))


@pytest.mark.learn
def test_on_a_chain_actions_lead_to_goals_that_lie_ahead() -> None:
    """A trajectory that goes on in one direction tells where each of its later states lies."""
    changes = {"hidden": (64, 64), "batch_size": 128, "actor_lr": 1e-3}
    chain.assert_leads_to_goals(gcbc, chain.learnt(gcbc, changes, 1_000, steps=chain.LENGTH))
