"""GCIVL against float64 NumPy written from the authors' code."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import gcivl
from tests.agents import chain, reference, trees, value_learning
from tests.agents.chain import KEY, SPEC, transitions

SIZES: Any = {"hidden": (8, 8), "batch_size": 5, "target_rate": 0.1}
RATES: Any = {"actor_lr": 1e-2, "value_lr": 3e-2}
CONFIG = gcivl.Config(**SIZES, **RATES, activation="relu", layer_norm=False)
TARGETS_LAG = True  # they follow the networks from before a step


def example() -> Any:
    return SPEC, CONFIG, transitions()


class Reference:
    """Every loss is of the networks before the update, as in the authors' gcivl.py."""

    parts = {  # noqa: RUF012
        "actor": reference.mlp,
        "value": reference.critics,
        "target_value": reference.critics,
    }

    def __init__(self, state: gcivl.State, config: gcivl.Config) -> None:
        self.config, self.actor = config, reference.mlp(state.actor)
        self.value, self.target_value = map(reference.critics, (state.value, state.target_value))
        self.actor_adam = reference.Adam(config.actor_lr)
        self.value_adam = reference.Adam(config.value_lr)

    def values(self, networks: Any, observation: np.ndarray) -> np.ndarray:
        """[C, B]."""
        return np.stack([reference.forward(x, observation)[0][:, 0] for x in networks])

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        observation, action, successor, reward, alive = value_learning.arrays(batch)
        y = reward + config.discount * alive * self.values(self.target_value, successor)
        u = y.min(axis=0) - self.values(self.target_value, observation).mean(axis=0)
        weight = np.where(u >= 0.0, config.expectile, 1.0 - config.expectile)
        loss, gradients, v = 0.0, [], []
        for network, target in zip(self.value, y, strict=True):
            out, inputs = reference.forward(network, observation)
            error = target - out[:, 0]
            loss += (weight * error**2).mean()
            change = -2.0 * (weight * error)[:, None] / len(error)
            gradients.append(reference.backward(network, inputs, change)[0])
            v.append(out[:, 0])
        metrics = {"value/loss": loss, "value/v": np.mean(v), "value/target": y.mean()}
        metrics |= self.improve(batch, action, successor)
        rate = config.target_rate
        self.target_value = reference.towards(self.value, self.target_value, rate)
        self.value = self.value_adam.step(self.value, gradients)
        return metrics

    def improve(
        self, batch: Transition, action: np.ndarray, successor: np.ndarray
    ) -> dict[str, float]:
        """L = mean w (|a - m|^2 / 2 + log(2 pi) A / 2), dm = w (m - a) / B."""
        config, size = self.config, len(action)
        here = np.asarray(batch.extras["actor_observation"], np.float64)
        there = np.concatenate([successor[:, :3], here[:, 3:]], axis=1)
        advantage = self.values(self.value, there) - self.values(self.value, here)
        advantage = advantage.mean(axis=0)
        weight = np.minimum(np.exp(config.inverse_temperature * advantage), config.max_weight)
        mean, inputs = reference.forward(self.actor, here)
        distance = 0.5 * np.square(mean - action).sum(axis=1) + np.log(2.0 * np.pi)
        change = weight[:, None] * (mean - action) / size
        gradient = reference.backward(self.actor, inputs, change)[0]
        self.actor = self.actor_adam.step(self.actor, gradient)
        return {
            "actor/loss": (weight * distance).mean(),
            "actor/advantage": advantage.mean(),
            "actor/weight": weight.mean(),
        }


CASES = {
    "default": {},
    "another expectile": {"expectile": 0.4, "inverse_temperature": 1.0},
    "bounded weights": {"max_weight": 1.05},
    "three values": {"num_values": 3},
}

update = jax.jit(gcivl.update)
act = jax.jit(gcivl.act, static_argnames="explore")


def fresh(config: gcivl.Config) -> gcivl.State:
    return reference.state(gcivl, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_authors(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    value_learning.assert_updates_equal(
        update, fresh(config), config, Reference, batches=transitions
    )


def test_only_the_actor_sees_its_own_goals() -> None:
    state, batch = fresh(CONFIG), transitions()
    other = batch.replace(extras={"actor_observation": batch.observation})
    one, two = (update(state, x, KEY, 0, CONFIG)[0] for x in (batch, other))
    assert trees.equal(one.value, two.value)
    assert not trees.equal(one.actor, two.actor)


def test_begins_as_the_authors_do() -> None:
    config = gcivl.Config(hidden=(16, 16))
    state = jax.jit(gcivl.init, static_argnums=1)(KEY, SPEC, config)
    limit = np.sqrt(6.0 / (16 + 2))
    actor, value = (x.parameters.params for x in (state.actor, state.value))
    kernel = np.asarray(actor["output"]["kernel"])
    # A tenth of the others: a hundredth of their variance.
    assert 0.05 * limit < np.abs(kernel).max() <= 0.1 * limit
    assert "norm_0" not in actor
    assert value["members"]["norm_0"]["scale"].shape == (2, 16)


def test_act_explores_around_the_mean_within_bounds() -> None:
    state, observation = fresh(CONFIG), transitions(9).observation
    mean = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    value_learning.assert_explores_around(mean, 1.0, act, state, observation, CONFIG)


@pytest.mark.learn
def test_on_a_chain_values_are_the_tables_and_actions_lead_to_the_goal() -> None:
    state = chain.learnt(gcivl, chain.SETTINGS | {"num_values": 1}, 3_000)
    chain.assert_values(state.value(chain.PAIRS)[0])
    chain.assert_leads_to_goals(gcivl, state)
