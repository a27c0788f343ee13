"""ReinFlow against float64 NumPy written from arXiv:2505.22094 and its authors' code, gradients by
differences.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import reinflow
from rljax.runs import records, run
from rljax.runs.policies import loading
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import ENVS, KEY, STEPS
from tests.runs import test_run_offline

SPEC = EnvSpec("test/Example-v0", (3,), 2)
K, A = 3, 2
CONFIG = reinflow.Config(
    num_steps=STEPS,
    num_envs=ENVS,
    batch_size=6,
    num_epochs=2,
    flow_steps=K,
    hidden=(5, 5),
    noise_hidden=(4,),
    critic_hidden=(8, 8),
    activation="relu",
    critic_activation="relu",
    actor_lr=1e-2,
    critic_lr=2e-2,
    # Wide, so that made-up chains are probable
    noise_min=0.5,
    noise_max=1.5,
    noise_hold=20.0,
    noise_steps=60.0,
    clip_ratio=0.1,
    log_prob_limit=5.0,
    target_kl=None,
)
POLICY_IS_A_DRAW = True  # also without exploring


def made_up(seed: int) -> Transition:
    """A rollout of chains that no policy drew."""
    generator = np.random.default_rng(100 + seed)
    chain = generator.normal(size=(STEPS, ENVS, K + 1, A))
    chain[:, :, 1:] *= 0.6
    chain[:, :, -1] = np.clip(chain[:, :, -1], -1, 1)
    extras = {"chain": chain, "log_prob": generator.normal(-1.2, 0.2, size=(STEPS, ENVS))}
    extras = {name: jnp.asarray(x, jnp.float32) for name, x in extras.items()}
    batch = on_policy.rollout(seed, SPEC)
    return batch.replace(action=extras["chain"][:, :, -1], extras=extras)


def example() -> Any:
    return SPEC, CONFIG, made_up(0)


update = jax.jit(reinflow.update)
act = jax.jit(reinflow.act, static_argnames="explore")


def begun(config: reinflow.Config = CONFIG) -> reinflow.State:
    return reference.state(reinflow, SPEC, config, bound=jnp.float32(config.noise_max))


def tanh_network(layers: Any, x: np.ndarray) -> np.ndarray:
    for i in range(0, len(layers), 2):
        x = x @ layers[i] + layers[i + 1]
        if i + 2 < len(layers):
            x = np.tanh(x)
    return x


class Reference(on_policy.Learner):
    """The steps and the loss of `PPOFlow`; log-probabilities are means over numbers."""

    def __init__(self, state: reinflow.State, config: reinflow.Config) -> None:
        policy = state.actor.parameters
        self.config, self.bound = config, float(state.bound)
        self.policy_ = [reference.field(policy.flow), reference.mlp(policy.noise)]
        self.critics = [reference.mlp(state.critic.parameters)]
        self.adams = [reference.Adam(rate) for rate in (config.actor_lr, config.critic_lr)]
        self.running, self.sums = [np.zeros(ENVS)], [[]]

    def step(self, policy: Any, x: np.ndarray, s: np.ndarray, t: float) -> tuple[Any, Any]:
        """Mean and std of the step from x_t."""
        flow, noise = policy
        time = np.full(len(x), t)
        mean = np.clip(x + reference.of_field(flow, x, s, time) / K, -1, 1)
        logvar = np.tanh(tanh_network(noise, np.concatenate([s, time[:, None]], axis=1)))
        low, high = 2 * np.log(self.config.noise_min), 2 * np.log(self.bound)
        return mean, np.exp(0.5 * (low + (high - low) * (logvar + 1) / 2))

    def likelihood(self, policy: Any, s: np.ndarray, chain: np.ndarray) -> Any:
        """log p and entropy [N] per number, and the mean std."""
        log_prob = (-0.5 * chain[:, 0] ** 2 - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        entropy, stds = np.full(len(s), 0.5 * A * np.log(2 * np.pi * np.e)), []
        for k in range(K):
            mean, std = self.step(policy, chain[:, k], s, k / K)
            error = (chain[:, k + 1] - mean) / std
            log_prob += (-0.5 * error**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
            entropy += (np.log(std) + 0.5 * np.log(2 * np.pi * np.e)).sum(axis=1)
            stds.append(std)
        return log_prob / (K + 1) / A, entropy / (K + 1) / A, np.mean(stds)

    def losses(self, policy: Any, rows: Any) -> dict[str, float]:
        """Metrics, of which the loss is made."""
        s, chain, old, advantage = rows
        limit, epsilon = self.config.log_prob_limit, self.config.clip_ratio
        new, entropy, std = self.likelihood(policy, s, chain)
        log_ratio = np.clip(new, -limit, limit) - np.clip(old, -limit, limit)
        ratio = np.exp(log_ratio)
        clipped = np.clip(ratio, 1 - epsilon, 1 + epsilon)
        return {
            "actor/loss": np.maximum(-advantage * ratio, -advantage * clipped).mean(),
            "actor/kl": (ratio - 1 - log_ratio).mean(),
            "actor/clipped": (np.abs(ratio - 1) > epsilon).mean(),
            "actor/entropy": entropy.mean(),
            "actor/noise": std,
        }

    def actor_step(self, rows: Any) -> dict[str, float]:
        def loss(policy: Any) -> float:
            metrics = self.losses(policy, rows)
            return metrics["actor/loss"] - self.config.entropy_cost * metrics["actor/entropy"]

        metrics = self.losses(self.policy_, rows)
        gradient = reference.differences(loss, self.policy_)
        gradient = reference.limited(gradient, self.config.max_grad_norm)
        self.policy_ = self.adams[0].step(self.policy_, gradient)
        return metrics

    def critic_step(self, s: np.ndarray, target: np.ndarray) -> dict[str, float]:
        metrics, gradient = self.errors(s, [target])
        gradient = reference.limited(gradient, self.config.max_grad_norm)
        self.critics = self.adams[1].step(self.critics, gradient)
        return metrics

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, metrics = self.config, []
        reward = config.reward_scale * np.asarray(batch.reward, np.float64)
        if config.normalise_rewards:
            reward = self.scaled(0, reward, batch)
        extras = (batch.extras["chain"], batch.extras["log_prob"])
        s, chain, old = map(on_policy.rows, (batch.observation, *extras))
        advantages, values = self.advantages(0, batch, reward), self.values(0, s)
        for epoch_key in jax.random.split(key, config.num_epochs):
            for part in on_policy.minibatches(epoch_key, config.batch_size):
                advantage = advantages[part]
                target = advantage + values[part]
                if config.normalise_advantages:
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                rows, before = (s[part], chain[part], old[part], advantage), self.policy_
                if step < config.critic_warmup:
                    line = self.losses(before, rows)
                else:
                    line = self.actor_step(rows)
                metrics.append(line | self.critic_step(s[part], target))
        self.bound = bound(config, step * STEPS * ENVS)
        return on_policy.means(metrics) | on_policy.explained(advantages, advantages + values)


def bound(config: reinflow.Config, steps: float) -> float:
    """The authors' cosine with a hold, in environment steps."""
    low, high, left = config.noise_min, config.noise_max, config.noise_left
    end = low * (1 - left) + high * left
    share = (steps - config.noise_hold) / (config.noise_steps - config.noise_hold)
    return end + (high - end) * 0.5 * (1 + np.cos(np.clip(share, 0, 1) * np.pi))


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "limits": {"log_prob_limit": 1.25, "max_grad_norm": 0.05, "entropy_cost": 0.5},
    "a critic first": {"critic_warmup": 1, "normalise_rewards": False, "reward_scale": 0.5},
    "plain": {"normalise_advantages": False, "clip_ratio": 0.3, "discount": 0.7},
}


@reference.cases(CASES)
def test_updates_equal_the_authors(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = begun(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = made_up(step), jax.random.key(step)
        state, metrics = update(state, batch, key, jnp.asarray(step), config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
        np.testing.assert_allclose(state.bound, expected.bound, rtol=1e-5)
    policy = state.actor.parameters
    reference.assert_same(reference.field(policy.flow), expected.policy_[0], "flow")
    reference.assert_same(reference.mlp(policy.noise), expected.policy_[1], "noise")
    reference.assert_same([reference.mlp(state.critic.parameters)], expected.critics, "critic")


def test_the_cases_clip_some_and_not_all() -> None:
    metrics = update(begun(), made_up(0), KEY, 0, CONFIG)[1]
    assert 0 < metrics["actor/clipped"] < 1
    expected = Reference(begun(), CONFIG)
    s, chain = (on_policy.rows(x) for x in (made_up(0).observation, made_up(0).extras["chain"]))
    log_prob, _, _ = expected.likelihood(expected.policy_, s, chain)
    assert 0 < np.mean(np.abs(log_prob) > CASES["limits"]["log_prob_limit"]) < 1


def test_steps_have_the_density_that_they_are_drawn_from() -> None:
    state, batch = begun(), made_up(0)
    action, extras = act(state, batch.observation, KEY, CONFIG, explore=True)
    chain = np.asarray(extras["chain"], np.float64)
    assert chain.shape == (STEPS, ENVS, K + 1, A)
    np.testing.assert_array_equal(action, extras["chain"][..., -1, :])
    assert np.abs(action).max() <= 1
    expected, s = Reference(state, CONFIG), on_policy.rows(batch.observation)
    log_prob, _, _ = expected.likelihood(expected.policy_, s, on_policy.rows(chain))
    np.testing.assert_allclose(extras["log_prob"].ravel(), log_prob, rtol=1e-4, atol=1e-5)


def test_noise_is_clipped_before_it_is_added() -> None:
    config = dataclasses.replace(CONFIG, noise_clip=0.25)
    state, batch = begun(config), made_up(0)
    expected = Reference(state, config)
    chain = on_policy.rows(act(state, batch.observation, KEY, config, explore=True)[1]["chain"])
    s, sizes = on_policy.rows(batch.observation), []
    for k in range(K - 1):  # the last point is clipped, too
        mean, std = expected.step(expected.policy_, chain[:, k], s, k / K)
        sizes.append(np.abs(chain[:, k + 1] - mean) / std)
    np.testing.assert_allclose(np.max(sizes), 0.25, rtol=1e-4)


def test_acts_without_noise_in_the_steps() -> None:
    state, observation = begun(), made_up(0).observation
    action, extras = act(state, observation, KEY, CONFIG, explore=False)
    start = np.asarray(jax.random.normal(jax.random.split(KEY)[0], action.shape), np.float64)
    expected, s, x = Reference(state, CONFIG), on_policy.rows(observation), on_policy.rows(start)
    for k in range(K):
        x, _ = expected.step(expected.policy_, x, s, k / K)
    np.testing.assert_allclose(action.reshape(-1, A), x, rtol=1e-4, atol=1e-5)
    assert not extras


def test_ratio_is_one_for_the_policy_that_gathered() -> None:
    on_policy.assert_ratio_is_one(act, update, begun(), made_up(0), CONFIG)


def test_the_bound_is_held_and_falls_by_half_a_cosine() -> None:
    """At 35 % of the run, half-way after it, and at the end and beyond."""
    config = reinflow.schedule(reinflow.Config(), 1_000)
    bounds = [float(config.noise_bound(x)) for x in (0, 350, 675, 1_000, 5_000)]
    low = 0.1 + 0.7 * (0.24 - 0.1)
    np.testing.assert_allclose(bounds, [0.24, 0.24, (0.24 + low) / 2, low, low], rtol=1e-5)


def test_no_noise_leaves_its_bounds() -> None:
    state = begun().replace(bound=jnp.float32(0.7))
    moments = reinflow.transition(state.actor.parameters, state, made_up(0).observation, CONFIG)
    points = 100.0 * jax.random.normal(KEY, (STEPS, ENVS, A))
    mean, std = moments(points, jnp.full((STEPS, ENVS), 0.5))
    assert np.abs(mean).max() == 1.0
    assert 0.5 <= std.min() <= std.max() <= 0.7


def test_truncation_bootstraps_and_termination_does_not() -> None:
    config = dataclasses.replace(CONFIG, normalise_rewards=False)
    critic = begun(config).critic.parameters
    inputs = (critic, critic, made_up(0), config)
    on_policy.assert_only_time_limits_bootstrap(reinflow.with_advantages, *inputs)


@pytest.mark.parametrize("noise_min", [0.3, 0.24])
def test_crossed_bounds_are_refused(noise_min: float) -> None:
    config = reinflow.Config(noise_min=noise_min)
    if noise_min > config.noise_max:
        with pytest.raises(ValueError, match=r"noise-min"):
            reinflow.check(SPEC, config)
    else:
        reinflow.check(SPEC, config)


@pytest.mark.slow
def test_begins_with_the_flow_of_qc(tmp_path: Path) -> None:
    """Its flow, and nothing else of it, is that of the other run before the first update."""
    data = str(test_run_offline.written(tmp_path / "pendulum.npz"))
    shared = {"flow_steps": 2, "hidden": (8, 8)}
    candidates = {"chunk_length": 1, "num_candidates": 1}
    flow = test_run_offline.train("qc", 60, tmp_path / "flow", data, shared | candidates)
    config = shared | {"num_envs": 2, "num_steps": 8, "batch_size": 16, "actor_lr": 0.0}
    out = run.train(
        "reinflow",
        "Pendulum-v1",
        32,
        config=config,
        out=tmp_path / "run",
        from_run=str(flow),
        from_parts=("actor.flow=actor",),
        eval_episodes=1,
    )
    before, after = (loading.load_all(path).state.state for path in (flow, out))
    assert trees.equal(before.actor.parameters, after.actor.parameters.flow)
    assert records.read_config(out)["inherited"].keys() == {"actor.flow"}
