"""REPPO against float64 written from the paper and the authors' description, with its own networks.

scripts/updates/compare_reppo.py compares it with the authors' code.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from scipy.special import ndtr

from rljax.agent import EnvSpec, Transition
from rljax.agents import reppo
from tests.agents import batch_norms, on_policy, reference
from tests.agents.on_policy import ENVS, KEY, STEPS

SPEC = EnvSpec("test/Example-v0", (3,), 2)
CONFIG = reppo.Config(
    hidden=(8, 8),
    critic_hidden=(8,),
    embedding_size=6,
    num_steps=STEPS,
    num_envs=ENVS,
    batch_size=6,
    num_epochs=2,
    learning_rate=1e-2,
    bins=13,
    normalise_rewards=False,
    kl_bound=0.02,
    kl_samples=5,
    init_temperature=0.3,
    init_multiplier=0.7,
)
CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "squared errors": {"value_head": "squared", "prediction_cost": 0.3},
    "scaled rewards, long traces": {
        "reward_scale": 0.5,
        "trace_decay": 1.0,
        "kl_bound": 1e-9,
        "min_std": 0.0,
        "max_grad_norm": 0.1,
    },
    "no norms, one step": {"layer_norm": False, "trace_decay": 0.0, "prediction_cost": 0.0},
}
init = jax.jit(reppo.init, static_argnums=1)


def rollout(seed: int = 0) -> Transition:
    """A rollout [T, E] with every kind of end."""
    batch = on_policy.rollout(seed, SPEC)
    return on_policy.continued(batch.replace(action=jnp.tanh(batch.action), extras={}))


def example() -> Any:
    return SPEC, CONFIG, rollout()


def swish(x: Any) -> Any:
    return x / (1.0 + jnp.exp(-x))


def layers(params: Any, x: Any) -> Any:
    """Dense layers with root mean squares of 1, if they are normalised, and swish."""
    for i in range(sum(name.startswith("hidden") for name in params)):
        x = x @ params[f"hidden_{i}"]["kernel"] + params[f"hidden_{i}"]["bias"]
        if f"norm_{i}" in params:
            x = params[f"norm_{i}"]["scale"] * x / jnp.sqrt((x**2).mean(-1, keepdims=True) + 1e-6)
        x = swish(x)
    return x @ params["output"]["kernel"] + params["output"]["bias"]


class Expected:
    """The learner, minibatch by minibatch."""

    def __init__(self, state: reppo.State, config: reppo.Config) -> None:
        self.config = config
        policy = state.policy.parameters
        self.policy = (policy.actor.params, policy.log_temperature, policy.log_multiplier)
        self.critic = state.critic.parameters.params
        adam = optax.adam(config.learning_rate)
        self.adam = optax.chain(optax.clip_by_global_norm(config.max_grad_norm), adam)
        self.states = [self.adam.init(x) for x in (self.policy, self.critic)]
        self.policy_gradient = jax.jit(jax.grad(self.policy_loss))
        self.critic_gradient = jax.jit(jax.grad(self.critic_loss))

    def gaussian(self, actor: Any, observation: Any) -> tuple[Any, Any]:
        mean, u = jnp.split(layers(actor, observation), 2, axis=-1)
        return mean, jnp.exp(u) + self.config.min_std

    def density(self, raw: Any, mean: Any, std: Any) -> Any:
        """log pi(tanh raw)."""
        normal = -0.5 * ((raw - mean) / std) ** 2 - jnp.log(std) - 0.5 * np.log(2.0 * np.pi)
        return (normal - jnp.log(1.0 - jnp.tanh(raw) ** 2)).sum(axis=-1)

    def parts(self, critic: Any, observation: Any, action: Any) -> tuple[Any, Any, Any]:
        """Logits or values, features, and predictions."""
        f = layers(critic["features"], jnp.concatenate([observation, action], axis=-1))
        logits, prediction = (layers(critic[x], swish(f)) for x in ("head", "prediction"))
        if self.config.value_head == "squared":
            return logits[..., 0], f, prediction
        return logits + 40.0 * critic["start"], f, prediction

    def q(self, critic: Any, observation: Any, action: Any) -> Any:
        outputs = self.parts(critic, observation, action)[0]
        if self.config.value_head == "squared":
            return outputs
        return jax.nn.softmax(outputs) @ self.centres()

    def edges(self) -> np.ndarray:
        return np.linspace(self.config.v_min, self.config.v_max, self.config.bins + 1)

    def centres(self) -> np.ndarray:
        return (self.edges()[1:] + self.edges()[:-1]) / 2.0

    def classes(self, target: np.ndarray) -> np.ndarray:
        """A Gaussian's share of each bin: arXiv:2403.03950, equation 3.2 and section 3.1."""
        sigma = 0.75 * (self.edges()[1] - self.edges()[0])
        below = ndtr((self.edges() - target[:, None]) / sigma)
        mass = below[:, 1:] - below[:, :-1]
        return mass / mass.sum(axis=1, keepdims=True)

    def targets(self, batch: Transition, key: Any) -> tuple[np.ndarray, Any]:
        """G [T, E]: returns over n steps in shares (1 - lambda) lambda^(n-1), the last's the rest,
        in which entropies of later actions count as rewards.
        """
        config, following = self.config, batch.next_observation
        mean, std = self.gaussian(self.policy[0], following)
        raw = mean + std * jax.random.normal(key, (1, *mean.shape))[0]
        value = np.asarray(self.q(self.critic, following, jnp.tanh(raw)))
        features = self.parts(self.critic, following, jnp.tanh(raw))[1]
        entropy = np.asarray(-jnp.exp(self.policy[1]) * self.density(raw, mean, std))
        alive = 1.0 - np.asarray(batch.terminated)
        reward = config.reward_scale * np.asarray(batch.reward)
        reward = reward + config.discount * alive * entropy
        unscaled = dataclasses.replace(config, reward_scale=1.0)
        mixed = on_policy.mixed_returns(batch.replace(reward=reward), value, unscaled)
        return mixed, features

    def critic_loss(self, critic: Any, rows: Any) -> Any:
        outputs, _, prediction = self.parts(critic, rows["observation"], rows["action"])
        if self.config.value_head == "squared":
            loss = (outputs - rows["target"]) ** 2
        else:
            loss = -(rows["classes"] * jax.nn.log_softmax(outputs)).sum(axis=1)
        error = ((prediction[:, :-1] - rows["features"]) ** 2).sum(axis=1)
        error = (error + (prediction[:, -1] - rows["reward"]) ** 2) / prediction.shape[1]
        return (loss + self.config.prediction_cost * rows["alive"] * error).mean()

    def policy_loss(self, policy: Any, old: Any, critic: Any, rows: Any, key: Any) -> Any:
        config, stop = self.config, jax.lax.stop_gradient
        actor, log_alpha, log_beta = policy
        key_action, key_divergence = jax.random.split(key)
        mean, std = self.gaussian(actor, rows["observation"])
        raw = mean + std * jax.random.normal(key_action, (1, *mean.shape))[0]
        log_prob = self.density(raw, mean, std)
        q = self.q(critic, rows["observation"], jnp.tanh(raw))
        old_mean, old_std = self.gaussian(old, rows["observation"])
        noise = jax.random.normal(key_divergence, (config.kl_samples, *mean.shape))
        kl = 0.0
        for e in noise:
            sample = old_mean + old_std * e
            inside = jnp.arctanh(jnp.clip(jnp.tanh(sample), -0.9999, 0.9999))
            kl += self.density(sample, old_mean, old_std) - self.density(inside, mean, std)
        kl /= config.kl_samples
        alpha, beta = jnp.exp(log_alpha), jnp.exp(log_beta)
        free = stop(alpha) * log_prob - q
        loss = jnp.where(kl < config.kl_bound, free, stop(beta) * kl).mean()
        loss += (alpha * stop(-log_prob + config.target_entropy_share * 2.0)).mean()
        return loss - (beta * stop(kl - config.kl_bound)).mean()

    def move(self, index: int, parameters: Any, gradient: Any) -> Any:
        changes, self.states[index] = self.adam.update(gradient, self.states[index])
        return optax.apply_updates(parameters, changes)

    def update(self, batch: Transition, key: Any) -> None:
        config, old = self.config, self.policy[0]
        key_target, key_epochs = jax.random.split(key)
        target, features = self.targets(batch, key_target)
        flat = {
            "observation": batch.observation,
            "action": batch.action,
            "reward": config.reward_scale * batch.reward,
            "alive": 1.0 - batch.terminated,
            "features": features,
            "target": target,
            "classes": self.classes(target.ravel()).reshape(STEPS, ENVS, -1),
        }
        flat = {name: x.reshape(STEPS * ENVS, *x.shape[2:]) for name, x in flat.items()}
        for epoch in jax.random.split(key_epochs, config.num_epochs):
            key_order, key_loss = jax.random.split(epoch)
            parts = on_policy.minibatches(key_order, config.batch_size)
            for part, key_part in zip(parts, jax.random.split(key_loss, len(parts)), strict=True):
                rows = {name: x[part] for name, x in flat.items()}
                gradient = self.critic_gradient(self.critic, rows)
                self.critic = self.move(1, self.critic, gradient)
                gradient = self.policy_gradient(self.policy, old, self.critic, rows, key_part)
                self.policy = self.move(0, self.policy, gradient)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_authors(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    with jax.enable_x64():
        state = batch_norms.exact(init(KEY, SPEC, config))
        expected, update = Expected(state, config), jax.jit(reppo.update)
        for step in range(2):
            batch, key = batch_norms.exact(rollout(step)), jax.random.key(step)
            state, metrics = update(state, batch, key, step, config)
            expected.update(batch, key)
    policy = state.policy.parameters
    for actual, theirs in (
        (policy.actor.params, expected.policy[0]),
        ([policy.log_temperature, policy.log_multiplier], list(expected.policy[1:])),
        (state.critic.parameters.params, expected.critic),
    ):
        jax.tree.map(
            lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6, atol=1e-8), actual, theirs
        )
    assert 0.0 < float(metrics["actor/improves"]) < 1.0  # both sides of the switch


def test_targets_are_mixed_returns_with_entropy() -> None:
    """By hand: lambda, gamma and alpha are 1/2, Q is 8 and the entropy -log pi is 4 everywhere."""
    config = dataclasses.replace(CONFIG, discount=0.5, trace_decay=0.5, init_temperature=0.5)
    config = dataclasses.replace(config, value_head="squared")
    batch = rollout()
    ends = np.zeros((STEPS, ENVS), bool)
    batch = batch.replace(
        reward=jnp.ones((STEPS, ENVS)),
        terminated=jnp.asarray(ends).at[1, 0].set(True),
        truncated=jnp.asarray(ends).at[1, 1].set(True),
    )
    state = reference.state(reppo, SPEC, config)
    critic = state.critic.parameters
    params = jax.tree.map(jnp.zeros_like, critic.params)
    params["head"]["output"]["bias"] += 8.0
    state = state.replace(
        critic=state.critic.replace(parameters=critic.replace(params=params)),
        policy=state.policy.replace(
            parameters=state.policy.parameters.replace(log_temperature=jnp.log(0.5))
        ),
    )
    found = reppo.with_targets(state, batch, KEY, config).extras["target"]
    pi = reppo.distribution(state.policy.parameters.actor, batch.next_observation, config)
    _, log_prob = pi.sample_and_log_prob(seed=KEY)
    bonus = -0.5 * np.asarray(log_prob)
    last = 1.0 + 0.5 * (8.0 + bonus[3])
    third = 1.0 + 0.5 * (0.5 * 8.0 + 0.5 * last + bonus[2])
    np.testing.assert_allclose(found[3], last, rtol=1e-5)
    np.testing.assert_allclose(found[2], third, rtol=1e-5)
    second = 1.0 + 0.5 * (0.5 * 8.0 + 0.5 * third + bonus[1])
    second[0], second[1] = 1.0, 1.0 + 0.5 * (8.0 + bonus[1, 1])
    np.testing.assert_allclose(found[1], second, rtol=1e-5)


def test_first_values_are_0() -> None:
    """Equal classes would have a mean of 75."""
    config = dataclasses.replace(CONFIG, bins=151, v_min=-0.5, v_max=150.5)
    state, batch = init(KEY, SPEC, config), rollout()
    outputs, _, _ = state.critic(batch.observation, batch.action)
    np.testing.assert_allclose(reppo.heads.of_numbers(config).mean(outputs), 0.0, atol=1.0)


def test_actions_stay_within_the_bounds() -> None:
    state = init(KEY, SPEC, CONFIG)
    observation = 1e3 * rollout().observation
    action, _ = reppo.act(state, observation, KEY, CONFIG, explore=True)
    assert np.abs(action).max() <= 0.999


@pytest.mark.parametrize(
    ("spec", "changes", "message"),
    [
        (EnvSpec("test/Choices-v0", (3,), 2, discrete=True), {}, "Use agent ppo"),
        (SPEC, {"v_min": 1.0, "v_max": -1.0}, "--config.v-max"),
        (SPEC, {"bins": 3}, "--config.bins"),
    ],
)
def test_what_cannot_work_is_named(spec: EnvSpec, changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        reppo.check(spec, dataclasses.replace(CONFIG, **changes))
