"""SAC against float64 NumPy written from the paper, and what the paper promises of its parts."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition, Weighted
from rljax.agents import sac
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = sac.Config(hidden=(8, 8), batch_size=5, actor_lr=1e-2, critic_lr=2e-2, temperature_lr=3e-2, target_rate=0.1)
KEY = jax.random.key(0)


def example() -> tuple[EnvSpec, sac.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """Soft actor-critic in float64, from arXiv:1812.05905, with the settings that agents/sac.py adds."""

    def __init__(self, state: sac.State, config: sac.Config, seen: np.ndarray | None) -> None:
        self.config, self.seen = config, seen
        self.actor = reference.mlp(state.actor)
        self.critics = reference.critics(state.critic)
        self.targets = reference.critics(state.critic)
        self.log_temperature = np.log(config.init_temperature)
        self.adams = [reference.Adam(rate) for rate in (config.actor_lr, config.critic_lr, config.temperature_lr)]

    def sample(self, observation: np.ndarray, noise: np.ndarray) -> tuple[Any, ...]:
        """a = tanh u, u = mean + std noise, and log pi(a|s) [B] = sum_i log N(u_i) - log(1 - tanh(u_i)^2)."""
        output, inputs = reference.forward(self.actor, observation)
        mean, raw = np.split(output, 2, axis=1)
        log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
        u = mean + np.exp(log_std) * noise
        gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        log_prob = (gaussian - 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))).sum(axis=1)
        return np.tanh(u), log_prob, inputs, log_std, raw == log_std

    def update(self, batch: Transition, next_noise: np.ndarray, noise: np.ndarray, step: int) -> dict[str, float]:
        """One update; the metrics of the parts that moved."""
        config, size = self.config, len(noise)
        observation = reference.normalised(self.seen, batch.observation)
        next_observation = reference.normalised(self.seen, batch.next_observation)
        reward, terminated = np.asarray(batch.reward, np.float64), np.asarray(batch.terminated, np.float64)
        temperature = np.exp(self.log_temperature)

        # Equation 5, its target from equation 3 with the targets' smaller critic.
        next_action, next_log_prob = self.sample(next_observation, next_noise)[:2]
        soft_value = reference.smallest(self.targets, next_observation, next_action)[0] - temperature * next_log_prob
        y = config.reward_scale * reward + config.discount * (1.0 - terminated) * soft_value
        action = np.asarray(batch.action, np.float64)
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.critics = self.adams[1].step(self.critics, gradient)
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        if (step + 1) % config.policy_delay == 0:
            # Equation 9. With L = mean [alpha log pi - q] and noise fixed, u moves log pi by 2 tanh u and q by
            # (1 - tanh(u)^2) dq/da; log std moves u by std noise, and log pi by -1. Clipping stops the latter.
            action, log_prob, inputs, log_std, inside = self.sample(observation, noise)
            q, slope = reference.smallest(self.critics, observation, action)
            change = (temperature * 2.0 * action - (1.0 - action**2) * slope) / size
            change_log_std = (change * np.exp(log_std) * noise - temperature / size) * inside
            gradient = reference.backward(self.actor, inputs, np.concatenate([change, change_log_std], axis=1))[0]
            self.actor = self.adams[0].step(self.actor, gradient)
            entropy = -log_prob.mean()
            metrics |= {"actor/loss": (temperature * log_prob - q).mean(), "actor/entropy": entropy}

            # Equation 18: L = alpha (entropy - target), or with log alpha for its factor. d alpha / d log alpha = alpha.
            target = -action.shape[1] if config.target_entropy is None else config.target_entropy
            own_form = config.temperature_loss == "alpha"
            factor, slope = (temperature, temperature) if own_form else (self.log_temperature, 1.0)
            metrics |= {"temperature/loss": factor * (entropy - target), "temperature/value": temperature}
            if config.learn_temperature:
                self.log_temperature = self.adams[2].step(self.log_temperature, slope * (entropy - target))

        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


def noises(key: jax.Array, shape: tuple[int, ...]) -> list[np.ndarray]:
    """The standard normal noise that `update` draws: for the next actions, and for the actor's."""
    return [np.asarray(jax.random.normal(k, (1, *shape))[0], np.float64) for k in jax.random.split(key)]


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "temperature's own form": {"temperature_loss": "alpha", "target_entropy": -0.7, "init_temperature": 0.3},
    "fixed temperature": {"learn_temperature": False, "init_temperature": 0.2},
    "delayed actor": {"policy_delay": 2},
    "clipped log std": {"log_std_min": -0.15, "log_std_max": 0.1},
    "scaled rewards": {"reward_scale": 7.0, "discount": 0.5, "target_entropy": 0.4},
    "normalised observations": {"normalise_observations": True},
    "three critics": {"num_critics": 3},
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = sac.init(KEY, SPEC, config)
    seen = np.random.default_rng(1).normal(0.3, 0.1, size=(12, 3)) if config.normalise_observations else None
    if seen is not None:
        for rows in (seen[:4], seen[4:]):
            state = sac.perceive(state, jnp.asarray(rows, jnp.float32), jnp.zeros(len(rows), bool), config)
    expected = Reference(state, config, seen)
    update = jax.jit(sac.update)
    for step in range(3):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, *noises(key, batch.action.shape), step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(state.log_temperature, expected.log_temperature, "log_temperature")


def test_the_clipped_case_clips_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **CASES["clipped log std"])
    expected = Reference(sac.init(KEY, SPEC, config), config, None)
    inside = expected.sample(np.asarray(reference.transitions().observation), np.zeros((5, 2)))[-1]
    assert 0.0 < inside.mean() < 1.0


def fixed(function: Any) -> Any:
    """A function of the inputs in place of a network."""
    return function


def made_of(**parts: Any) -> sac.State:
    """A State with some networks replaced by fixed functions."""
    return sac.init(KEY, SPEC, CONFIG).replace(**parts)


def test_critic_loss_by_hand() -> None:
    state = made_of(
        actor=lambda observation: jnp.zeros((*observation.shape[:-1], 4)),
        target_critic=lambda observation, action: jnp.array([[3.0, 1.0], [2.0, 5.0]]),
        log_temperature=jnp.float32(-jnp.inf),  # no entropy: the rest is plain arithmetic
    )
    batch = jax.tree.map(lambda x: x[:2], reference.transitions())
    batch = batch.replace(reward=jnp.array([1.0, 2.0]), terminated=jnp.array([False, True]))
    config = dataclasses.replace(CONFIG, discount=0.5, reward_scale=10.0)
    loss, metrics = sac.critic_loss(lambda *_: jnp.array([[10.0, 20.0], [12.0, 23.0]]), state, batch, KEY, config)  # pyright: ignore[reportArgumentType]
    # y = (10 + 0.5 min(3, 2), 20) = (11, 20);  errors (-1, 0) and (1, 3);  1/2 + (1 + 9)/2
    np.testing.assert_allclose([loss, metrics["critic/target"], metrics["critic/q"]], [5.5, 15.5, 16.25])


@pytest.mark.parametrize(("form", "factor"), [("log_alpha", np.log(0.5)), ("alpha", 0.5)])
def test_temperature_loss_by_hand(form: Any, factor: float) -> None:
    config = dataclasses.replace(CONFIG, temperature_loss=form)
    log_temperature, batch = jnp.log(0.5), reference.transitions()
    loss, metrics = sac.temperature_loss(log_temperature, jnp.float32(1.5), batch, config)
    np.testing.assert_allclose(loss, factor * (1.5 - -2.0), rtol=1e-6)  # the target is -A = -2
    np.testing.assert_allclose(metrics["temperature/value"], 0.5, rtol=1e-6)
    slope = jax.grad(lambda x, entropy: sac.temperature_loss(x, entropy, batch, config)[0])
    assert slope(log_temperature, -2.5) < 0.0 < slope(log_temperature, -1.5), "too little entropy raises alpha"


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = sac.init(KEY, SPEC, CONFIG), reference.transitions()
    never, always = jnp.zeros(5, bool), jnp.ones(5, bool)

    def target(**flags: jax.Array) -> Any:
        return sac.critic_loss(state.critic, state, batch.replace(**flags), KEY, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6)


def test_reward_scale_scales_rewards() -> None:
    state, batch = sac.init(KEY, SPEC, CONFIG), reference.transitions()
    scaled = sac.critic_loss(state.critic, state, batch, KEY, dataclasses.replace(CONFIG, reward_scale=3.0))
    by_hand = sac.critic_loss(state.critic, state, batch.replace(reward=3.0 * batch.reward), KEY, CONFIG)
    assert scaled[0] == by_hand[0]


def test_order_of_the_batch_changes_nothing() -> None:
    # With std e^-20 an action hardly depends on its row's noise, and at temperature 0 its probability does not count.
    config = dataclasses.replace(CONFIG, log_std_min=-20.0, log_std_max=-20.0, init_temperature=1e-12)
    state, batch = sac.init(KEY, SPEC, config), reference.transitions()
    shuffled = jax.tree.map(lambda x: x[jnp.array([3, 1, 4, 0, 2])], batch)
    for loss in (sac.critic_loss, sac.actor_loss):
        network = state.critic if loss is sac.critic_loss else state.actor
        np.testing.assert_allclose(
            *(loss(network, state, x, KEY, config)[0] for x in (batch, shuffled)), rtol=1e-5, atol=1e-6
        )


def test_critic_loss_teaches_the_critic_alone() -> None:
    state, batch = sac.init(KEY, SPEC, CONFIG), reference.transitions()

    def loss(critic: Any, actor: Any, target_critic: Any, log_temperature: Any) -> Any:
        whole = state.replace(actor=actor, target_critic=target_critic, log_temperature=log_temperature)
        return sac.critic_loss(critic, whole, batch, KEY, CONFIG)[0]

    parts = (state.critic, state.actor, state.target_critic, state.log_temperature)
    own, *others = jax.grad(loss, argnums=(0, 1, 2, 3))(*parts)
    assert all(leaf.any() for leaf in jax.tree.leaves(own))
    assert not any(leaf.any() for leaf in jax.tree.leaves(others))


def test_delayed_actor_and_temperature_rest() -> None:
    config = dataclasses.replace(CONFIG, policy_delay=3)
    old = sac.init(KEY, SPEC, config)
    update = jax.jit(sac.update)
    for step, moves in enumerate([False, False, True]):
        new, metrics = update(old, reference.transitions(), KEY, step, config)
        for part in ("actor", "actor_optimiser", "log_temperature", "temperature_optimiser"):
            pairs = zip(*map(jax.tree.leaves, (getattr(old, part), getattr(new, part))), strict=True)
            assert any((x != y).any() for x, y in pairs) == moves, part
        assert isinstance(metrics["actor/loss"], Weighted)
        assert metrics["actor/loss"].weight == moves


def test_density_integrates_to_one() -> None:
    distribution = sac.policy(lambda observation: observation, jnp.array([0.3, np.log(0.8)]), CONFIG)  # pyright: ignore[reportArgumentType]
    action = np.tanh(np.linspace(-7.0, 7.0, 4_001))
    density = np.exp(distribution.log_prob(jnp.asarray(action, jnp.float32)[:, None]))
    np.testing.assert_allclose(np.trapezoid(density, action), 1.0, rtol=1e-3)


@pytest.mark.parametrize("mean", [-30.0, -9.0, 0.0, 9.0, 30.0])
def test_log_prob_is_exact_far_out(mean: float) -> None:
    output = jnp.tile(jnp.array([mean, np.log(0.5)]), (4, 1))
    action, log_prob = sac.policy(lambda x: x, output, CONFIG).sample_and_log_prob(seed=KEY)  # pyright: ignore[reportArgumentType]
    noise = np.asarray(jax.random.normal(KEY, (1, 4, 1))[0, :, 0], np.float64)
    u = mean + 0.5 * noise
    jacobian = np.log(4.0) - 2.0 * np.abs(u) - 2.0 * np.log1p(np.exp(-2.0 * np.abs(u)))  # log(1 - tanh(u)^2), symmetric
    np.testing.assert_allclose(
        log_prob, -0.5 * noise**2 - np.log(0.5) - 0.5 * np.log(2 * np.pi) - jacobian, rtol=1e-5, atol=1e-5
    )
    np.testing.assert_allclose(action[:, 0], np.tanh(u), rtol=1e-6)


def test_act_samples_the_policy_or_takes_its_mean() -> None:
    state, observation = sac.init(KEY, SPEC, CONFIG), reference.transitions().observation
    mean, log_std = np.split(reference.forward(reference.mlp(state.actor), np.asarray(observation))[0], 2, axis=1)
    noise = np.asarray(jax.random.normal(KEY, (1, 5, 2))[0])
    action, extras = sac.act(state, observation, KEY, CONFIG, explore=True)
    np.testing.assert_allclose(action, np.tanh(mean + np.exp(log_std) * noise), rtol=1e-5, atol=1e-6)
    np.testing.assert_allclose(
        sac.act(state, observation, KEY, CONFIG, explore=False)[0], np.tanh(mean), rtol=1e-5, atol=1e-6
    )
    assert extras == {}


def test_act_normalises_as_update_does() -> None:
    config = dataclasses.replace(CONFIG, normalise_observations=True)
    seen = np.random.default_rng(1).normal(5.0, 2.0, size=(20, 3))
    state = sac.perceive(sac.init(KEY, SPEC, config), jnp.asarray(seen, jnp.float32), jnp.zeros(20, bool), config)
    inputs = reference.normalised(seen, seen)
    expected = np.tanh(reference.forward(reference.mlp(state.actor), inputs)[0][:, :2])
    action, _ = sac.act(state, jnp.asarray(seen, jnp.float32), KEY, config, explore=False)
    np.testing.assert_allclose(action, expected, rtol=1e-4, atol=1e-5)
    plain = sac.init(KEY, SPEC, CONFIG)
    assert sac.perceive(plain, jnp.asarray(seen), jnp.zeros(20, bool), CONFIG) is plain


def test_refuses_discrete_actions() -> None:
    spec = EnvSpec("CartPole-v1", (4,), 2, discrete=True)
    with pytest.raises(
        ValueError,
        match=r"^agent 'sac' acts in a continuous space, 'CartPole-v1' has 2 discrete actions\. Choose an environment "
        r"with a Box action space, for example: rljax train sac --env Pendulum-v1$",
    ):
        sac.check(spec, CONFIG)


OUTSIDE = {
    "discount": (1.5, r"in \[0, 1\]"),
    "target_rate": (-0.1, r"in \[0, 1\]"),
    "actor_lr": (-1.0, "at least 0"),
    "critic_lr": (float("nan"), "at least 0"),
    "temperature_lr": (float("inf"), "at least 0"),
    "init_temperature": (-2.0, "at least 0"),
}


@pytest.mark.parametrize("name", OUTSIDE)
def test_refuses_numbers_out_of_range(name: str) -> None:
    value, limits = OUTSIDE[name]
    message = rf"^--config\.{name.replace('_', '-')} is {value:g}, it must be finite and {limits}\.$"
    with pytest.raises(ValueError, match=message):
        sac.check(SPEC, dataclasses.replace(CONFIG, **{name: value}))
    with pytest.raises(ValueError, match=message):  # one learner of a population is enough
        sac.check(SPEC, dataclasses.replace(CONFIG, **{name: [0.5, value]}))


@pytest.mark.parametrize("name", ["policy_delay", "num_critics"])
def test_refuses_counts_below_one(name: str) -> None:
    with pytest.raises(ValueError, match=rf"^--config\.{name.replace('_', '-')} is 0, it must be at least 1\.$"):
        sac.check(SPEC, dataclasses.replace(CONFIG, **{name: 0}))


def test_accepts_its_defaults() -> None:
    sac.check(SPEC, sac.Config())
