"""RO2O against float64 NumPy written from the paper and its authors' code."""

from __future__ import annotations

import dataclasses
import functools
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
from rljax.learning import configuration, registry
from rljax.networks import distributions, encoders
from rljax.runs import records, run
from tests.agents import actor_critic, reference
from tests.environments import reach

SPEC = EnvSpec("test/Example-v0", (3,), 2)
WEIGHTS = {"value_weight": 5.0, "policy_weight": 2.0, "ood_weight": 0.7}
RADII = {"value_radius": 0.3, "policy_radius": 0.2, "ood_radius": 0.4}
CONFIG = ro2o.Config(
    hidden=(6, 6),
    num_critics=3,
    batch_size=5,
    num_perturbed=3,
    ood_steps=4.0,
    normalise_observations=False,
    actor_lr=1e-2,
    critic_lr=2e-2,
    temperature_lr=3e-2,
    target_rate=0.1,
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
    return SPEC, CONFIG, reference.transitions()


class Reference(actor_critic.SAC):
    """RO2O in float64, from arXiv:2309.16973 and its authors' code;
    gradients are differences of its losses.
    """

    def near(self, key: Any, observation: np.ndarray, radius: float) -> np.ndarray:
        """n observations [n, B, O] around each one."""
        shape = (self.config.num_perturbed, 1, observation.shape[1])
        return observation + radius * reference.uniform(key, shape)

    def smoothness(self, critics: Any, near: np.ndarray, s: np.ndarray, a: np.ndarray) -> float:
        """S."""
        tau, here = self.config.value_asymmetry, reference.values(critics, s, a)
        change = np.stack([reference.values(critics, sample, a) - here for sample in near])
        cost = (1 - tau) * np.maximum(change, 0) ** 2 + tau * np.minimum(change, 0) ** 2
        return float(cost.mean(axis=1).max(axis=0).mean())

    def change_of_policy(self, actor: Any, near: np.ndarray, s: np.ndarray) -> float:
        """P, by the textbook's KL of two Gaussians."""

        def kl(mean: Any, std: Any, other: Any, wide: Any) -> Any:
            each = np.log(wide / std) + (std**2 + (mean - other) ** 2) / (2 * wide**2) - 0.5
            return each.sum(axis=1)

        heads = (self.heads(actor, x)[:2] for x in (s, *near))
        here, *there = [(mean, np.exp(log_std)) for mean, log_std in heads]
        return float(np.mean(np.max([kl(*here, *x) + kl(*x, *here) for x in there], axis=0)))

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, s, a = self.config, batch.observation, batch.action
        key_critic, key_actor = jax.random.split(key)
        key_action, key_near = jax.random.split(key_actor)
        noise = reference.noise(key_action, a.shape)
        near = self.near(key_near, s, config.policy_radius)

        def actor_loss(actor: Any) -> float:
            action, log_prob = self.sample(actor, s, noise)
            q = reference.smallest(self.critic, s, action)[0]
            change = self.change_of_policy(actor, near, s)
            return (self.temperature * log_prob - q).mean() + config.policy_weight * change

        entropy = -self.sample(self.actor, s, noise)[1].mean()
        metrics = {"actor/loss": actor_loss(self.actor)}
        metrics |= {"actor/smoothness": self.change_of_policy(self.actor, near, s)}
        self.move("actor", reference.differences(actor_loss, self.actor))
        metrics |= self.cool(entropy, a.shape[1])

        keys = jax.random.split(key_critic, 4)
        y = self.target(batch, keys[0])
        near, far = (
            self.near(k, s, x)
            for k, x in zip(keys[1:3], (config.value_radius, config.ood_radius), strict=True)
        )
        noises = reference.noise(keys[3], (len(far), *a.shape))
        actions = [self.sample(self.actor, x, n)[0] for x, n in zip(far, noises, strict=True)]
        fallen = min(step / config.ood_steps, 1.0)
        kappa = (1.0 - fallen) * config.ood_penalty + fallen * config.ood_penalty_end

        def values_nearby(critics: Any) -> np.ndarray:
            pairs = zip(far, actions, strict=True)
            each = [reference.values(critics, x, u) for x, u in pairs]
            return np.stack(each, axis=1)  # [C, n, B]

        before = values_nearby(self.critic)
        deviation = np.sqrt(((before - before.mean(axis=0)) ** 2).sum(axis=0) / (len(before) - 1))

        def losses(critics: Any) -> tuple[float, float, float]:
            error = ((reference.values(critics, s, a) - y) ** 2).mean(axis=1).sum()
            uncertainty = ((values_nearby(critics) - (before - kappa * deviation)) ** 2).mean()
            return error, self.smoothness(critics, near, s, a), uncertainty

        def whole(critics: Any) -> float:
            error, smoothness, uncertainty = losses(critics)
            return error + config.value_weight * smoothness + config.ood_weight * uncertainty

        error, smoothness, _ = losses(self.critic)
        metrics |= {"critic/loss": whole(self.critic), "critic/error": error}
        metrics |= {"critic/smoothness": smoothness, "critic/deviation": deviation.mean()}
        q = reference.values(self.critic, s, a).mean()
        metrics |= {"critic/q": q, "critic/target": y.mean()}
        self.move("critic", reference.differences(whole, self.critic))
        self.follow("critic")
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "strong": WEIGHTS | RADII,
    "default": {},
    "clipped": WEIGHTS
    | RADII
    | {"log_std_min": -0.6, "log_std_max": 0.1, "target_entropy": -0.7, "value_asymmetry": 0.9},
}

update = jax.jit(ro2o.update)
fresh = functools.partial(reference.state, ro2o, SPEC)


def critic_loss(critic: Any, state: ro2o.State, config: ro2o.Config) -> Any:
    """The loss of the examples' batch."""
    return ro2o.critic_loss(critic, state, reference.transitions(), KEY, jnp.int32(0), config)[0]


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference, steps=(0, 5))


def test_the_uncertain_are_lowered_as_far_as_kappa_says() -> None:
    """With the uncertainty alone, each critic's gradient is 2 kappa std / (C n B),
    at the perturbed rows.
    """
    config = dataclasses.replace(STRONG, ood_weight=1.0, value_weight=0.0)
    without = dataclasses.replace(config, ood_weight=0.0)
    state, batch = fresh(config), reference.transitions()
    gradient = jax.jit(jax.grad(critic_loss))
    parts = [gradient(state.critic.parameters, state, x) for x in (config, without)]
    of_uncertainty = jax.tree.map(lambda x, y: x - y, *parts)
    keys = jax.random.split(KEY, 4)
    near = encoders.perturbed(keys[2], batch.observation, config.ood_radius, config.num_perturbed)
    action = distributions.squashed(state.actor(near), config).sample(seed=keys[3])
    q = state.critic(near, action)
    slope = 2.0 * config.ood_penalty * q.std(axis=0, ddof=1) / q.size
    expected = jax.grad(lambda critic: (critic(near, action) * slope).sum())
    reference.assert_close(of_uncertainty, expected(state.critic.parameters), rtol=1e-3)
    assert (slope > 0).all(), "values fall"


@pytest.mark.learn
@pytest.mark.parametrize(
    ("weight", "metric"),
    [("value_weight", "critic/smoothness"), ("policy_weight", "actor/smoothness")],
)
def test_weights_smooth(weight: str, metric: str) -> None:
    """A hundred updates on one batch: what a weight is for becomes smaller than without it."""
    batch = reference.transitions()

    def learnt(value: float) -> Any:
        config = dataclasses.replace(STRONG, **{weight: value})
        state = reference.learnt(ro2o, fresh(STRONG), batch, config)
        return update(state, batch, KEY, 100, config)[1]

    plain, smooth = map(learnt, (0.0, 20.0))
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
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_critic_loss_teaches_no_targets() -> None:
    begin = fresh(STRONG)
    reference.assert_teaches_the_critic_alone(
        lambda critic, state: critic_loss(critic, state.replace(actor=begin.actor), STRONG), begin
    )


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
