"""PPO against float64 NumPy written from the papers, and what its settings promise."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import ppo
from rljax.learning import registry
from rljax.networks.heads import rollouts
from rljax.networks.optimisation import surrogates
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import ENVS, KEY, STEPS

SPEC = EnvSpec("test/Example-v0", (3,), 2)
DISCRETE = EnvSpec("test/Discrete-v0", (3,), 4, discrete=True)
CONFIG = ppo.Config(**on_policy.SIZES)


def example() -> Any:
    return SPEC, CONFIG, on_policy.rollout(0, SPEC)


update = jax.jit(ppo.update)
act = jax.jit(ppo.act, static_argnames="explore")


def begun(config: ppo.Config, spec: EnvSpec = SPEC) -> tuple[ppo.State, Transition]:
    """A State to start from, and a rollout."""
    return reference.state(ppo, spec, config), on_policy.rollout(0, spec)


def policy(state: ppo.State, observation: Any) -> Any:
    return ppo.policy(state, state.actor_critic.parameters, observation, observation)


class Reference(on_policy.Learner):
    """Clipped PPO, from arXiv:1707.06347 and arXiv:1506.02438."""

    def __init__(self, state: ppo.State, config: ppo.Config) -> None:
        networks = state.actor_critic.parameters
        super().__init__(config, networks.actor, networks.log_std, [networks.critic])

    def square(
        self, new: np.ndarray, target: np.ndarray, old: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """The larger squared error, of values or of clipped ones."""
        error, change = super().square(new, target, old)
        if self.config.clip_values:
            limit = self.config.clip_ratio
            near = old + np.clip(new - old, -limit, limit)
            slope = np.where(np.abs(new - old) < limit, near - target, 0.0)
            change = np.where((near - target) ** 2 > error, slope, change)
            error = np.maximum(error, (near - target) ** 2)
        return error, change

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        if config.decay_steps is not None:
            share = step * STEPS * ENVS / config.decay_steps
            self.adam.rate = config.learning_rate * max(0.0, 1 - share)
        reward = config.reward_scale * np.asarray(batch.reward, np.float64)
        if config.normalise_rewards:
            reward = self.scaled(0, reward, batch)
        observation, raw, old = map(
            on_policy.rows, (batch.observation, batch.extras["raw"], batch.extras["log_prob"])
        )

        def estimates() -> tuple[np.ndarray, np.ndarray]:
            return self.advantages(0, batch, reward), self.values(0, observation)

        first, metrics = estimates(), []
        for epoch_key in jax.random.split(key, config.num_epochs):
            both = estimates() if config.recompute_advantages else first
            explained = on_policy.explained(both[0], both[0] + both[1])
            for part in on_policy.minibatches(jax.random.split(epoch_key)[0], config.batch_size):
                advantage, value = (x[part] for x in both)
                target = advantage + value
                if config.normalise_advantages:
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                rows = (observation[part], raw[part], old[part])
                line = self.proximal_step(*rows, advantage, [target], value)
                metrics.append(line | explained)
        return on_policy.means(metrics)


CASES = {
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


@pytest.mark.parametrize("spec", [SPEC, DISCRETE], ids=["continuous", "discrete"])
def test_mirror_descent_is_held_by_the_divergence_from_the_rollouts_policy(spec: EnvSpec) -> None:
    """With short steps of the mirror the policy hardly moves; its KL is that of all actions."""
    moved = []
    for step in (1e-4, 1e4):
        config = dataclasses.replace(CONFIG, surrogate="mdpo", mirror_step=step, num_epochs=20)
        state, batch = begun(config, spec)
        new, _ = update(state, batch, KEY, 0, config)
        before, after = (policy(x, batch.observation) for x in (state, new))
        moved.append(float(after.kl_divergence(before).mean()))
    assert moved[0] < 0.1 * moved[1]


def test_the_old_policy_is_that_of_the_rollout() -> None:
    """There KL and its slope are 0: the first step is that of the other surrogates."""
    config = dataclasses.replace(CONFIG, num_epochs=1, batch_size=STEPS * ENVS)
    state, batch = begun(config)
    batch = batch.replace(
        extras={
            **batch.extras,
            "log_prob": state.actions.log_prob(
                policy(state, batch.observation), batch.extras["raw"]
            ),
        }
    )
    changes = ({"surrogate": "mdpo", "mirror_step": 1e-2}, {"surrogate": "clip"})
    one, other = (
        update(state, batch, KEY, 0, dataclasses.replace(config, **each))[0].actor_critic.parameters
        for each in changes
    )
    trees.assert_close(one, other)


@pytest.mark.slow_after(2)
@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(ppo, SPEC, config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = on_policy.rollout(step, SPEC), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    networks = state.actor_critic.parameters
    reference.assert_same(reference.mlp(networks.actor), expected.actor, "actor")
    reference.assert_same([reference.mlp(networks.critic)], expected.critics, "critic")
    trees.assert_close(networks.log_std, expected.log_std)
    if config.normalise_rewards:
        np.testing.assert_allclose(state.returns.running, expected.running[0], rtol=1e-5)


@pytest.mark.slow
def test_beyond_the_target_kl_one_pass_is_all() -> None:
    state, batch = begun(CONFIG)
    limited, once = (
        update(state, batch, KEY, 0, dataclasses.replace(CONFIG, **changes))[0].actor_critic
        for changes in ({"target_kl": 1e-9, "num_epochs": 4}, {"num_epochs": 1})
    )
    trees.assert_close(limited.parameters, once.parameters)


def test_a_critic_of_quantiles_has_their_mean_as_value_and_learns_them() -> None:
    """Brax's loss: the mean over rows and quantiles of |tau - 1(u < 0)| Huber(u), by hand."""
    config = dataclasses.replace(CONFIG, quantiles=8, kappa=0.5, value_cost=1.0)
    state, batch = begun(config)
    networks = state.actor_critic.parameters
    outputs = np.asarray(networks.critic(batch.observation), np.float64)
    assert outputs.shape == (STEPS, ENVS, 8)
    rollout = ppo.with_advantages(networks, batch, config)
    np.testing.assert_allclose(rollout.extras["value"], outputs.mean(axis=-1), rtol=1e-5)
    u = np.asarray(rollout.extras["value"] + rollout.extras["advantage"])[..., None] - outputs
    huber = np.where(np.abs(u) <= 0.5, 0.5 * u**2, 0.5 * (np.abs(u) - 0.25))
    tau = (np.arange(8) + 0.5) / 8
    expected = (np.abs(tau - (u < 0)) * huber).mean()
    loss, _ = rollouts.value_loss(jnp.asarray(outputs, jnp.float32), rollout, config)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    losses = pytest.importorskip("brax.training.agents.ppo.losses")
    if hasattr(losses, "quantile_huber_loss"):
        target = rollout.extras["value"] + rollout.extras["advantage"]
        theirs = losses.quantile_huber_loss(jnp.asarray(outputs, jnp.float32), target, 0.5)
        np.testing.assert_allclose(loss, theirs, rtol=1e-5)
    first = update(state, batch, KEY, 0, config)[1]["critic/loss"]
    for step in range(10):
        state, metrics = update(state, batch, jax.random.key(step), step, config)
    assert metrics["critic/loss"] < first


@pytest.mark.slow
def test_the_learning_rate_follows_the_divergence() -> None:
    """It falls where steps are large, and rises where they are small."""
    rates = []
    for first in (5e-2, 1e-5):
        config = dataclasses.replace(CONFIG, adaptive="rate", learning_rate=first)
        state = ppo.init(KEY, SPEC, config)
        state, metrics = update(state, on_policy.rollout(0, SPEC), KEY, 0, config)
        assert metrics["actor/exact_kl"] > 0
        rates.append(float(state.actor_critic.optimiser_state[-1].learning_rate))
    assert rates[0] < 5e-2
    assert rates[1] > 1e-5


@pytest.mark.slow
def test_an_adaptive_penalty_holds_the_policy() -> None:
    config = dataclasses.replace(CONFIG, surrogate="penalty", adaptive="penalty", desired_kl=1e-4)
    state, batch = ppo.init(KEY, SPEC, config), on_policy.rollout(0, SPEC)
    divergences = []
    for step in range(12):
        state, metrics = update(state, batch, KEY, step, config)
        divergences.append(float(metrics["actor/exact_kl"]))
    assert state.penalty >= 2**6
    assert divergences[-1] < 0.2 * divergences[0]


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, clip_ratio=0.2)
    state, batch = begun(config)
    metrics = update(state, batch, KEY, 0, config)[1]
    assert 0 < metrics["actor/clipped"] < 1


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("policy", ["gaussian", "tanh_gaussian"])
def test_ratio_is_one_for_the_policy_that_gathered(policy: Any) -> None:
    config = dataclasses.replace(CONFIG, policy=policy)
    on_policy.assert_ratio_is_one(act, update, *begun(config), config)


def test_squashed_log_prob_is_the_density_of_the_action() -> None:
    config = dataclasses.replace(CONFIG, policy="tanh_gaussian")
    state, batch = begun(config)
    action, extras, _ = act(state, batch.observation, KEY, config, explore=True)
    actor = reference.mlp(state.actor_critic.parameters.actor)
    output = reference.forward(actor, np.asarray(batch.observation).reshape(-1, 3))[0]
    mean, std = output[:, :2], np.log1p(np.exp(output[:, 2:])) + 1e-3
    raw = np.asarray(extras["raw"], np.float64).reshape(-1, 2)
    np.testing.assert_allclose(action.reshape(-1, 2), np.tanh(raw), rtol=1e-5)
    density = -0.5 * ((raw - mean) / std) ** 2 - np.log(std * np.sqrt(2 * np.pi))
    density -= np.log(1 - np.tanh(raw) ** 2)
    density = density.sum(axis=1).reshape(STEPS, ENVS)
    np.testing.assert_allclose(extras["log_prob"], density, rtol=1e-4, atol=1e-4)


def test_clipped_actions_keep_the_log_prob_of_what_was_sampled() -> None:
    state, batch = begun(CONFIG)
    wide = state.actor_critic.parameters.replace(log_std=jnp.full(2, 2.0))
    state = state.replace(actor_critic=state.actor_critic.replace(parameters=wide))
    action, extras, _ = act(state, batch.observation, KEY, CONFIG, explore=True)
    assert (np.abs(extras["raw"]) > 1).any()
    np.testing.assert_allclose(action, np.clip(extras["raw"], -1, 1), rtol=1e-6)


def test_discrete_actions_are_drawn_from_the_softmax() -> None:
    state = reference.state(ppo, DISCRETE, CONFIG)
    observation = jnp.broadcast_to(jnp.asarray([0.3, -0.2, 0.9]), (4000, 3))
    action, extras, _ = act(state, observation, KEY, CONFIG, explore=True)
    actor = reference.mlp(state.actor_critic.parameters.actor)
    logits = reference.forward(actor, np.asarray(observation[:1], np.float64))[0][0]
    probability = np.exp(logits) / np.exp(logits).sum()
    np.testing.assert_allclose(np.bincount(action, minlength=4) / 4000, probability, atol=0.03)
    log_prob = np.log(probability)[np.asarray(action)]
    np.testing.assert_allclose(extras["log_prob"], log_prob, rtol=1e-4)
    best, *_ = act(state, observation[0], KEY, CONFIG, explore=False)
    assert best == probability.argmax()


@pytest.mark.slow
def test_discrete_updates_move_towards_what_paid() -> None:
    config = dataclasses.replace(
        CONFIG, normalise_rewards=False, num_epochs=20, trace_decay=0.0, discount=0.0
    )
    state, batch = begun(config, DISCRETE)
    batch = batch.replace(reward=(batch.action == 2).astype(jnp.float32))
    pi = policy(state, batch.observation)
    batch = batch.replace(extras={"raw": batch.action, "log_prob": pi.log_prob(batch.action)})
    new, _ = update(state, batch, KEY, 0, config)
    after = policy(new, batch.observation)
    assert (batch.reward > 0).any()
    two = jnp.full((STEPS, ENVS), 2)
    assert (after.log_prob(two) - pi.log_prob(two)).mean() > 0.05


def test_truncation_bootstraps_and_termination_does_not() -> None:
    config = dataclasses.replace(CONFIG, discount=0.9)
    state, batch = begun(config)
    networks = state.actor_critic.parameters
    inputs = (networks, networks.critic, batch, config)
    on_policy.assert_only_time_limits_bootstrap(ppo.with_advantages, *inputs)


def test_learning_rate_stays_at_nothing_beyond_2_to_the_31_environment_steps() -> None:
    config = dataclasses.replace(CONFIG, decay_steps=100.0, num_envs=64, num_steps=1024)
    gradient = {"weight": jnp.ones(3)}
    adam = surrogates.optimiser(jnp.int32(2**15 + 1), config)  # rollouts of 2^16 steps
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
