"""DSAC-T against float64 NumPy written from the paper, and each of its refinements on its own."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax import networks
from rljax.agent import EnvSpec, Transition, Weighted
from rljax.agents import dsact
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = dsact.Config(
    hidden=(8, 8),
    activation="relu",
    batch_size=5,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
    std_rate=0.3,
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,
    "learn_temperature": False,
    "activation": "relu",
}


def example() -> tuple[EnvSpec, dsact.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


class Reference:
    """DSAC-T in float64, from arXiv:2310.05858; "v1" from arXiv:2001.02811,
    "huber" from the authors' repository.
    """

    def __init__(self, state: dsact.State, config: dsact.Config) -> None:
        self.config = config
        self.actor, self.target_actor = (
            reference.mlp(state.actor),
            reference.mlp(state.target_actor),
        )
        self.critics = reference.critics(state.critic)
        self.targets = reference.critics(state.target_critic)
        self.moving_std: np.ndarray | None = None
        self.log_temperature = np.log(config.init_temperature)
        self.adams = [
            reference.Adam(rate)
            for rate in (config.actor_lr, config.critic_lr, config.temperature_lr)
        ]

    def sample(
        self, actor: reference.MLP, observation: np.ndarray, noise: np.ndarray
    ) -> tuple[Any, ...]:
        """a = tanh u, u = mean + std noise, and log pi(a|s) [B] = sum_i log
        N(u_i) - log(1 - tanh(u_i)^2).
        """
        output, inputs = reference.forward(actor, observation)
        mean, raw = np.split(output, 2, axis=1)
        log_std = np.clip(raw, self.config.log_std_min, self.config.log_std_max)
        u = mean + np.exp(log_std) * noise
        gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2 * np.pi)
        log_prob = (gaussian - 2.0 * (np.log(2.0) - u - softplus(-2.0 * u))).sum(axis=1)
        return np.tanh(u), log_prob, inputs, log_std, raw == log_std

    def errors(
        self, q: np.ndarray, std: np.ndarray, moving: float, y: np.ndarray, y_random: np.ndarray
    ) -> Any:
        """Loss of each row of one critic, and its derivatives in Q and in sigma."""
        epsilon, delta = self.config.std_epsilon, self.config.huber_limit

        def huber(x: np.ndarray) -> np.ndarray:
            return np.where(np.abs(x) <= delta, 0.5 * x**2, delta * (np.abs(x) - 0.5 * delta))

        bound = (
            self.config.fixed_bound
            if self.config.critic_loss == "v1"
            else self.config.clip_range * moving
        )
        clipped = q + np.clip(y_random - q, -bound, bound)
        if self.config.critic_loss == "huber":
            ratio = np.clip(moving**2 / (std**2 + epsilon), 0.1, 10.0)
            slope_std = ratio * (std**2 - huber(q - clipped)) / (std + epsilon)
            return (
                ratio * huber(q - y) + slope_std * std,
                ratio * np.clip(q - y, -delta, delta),
                slope_std,
            )
        if self.config.critic_loss == "v1":
            y, weight = y_random, 1.0
        else:
            weight = moving**2 + epsilon
        slope = -weight * (y - q) / (std**2 + epsilon)
        slope_std = -weight * ((clipped - q) ** 2 - std**2) / (std**3 + epsilon)
        return slope * q + slope_std * std, slope, slope_std

    def update(self, batch: Transition, noises: list[np.ndarray], step: int) -> dict[str, float]:
        """One update with the noise of next actions, returns and actions;
        the metrics of the parts that moved.
        """
        config, size = self.config, len(noises[0])
        observation = np.asarray(batch.observation, np.float64)
        next_observation = np.asarray(batch.next_observation, np.float64)
        reward, terminated = (
            np.asarray(batch.reward, np.float64),
            np.asarray(batch.terminated, np.float64),
        )
        temperature = np.exp(self.log_temperature)

        # The target's critic is the one with the smaller mean; its std goes with it.
        next_action, next_log_prob = self.sample(self.target_actor, next_observation, noises[0])[:2]
        pairs = np.concatenate([next_observation, next_action], axis=1)
        # [C, B, 2]
        outputs = np.stack([reference.forward(target, pairs)[0] for target in self.targets])
        smaller, rows = outputs[:, :, 0].argmin(axis=0), np.arange(size)
        next_q, next_std = outputs[smaller, rows, 0], softplus(outputs[smaller, rows, 1])
        bootstrap = config.discount * (1.0 - terminated)
        y = config.reward_scale * reward + bootstrap * (next_q - temperature * next_log_prob)
        y_random = y + bootstrap * np.clip(noises[1], -3.0, 3.0) * next_std

        pairs = np.concatenate([observation, np.asarray(batch.action, np.float64)], axis=1)
        passes = [reference.forward(critic, pairs) for critic in self.critics]
        mean_std = np.array([softplus(output[:, 1]).mean() for output, _ in passes])
        rate = config.std_rate
        moved = (
            mean_std
            if self.moving_std is None
            else (1.0 - rate) * self.moving_std + rate * mean_std
        )
        self.moving_std = moved
        losses, gradients = [], []
        for critic, (output, inputs), moving in zip(self.critics, passes, moved, strict=True):
            loss, slope, slope_std = self.errors(
                output[:, 0], softplus(output[:, 1]), moving, y, y_random
            )
            change = np.stack([slope, slope_std * sigmoid(output[:, 1])], axis=1) / size
            gradients.append(reference.backward(critic, inputs, change)[0])
            losses.append(loss.mean())
        self.critics = self.adams[1].step(self.critics, gradients)
        means = np.stack([output[:, 0] for output, _ in passes])
        metrics = {
            "critic/loss": sum(losses),
            "critic/q": means.mean(),
            "critic/target": y.mean(),
            "critic/std": mean_std.mean(),
        }

        if (step + 1) % config.policy_delay == 0:
            # As SAC's actor, on the critics' means.
            action, log_prob, inputs, log_std, inside = self.sample(
                self.actor, observation, noises[2]
            )
            means = [mean_alone(critic) for critic in self.critics]
            q, slope = reference.smallest(means, observation, action)
            change = (temperature * 2.0 * action - (1.0 - action**2) * slope) / size
            change_log_std = (change * np.exp(log_std) * noises[2] - temperature / size) * inside
            gradient = reference.backward(
                self.actor, inputs, np.concatenate([change, change_log_std], axis=1)
            )[0]
            self.actor = self.adams[0].step(self.actor, gradient)
            entropy = -log_prob.mean()
            metrics |= {"actor/loss": (temperature * log_prob - q).mean(), "actor/entropy": entropy}
            error = entropy + action.shape[1]
            metrics |= {
                "temperature/loss": self.log_temperature * error,
                "temperature/value": temperature,
            }
            self.log_temperature = self.adams[2].step(self.log_temperature, error)
            self.targets = reference.towards(self.critics, self.targets, config.target_rate)
            self.target_actor = reference.towards(self.actor, self.target_actor, config.target_rate)
        return metrics


def mean_alone(critic: reference.MLP) -> reference.MLP:
    """A critic without its second output."""
    return [*critic[:-2], critic[-2][:, :1], critic[-1][:1]]


CASES: dict[str, dict[str, Any]] = {
    "paper": {},
    "tight bound, every update": {"clip_range": 0.3, "policy_delay": 1, "reward_scale": 5.0},
    "huber": {"critic_loss": "huber", "huber_limit": 0.5},
    "first DSAC": {"critic_loss": "v1", "num_critics": 1, "fixed_bound": 0.4},
    "three critics": {"num_critics": 3, "std_epsilon": 0.5},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(dsact.update)


def fresh(config: dsact.Config) -> dsact.State:
    """A State to start from."""
    return reference.state(
        dsact, SPEC, config, log_temperature=jnp.log(jnp.float32(config.init_temperature))
    )


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        key_critic, key_actor = jax.random.split(key)
        key_action, key_return = jax.random.split(key_critic)
        noises = [reference.noise(key_action, (5, 2)), reference.noise(key_return, (5,))]
        noises.append(reference.noise(key_actor, (5, 2)))
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, noises, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(reference.mlp(state.target_actor), expected.target_actor, "target_actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )
    reference.assert_same(state.moving_std, expected.moving_std, "moving_std")


class Fixed(struct.PyTreeNode):
    """A network that puts out its own leaf, so that a gradient in it is one in the output."""

    output: jax.Array

    def __call__(self, *inputs: jax.Array) -> jax.Array:
        """The same for all inputs."""
        return self.output


def raw(std: Any) -> np.ndarray:
    """What softplus maps to `std`."""
    return np.log(np.expm1(np.asarray(std, np.float64)))


def fixed(q: Any, std: Any) -> Fixed:
    """Critics with these means and stds [C, B]."""
    return Fixed(jnp.asarray(np.stack([q, raw(std)], axis=-1), jnp.float32))


@jax.jit
def gradients(
    critic: Fixed, target: Fixed, moving: Any, batch: Transition, key: Any, config: dsact.Config
) -> Any:
    """Gradients in the means and in the stds [C, B], moving stds [C] and metrics;
    without entropy.
    """
    state = SPEC_STATE.replace(
        target_critic=target, moving_std=moving, log_temperature=ENTROPY_IS_FREE
    )
    slope, (moved, metrics) = jax.grad(dsact.critic_loss, has_aux=True)(
        critic, state, batch, key, config
    )
    return (
        slope.output[..., 0],
        slope.output[..., 1] / jax.nn.sigmoid(critic.output[..., 1]),
        moved,
        metrics,
    )


ENTROPY_IS_FREE = networks.Trained(np.float32(-np.inf), None)
SPEC_STATE: Any = fresh(CONFIG).replace(actor=None)
ROWS = jax.tree.map(lambda x: x[:2], reference.transitions()).replace(
    reward=jnp.asarray([1.0, 2.0]), terminated=jnp.asarray([False, True])
)
HALF = dataclasses.replace(CONFIG, discount=0.5)


def test_target_is_the_smaller_mean_and_not_the_smaller_sample() -> None:
    # Of the first row critic 1 is smaller in mean, although critic 0's samples spread far below it.
    target = fixed([[3.0, 1.0], [2.0, 5.0]], [[50.0, 1.0], [0.1, 1.0]])
    critic = fixed([[0.0, 0.0], [0.0, 0.0]], np.ones((2, 2)))
    for seed in range(5):
        metrics = gradients(critic, target, jnp.ones(2), ROWS, jax.random.key(seed), HALF)[3]
        np.testing.assert_allclose(
            metrics["critic/target"], ((1.0 + 0.5 * 2.0) + 2.0) / 2, rtol=1e-6
        )


def test_expected_target_takes_the_noise_out_of_the_means_gradient() -> None:
    target, critic = (
        fixed([[3.0, 1.0]] * 2, [[2.0, 1.0]] * 2),
        fixed([[0.5, 0.0]] * 2, np.ones((2, 2))),
    )
    slopes = {
        loss: [
            gradients(
                critic,
                target,
                jnp.ones(2),
                ROWS,
                jax.random.key(seed),
                dataclasses.replace(HALF, **changes),
            )[:2]
            for seed in (0, 1)
        ]
        for loss, changes in (("paper", {}), ("v1", {"critic_loss": "v1"}))
    }
    np.testing.assert_array_equal(slopes["paper"][0][0], slopes["paper"][1][0])
    assert np.any(slopes["paper"][0][1] != slopes["paper"][1][1]), (
        "sigma learns from the random target"
    )
    assert np.any(slopes["v1"][0][0] != slopes["v1"][1][0])


def test_gradient_of_the_mean_by_hand() -> None:
    target, critic = (
        fixed([[3.0, 1.0]] * 2, [[2.0, 1.0]] * 2),
        fixed([[0.5, 0.0]] * 2, [[1.0, 2.0]] * 2),
    )
    slope, _, moved, _ = gradients(critic, target, jnp.array([1.0, 3.0]), ROWS, KEY, HALF)
    # b: 0.7 (1, 3) + 0.3 mean(1, 2) = (1.15, 2.55);  y = (2.5, 2);
    # -(b^2 + 0.1) (y - Q) / (sigma^2 + 0.1) / 2
    np.testing.assert_allclose(moved, [1.15, 2.55], rtol=1e-5)
    expected = [
        [-(b**2 + 0.1) * 2.0 / 1.1 / 2, -(b**2 + 0.1) * 2.0 / 4.1 / 2] for b in (1.15, 2.55)
    ]
    np.testing.assert_allclose(slope, expected, rtol=1e-5)


def test_moving_std_begins_at_the_first_batchs() -> None:
    critic = fixed(np.zeros((2, 2)), [[1.0, 2.0], [3.0, 5.0]])
    moved = gradients(critic, critic, jnp.zeros(2), ROWS, KEY, HALF)[2]
    np.testing.assert_allclose(moved, [1.5, 4.0], rtol=1e-5)


@pytest.mark.parametrize("reward", [1e4, -1e4])
def test_random_target_is_clipped_to_the_moving_bound(reward: float) -> None:
    batch = ROWS.replace(reward=jnp.full(2, reward), terminated=jnp.ones(2, bool))
    critic = fixed(np.zeros((2, 2)), np.ones((2, 2)))
    slope_std = gradients(critic, critic, jnp.ones(2), batch, KEY, HALF)[1]
    # b = 1: the error counts as 3;  -(1 + 0.1) (9 - 1) / (1 + 0.1) / 2
    np.testing.assert_allclose(slope_std, np.full((2, 2), -4.0), rtol=1e-5)


@pytest.mark.parametrize(("loss", "power"), [("paper", 1), ("huber", 1), ("v1", -1)])
def test_gradient_grows_with_the_rewards_where_its_variance_is_adjusted(
    loss: Any, power: int
) -> None:
    # Rewards, means and stds k times as large: the adjusted gradient grows with k, as a squared
    # error's does; the plain likelihood's shrinks with it, which is why [2] depends on the rewards'
    # scale.
    config = dataclasses.replace(
        HALF, critic_loss=loss, std_epsilon=0.0, fixed_bound=1e9, huber_limit=1e9
    )
    slopes = []
    for k in (1.0, 16.0):
        target, critic = (
            fixed([[3.0 * k, k]] * 2, [[2.0 * k, k]] * 2),
            fixed([[0.5 * k, 0.0]] * 2, [[k, 2 * k]] * 2),
        )
        batch = ROWS.replace(reward=k * ROWS.reward)
        slopes.append(gradients(critic, target, jnp.full(2, k), batch, KEY, config)[:2])
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(other, 16.0**power * np.asarray(one), rtol=1e-3)


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return update(state, batch.replace(**flags), KEY, 0, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_critic_loss_teaches_the_critic_alone() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    for loss in ("paper", "huber", "v1"):
        config = dataclasses.replace(CONFIG, critic_loss=loss)

        def value(critic: Any, others: Any, config: Any = config) -> Any:
            target_actor, target_critic, log_temperature = others
            temperature = state.log_temperature.replace(parameters=log_temperature)
            whole = state.replace(
                target_actor=target_actor, target_critic=target_critic, log_temperature=temperature
            )
            return dsact.critic_loss(critic, whole, batch, KEY, config)[0]

        others = (state.target_actor, state.target_critic, state.log_temperature.parameters)
        own, rest = jax.jit(jax.grad(value, argnums=(0, 1)))(state.critic.parameters, others)
        assert all(np.any(leaf) for leaf in jax.tree.leaves(own))
        assert not any(np.any(leaf) for leaf in jax.tree.leaves(rest))


def test_actor_temperature_and_targets_rest_together() -> None:
    old = fresh(CONFIG)
    for step in range(4):
        new, metrics = update(old, reference.transitions(), KEY, step, CONFIG)
        for part in ("actor", "log_temperature", "target_actor", "target_critic"):
            pairs = zip(
                *map(jax.tree.leaves, (getattr(old, part), getattr(new, part))), strict=True
            )
            assert any(np.any(np.asarray(x) != np.asarray(y)) for x, y in pairs) == (
                step % 2 == 1
            ), part
        assert isinstance(metrics["actor/loss"], Weighted)


def test_defaults_are_the_papers() -> None:
    config = dsact.Config()
    assert (config.activation, config.hidden, config.policy_delay) == ("gelu", (256, 256, 256), 2)
    np.testing.assert_allclose(np.log(config.init_temperature), 1.0, rtol=1e-6)
    dsact.check(SPEC, config)


def test_takes_pictures() -> None:
    spec = EnvSpec("test/Pictures-v0", (10, 10, 4), 2, observation_dtype="uint8")
    dsact.check(spec, CONFIG)
    picture = np.zeros((5, 10, 10, 4), np.uint8)
    batch = reference.transitions().replace(observation=picture, next_observation=picture)
    state = jax.eval_shape(lambda key: dsact.init(key, spec, CONFIG), KEY)
    new, _ = jax.eval_shape(dsact.update, state, batch, KEY, 0, CONFIG)
    assert jax.tree.structure(new) == jax.tree.structure(state)
    assert state.critic.parameters.params["encoder"]["pictures"]["dense"]["bias"].shape == (128,)
    with pytest.raises(
        ValueError, match=r"^--config\.encoder nature needs pictures of at least 36 x 36"
    ):
        dsact.check(spec, dataclasses.replace(CONFIG, encoder="nature"))
