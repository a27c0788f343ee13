"""FastSAC against float64 NumPy written from its authors' code.

scripts/updates/compare_fastsac.py compares it, norms and all, with that code.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import fastsac
from tests.agents import actor_critic, distributional, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = fastsac.Config(
    hidden=(8, 8),
    critic_hidden=(8, 7),
    batch_size=5,
    bins=11,
    v_min=-1.5,
    v_max=1.5,
    num_envs=4,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    init_temperature=0.2,
    policy_delay=2,
    activation="relu",
    layer_norm=False,
)
PROBE: dict[str, Any] = {
    "critic_hidden": (64, 64),
    "v_min": -12.0,
    "v_max": 12.0,
    "num_envs": 1,
    "num_updates": 1,
    "warmup_steps": 256,
    "policy_delay": 1,
    "init_temperature": 1e-3,
    "learn_temperature": False,
    "normalise_observations": False,
}


def example() -> tuple[EnvSpec, fastsac.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class FastSAC(distributional.ForManyEnvironments, actor_critic.SAC):
    """agents/fast_sac/fast_sac_agent.py: _update_main, _update_pol and the targets' step."""

    def __init__(self, state: Any, config: Any) -> None:
        super().__init__(state, config)
        for adam in self.adams.values():
            adam.decay = 0.95

    def heads(self, actor: Any, observation: np.ndarray) -> tuple[Any, ...]:
        """The log std is between its limits by a tanh, whose slope comes last."""
        output, inputs = reference.forward(actor, observation)
        mean, raw = np.split(output, 2, axis=-1)
        half = 0.5 * (self.config.log_std_max - self.config.log_std_min)
        log_std = self.config.log_std_min + half * (1.0 + np.tanh(raw))
        return mean, log_std, inputs, half * (1.0 - np.tanh(raw) ** 2)

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        key_critic, key_actor = jax.random.split(key)
        action, log_prob = self.next_sample(batch, key_critic)
        target = self.next_target(batch, action, self.temperature * log_prob)
        metrics = self.teach_critics(batch, target)
        before = self.log_temperature
        metrics |= self.cool(-log_prob.mean(), action.shape[1])
        metrics["actor/next_entropy"] = metrics.pop("actor/entropy")
        if self.config.temperature_decay is not None:
            self.log_temperature -= self.config.temperature_lr * 0.01 * before
        if self.is_due(step):
            noise = reference.noise(key_actor, batch.action.shape)
            action, log_prob = self.sample(self.actor, batch.observation, noise)
            q, slope = self.judged(self.critic, batch.observation, action)
            metrics["actor/loss"] = (self.temperature * log_prob - q).mean()
            metrics["actor/entropy"] = -log_prob.mean()
            self.climb(batch, noise, slope)
        self.follow("critic")
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "the smaller critic, a target entropy": {
        "target_value": "smallest",
        "target_entropy_share": 0.5,
        "temperature_decay": None,
        "reward_scale": 2.0,
    },
}

update = jax.jit(fastsac.update)
fresh = functools.partial(reference.state, fastsac, SPEC)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, FastSAC)


def test_its_first_actions_are_small_and_its_networks_are_normalised() -> None:
    """Their last layers begin at 0, so that log std is the middle of its limits, -2.5."""
    config = dataclasses.replace(CONFIG, activation="silu", layer_norm=True)
    state = fastsac.init(jax.random.key(0), SPEC, config)
    assert {"norm_0", "norm_1"} < set(state.actor.parameters.params)
    assert {"norm_0", "norm_1"} < set(state.critic.parameters.params["members"])
    observation = jnp.ones((4_000, 3))
    action, _ = fastsac.act(state, observation, jax.random.key(1), config, True)
    assert np.std(np.arctanh(action)) == pytest.approx(np.exp(-2.5), rel=0.03)
    greedy, _ = fastsac.act(state, observation, jax.random.key(1), config, False)
    assert not greedy.any()


def test_it_acts_from_the_first_step_and_draws_as_many_rows_of_each_environment() -> None:
    declared = fastsac.experience(CONFIG)
    assert declared.random_steps == 0
    assert declared.by_environment


def test_second_moments_decay_as_set() -> None:
    """One step, after gradients 1 and 3, of AdamW without decay: by hand."""
    assert CONFIG.weight_decay == 1e-3
    settings = dataclasses.replace(CONFIG, weight_decay=None)
    optimiser = fastsac.optimiser(0.1, 0, settings)
    state = optimiser.init(jnp.zeros(()))
    _, state = optimiser.update(jnp.ones(()), state)
    step, _ = optimiser.update(3.0 * jnp.ones(()), state)
    first = (0.9 * 0.1 + 0.1 * 3.0) / (1.0 - 0.9**2)
    second = (0.95 * 0.05 + 0.05 * 9.0) / (1.0 - 0.95**2)
    assert float(step) == pytest.approx(-0.1 * first / np.sqrt(second), rel=1e-5)
