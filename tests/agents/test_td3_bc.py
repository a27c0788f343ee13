"""TD3+BC against float64 NumPy written from the paper and its code,
and what the paper promises of its parts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition, Weighted
from rljax.agents import td3, td3_bc
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "batch_size": 5,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "target_rate": 0.1,
}
CONFIG = td3_bc.Config(**SIZES, normalise_observations=False)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {}


def example() -> tuple[EnvSpec, td3_bc.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """TD3 in float64, from algorithm 1 of arXiv:1802.09477,
    with the actor's loss of arXiv:2106.06860, equation 3.
    """

    def __init__(self, state: td3_bc.State, config: td3_bc.Config) -> None:
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
            # m = tanh(u), dm/du = 1 - m^2:  dL/dm = (2 (m - a) / A - lambda dq/dm) / B, without the
            # 1 / A of a sum.
            config, data = self.config, action
            output, inputs = reference.forward(self.actor, observation)
            action = np.tanh(output)
            q, slope = reference.value(self.critics[0], observation, action)
            scale, share = (
                config.value_weight / np.abs(q).mean(),
                0.5 if config.imitation == "mean" else 1.0,
            )
            change = (
                (1.0 - action**2) * (2.0 * share * (action - data) - scale * slope) / len(action)
            )
            self.actor = self.actor_adam.step(
                self.actor, reference.backward(self.actor, inputs, change)[0]
            )
            self.target_actor = reference.towards(
                self.actor, self.target_actor, self.config.target_rate
            )
            self.targets = reference.towards(self.critics, self.targets, self.config.target_rate)
            imitation = share * np.square(action - data).sum(axis=1).mean()
            metrics |= {"actor/loss": imitation - scale * q.mean()}
            metrics |= {"actor/imitation": imitation, "actor/value_scale": scale}
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "noise that clips": {"target_noise": 0.8, "target_noise_clip": 0.3},
    "the sum, as ReBRAC": {"imitation": "sum", "value_weight": 1.0},
    "scaled rewards": {"reward_scale": 7.0, "discount": 0.5},
    "no delay, three critics": {"policy_delay": 1, "num_critics": 3},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(td3_bc.update)
actor_loss = jax.jit(td3_bc.actor_loss)
act = jax.jit(td3_bc.act, static_argnames="explore")


def fresh(config: td3_bc.Config) -> td3_bc.State:
    """A State to start from."""
    return reference.state(td3_bc, SPEC, config)


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


def test_actor_loss_by_hand() -> None:
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(action=np.array([[0.5, 0.0], [0.0, -1.0]], np.float32))
    actor: Any = lambda observation: jnp.zeros((2, 2))  # noqa: E731
    state = fresh(CONFIG)
    first = jax.tree.map(jnp.zeros_like, state.critic)
    first.parameters.params["members"]["output"]["bias"] -= 4.0
    # lambda = 2.5 / 4, so that the value's part is 2.5;
    # |0 - a|^2 = (0.25, 1), half of it as a mean over dimensions
    for imitation, expected in (("mean", 0.3125), ("sum", 0.625)):
        config = dataclasses.replace(CONFIG, imitation=imitation)  # pyright: ignore[reportArgumentType]
        loss, metrics = td3_bc.actor_loss(actor, state.replace(critic=first), batch, config)
        values = [loss, metrics["actor/imitation"], metrics["actor/value_scale"]]
        np.testing.assert_allclose(values, [2.5 + expected, expected, 0.625], rtol=1e-6)


@jax.jit
def gradient(state: td3_bc.State, config: td3_bc.Config) -> list[Any]:
    """The actor's, leaf by leaf."""
    batch = reference.transitions()
    loss = lambda actor: td3_bc.actor_loss(actor, state, batch, config)[0]  # noqa: E731
    return jax.tree.leaves(jax.grad(loss)(state.actor.parameters))


@pytest.mark.parametrize("factor", [0.01, 1000.0])
def test_size_of_the_values_does_not_matter(factor: float) -> None:
    state = fresh(CONFIG)
    larger = jax.tree.map(lambda x: x, state.critic)
    output = larger.parameters.params["members"]["output"]
    output |= {name: factor * x for name, x in output.items()}
    for left, right in zip(
        gradient(state, CONFIG), gradient(state.replace(critic=larger), CONFIG), strict=True
    ):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-6)


def test_scale_of_the_values_has_no_gradient() -> None:
    # Without the data's pull, lambda's mean |q| and the mean q would cancel where all q are
    # positive.
    state = fresh(CONFIG)
    positive = jax.tree.map(lambda x: x, state.critic)
    positive.parameters.params["members"]["output"]["bias"] += 5.0
    state = state.replace(critic=positive)
    pulled, more = (
        gradient(state, dataclasses.replace(CONFIG, value_weight=x)) for x in (0.0, 2.5)
    )
    assert any(np.abs(x - y).max() > 1e-3 for x, y in zip(pulled, more, strict=True))


def test_without_a_weight_it_clones() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    loss = actor_loss(
        state.actor.parameters, state, batch, dataclasses.replace(CONFIG, value_weight=0.0)
    )[0]
    action = np.tanh(
        reference.forward(reference.mlp(state.actor), np.asarray(batch.observation, np.float64))[0]
    )
    np.testing.assert_allclose(loss, np.square(action - np.asarray(batch.action)).mean(), rtol=1e-5)


def test_critics_learn_as_td3s() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    theirs = td3.State(
        **{field.name: getattr(state, field.name) for field in dataclasses.fields(state)}
    )
    left = update(state, batch, KEY, 0, CONFIG)[0].critic
    right = jax.jit(td3.update)(theirs, batch, KEY, 0, td3.Config(**SIZES))[0].critic
    for pair in zip(*map(jax.tree.leaves, (left, right)), strict=True):
        np.testing.assert_allclose(*pair, rtol=1e-6, atol=1e-7)


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return update(state, batch.replace(**flags), KEY, 0, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_order_of_the_batch_changes_nothing() -> None:
    config = dataclasses.replace(CONFIG, target_noise=0.0)
    batch = reference.transitions()
    shuffled = jax.tree.map(lambda x: np.asarray(x)[[3, 1, 4, 0, 2]], batch)
    new, other = (update(fresh(config), x, KEY, 1, config)[0] for x in (batch, shuffled))
    for left, right in zip(*map(jax.tree.leaves, (new, other)), strict=True):
        np.testing.assert_allclose(left, right, rtol=1e-4, atol=1e-5)


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
    actor = state.actor.parameters
    before, after = (
        actor_loss(actor, state.replace(critic=x), batch, CONFIG)[0] for x in (state.critic, lower)
    )
    assert (before != after) == matters


@pytest.mark.parametrize(("explore", "scale"), [(False, 0.1), (True, 0.1), (True, 5.0)])
def test_act_adds_noise_within_bounds(explore: bool, scale: float) -> None:
    config = dataclasses.replace(CONFIG, exploration_noise=scale)
    state, observation = fresh(config), reference.observed()[:6]
    action = np.tanh(reference.forward(reference.mlp(state.actor), observation)[0])
    noise = explore * scale * np.asarray(jax.random.normal(KEY, (6, 2)))
    actual, extras = act(state, observation, KEY, config, explore=explore)
    np.testing.assert_allclose(actual, np.clip(action + noise, -1.0, 1.0), rtol=1e-4, atol=1e-5)
    assert extras == {}
