"""Agents whose critics' mean minus deviations is the value: the targets of each, in NumPy."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agents import fql, gciql, ifql, rebrac
from tests.agents import test_fql, test_gciql, test_ifql, test_rebrac

KEY = jax.random.key(3)
RHO = 0.5
AGENTS: dict[str, tuple[Any, Any]] = {
    "fql": (fql, test_fql),
    "ifql": (ifql, test_ifql),
    "rebrac": (rebrac, test_rebrac),
    "gciql": (gciql, test_gciql),
}


def bound(values: Any) -> np.ndarray:
    """agents/*.py of arXiv:2601.14234's code: mean - rho std."""
    values = np.asarray(values, np.float64)
    return values.mean(axis=0) - RHO * values.std(axis=0)


def begun(name: str, critics: int) -> tuple[Any, Any, Any, Any]:
    agent, tests = AGENTS[name]
    spec, config, batch = tests.example()
    config = dataclasses.replace(config, num_critics=critics, pessimism=RHO)
    return agent, agent.init(jax.random.key(0), spec, config), config, batch


def test_target_of_fql() -> None:
    agent, state, config, batch = begun("fql", 5)
    noise = jax.random.normal(KEY, batch.action.shape)
    action = agent.policy(state.actor.parameters, batch.next_observation, noise)
    next_q = bound(state.target_critic(batch.next_observation, action))
    target = batch.reward + config.discount * (1 - np.asarray(batch.terminated)) * next_q
    metrics = agent.critic_loss(state.critic.parameters, state, batch, KEY, config)[1]
    np.testing.assert_allclose(metrics["critic/target"], target.mean(), rtol=1e-4)


def test_target_and_value_of_rebrac() -> None:
    agent, state, config, batch = begun("rebrac", 5)
    config = dataclasses.replace(config, critic_penalty=0.0, target_noise=0.0)
    action = agent.policy(state.target_actor, batch.next_observation)
    next_q = bound(state.target_critic(batch.next_observation, action))
    target = batch.reward + config.discount * (1 - np.asarray(batch.terminated)) * next_q
    metrics = agent.critic_loss(state.critic.parameters, state, batch, KEY, config)[1]
    np.testing.assert_allclose(metrics["critic/target"], target.mean(), rtol=1e-4)
    q = bound(state.critic(batch.observation, agent.policy(state.actor, batch.observation)))
    metrics = agent.actor_loss(state.actor.parameters, state, batch, 0, config)[1]
    np.testing.assert_allclose(metrics["actor/value_scale"], 1 / np.abs(q).mean(), rtol=1e-4)


@pytest.mark.parametrize("name", ["ifql", "gciql"])
def test_expectile_of_the_bound(name: str) -> None:
    agent, state, config, batch = begun(name, 5)
    q = bound(state.target_critic(batch.observation, batch.action))
    v = np.asarray(state.value(batch.observation))[:, 0]
    weight = np.where(q < v, 1 - config.expectile, config.expectile)
    metrics = jax.jit(agent.update)(state, batch, KEY, 0, config)[1]
    np.testing.assert_allclose(metrics["value/loss"], (weight * (q - v) ** 2).mean(), rtol=1e-4)
