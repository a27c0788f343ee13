"""DSAC-T against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax.agent import EnvSpec, Transition
from rljax.agents import dsact
from tests.agents import actor_critic, reference

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
    return SPEC, CONFIG, reference.transitions()


def softplus(x: np.ndarray) -> np.ndarray:
    return np.logaddexp(0.0, x)


class Reference(actor_critic.SAC):
    """DSAC-T in float64, from arXiv:2310.05858; "v1" from arXiv:2001.02811,
    "huber" from the authors' repository.
    """

    moving_std: np.ndarray | None = None

    def errors(
        self, q: np.ndarray, std: np.ndarray, moving: float, y: np.ndarray, y_random: np.ndarray
    ) -> Any:
        """Loss of each row of one critic, and its derivatives in Q and in sigma."""
        epsilon, delta = self.config.std_epsilon, self.config.huber_limit

        def huber(x: np.ndarray) -> np.ndarray:
            return np.where(np.abs(x) <= delta, 0.5 * x**2, delta * (np.abs(x) - 0.5 * delta))

        is_v1 = self.config.critic_loss == "v1"
        bound = self.config.fixed_bound if is_v1 else self.config.clip_range * moving
        clipped = q + np.clip(y_random - q, -bound, bound)
        if self.config.critic_loss == "huber":
            ratio = np.clip(moving**2 / (std**2 + epsilon), 0.1, 10.0)
            slope_std = ratio * (std**2 - huber(q - clipped)) / (std + epsilon)
            slope = ratio * np.clip(q - y, -delta, delta)
            return ratio * huber(q - y) + slope_std * std, slope, slope_std
        y, weight = (y_random, 1.0) if is_v1 else (y, moving**2 + epsilon)
        slope = -weight * (y - q) / (std**2 + epsilon)
        slope_std = -weight * ((clipped - q) ** 2 - std**2) / (std**3 + epsilon)
        return slope * q + slope_std * std, slope, slope_std

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, rows = self.config, np.arange(len(batch.reward))
        key_critic, key_actor = jax.random.split(key)
        key_action, key_return = jax.random.split(key_critic)

        # The target's critic is the one with the smaller mean; its std goes with it.
        noise = reference.noise(key_action, batch.action.shape)
        action, log_prob = self.sample(self.target_actor, batch.next_observation, noise)
        pairs = np.concatenate([batch.next_observation, action], axis=1)
        outputs = np.stack([reference.forward(target, pairs)[0] for target in self.target_critic])
        next_q, raw = outputs[outputs[:, :, 0].argmin(axis=0), rows].T
        y = self.bootstrapped(batch, next_q - self.temperature * log_prob)
        spread = np.clip(reference.noise(key_return, rows.shape), -3.0, 3.0) * softplus(raw)
        y_random = y + config.discount * (1.0 - batch.terminated) * spread

        pairs = np.concatenate([batch.observation, batch.action], axis=1)
        passes = [reference.forward(critic, pairs) for critic in self.critic]
        mean_std = np.array([softplus(output[:, 1]).mean() for output, _ in passes])
        old = mean_std if self.moving_std is None else self.moving_std
        self.moving_std = (1.0 - config.std_rate) * old + config.std_rate * mean_std
        losses, gradients = [], []
        for critic, (output, inputs), moving in zip(
            self.critic, passes, self.moving_std, strict=True
        ):
            q, raw = output.T
            loss, slope, slope_std = self.errors(q, softplus(raw), moving, y, y_random)
            # The slope of softplus is the sigmoid.
            change = np.stack([slope, slope_std / (1.0 + np.exp(-raw))], axis=1) / len(rows)
            gradients.append(reference.backward(critic, inputs, change)[0])
            losses.append(loss.mean())
        self.move("critic", gradients)
        metrics = {
            "critic/loss": sum(losses),
            "critic/q": np.mean([output[:, 0] for output, _ in passes]),
            "critic/target": y.mean(),
            "critic/std": mean_std.mean(),
        }
        if self.is_due(step):
            means = [mean_alone(critic) for critic in self.critic]
            metrics |= self.improve(batch, key_actor, means)
            self.follow("actor", "critic")
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

update = jax.jit(dsact.update)
fresh = functools.partial(reference.state, dsact, SPEC)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state, expected = reference.assert_updates(update, fresh(config), config, Reference)
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
    """Gradients in the means and in the stds [C, B], moving stds [C] and metrics."""
    state = WITHOUT_ENTROPY.replace(target_critic=target, moving_std=moving)
    gradient = jax.grad(dsact.critic_loss, has_aux=True)
    slope, (moved, metrics) = gradient(critic, state, batch, key, config)
    of_mean, of_raw = slope.output[..., 0], slope.output[..., 1]
    return of_mean, of_raw / jax.nn.sigmoid(critic.output[..., 1]), moved, metrics


WITHOUT_ENTROPY: Any = fresh(CONFIG).replace(actor=None, log_temperature=actor_critic.NO_ENTROPY)
ROWS = reference.two_rows()
HALF = dataclasses.replace(CONFIG, discount=0.5)


def test_target_is_the_smaller_mean_and_not_the_smaller_sample() -> None:
    # Of the first row critic 1 is smaller in mean, although critic 0's samples spread far below it.
    target = fixed([[3.0, 1.0], [2.0, 5.0]], [[50.0, 1.0], [0.1, 1.0]])
    critic = fixed(np.zeros((2, 2)), np.ones((2, 2)))
    for seed in range(5):
        metrics = gradients(critic, target, jnp.ones(2), ROWS, jax.random.key(seed), HALF)[3]
        expected = ((1.0 + 0.5 * 2.0) + 2.0) / 2
        np.testing.assert_allclose(metrics["critic/target"], expected, rtol=1e-6)


def test_expected_target_takes_the_noise_out_of_the_means_gradient() -> None:
    target = fixed([[3.0, 1.0]] * 2, [[2.0, 1.0]] * 2)
    critic = fixed([[0.5, 0.0]] * 2, np.ones((2, 2)))

    def slopes_of(seed: int, config: dsact.Config) -> Any:
        return gradients(critic, target, jnp.ones(2), ROWS, jax.random.key(seed), config)[:2]

    slopes = {
        loss: [slopes_of(seed, dataclasses.replace(HALF, critic_loss=loss)) for seed in (0, 1)]
        for loss in ("paper", "v1")
    }
    np.testing.assert_array_equal(slopes["paper"][0][0], slopes["paper"][1][0])
    assert np.any(slopes["paper"][0][1] != slopes["paper"][1][1]), "sigma learns from the sample"
    assert np.any(slopes["v1"][0][0] != slopes["v1"][1][0])


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
    # error's does; the plain likelihood's [2] shrinks with it.
    config = dataclasses.replace(
        HALF, critic_loss=loss, std_epsilon=0.0, fixed_bound=1e9, huber_limit=1e9
    )
    slopes = []
    for k in (1.0, 16.0):
        target = fixed([[3.0 * k, k]] * 2, [[2.0 * k, k]] * 2)
        critic = fixed([[0.5 * k, 0.0]] * 2, [[k, 2 * k]] * 2)
        batch = ROWS.replace(reward=k * ROWS.reward)
        slopes.append(gradients(critic, target, jnp.full(2, k), batch, KEY, config)[:2])
    for one, other in zip(*slopes, strict=True):
        np.testing.assert_allclose(other, 16.0**power * np.asarray(one), rtol=1e-3)


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_defaults_are_the_papers() -> None:
    config = dsact.Config()
    assert (config.activation, config.hidden, config.policy_delay) == ("gelu", (256, 256, 256), 2)
    np.testing.assert_allclose(np.log(config.init_temperature), 1.0, rtol=1e-6)
    dsact.check(SPEC, config)


def test_takes_pictures() -> None:
    spec = EnvSpec("test/Pictures-v0", (10, 10, 4), 2, observation_dtype="uint8")
    reference.assert_takes_pictures(dsact, spec, CONFIG, reference.transitions())
