"""TD3 against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition, Weighted
from rljax.agents import td3
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = td3.Config(hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, target_rate=0.1)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {}


def example() -> tuple[EnvSpec, td3.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """Twin delayed deterministic policy gradient in float64,
    from algorithm 1 of arXiv:1802.09477.
    """

    def __init__(self, state: td3.State, config: td3.Config) -> None:
        self.config = config
        self.actor, self.target_actor = (
            reference.mlp(state.actor),
            reference.mlp(state.target_actor),
        )
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.actor_adam, self.critic_adam = (
            reference.Adam(config.actor_lr),
            reference.Adam(config.critic_lr),
        )

    def target(self, batch: Transition, noise: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """y [B] and the smoothed actions [B, A] that it looks at."""
        config = self.config
        next_observation = np.asarray(batch.next_observation, np.float64)
        limit = config.target_noise_clip
        smoothing = np.clip(config.target_noise * noise, -limit, limit)
        action = np.clip(
            np.tanh(reference.forward(self.target_actor, next_observation)[0]) + smoothing,
            -1.0,
            1.0,
        )
        next_q = reference.smallest(self.targets, next_observation, action)[0]
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        return config.reward_scale * np.asarray(
            batch.reward, np.float64
        ) + config.discount * alive * next_q, action

    def update(self, batch: Transition, noise: np.ndarray, step: int) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        observation = np.asarray(batch.observation, np.float64)
        y, _ = self.target(batch, noise)
        action = np.asarray(batch.action, np.float64)
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.critics = self.critic_adam.step(self.critics, gradient)
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        if (step + 1) % self.config.policy_delay == 0:
            # The deterministic policy gradient through the first critic:
            # d(-mean q)/du = -(1 - tanh(u)^2) dq/da / B.
            output, inputs = reference.forward(self.actor, observation)
            action = np.tanh(output)
            q, slope = reference.value(self.critics[0], observation, action)
            change = -(1.0 - action**2) * slope / len(action)
            self.actor = self.actor_adam.step(
                self.actor, reference.backward(self.actor, inputs, change)[0]
            )
            self.target_actor = reference.towards(
                self.actor, self.target_actor, self.config.target_rate
            )
            self.targets = reference.towards(self.critics, self.targets, self.config.target_rate)
            metrics["actor/loss"] = -q.mean()
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "noise that clips": {"target_noise": 0.8, "target_noise_clip": 0.3},
    "scaled rewards": {"reward_scale": 7.0, "discount": 0.5},
    "no delay, three critics": {"policy_delay": 1, "num_critics": 3},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(td3.update)
actor_loss = jax.jit(td3.actor_loss)
act = jax.jit(td3.act, static_argnames="explore")


def fresh(config: td3.Config) -> td3.State:
    """A State to start from."""
    return reference.state(td3, SPEC, config)


@jax.jit
def critic_loss(state: td3.State, batch: Transition, config: td3.Config) -> tuple[Any, Any]:
    """The loss with its metrics, and its gradients in whatever it reads."""

    def loss(critic: Any, actor: Any, target_actor: Any, target_critic: Any) -> Any:
        whole = state.replace(actor=actor, target_actor=target_actor, target_critic=target_critic)
        return td3.critic_loss(critic, whole, batch, KEY, config)

    learnt = (state.critic.parameters, state.actor.parameters)
    parts = (*learnt, state.target_actor, state.target_critic)
    return jax.value_and_grad(loss, argnums=(0, 1, 2, 3), has_aux=True)(*parts)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        noise = np.asarray(jax.random.normal(key, batch.action.shape), np.float64)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, noise, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(reference.mlp(state.target_actor), expected.target_actor, "target_actor")


def test_the_cases_clip_some_and_not_all() -> None:
    noise = np.asarray(jax.random.normal(jax.random.key(0), (5, 2)))
    assert 0.0 < (np.abs(0.8 * noise) > 0.3).mean() < 1.0


def test_losses_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(
        reward=np.asarray([1.0, 2.0], np.float32), terminated=np.array([False, True])
    )
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0, target_noise=0.0)
    state = fresh(CONFIG).replace(
        target_actor=lambda observation: jnp.arctanh(jnp.array([[0.5, -0.5], [0.1, 0.9]])),
        target_critic=lambda observation, action: jnp.stack(
            [4.0 + 2.0 * action.sum(-1), 3.0 - 2.0 * action[:, 0]]
        ),
    )
    critic: Any = lambda observation, action: jnp.array([[10.0, 20.0], [12.0, 23.0]])  # noqa: E731
    loss, metrics = jax.jit(lambda key: td3.critic_loss(critic, state, batch, key, config))(KEY)
    # y = (10 + 0.5 min(4 + 2 (0.5 - 0.5), 3 - 2 0.5), 20) = (11, 20);
    # errors (-1, 0) and (1, 3);  1/2 + (1 + 9)/2
    expected = [5.5, 15.5, 16.25]
    np.testing.assert_allclose(
        [loss, metrics["critic/target"], metrics["critic/q"]], expected, rtol=1e-6
    )


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return critic_loss(state, batch.replace(**flags), CONFIG)[0][1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_reward_scale_scales_rewards() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    scaled = critic_loss(state, batch, dataclasses.replace(CONFIG, reward_scale=3.0))[0][0]
    by_hand = critic_loss(state, batch.replace(reward=3.0 * np.asarray(batch.reward)), CONFIG)[0][0]
    np.testing.assert_allclose(scaled, by_hand, rtol=1e-6)


def test_order_of_the_batch_changes_nothing() -> None:
    config = dataclasses.replace(CONFIG, target_noise=0.0)
    batch = reference.transitions()
    shuffled = jax.tree.map(lambda x: np.asarray(x)[[3, 1, 4, 0, 2]], batch)
    new, other = (update(fresh(config), x, KEY, 1, config)[0] for x in (batch, shuffled))
    for left, right in zip(*map(jax.tree.leaves, (new, other)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


def test_critic_loss_teaches_the_critic_alone() -> None:
    own, *others = critic_loss(fresh(CONFIG), reference.transitions(), CONFIG)[1]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(own))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(others))


def test_actor_and_all_targets_rest_between_their_moves() -> None:
    config = dataclasses.replace(CONFIG, policy_delay=2)
    old = fresh(config)
    for step in range(4):
        new, metrics = update(old, reference.transitions(), KEY, step, config)
        for part in ("critic", "actor", "target_actor", "target_critic"):
            pairs = zip(
                *map(jax.tree.leaves, (getattr(old, part), getattr(new, part))), strict=True
            )
            moved = any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs)
            assert moved == (part == "critic" or step % 2 == 1), part
        assert isinstance(metrics["actor/loss"], Weighted)
        assert metrics["actor/loss"].weight == step % 2


@pytest.mark.parametrize(("member", "matters"), [(0, True), (1, False)])
def test_actor_follows_the_first_critic_alone(member: int, matters: bool) -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    lower = jax.tree.map(lambda x: np.asarray(x).copy(), state.critic)
    lower.parameters.params["members"]["output"]["bias"][member] -= 100.0
    states = (state, state.replace(critic=lower))
    before, after = (actor_loss(state.actor.parameters, x, batch)[0] for x in states)
    assert (before != after) == matters


@pytest.mark.parametrize("centre", [0.0, 0.8, -0.9])
def test_smoothing_is_clipped_and_so_are_actions(centre: float) -> None:
    config = dataclasses.replace(CONFIG, target_noise=1e3, target_noise_clip=0.4, discount=1.0)
    batch = reference.transitions().replace(
        reward=np.zeros(5, np.float32), terminated=np.zeros(5, bool)
    )
    noise = np.asarray(jax.random.normal(KEY, (5, 2)))  # a thousandfold: each lands on its bound
    state = fresh(CONFIG).replace(
        target_actor=lambda observation: jnp.full((5, 2), np.arctanh(centre)),
        target_critic=lambda observation, action: action.sum(axis=-1)[None],
    )
    metrics = td3.critic_loss(
        lambda observation, action: jnp.zeros((1, 5)), state, batch, KEY, config
    )[1]  # pyright: ignore[reportArgumentType]
    expected = np.clip(centre + 0.4 * np.sign(noise), -1.0, 1.0).sum(axis=-1).mean()
    np.testing.assert_allclose(metrics["critic/target"], expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("explore", "scale"), [(False, 0.1), (True, 0.1), (True, 5.0)])
def test_act_adds_noise_within_bounds(explore: bool, scale: float) -> None:
    config = dataclasses.replace(CONFIG, exploration_noise=scale)
    state, observation = fresh(config), reference.observed()[:6]
    output = reference.forward(reference.mlp(state.actor), np.asarray(observation, np.float64))[0]
    noise = explore * scale * np.asarray(jax.random.normal(KEY, (6, 2)))
    actual, extras, memory = act(state, observation, KEY, config, explore=explore)
    np.testing.assert_allclose(
        actual, np.clip(np.tanh(output) + noise, -1.0, 1.0), rtol=1e-4, atol=1e-5
    )
    assert extras == {}
    assert memory is None
