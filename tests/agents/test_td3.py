"""TD3 against float64 NumPy written from the paper."""

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
from rljax.agents import td3
from tests.agents import actor_critic, distributional, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = td3.Config(hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, target_rate=0.1)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {}


def example() -> tuple[EnvSpec, td3.Config, Transition]:
    return SPEC, CONFIG, reference.transitions()


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "noise that clips": {"target_noise": 0.8, "target_noise_clip": 0.3},
    "scaled rewards": {"reward_scale": 7.0, "discount": 0.5},
    "no delay, three critics": {"policy_delay": 1, "num_critics": 3},
}

update = jax.jit(td3.update)
act = jax.jit(td3.act, static_argnames="explore")
fresh = functools.partial(reference.state, td3, SPEC)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, actor_critic.TD3)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("value_head", ["c51", "quantile"])
def test_updates_with_distributions_equal_the_papers(value_head: Any) -> None:
    config = dataclasses.replace(CONFIG, value_head=value_head, bins=31, quantiles=7)
    reference.assert_updates(update, fresh(config), config, distributional.TD3)


def test_the_cases_clip_some_and_not_all() -> None:
    noise = np.asarray(jax.random.normal(KEY, (5, 2)))
    assert 0.0 < (np.abs(0.8 * noise) > 0.3).mean() < 1.0


def test_losses_by_hand() -> None:
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0, target_noise=0.0)
    state = fresh(CONFIG).replace(
        target_actor=lambda observation: jnp.arctanh(jnp.array([[0.5, -0.5], [0.1, 0.9]])),
        target_critic=lambda observation, action: jnp.stack(
            [4.0 + 2.0 * action.sum(-1), 3.0 - 2.0 * action[:, 0]]
        ),
    )
    critic: Any = lambda observation, action: jnp.array([[10.0, 20.0], [12.0, 23.0]])  # noqa: E731
    loss, metrics = td3.critic_loss(critic, state, reference.two_rows(), KEY, config)
    # y = (10 + 0.5 min(4 + 2 (0.5 - 0.5), 3 - 2 0.5), 20) = (11, 20);
    # errors (-1, 0) and (1, 3);  1/2 + (1 + 9)/2
    values = [loss, metrics["critic/target"], metrics["critic/q"]]
    np.testing.assert_allclose(values, [5.5, 15.5, 16.25], rtol=1e-6)


def test_returns_of_several_steps_have_their_own_discounts() -> None:
    """D4PG's target: the sum of n rewards, and gamma^n of the value after them."""
    state, batch = fresh(CONFIG), reference.transitions()
    config = dataclasses.replace(CONFIG, target_noise=0.0, n_step=3)
    assert td3.experience(config).draw == buffers.NStep(steps=3, discount=config.discount)
    discounts = np.array([0.99, 0.99**2, 0.99**3, 0.99**3, 0.99], np.float32)
    several = batch.replace(extras={"discount": discounts})
    metrics = td3.critic_loss(state.critic.parameters, state, several, KEY, config)[1]
    following = np.asarray(batch.next_observation)
    action = np.tanh(reference.forward(reference.mlp(state.target_actor), following)[0])
    next_q = reference.smallest(reference.critics(state.target_critic), following, action)[0]
    target = batch.reward + discounts * (1.0 - batch.terminated) * next_q
    np.testing.assert_allclose(metrics["critic/target"], target.mean(), rtol=1e-5)


def test_optimistic_critics_lose_the_gain() -> None:
    """MEX's loss is TD3's without eta times the gain of each critic, which leads to its actions."""
    state, batch = fresh(CONFIG), reference.transitions()
    losses = {}
    for eta in (None, 0.0, 0.5):
        config = dataclasses.replace(CONFIG, optimism=eta)
        losses[eta] = td3.critic_loss(state.critic.parameters, state, batch, KEY, config)
    np.testing.assert_allclose(losses[None][0], losses[0.0][0], rtol=1e-6)
    gain = losses[0.5][1]["critic/optimism"]  # the mean of two critics
    np.testing.assert_allclose(losses[0.5][0], losses[None][0] - 0.5 * 2.0 * gain, rtol=1e-5)
    critics = reference.critics(state.critic)
    key = jax.random.fold_in(KEY, 2)
    actions = [
        np.tanh(reference.forward(reference.mlp(state.actor), x)[0])
        for x in map(np.asarray, (batch.observation, batch.next_observation))
    ]
    actions += [np.asarray(jax.random.uniform(key, (5, 2), minval=-1.0, maxval=1.0))]
    expected = []
    for critic in critics:
        of = [reference.value(critic, np.asarray(batch.observation), x)[0] for x in actions]
        data = reference.value(critic, np.asarray(batch.observation), np.asarray(batch.action))[0]
        others = np.exp(np.stack([data, of[1], of[2]])).sum(axis=0)
        expected.append((of[0] - np.log(others)).mean())
    np.testing.assert_allclose(gain, np.mean(expected), rtol=1e-4)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_critic_loss_teaches_the_critic_alone() -> None:
    batch = reference.transitions()
    reference.assert_teaches_the_critic_alone(
        lambda critic, state: td3.critic_loss(critic, state, batch, KEY, CONFIG)[0], fresh(CONFIG)
    )


def test_actor_and_all_targets_rest_between_their_moves() -> None:
    delayed = ("actor", "target_actor", "target_critic")
    reference.assert_delayed(update, fresh(CONFIG), CONFIG, delayed)


@pytest.mark.parametrize(("member", "matters"), [(0, True), (1, False)])
def test_actor_follows_the_first_critic_alone(member: int, matters: bool) -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    lower = jax.tree.map(lambda x: np.asarray(x).copy(), state.critic)
    lower.parameters.params["members"]["output"]["bias"][member] -= 100.0
    states = (state, state.replace(critic=lower))
    before, after = (td3.actor_loss(state.actor.parameters, x, batch, CONFIG)[0] for x in states)
    assert (before != after) == matters


@pytest.mark.parametrize("centre", [0.0, 0.8, -0.9])
def test_smoothing_is_clipped_and_so_are_actions(centre: float) -> None:
    config = dataclasses.replace(CONFIG, target_noise=1e3, target_noise_clip=0.4, discount=1.0)
    batch = reference.transitions().replace(reward=np.zeros(5), terminated=np.zeros(5, bool))
    noise = np.asarray(jax.random.normal(KEY, (5, 2)))  # a thousandfold: each lands on its bound
    state = fresh(CONFIG).replace(
        target_actor=lambda observation: jnp.full((5, 2), np.arctanh(centre)),
        target_critic=lambda observation, action: action.sum(axis=-1)[None],
    )
    critic: Any = lambda observation, action: jnp.zeros((1, 5))  # noqa: E731
    metrics = td3.critic_loss(critic, state, batch, KEY, config)[1]
    expected = np.clip(centre + 0.4 * np.sign(noise), -1.0, 1.0).sum(axis=-1).mean()
    np.testing.assert_allclose(metrics["critic/target"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("explore", "scale"), [(False, 0.1), (True, 0.1), (True, 5.0)])
def test_act_adds_noise_within_bounds(explore: bool, scale: float) -> None:
    config = dataclasses.replace(CONFIG, exploration_noise=scale)
    others = actor_critic.assert_acts_with_noise(act, fresh(config), config, explore)
    assert others == ({}, None)
