"""RO2O against float64 NumPy written from the paper and its authors' code,
and what the paper promises of its parts.
"""

from __future__ import annotations

import dataclasses
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Transition
from rljax.agents import ro2o
from rljax.networks import distributions, encoders
from rljax.runs import records, run
from rljax.training import configuration, registry
from tests.agents import reference
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
RATES = {"actor_lr": 1e-2, "critic_lr": 2e-2, "temperature_lr": 3e-2, "target_rate": 0.1}
WEIGHTS = {"value_weight": 5.0, "policy_weight": 2.0, "ood_weight": 0.7}
RADII = {"value_radius": 0.3, "policy_radius": 0.2, "ood_radius": 0.4}
CONFIG = ro2o.Config(
    hidden=(6, 6),
    num_critics=3,
    batch_size=5,
    num_perturbed=3,
    ood_steps=4.0,
    normalise_observations=False,
    **RATES,
)
STRONG = dataclasses.replace(CONFIG, **WEIGHTS, **RADII)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {
    "init_temperature": 1e-3,
    "temperature_lr": 0.0,
    "num_critics": 2,
    "num_perturbed": 2,
}


def example() -> tuple[EnvSpec, ro2o.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """RO2O in float64, from arXiv:2309.16973 and its authors' code;
    gradients are differences of its losses.
    """

    def __init__(self, state: ro2o.State, config: ro2o.Config) -> None:
        self.config = config
        self.actor = reference.mlp(state.actor)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        self.log_temperature = np.log(config.init_temperature)
        self.adams = [
            reference.Adam(rate)
            for rate in (config.actor_lr, config.critic_lr, config.temperature_lr)
        ]

    def gaussian(self, actor: Any, observation: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Mean and standard deviation, before the tanh."""
        mean, raw = np.split(reference.forward(actor, observation)[0], 2, axis=1)
        return mean, np.exp(np.clip(raw, self.config.log_std_min, self.config.log_std_max))

    def sample(
        self, actor: Any, observation: np.ndarray, noise: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        """Actions and their log-probabilities."""
        mean, std = self.gaussian(actor, observation)
        u = mean + std * noise
        normal = -0.5 * noise**2 - np.log(std) - 0.5 * np.log(2 * np.pi)
        return np.tanh(u), (normal - 2.0 * (np.log(2.0) - u - np.logaddexp(0.0, -2.0 * u))).sum(
            axis=1
        )

    def values(self, critics: Any, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        """Q_c [C, B]."""
        return np.array([reference.value(critic, observation, action)[0] for critic in critics])

    def near(self, key: Any, observation: np.ndarray, radius: float) -> np.ndarray:
        """n observations [n, B, O] around each one."""
        shape = (self.config.num_perturbed, 1, observation.shape[1])
        return observation + radius * np.asarray(
            jax.random.uniform(key, shape, minval=-1.0, maxval=1.0), np.float64
        )

    def smoothness(self, critics: Any, near: np.ndarray, s: np.ndarray, a: np.ndarray) -> float:
        """S."""
        tau, here = self.config.value_asymmetry, self.values(critics, s, a)
        changes = [self.values(critics, sample, a) - here for sample in near]
        costs = [
            ((1 - tau) * np.maximum(d, 0) ** 2 + tau * np.minimum(d, 0) ** 2).mean(axis=0)
            for d in changes
        ]
        return float(np.max(costs, axis=0).mean())

    def change_of_policy(self, actor: Any, near: np.ndarray, s: np.ndarray) -> float:
        """P, by the textbook's KL of two Gaussians."""

        def kl(mean: Any, std: Any, other: Any, wide: Any) -> Any:
            return (np.log(wide / std) + (std**2 + (mean - other) ** 2) / (2 * wide**2) - 0.5).sum(
                axis=1
            )

        here = self.gaussian(actor, s)
        there = [self.gaussian(actor, sample) for sample in near]
        return float(np.mean(np.max([kl(*here, *x) + kl(*x, *here) for x in there], axis=0)))

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        """One update; its metrics."""
        config = self.config
        s = np.asarray(batch.observation, np.float64)
        following = np.asarray(batch.next_observation, np.float64)
        a, reward = np.asarray(batch.action, np.float64), np.asarray(batch.reward, np.float64)
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        key_critic, key_actor = jax.random.split(key)

        key_action, key_near = jax.random.split(key_actor)
        temperature, noise = np.exp(self.log_temperature), reference.noise(key_action, a.shape)
        near = self.near(key_near, s, config.policy_radius)

        def actor_loss(actor: Any) -> float:
            action, log_prob = self.sample(actor, s, noise)
            plain = (temperature * log_prob - reference.smallest(self.critics, s, action)[0]).mean()
            return plain + config.policy_weight * self.change_of_policy(actor, near, s)

        entropy = -self.sample(self.actor, s, noise)[1].mean()
        target = -a.shape[1] if config.target_entropy is None else config.target_entropy
        metrics = {
            "actor/loss": actor_loss(self.actor),
            "actor/entropy": entropy,
            "temperature/value": temperature,
        }
        metrics |= {"actor/smoothness": self.change_of_policy(self.actor, near, s)}
        metrics |= {"temperature/loss": self.log_temperature * (entropy - target)}
        self.actor = self.adams[0].step(self.actor, reference.differences(actor_loss, self.actor))
        self.log_temperature = self.adams[2].step(self.log_temperature, entropy - target)

        keys = jax.random.split(key_critic, 4)
        next_action, next_log_prob = self.sample(
            self.actor, following, reference.noise(keys[0], a.shape)
        )
        soft = reference.smallest(self.targets, following, next_action)[0]
        y = reward + config.discount * alive * (soft - np.exp(self.log_temperature) * next_log_prob)
        near, far = (
            self.near(k, s, x)
            for k, x in zip(keys[1:3], (config.value_radius, config.ood_radius), strict=True)
        )
        noises = reference.noise(keys[3], (len(far), *a.shape))
        actions = [self.sample(self.actor, x, n)[0] for x, n in zip(far, noises, strict=True)]
        kappa = config.ood_penalty_end
        if step < config.ood_steps:
            kappa = (
                config.ood_penalty
                - (config.ood_penalty - config.ood_penalty_end) * step / config.ood_steps
            )

        def values_nearby(critics: Any) -> np.ndarray:
            pairs = zip(far, actions, strict=True)
            return np.stack([self.values(critics, x, u) for x, u in pairs], axis=1)  # [C, n, B]

        before = values_nearby(self.critics)
        deviation = np.sqrt(((before - before.mean(axis=0)) ** 2).sum(axis=0) / (len(before) - 1))

        def losses(critics: Any) -> tuple[float, float, float]:
            error = ((self.values(critics, s, a) - y) ** 2).mean(axis=1).sum()
            uncertainty = ((values_nearby(critics) - (before - kappa * deviation)) ** 2).mean()
            return error, self.smoothness(critics, near, s, a), uncertainty

        def whole(critics: Any) -> float:
            error, smoothness, uncertainty = losses(critics)
            return error + config.value_weight * smoothness + config.ood_weight * uncertainty

        error, smoothness, _ = losses(self.critics)
        metrics |= {
            "critic/loss": whole(self.critics),
            "critic/error": error,
            "critic/smoothness": smoothness,
        }
        metrics |= {"critic/q": self.values(self.critics, s, a).mean(), "critic/target": y.mean()}
        metrics |= {"critic/deviation": deviation.mean()}
        self.critics = self.adams[1].step(self.critics, reference.differences(whole, self.critics))
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "strong": WEIGHTS | RADII,
    "default": {},
    "clipped": WEIGHTS
    | RADII
    | {"log_std_min": -0.6, "log_std_max": 0.1, "target_entropy": -0.7, "value_asymmetry": 0.9},
}

# Compiled once for all tests: a Config's floats are traced.
update = jax.jit(ro2o.update)


def fresh(config: ro2o.Config) -> ro2o.State:
    """A State to start from."""
    return reference.state(
        ro2o, SPEC, config, log_temperature=jnp.log(jnp.float32(config.init_temperature))
    )


@jax.jit
def critic_loss(state: ro2o.State, batch: Transition, config: ro2o.Config) -> tuple[Any, Any]:
    """The loss with its metrics, and its gradients in the critics,
    their targets and the temperature.
    """

    def loss(critic: Any, target_critic: Any, log_temperature: Any) -> Any:
        temperature = state.log_temperature.replace(parameters=log_temperature)
        whole = state.replace(target_critic=target_critic, log_temperature=temperature)
        return ro2o.critic_loss(critic, whole, batch, KEY, jnp.int32(0), config)

    parts = (state.critic.parameters, state.target_critic, state.log_temperature.parameters)
    return jax.value_and_grad(loss, argnums=(0, 1, 2), has_aux=True)(*parts)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in (0, 5):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")
    reference.assert_same(
        state.log_temperature.parameters, expected.log_temperature, "log_temperature"
    )


def test_the_uncertain_are_lowered_as_far_as_kappa_says() -> None:
    """With the uncertainty alone, each critic's gradient is 2 kappa std / (C n B),
    at the perturbed rows.
    """
    config = dataclasses.replace(STRONG, ood_weight=1.0, value_weight=0.0)
    without = dataclasses.replace(config, ood_weight=0.0)
    state, batch = fresh(config), reference.transitions()
    parts = [critic_loss(state, batch, x)[1][0] for x in (config, without)]
    of_uncertainty = jax.tree.map(lambda x, y: x - y, *parts)
    keys = jax.random.split(KEY, 4)
    near = encoders.perturbed(keys[2], batch.observation, config.ood_radius, config.num_perturbed)
    action = distributions.squashed(state.actor(near), config).sample(seed=keys[3])
    q = state.critic(near, action)
    slope = 2.0 * config.ood_penalty * q.std(axis=0, ddof=1) / q.size
    gradient = jax.grad(lambda critic: (critic(near, action) * slope).sum())
    expected = gradient(state.critic.parameters)
    for pair in zip(*map(jax.tree.leaves, (of_uncertainty, expected)), strict=True):
        np.testing.assert_allclose(*pair, rtol=1e-3, atol=1e-6)
    assert (slope > 0).all(), "values fall"


@pytest.mark.learn
@pytest.mark.parametrize(
    ("weight", "metric"),
    [("value_weight", "critic/smoothness"), ("policy_weight", "actor/smoothness")],
)
def test_weights_smooth(weight: str, metric: str) -> None:
    """A hundred updates on one batch: what a weight is for becomes smaller than without it."""
    batch = reference.transitions()

    @jax.jit
    def learnt(state: ro2o.State, config: ro2o.Config) -> Any:
        state = jax.lax.fori_loop(
            0, 100, lambda i, state: ro2o.update(state, batch, KEY, i, config)[0], state
        )
        return ro2o.update(state, batch, KEY, 100, config)[1]

    plain, smooth = (
        learnt(fresh(STRONG), dataclasses.replace(STRONG, **{weight: x})) for x in (0.0, 20.0)
    )
    assert smooth[metric] < 0.5 * plain[metric]


def test_kappa_falls_during_the_run() -> None:
    config = ro2o.schedule(dataclasses.replace(CONFIG, ood_steps=0.5), 1_000)
    penalties = [float(ro2o.ood_penalty(jnp.int32(step), config)) for step in (0, 250, 500, 900)]
    np.testing.assert_allclose(penalties, [1.0, 0.55, 0.1, 0.1], rtol=1e-6)


def test_online_kappa_is_at_its_end() -> None:
    """The authors' README: --q_ood_uncertainty_reg 0.1 --q_ood_uncertainty_decay 0."""
    changes = registry.preset_online("ro2o", "Hopper-v5", "d4rl/hopper-medium-v2")
    config = configuration.replace(CONFIG, changes, "online")
    penalties = [float(ro2o.ood_penalty(jnp.int32(step), config)) for step in (0, 1, 900)]
    np.testing.assert_allclose(penalties, [0.1, 0.1, 0.1], rtol=1e-6)


def test_the_command_on_the_page_drops_what_the_authors_code_drops_online() -> None:
    """ro2o_ft_mujoco.py: `loss = q_loss` and `loss = critic_loss1`."""
    page = (Path(__file__).parents[2] / "docs" / "agents" / "ro2o.md").read_text()
    command = page.split("```sh\n")[2].split("```")[0]
    changes = dict(re.findall(r"--online config\.([a-z-]+)=(\S+)", command))
    settings = {name.replace("-", "_"): json.loads(x) for name, x in changes.items()}
    assert "--offline-share 0 " in command, "no data"
    assert "--config.replay-size 250_000" in command, "memory_size"
    config = configuration.replace(STRONG, settings, "online")
    state, batch = fresh(config), reference.transitions()
    _, metrics = update(state, batch, KEY, 0, config)
    assert metrics["critic/loss"] == metrics["critic/error"]
    pi = distributions.squashed(state.actor(batch.observation), config)
    action, log_prob = pi.sample_and_log_prob(seed=jax.random.split(jax.random.split(KEY)[1])[0])
    q = state.critic(batch.observation, action).min(axis=0)
    alpha = jnp.exp(state.log_temperature.parameters)
    np.testing.assert_allclose(metrics["actor/loss"], (alpha * log_prob - q).mean(), rtol=1e-5)


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return critic_loss(state, batch.replace(**flags), CONFIG)[0][1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )


def test_critic_loss_teaches_no_targets() -> None:
    of_critic, *others = critic_loss(fresh(STRONG), reference.transitions(), STRONG)[1]
    assert all(np.any(leaf) for leaf in jax.tree.leaves(of_critic))
    assert not any(np.any(leaf) for leaf in jax.tree.leaves(others))


def test_refuses_a_single_critic() -> None:
    with pytest.raises(ValueError, match=r"^--config\.num-critics is 1, it must be at least 2"):
        ro2o.check(SPEC, dataclasses.replace(CONFIG, num_critics=1))


@pytest.mark.learn
def test_defaults_learn_and_go_on_online(tmp_path: Path) -> None:
    """Networks and neighbours are fewer than the defaults,
    with which this takes over half an hour.
    """
    smaller = {"hidden": (64, 64), "num_critics": 4, "num_perturbed": 4}
    settings: dict[str, Any] = {
        "seeds": 2,
        "data": str(reach.journeys(tmp_path / "reach.npz")),
        "config": smaller,
    }
    settings |= {"then_online": 300, "offline_share": 0.5, "eval_every": 1_500, "eval_episodes": 30}
    out = run.train("ro2o", f"{reach.__file__}:Reach", 1_500, out=tmp_path / "run", **settings)
    assert records.read_summary(out)["final"]["mean"] >= -8.0  # the data's is -9, and the best -1
