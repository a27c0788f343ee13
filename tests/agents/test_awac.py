"""AWAC against float64 NumPy written from the paper and CORL's file.

scripts/updates/offline/compare_awac.py compares it with CORL's file.
"""

from __future__ import annotations

import dataclasses
import types
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import awac
from tests.agents import reference, trees

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = awac.Config(
    hidden=(7, 6), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, target_rate=0.1, temperature=0.4
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {"temperature": 0.1}
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "the authors'": {"normalise_weights": True, "mean_action": True, "max_weight": 1.1},
    "bounds, two actions": {"num_actions": 2, "max_weight": 1.05, "log_std_max": 0.0},
}

update = jax.jit(awac.update)


def example() -> tuple[EnvSpec, awac.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


def fresh(config: awac.Config) -> awac.State:
    return reference.state(awac, SPEC, config)


class Reference:
    """Algorithm 1 of arXiv:2006.09359 in the order of CORL's file."""

    def __init__(self, state: Any, config: Any) -> None:
        self.config = config
        self.actor = reference.actor(state.actor)
        self.critic = reference.critics(state.critic)
        self.target_critic = reference.critics(state.target_critic)
        self.actor_adam = reference.Adam(config.actor_lr)
        self.critic_adam = reference.Adam(config.critic_lr)

    def sampled(self, observation: np.ndarray, key: jax.Array) -> np.ndarray:
        mean = reference.forward(self.actor[0], observation)[0]
        log_std = np.clip(self.actor[1], self.config.log_std_min, self.config.log_std_max)
        return np.clip(mean + np.exp(log_std) * reference.noise(key, mean.shape), -1.0, 1.0)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, observation = self.config, np.asarray(batch.observation)
        action, successor = np.asarray(batch.action), np.asarray(batch.next_observation)
        key_critic, key_actor = jax.random.split(key)
        following = self.sampled(successor, key_critic)
        alive = config.discount * (1.0 - np.asarray(batch.terminated))
        next_q = reference.smallest(self.target_critic, successor, following)[0]
        y = np.asarray(batch.reward) + alive * next_q
        loss, q, gradients = reference.squared_errors(self.critic, observation, action, y)
        self.critic = self.critic_adam.step(self.critic, gradients)
        values = []
        for each in jax.random.split(key_actor, config.num_actions):
            own = self.sampled(observation, each)
            if config.mean_action:
                own = np.clip(reference.forward(self.actor[0], observation)[0], -1.0, 1.0)
            values.append(reference.smallest(self.critic, observation, own)[0])
        advantage = reference.smallest(self.critic, observation, action)[0] - np.mean(
            values, axis=0
        )
        weight = np.minimum(np.exp(advantage / config.temperature), config.max_weight)
        if config.normalise_weights:
            weight = weight / weight.mean()
        settings: Any = types.SimpleNamespace(
            dropout=None, log_std_min=config.log_std_min, log_std_max=config.log_std_max
        )
        distance, gradient = reference.imitation(
            self.actor, observation, action, weight, settings, key, squashed=False
        )
        self.actor = self.actor_adam.step(self.actor, gradient)
        rate = config.target_rate
        self.target_critic = reference.towards(self.critic, self.target_critic, rate)
        return {
            "critic/loss": loss,
            "critic/q": q.mean(),
            "critic/target": y.mean(),
            "actor/loss": (weight * distance).mean(),
            "actor/advantage": advantage.mean(),
            "actor/weight": weight.mean(),
        }


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_paper(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference)


def test_the_cases_bound_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **CASES["bounds, two actions"])
    state, batch = fresh(config), reference.transitions()
    assert 0.0 < (np.asarray(state.actor.parameters.log_std) > config.log_std_max).mean() < 1.0
    advantage = np.asarray(awac.advantages(state, batch, KEY, config))
    assert 0.0 < (np.exp(advantage / config.temperature) > config.max_weight).mean() < 1.0


def test_discrete_actions_are_drawn_from_the_policy() -> None:
    spec = EnvSpec("test/Discrete-v0", (3,), 4, discrete=True)
    state, batch = reference.state(awac, spec, CONFIG), reference.choices(4)
    values = state.critic(batch.observation).min(axis=0)  # [B, A]
    logits = state.actor.parameters.mean(batch.observation)
    expected = (jax.nn.softmax(logits) * values).sum(axis=-1)
    many = dataclasses.replace(CONFIG, num_actions=4_000)
    taken = jnp.take_along_axis(values, batch.action[:, None], axis=1)[:, 0]
    advantage = awac.advantages(state, batch, KEY, many)
    np.testing.assert_allclose(advantage, taken - expected, atol=0.05)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_classes_of_values_learn_finite_numbers() -> None:
    config = dataclasses.replace(CONFIG, value_head="hl_gauss", v_min=-5.0, v_max=5.0)
    state, metrics = update(awac.init(KEY, SPEC, config), reference.transitions(), KEY, 0, config)
    assert all(np.isfinite(x) for x in metrics.values())
    assert trees.all_differ(
        state.critic.parameters.params, awac.init(KEY, SPEC, config).critic.parameters.params
    )
