"""DPPO against float64 NumPy written from arXiv:2409.00588 and its authors' code, gradients by
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
from rljax.agents import dppo
from rljax.networks import distributions
from rljax.runs import records, run
from rljax.runs.policies import loading
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import ENVS, KEY, STEPS
from tests.runs import test_run_offline

SPEC = EnvSpec("test/Example-v0", (3,), 2)
T, K, A = 4, 3, 2
CONFIG = dppo.Config(
    num_steps=STEPS,
    num_envs=ENVS,
    batch_size=6,
    num_epochs=2,
    denoising_steps=T,
    tuned_steps=K,
    hidden=(5, 5),
    embedding=4,
    critic_hidden=(8, 8),
    activation="relu",
    critic_activation="relu",
    actor_lr=1e-2,
    critic_lr=2e-2,
    # Wide, so that made-up chains are probable
    density_min=0.5,
    clip_ratio=0.3,
    clip_first=0.05,
    target_kl=None,
)
POLICY_IS_A_DRAW = True  # also without exploring
AVERAGES = ("base",)  # which stays


def made_up(seed: int, tuned: int = K) -> Transition:
    """A rollout of chains that no policy drew."""
    generator = np.random.default_rng(200 + seed)
    chain = 0.7 * generator.normal(size=(STEPS, ENVS, tuned + 1, A))
    log_prob = generator.normal(-1.2, 0.3, size=(STEPS, ENVS, tuned))
    extras = {"chain": chain, "log_prob": log_prob}
    extras = {name: jnp.asarray(x, jnp.float32) for name, x in extras.items()}
    action = jnp.clip(extras["chain"][:, :, -1], -1, 1)
    return on_policy.rollout(seed, SPEC).replace(action=action, extras=extras)


def example() -> Any:
    return SPEC, CONFIG, made_up(0)


update = jax.jit(dppo.update)
act = jax.jit(dppo.act, static_argnames="explore")


def begun(config: dppo.Config = CONFIG) -> dppo.State:
    return reference.state(dppo, SPEC, config)


class Reference(on_policy.Learner):
    """`PPODiffusion` and `cosine_beta_schedule`. Index t counts from 0, as theirs."""

    def __init__(self, state: dppo.State, config: dppo.Config) -> None:
        self.config = config
        self.denoiser, self.base = reference.field(state.actor), reference.field(state.base)
        self.critics = [reference.mlp(state.critic.parameters)]
        self.adams = [reference.Adam(rate) for rate in (config.actor_lr, config.critic_lr)]
        self.running, self.sums = [np.zeros(ENVS)], [[]]
        steps = config.denoising_steps + 1
        x = np.linspace(0, steps, steps)
        left = np.cos(((x / steps) + 0.008) / 1.008 * np.pi * 0.5) ** 2
        left /= left[0]
        self.beta = np.clip(1 - left[1:] / left[:-1], 0, 0.999)
        self.left = np.cumprod(1 - self.beta)
        self.before = np.append(1.0, self.left[:-1])

    def mean(self, denoiser: Any, x: np.ndarray, s: np.ndarray, t: np.ndarray) -> np.ndarray:
        """mu of the step from x at t."""
        beta, left, before = (each[t][:, None] for each in (self.beta, self.left, self.before))
        noise = reference.of_field(denoiser, x, s, t.astype(float))
        clean = np.clip(np.sqrt(1 / left) * x - np.sqrt(1 / left - 1) * noise, -1, 1)
        share = beta * np.sqrt(before) / (1 - left)
        return share * clean + (1 - before) * np.sqrt(1 - beta) / (1 - left) * x

    def std_of(self, t: np.ndarray, least: float) -> np.ndarray:
        variance = self.beta * (1 - self.before) / (1 - self.left)
        return np.clip(np.sqrt(np.maximum(variance, 1e-20)), least, None)[t][:, None]

    def numbers(
        self, denoiser: Any, ends: tuple[np.ndarray, np.ndarray], s: np.ndarray, t: np.ndarray
    ) -> np.ndarray:
        """log p [N, A] of steps, before limits."""
        std = self.std_of(t, self.config.density_min)
        error = (ends[1] - self.mean(denoiser, ends[0], s, t)) / std
        return -0.5 * error**2 - np.log(std) - 0.5 * np.log(2 * np.pi)

    def log_prob(self, *arguments: Any) -> np.ndarray:
        return np.clip(self.numbers(*arguments), -5, 2).mean(axis=1)

    def chain(
        self, denoiser: Any, s: np.ndarray, key: jax.Array, least: float, last: bool = True
    ) -> np.ndarray:
        """Points [N, K + 1, A] from the first that `denoiser` sees; without `last` noise, its
        mean.
        """
        config, points = self.config, []
        key_start, key_steps = jax.random.split(key)
        x = reference.noise(key_start, (len(s), A))
        noise = reference.noise(key_steps, (config.denoising_steps, len(s), A))
        noise = np.clip(noise, -config.noise_clip, config.noise_clip)
        for i, t in enumerate(reversed(range(config.denoising_steps))):
            tuned, each = t < config.tuned_steps, np.full(len(s), t)
            points += [x] if tuned else []
            x = self.mean(denoiser if tuned else self.base, x, s, each)
            if last or t > 0:
                x = x + self.std_of(each, least) * noise[i]
        return np.stack([*points, x], axis=1)

    def imitation(self, denoiser: Any, s: np.ndarray, chain: np.ndarray) -> float:
        number = self.config.tuned_steps
        each = [
            self.log_prob(
                denoiser, (chain[:, k], chain[:, k + 1]), s, np.full(len(s), number - 1 - k)
            )
            for k in range(number)
        ]
        return -float(np.mean(each))

    def losses(self, denoiser: Any, rows: Any) -> dict[str, float]:
        """Metrics, of which the loss is made."""
        config = self.config
        s, ends, place, old, advantage, chain = rows
        number = config.tuned_steps
        t = number - 1 - place
        advantage = advantage * config.step_discount ** (number - place - 1)
        log_ratio = self.log_prob(denoiser, ends, s, t) - old
        ratio, share = np.exp(log_ratio), place / (number - 1) if number > 1 else 1.0
        epsilon = config.clip_first + (config.clip_ratio - config.clip_first) * (
            np.exp(config.clip_growth * share) - 1
        ) / (np.exp(config.clip_growth) - 1)
        clipped = np.clip(ratio, 1 - epsilon, 1 + epsilon)
        metrics = {
            "actor/loss": np.maximum(-advantage * ratio, -advantage * clipped).mean(),
            "actor/kl": (ratio - 1 - log_ratio).mean(),
            "actor/clipped": (np.abs(ratio - 1) > epsilon).mean(),
        }
        if chain is not None:
            metrics["actor/imitation"] = self.imitation(denoiser, s, chain)
        return metrics

    def actor_step(self, rows: Any) -> dict[str, float]:
        def loss(denoiser: Any) -> float:
            metrics = self.losses(denoiser, rows)
            weight = self.config.imitation_weight or 0.0
            return metrics["actor/loss"] + weight * metrics.get("actor/imitation", 0.0)

        metrics = self.losses(self.denoiser, rows)
        gradient = reference.differences(loss, self.denoiser)
        gradient = reference.limited(gradient, self.config.max_grad_norm)
        self.denoiser = self.adams[0].step(self.denoiser, gradient)
        return metrics

    def critic_step(self, s: np.ndarray, target: np.ndarray) -> dict[str, float]:
        metrics, gradient = self.errors(s, [target])
        gradient = reference.limited(gradient, self.config.max_grad_norm)
        self.critics = self.adams[1].step(self.critics, gradient)
        return metrics

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config, metrics = self.config, []
        number = config.tuned_steps
        reward = config.reward_scale * np.asarray(batch.reward, np.float64)
        if config.normalise_rewards:
            reward = self.scaled(0, reward, batch)
        extras = (batch.extras["chain"], batch.extras["log_prob"])
        s, chain, old = map(on_policy.rows, (batch.observation, *extras))
        advantages, values = self.advantages(0, batch, reward), self.values(0, s)
        for epoch_key in jax.random.split(key, config.num_epochs):
            key_order, key_draws = jax.random.split(epoch_key)
            order = np.asarray(distributions.permutation(key_order, len(s) * number))
            order = order.reshape(-1, config.batch_size * number)
            for index, draw in zip(order, jax.random.split(key_draws, len(order)), strict=True):
                row, place = np.unravel_index(index, (len(s), number))
                advantage = advantages[row]
                target = advantage + values[row]
                if config.normalise_advantages:
                    advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
                imitated = None
                if config.imitation_weight is not None:
                    imitated = self.chain(self.base, s[row], draw, config.noise_min)
                ends = (chain[row, place], chain[row, place + 1])
                rows = (s[row], ends, place, old[row, place], advantage, imitated)
                if step < config.critic_warmup:
                    line = self.losses(self.denoiser, rows)
                else:
                    line = self.actor_step(rows)
                metrics.append(line | self.critic_step(s[row], target))
        return on_policy.means(metrics) | on_policy.explained(advantages, advantages + values)


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "imitation of the base": {"imitation_weight": 0.5, "max_grad_norm": 0.05},
    "a critic first": {"critic_warmup": 1, "normalise_rewards": False, "reward_scale": 0.5},
    "plain": {"normalise_advantages": False, "clip_growth": 1.0, "step_discount": 0.8},
    "one step": {"tuned_steps": 1},
}


@reference.cases(CASES)
def test_updates_equal_the_authors(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = begun(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = made_up(step, config.tuned_steps), jax.random.key(step)
        state, metrics = update(state, batch, key, jnp.asarray(step), config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.field(state.actor), expected.denoiser, "actor")
    reference.assert_same(reference.field(state.base), expected.base, "base")
    reference.assert_same([reference.mlp(state.critic.parameters)], expected.critics, "critic")


def test_the_cases_clip_some_and_not_all() -> None:
    metrics = update(begun(), made_up(0), KEY, 0, CONFIG)[1]
    assert 0 < metrics["actor/clipped"] < 1
    expected = Reference(begun(), CONFIG)
    s, chain = (on_policy.rows(x) for x in (made_up(0).observation, made_up(0).extras["chain"]))
    steps = [
        expected.numbers(
            expected.denoiser, (chain[:, k], chain[:, k + 1]), s, np.full(len(s), K - 1 - k)
        )
        for k in range(K)
    ]
    assert 0 < np.mean(np.stack(steps) < -5) < 1


@pytest.mark.parametrize("tuned", [K, T])
def test_steps_are_the_authors_and_have_their_density(tuned: int) -> None:
    """The first of the steps are the base's, unless all are tuned."""
    config = dataclasses.replace(CONFIG, tuned_steps=tuned, noise_clip=1.0, noise_min=0.3)
    state, batch = begun(config), made_up(0)
    action, extras = act(state, batch.observation, KEY, config, explore=True)
    expected, s = Reference(state, config), on_policy.rows(batch.observation)
    ours, log_prob = (on_policy.rows(extras[name]) for name in ("chain", "log_prob"))
    chain = expected.chain(expected.denoiser, s, KEY, 0.3)
    np.testing.assert_allclose(ours, chain, rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(on_policy.rows(action), np.clip(chain[:, -1], -1, 1), atol=1e-4)
    assert np.abs(chain[:, -1]).max() > 1.0  # which the chain's end is not
    for k in range(tuned):
        ends, t = (ours[:, k], ours[:, k + 1]), np.full(len(s), tuned - 1 - k)
        theirs = expected.log_prob(expected.denoiser, ends, s, t)
        np.testing.assert_allclose(log_prob[:, k], theirs, rtol=1e-4, atol=1e-5)


def test_evaluation_has_less_noise_and_none_in_the_last_step() -> None:
    state, observation = begun(), made_up(0).observation
    action, extras = act(state, observation, KEY, CONFIG, explore=False)
    expected, s = Reference(state, CONFIG), on_policy.rows(observation)
    chain = expected.chain(expected.denoiser, s, KEY, 1e-3, last=False)
    np.testing.assert_allclose(on_policy.rows(action), chain[:, -1], rtol=1e-3, atol=1e-4)
    assert not extras


def test_ratio_is_one_for_the_policy_that_gathered() -> None:
    on_policy.assert_ratio_is_one(act, update, begun(), made_up(0), CONFIG)


def test_the_base_is_a_copy_that_stays() -> None:
    state = dppo.init(KEY, SPEC, CONFIG)
    assert trees.equal(state.actor.parameters, state.base)
    after = update(state, made_up(0), KEY, 0, CONFIG)[0]
    assert trees.equal(after.base, state.base)
    assert not trees.equal(after.actor.parameters, state.base)


def test_truncation_bootstraps_and_termination_does_not() -> None:
    critic = begun().critic.parameters
    inputs = (critic, critic, made_up(0), CONFIG)
    on_policy.assert_only_time_limits_bootstrap(dppo.with_advantages, *inputs)


def test_more_tuned_steps_than_steps_are_refused() -> None:
    dppo.check(SPEC, dataclasses.replace(CONFIG, tuned_steps=T))
    with pytest.raises(ValueError, match=r"tuned-steps"):
        dppo.check(SPEC, dataclasses.replace(CONFIG, tuned_steps=T + 1))


@pytest.mark.slow
def test_begins_with_the_denoiser_of_dql(tmp_path: Path) -> None:
    """Actor and base are the other run's before the first update."""
    data = str(test_run_offline.written(tmp_path / "pendulum.npz"))
    shared = {"denoising_steps": 3, "noising": "cosine", "hidden": (8, 8)}
    imitates = {"value_weight": 0.0, "improvement": "one_step", "num_candidates": 1}
    clone = test_run_offline.train("dql", 60, tmp_path / "clone", data, shared | imitates)
    config = shared | {"tuned_steps": 2, "num_envs": 2, "num_steps": 8, "batch_size": 16}
    out = run.train(
        "dppo",
        "Pendulum-v1",
        32,
        config=config | {"actor_lr": 0.0},
        out=tmp_path / "run",
        from_run=str(clone),
        from_parts=("actor", "base=actor"),
        eval_episodes=1,
    )
    before, after = (loading.load_all(path).state.state for path in (clone, out))
    assert trees.equal(before.actor.parameters, after.actor.parameters)
    assert trees.equal(before.actor.parameters, after.base)
    assert records.read_config(out)["inherited"].keys() == {"actor", "base"}
