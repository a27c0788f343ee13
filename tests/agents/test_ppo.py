"""PPO against float64 NumPy written from the papers, and what each of its settings promises."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import ppo
from rljax.networks import distributions
from rljax.training import registry
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
DISCRETE = EnvSpec("test/Discrete-v0", (3,), 4, discrete=True)
STEPS, ENVS = 4, 3
CONFIG = ppo.Config(
    num_steps=STEPS,
    num_envs=ENVS,
    batch_size=6,
    num_epochs=2,
    actor_hidden=(8, 8),
    critic_hidden=(8, 8),
    activation="relu",
    learning_rate=1e-2,
)
KEY = jax.random.key(0)


def rollout(seed: int = 0, discrete: bool = False) -> Transition:
    """A rollout [T, E] with every kind of end, gathered by nobody in particular."""
    generator = np.random.default_rng(seed)
    batch = jax.tree.map(
        lambda x: x.reshape(STEPS, ENVS, *x.shape[1:]), reference.transitions(seed, STEPS * ENVS)
    )
    raw: Any = 0.5 * generator.normal(size=(STEPS, ENVS, 2)).astype(np.float32)
    log_prob: Any = generator.normal(-2.0, 0.3, size=(STEPS, ENVS)).astype(np.float32)
    if discrete:
        raw = generator.integers(0, 4, size=(STEPS, ENVS)).astype(np.int32)
    extras = {"raw": jnp.asarray(raw), "log_prob": jnp.asarray(log_prob)}
    return batch.replace(
        action=jnp.asarray(raw if discrete else np.clip(raw, -1, 1)), extras=extras
    )


def example() -> tuple[EnvSpec, ppo.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, rollout()


def fresh(config: ppo.Config, spec: EnvSpec = SPEC) -> ppo.State:
    """A State to start from, whose parameters are drawn by NumPy."""
    generator = np.random.default_rng(3)
    shapes = jax.eval_shape(lambda key: ppo.init(key, spec, config), KEY)
    drawn = jax.tree.map(
        lambda x: jnp.asarray(generator.normal(0, 0.3, x.shape), x.dtype),
        shapes.actor_critic.parameters,
    )
    return reference.state(ppo, spec, config, actor_critic=drawn)


# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(ppo.update)
act = jax.jit(ppo.act, static_argnames="explore")


def policy(state: ppo.State, observation: Any) -> Any:
    """pi(.|s) of networks without a shared torso."""
    return ppo.policy(state, state.actor_critic.parameters, observation, observation)


class Reference:
    """Clipped PPO over a diagonal Gaussian in float64,
    from arXiv:1707.06347 and arXiv:1506.02438.
    """

    def __init__(self, state: ppo.State, config: ppo.Config) -> None:
        self.config = config
        networks = state.actor_critic.parameters
        self.actor, self.critic = reference.mlp(networks.actor), reference.mlp(networks.critic)
        self.log_std = np.asarray(networks.log_std, np.float64)
        self.adam = reference.Adam(config.learning_rate, config.adam_epsilon)
        self.sums = None
        self.running = np.zeros(ENVS)

    def value(self, observation: np.ndarray) -> np.ndarray:
        """V(s) [...]."""
        return reference.forward(self.critic, observation.reshape(-1, 3))[0].reshape(
            observation.shape[:-1]
        )

    def rewards(self, batch: Transition) -> np.ndarray:
        """Scaled rewards [T, E]."""
        reward = self.config.reward_scale * np.asarray(batch.reward, np.float64)
        if not self.config.normalise_rewards:
            return reward
        sums = []
        for t in range(STEPS):
            self.running = reward[t] + self.config.discount * self.running
            sums.append(self.running)
            self.running = np.where(batch.terminated[t] | batch.truncated[t], 0.0, self.running)
        self.sums = np.concatenate([[] if self.sums is None else self.sums, np.ravel(sums)])
        return np.clip(reward / np.sqrt(self.sums.var() + 1e-8), -10, 10)

    def advantages(
        self, observation: Any, next_observation: Any, reward: Any, batch: Transition
    ) -> np.ndarray:
        """The sum of discounted errors up to the end of each step's episode or of the rollout,
        term by term.
        """
        config, value = self.config, self.value(observation)
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        error = reward + config.discount * alive * self.value(next_observation) - value
        result = np.zeros((STEPS, ENVS))
        for t in range(STEPS):
            for e in range(ENVS):
                weight = 1.0
                for later in range(t, STEPS):
                    result[t, e] += weight * error[later, e]
                    if batch.terminated[later, e] or batch.truncated[later, e]:
                        break
                    weight *= config.discount * config.trace_decay
        return result

    def minibatch(
        self, observation: Any, raw: Any, old: Any, advantage: Any, value: Any
    ) -> dict[str, float]:
        """One step of Adam down the loss; the metrics before it."""
        config, size = self.config, len(raw)
        target = advantage + value
        if config.normalise_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        mean, actor_inputs = reference.forward(self.actor, observation)
        std = np.exp(self.log_std)
        scaled = (raw - mean) / std
        log_prob = (-0.5 * scaled**2 - self.log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        ratio = np.exp(log_prob - old)
        clipped = np.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        slope = np.where(ratio * advantage <= clipped * advantage, -ratio * advantage, 0.0) / size
        actor_gradient = reference.backward(
            self.actor, actor_inputs, slope[:, None] * scaled / std
        )[0]
        std_gradient = (slope[:, None] * (scaled**2 - 1)).sum(axis=0) - config.entropy_cost
        entropy = (self.log_std + 0.5 * np.log(2 * np.pi * np.e)).sum()

        output, critic_inputs = reference.forward(self.critic, observation)
        new = output[:, 0]
        error, change = (new - target) ** 2, new - target
        if config.clip_values:
            near = value + np.clip(new - value, -config.clip_ratio, config.clip_ratio)
            inside = np.abs(new - value) < config.clip_ratio
            change = np.where(
                (near - target) ** 2 > error, np.where(inside, near - target, 0.0), change
            )
            error = np.maximum(error, (near - target) ** 2)
        critic_gradient = reference.backward(
            self.critic, critic_inputs, config.value_cost * change[:, None] / size
        )[0]

        gradient = [actor_gradient, critic_gradient, std_gradient]
        norm = np.sqrt(sum((x**2).sum() for x in [*actor_gradient, *critic_gradient, std_gradient]))
        if config.max_grad_norm:
            gradient = reference.zip_map(
                lambda x: x * min(1.0, config.max_grad_norm / norm), gradient
            )
        self.actor, self.critic, self.log_std = self.adam.step(
            [self.actor, self.critic, self.log_std], gradient
        )
        return {
            "actor/loss": -np.minimum(ratio * advantage, clipped * advantage).mean(),
            "actor/entropy": entropy,
            "actor/kl": (ratio - 1 - (log_prob - old)).mean(),
            "actor/clipped": (np.abs(ratio - 1) > config.clip_ratio).mean(),
            "critic/loss": 0.5 * error.mean(),
            "critic/value": new.mean(),
        }

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        """Learn from a rollout; minibatches in the agent's order."""
        config = self.config
        if config.decay_steps is not None:
            self.adam.rate = config.learning_rate * max(
                0.0, 1 - step * STEPS * ENVS / config.decay_steps
            )
        reward = self.rewards(batch)
        observation = np.asarray(batch.observation, np.float64)
        next_observation = np.asarray(batch.next_observation, np.float64)
        first = (
            self.advantages(observation, next_observation, reward, batch),
            self.value(observation),
        )
        metrics = []
        for epoch_key in jax.random.split(key, config.num_epochs):
            advantage, value = first
            if config.recompute_advantages:
                advantage = self.advantages(observation, next_observation, reward, batch)
                value = self.value(observation)
            order = np.asarray(
                distributions.permutation(jax.random.split(epoch_key)[0], STEPS * ENVS)
            )
            raw, old = (np.asarray(batch.extras[name], np.float64) for name in ("raw", "log_prob"))
            rows = (
                observation.reshape(-1, 3),
                raw.reshape(-1, 2),
                old.ravel(),
                advantage.ravel(),
                value.ravel(),
            )
            for part in order.reshape(-1, config.batch_size):
                metrics.append(self.minibatch(*(x[part] for x in rows)))
        return {name: np.mean([line[name] for line in metrics]) for name in metrics[0]}


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "as the 37 details": {"recompute_advantages": False, "clip_values": True, "decay_steps": 30.0},
    "plain": {"normalise_advantages": False, "normalise_rewards": False},
    "no limit, entropy": {
        "max_grad_norm": 0.0,
        "entropy_cost": 0.1,
        "value_cost": 2.0,
        "reward_scale": 5.0,
    },
    "other traces": {"discount": 0.7, "trace_decay": 0.3, "clip_ratio": 0.05, "max_grad_norm": 0.1},
}


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = rollout(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    networks = state.actor_critic.parameters
    reference.assert_same(reference.mlp(networks.actor), expected.actor, "actor")
    reference.assert_same(reference.mlp(networks.critic), expected.critic, "critic")
    np.testing.assert_allclose(networks.log_std, expected.log_std, rtol=1e-4, atol=1e-5)
    if config.normalise_rewards:
        np.testing.assert_allclose(state.returns.running, expected.running, rtol=1e-5)


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, clip_ratio=0.2)
    metrics = update(fresh(config), rollout(), KEY, 0, config)[1]
    assert 0 < metrics["actor/clipped"] < 1


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    "changes", [{}, {"policy": "tanh_gaussian"}], ids=["gaussian", "tanh_gaussian"]
)
def test_ratio_is_one_for_the_policy_that_gathered(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes, num_epochs=1, batch_size=STEPS * ENVS)
    state, batch = fresh(config), rollout()
    action, extras, _ = act(state, batch.observation, KEY, config, explore=True)
    metrics = update(state, batch.replace(action=action, extras=extras), KEY, 0, config)[1]
    np.testing.assert_allclose(metrics["actor/kl"], 0.0, atol=1e-6)
    assert metrics["actor/clipped"] == 0.0


def test_squashed_log_prob_is_the_density_of_the_action() -> None:
    config = dataclasses.replace(CONFIG, policy="tanh_gaussian")
    state, batch = fresh(config), rollout()
    action, extras, _ = act(state, batch.observation, KEY, config, explore=True)
    actor = reference.mlp(state.actor_critic.parameters.actor)
    output = reference.forward(actor, np.asarray(batch.observation).reshape(-1, 3))[0]
    mean, std = output[:, :2], np.log1p(np.exp(output[:, 2:])) + 1e-3
    raw = np.asarray(extras["raw"], np.float64).reshape(-1, 2)
    np.testing.assert_allclose(action.reshape(-1, 2), np.tanh(raw), rtol=1e-5)
    density = (
        -0.5 * ((raw - mean) / std) ** 2
        - np.log(std * np.sqrt(2 * np.pi))
        - np.log(1 - np.tanh(raw) ** 2)
    )
    np.testing.assert_allclose(
        extras["log_prob"].ravel(), density.sum(axis=1), rtol=1e-4, atol=1e-4
    )


def test_clipped_actions_keep_the_log_prob_of_what_was_sampled() -> None:
    config = dataclasses.replace(CONFIG, init_log_std=2.0)
    state = fresh(config)
    wide = state.actor_critic.parameters.replace(log_std=jnp.full(2, 2.0))
    state = state.replace(actor_critic=state.actor_critic.replace(parameters=wide))
    action, extras, _ = act(state, rollout().observation, KEY, config, explore=True)
    assert (np.abs(extras["raw"]) > 1).any()
    np.testing.assert_allclose(action, np.clip(extras["raw"], -1, 1), rtol=1e-6)


def test_discrete_actions_are_drawn_from_the_softmax() -> None:
    state = fresh(CONFIG, DISCRETE)
    observation = jnp.broadcast_to(jnp.asarray([0.3, -0.2, 0.9]), (4000, 3))
    action, extras, _ = act(state, observation, KEY, CONFIG, explore=True)
    actor = reference.mlp(state.actor_critic.parameters.actor)
    logits = reference.forward(actor, np.asarray(observation[:1], np.float64))[0][0]
    probability = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(action, minlength=4) / 4000, probability, atol=0.03)
    np.testing.assert_allclose(
        extras["log_prob"], np.log(probability)[np.asarray(action)], rtol=1e-4
    )
    best, *_ = act(state, observation[0], KEY, CONFIG, explore=False)
    assert best == probability.argmax()


@pytest.mark.slow
def test_discrete_updates_move_towards_what_paid() -> None:
    config = dataclasses.replace(
        CONFIG, normalise_rewards=False, num_epochs=20, trace_decay=0.0, discount=0.0
    )
    state, batch = fresh(config, DISCRETE), rollout(discrete=True)
    batch = batch.replace(reward=(batch.action == 2).astype(jnp.float32))
    pi = policy(state, batch.observation)
    batch = batch.replace(extras={"raw": batch.action, "log_prob": pi.log_prob(batch.action)})
    new, _ = update(state, batch, KEY, 0, config)
    after = policy(new, batch.observation)
    paid = np.asarray(batch.action) == 2
    assert paid.any()
    gained = np.asarray(
        after.log_prob(jnp.full((STEPS, ENVS), 2)) - pi.log_prob(jnp.full((STEPS, ENVS), 2))
    )
    assert gained.mean() > 0.05


def test_truncation_bootstraps_and_termination_does_not() -> None:
    config = dataclasses.replace(CONFIG, discount=0.9)
    state, batch = fresh(config), rollout()
    networks = state.actor_critic.parameters
    value = np.asarray(networks.critic(batch.next_observation))[..., 0]
    here = np.asarray(networks.critic(batch.observation))[..., 0]
    no, yes = jnp.zeros((STEPS, ENVS), bool), jnp.ones((STEPS, ENVS), bool)
    for terminated, truncated, bootstrap in [(no, yes, 0.9), (yes, no, 0.0), (yes, yes, 0.0)]:
        ended = batch.replace(terminated=terminated, truncated=truncated)
        advantage = ppo.with_advantages(networks, ended, config).extras["advantage"]
        np.testing.assert_allclose(
            advantage, batch.reward + bootstrap * value - here, rtol=1e-4, atol=1e-5
        )


@pytest.mark.slow
def test_learning_rate_falls_to_nothing() -> None:
    config = dataclasses.replace(CONFIG, decay_steps=100.0)
    state = fresh(config)
    new, _ = update(state, rollout(), KEY, 9, config)  # after 9 rollouts of 12 steps
    before, after = state.actor_critic.parameters, new.actor_critic.parameters
    for one, other in zip(*map(jax.tree.leaves, (before, after)), strict=True):
        np.testing.assert_array_equal(one, other)


def test_learning_rate_stays_at_nothing_beyond_2_to_the_31_environment_steps() -> None:
    config = dataclasses.replace(CONFIG, decay_steps=100.0, num_envs=64, num_steps=1024)
    gradient = {"weight": jnp.ones(3)}
    adam = ppo.optimiser(jnp.int32(2**15 + 1), config)  # rollouts of 2^16 steps
    changes, _ = adam.update(gradient, adam.init(gradient))
    np.testing.assert_array_equal(changes["weight"], 0.0)


# notebooks/training.ipynb: environments, steps of an unroll, rows of a minibatch, minibatches,
# epochs
BRAX = {
    "ant": (4_096, 5, 2_048, 32, 4),
    "inverted_pendulum": (2_048, 5, 1_024, 32, 4),
    "inverted_double_pendulum": (2_048, 5, 1_024, 32, 4),
    "humanoid": (2_048, 10, 1_024, 32, 8),
    "humanoidstandup": (2_048, 15, 1_024, 32, 8),
    "halfcheetah": (2_048, 20, 512, 32, 8),
    "reacher": (2_048, 50, 256, 32, 8),
    "pusher": (2_048, 30, 512, 16, 8),
}


@pytest.mark.parametrize("task", BRAX)
def test_presets_of_brax_are_its_own(task: str) -> None:
    envs, unroll, rows, minibatches, epochs = BRAX[task]
    config = registry.preset("ppo", ppo, f"brax/{task}")
    ppo.experience(config).check()
    assert (config.num_envs, config.num_epochs) == (envs, epochs)
    assert config.batch_size == rows * unroll
    assert config.num_steps * config.num_envs == minibatches * config.batch_size
    assert config.num_steps % unroll == 0


@pytest.mark.parametrize("task", ["atari/Pong", "envpool-lives/Pong-v5"])
def test_presets_of_atari_are_those_of_cleanrl(task: str) -> None:
    """ppo_atari.py: the values of `Args`, Adam's eps, and the network of `Agent`."""
    config = registry.preset("ppo", ppo, task)
    ppo.experience(config).check()
    expected = {
        "learning_rate": 2.5e-4,
        "decay_steps": 1.0,  # anneal_lr
        "num_envs": 8,
        "num_steps": 128,
        "discount": 0.99,
        "trace_decay": 0.95,
        "batch_size": 8 * 128 // 4,  # num_minibatches
        "num_epochs": 4,
        "normalise_advantages": True,
        "clip_ratio": 0.1,
        "clip_values": True,
        "entropy_cost": 0.01,
        "value_cost": 0.5,
        "max_grad_norm": 0.5,
        "adam_epsilon": 1e-5,
        "clip_rewards": True,  # ClipRewardEnv: signs of whole numbers
        "normalise_rewards": False,
        "normalise_observations": False,
        "recompute_advantages": False,
        "initialisation": "orthogonal",
    }
    assert {name: getattr(config, name) for name in expected} == expected
    assert ppo.experience(config).clip_rewards
    spec = EnvSpec("test/Atari-v0", (84, 84, 4), 6, discrete=True, observation_dtype="uint8")
    state = jax.eval_shape(lambda key: ppo.init(key, spec, config), KEY)
    shapes = [x.shape for x in jax.tree.leaves(state.actor_critic.parameters) if len(x.shape) > 1]
    convolutions = [(8, 8, 4, 32), (4, 4, 32, 64), (3, 3, 64, 64)]
    assert sorted(shapes) == sorted([*convolutions, (64 * 7 * 7, 512), (512, 6), (512, 1)])
    assert config.activation == "relu"
