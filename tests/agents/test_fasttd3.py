"""FastTD3 against float64 NumPy written from its authors' code."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import fasttd3
from rljax.networks import noise
from tests.agents import distributional, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = fasttd3.Config(
    hidden=(8, 8),
    critic_hidden=(8, 7),
    batch_size=5,
    bins=11,
    v_min=-1.5,
    v_max=1.5,
    num_envs=4,
    actor_lr=1e-2,
    critic_lr=2e-2,
    target_noise=0.2,
)
SMALL: dict[str, Any] = {
    "hidden": (8,),
    "critic_hidden": (8,),
    "embedding_size": 8,
    "num_envs": 4,
    "bins": 11,
}
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "critic_hidden": (64, 64),
    "v_min": -12.0,
    "v_max": 12.0,
    "num_envs": 1,
    "num_updates": 1,
    "warmup_steps": 256,
    "noise_min": 0.2,
    "normalise_observations": False,
}


def example() -> tuple[EnvSpec, fasttd3.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


class FastTD3(distributional.ForManyEnvironments):
    """fast_td3/train.py: update_main, update_pol and soft_update."""

    def next_target(self, batch: Transition, action: np.ndarray, penalty: Any) -> Any:
        """Both projections; the one with the smaller mean for both, or each critic its own."""
        step = self.step(batch, penalty)
        own, metrics = self.head.target(self.next_outputs(batch, action), "own", *step)
        if self.config.target_value == "own":
            return own, metrics
        least = (own @ self.head.support).argmin(axis=0)
        target = own[least, np.arange(own.shape[1])]
        return target, metrics | {"critic/target": (target @ self.head.support).mean()}

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        limit, drawn = self.config.target_noise_clip, reference.noise(key, batch.action.shape)
        output = reference.forward(self.actor, batch.next_observation)[0]
        smoothing = np.clip(self.config.target_noise * drawn, -limit, limit)
        action = np.clip(np.tanh(output) + smoothing, -1.0, 1.0)
        metrics = self.teach_critics(batch, self.next_target(batch, action, 0.0))
        self.follow("critic")
        if self.is_due(step):
            output, inputs = reference.forward(self.actor, batch.observation)
            action = np.tanh(output)
            q, slope = self.judged(self.critic, batch.observation, action)
            change = -(1.0 - action**2) * slope / len(action)
            self.move("actor", reference.backward(self.actor, inputs, change)[0])
            metrics["actor/loss"] = -q.mean()
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "each critic its own, noise that clips": {
        "target_value": "own",
        "target_noise": 0.8,
        "target_noise_clip": 0.3,
        "reward_scale": 2.0,
    },
}

update = jax.jit(fasttd3.update)
act = jax.jit(fasttd3.act, static_argnames="explore")
fresh = functools.partial(reference.state, fasttd3, SPEC)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, FastTD3)


def test_noise_has_one_std_for_each_episode() -> None:
    """From 0.2 to 0.6: drawn where an episode begins, and the same until the next one begins."""
    config = dataclasses.replace(CONFIG, noise_min=0.2, noise_max=0.6)
    state, number = fresh(CONFIG), 4_000
    observation = jnp.broadcast_to(jnp.array([0.1, -0.2, 0.05]), (number, 3))
    start = jax.tree.map(lambda x: jnp.broadcast_to(x, (number,)), fasttd3.remember(SPEC, config))
    action, _, memory = act(state, observation, KEY, config, True, start)
    scale = np.asarray(memory.scale)
    assert 0.2 <= scale.min() < 0.21
    assert 0.59 < scale.max() <= 0.6
    mean = act(state, observation, KEY, config, False)[0]
    assert np.abs(mean).max() < 0.5
    halves = [np.asarray(action - mean)[x] for x in (scale < 0.4, scale >= 0.4)]
    narrow, wide = (x[np.abs(x).max(axis=1) < 0.49].std() for x in halves)
    assert narrow < wide
    _, _, later = act(state, observation, jax.random.key(1), config, True, memory)
    np.testing.assert_array_equal(later.scale, scale)
    drawn, _ = noise.scaled(KEY, (number, 2), 0.2, 0.6, memory)
    np.testing.assert_allclose(np.std(drawn / scale[:, None]), 1.0, atol=0.03)


def test_it_acts_from_the_first_step_and_draws_as_many_rows_of_each_environment() -> None:
    declared = fasttd3.experience(CONFIG)
    assert declared.random_steps == 0
    assert declared.by_environment
    several = dataclasses.replace(CONFIG, n_step=3)
    assert fasttd3.experience(several).draw == buffers.NStep(steps=3, discount=CONFIG.discount)
