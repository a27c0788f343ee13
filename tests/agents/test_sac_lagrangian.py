"""SAC-Lagrangian against float64 NumPy written from its sources, its limit,
and what it learns under it.
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Part, Transition
from rljax.agents import sac_lagrangian
from rljax.networks.optimisation import multipliers
from rljax.networks.optimisation.multipliers import MultiplierSettings
from rljax.runs import run
from tests.agents import reference, test_ppo_lagrangian, test_sac

STEPS = 20  # of an episode
SPEC = EnvSpec("test/Example-v0", (3,), 2, max_episode_steps=STEPS, signals=(Part("cost", ()),))
CONFIG = sac_lagrangian.Config(
    hidden=(8, 8),
    actor_lr=1e-2,
    critic_lr=2e-2,
    cost_lr=3e-2,
    temperature_lr=1e-2,
    batch_size=5,
    target_rate=0.1,
    init_temperature=0.5,
    cost_discount=0.9,
    cost_limit=2.0,
    init_multiplier=0.7,
    multiplier_rate=0.1,
    gain_i=0.3,
    smoothing_p=0.4,
    smoothing_d=0.6,
    delay=2,
)
KEY = jax.random.key(0)


def batch_of(seed: int = 0) -> Transition:
    """A batch with costs of 0 and 1."""
    batch = reference.transitions(seed)
    cost = np.random.default_rng(seed).random(len(batch.reward)) < 0.6
    return batch.replace(extras={"cost": jnp.asarray(cost, jnp.float32)})


def example() -> tuple[EnvSpec, sac_lagrangian.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, batch_of()


def fresh(config: sac_lagrangian.Config) -> sac_lagrangian.State:
    """A State to start from."""
    return reference.state(
        sac_lagrangian,
        SPEC,
        config,
        log_temperature=jnp.log(jnp.float32(config.init_temperature)),
        multiplier=multipliers.create(config.init_multiplier, MultiplierSettings.of(config, 0.0)),
    )


class Reference(test_sac.Reference):
    """SAC in float64 with a critic of costs and a multiplier,
    from Ray et al. and arXiv:2007.03964.
    """

    def __init__(self, state: sac_lagrangian.State, config: Any) -> None:
        super().__init__(state, config)  # pyright: ignore[reportArgumentType]
        self.cost, self.cost_target = (
            reference.critics(state.cost_critic),
            reference.critics(state.target_cost_critic),
        )
        self.cost_adam, self.multiplier_adam = (
            reference.Adam(config.cost_lr),
            reference.Adam(config.multiplier_rate),
        )
        self.multiplier = config.init_multiplier if config.multiplier == "gradient" else 0.0
        self.controller = test_ppo_lagrangian.Controller(config)

    def move(self, cost: float) -> None:
        """The limit of an episode, spread over its steps, as the sum of a series without end,
        and the multiplier's next value.
        """
        config: Any = self.config
        limit = sum(config.cost_limit / STEPS * config.cost_discount**t for t in range(1_000))
        if config.multiplier == "pid":
            self.multiplier = self.controller.move(cost, limit)
            return
        value = self.multiplier_adam.step(np.array(self.multiplier), np.array(limit - cost))
        self.multiplier = max(0.0, float(value))

    def learn(self, batch: Transition, *noises: np.ndarray) -> dict[str, float]:
        """One update, with the noise of the next actions for the critics, of the actions,
        and of costs' next ones.
        """
        config: Any = self.config
        next_noise, noise, cost_noise = noises
        observation, size = np.asarray(batch.observation, np.float64), len(noise)
        following, action = (
            np.asarray(x, np.float64) for x in (batch.next_observation, batch.action)
        )
        alive, temperature = (
            1.0 - np.asarray(batch.terminated, np.float64),
            np.exp(self.log_temperature),
        )

        next_action, next_log_prob = self.sample(following, next_noise)[:2]
        soft = (
            reference.smallest(self.targets, following, next_action)[0]
            - temperature * next_log_prob
        )
        y = np.asarray(batch.reward, np.float64) + config.discount * alive * soft
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.critics = self.adams[1].step(self.critics, gradient)
        metrics = {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}

        next_cost = reference.smallest(
            self.cost_target, following, self.sample(following, cost_noise)[0]
        )[0]
        y = np.asarray(batch.extras["cost"], np.float64) + config.cost_discount * alive * next_cost
        loss, _, gradient = reference.squared_errors(self.cost, observation, action, y)
        self.cost = self.cost_adam.step(self.cost, gradient)
        metrics |= {"cost/loss": loss, "cost/target": y.mean()}

        # L(pi) (1 + nu) = mean [alpha log pi - q + nu C]: as for SAC, with the slope of q - nu C in
        # the action.
        weight = self.multiplier
        action, log_prob, inputs, log_std, inside = self.sample(observation, noise)
        (q, slope), (cost, rise) = (
            reference.smallest(x, observation, action) for x in (self.critics, self.cost)
        )
        change = (
            (temperature * 2.0 * action - (1.0 - action**2) * (slope - weight * rise))
            / size
            / (1.0 + weight)
        )
        change_log_std = (
            change * np.exp(log_std) * noise - temperature / size / (1.0 + weight)
        ) * inside
        gradient = reference.backward(
            self.actor, inputs, np.concatenate([change, change_log_std], axis=1)
        )[0]
        self.actor = self.adams[0].step(self.actor, gradient)
        metrics["actor/loss"] = (temperature * log_prob - q + weight * cost).mean() / (1.0 + weight)
        metrics |= {"actor/entropy": -log_prob.mean(), "cost/value": cost.mean()}
        error = -log_prob.mean() + action.shape[1]
        metrics |= {
            "temperature/loss": self.log_temperature * error,
            "temperature/value": temperature,
        }
        self.log_temperature = self.adams[2].step(self.log_temperature, error)
        self.move(float(cost.mean()))
        metrics["cost/multiplier"] = self.multiplier

        self.targets = reference.towards(self.critics, self.targets, config.target_rate)
        self.cost_target = reference.towards(self.cost, self.cost_target, config.target_rate)
        return metrics


update = jax.jit(sac_lagrangian.update)


@pytest.mark.parametrize("multiplier", ["gradient", "pid"])
def test_updates_equal_the_sources(multiplier: Any) -> None:
    config = dataclasses.replace(CONFIG, multiplier=multiplier)
    state = fresh(config)
    expected = Reference(state, config)
    values = []
    for step in range(4):
        batch, key = batch_of(step), jax.random.key(step)
        noises = [reference.noise(each, batch.action.shape) for each in jax.random.split(key, 3)]
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.learn(batch, *noises))
        values.append(float(state.multiplier.value))
    assert len(set(values)) > 1
    for critics, mlps in (
        (state.critic, expected.critics),
        (state.target_critic, expected.targets),
        (state.cost_critic, expected.cost),
        (state.target_cost_critic, expected.cost_target),
    ):
        reference.assert_same(reference.critics(critics), mlps, "critics")
    reference.assert_same(reference.mlp(state.actor), expected.actor, "actor")


@pytest.mark.parametrize("steps", [20, 200, 1_000])
def test_the_limit_is_what_the_critic_learns_where_each_episode_costs_it(steps: int) -> None:
    """d / T at each step of episodes of any length that end by their time limit: the critic goes
    on there, and its error is 0 where all its values are d / T (1 + gamma_k + gamma_k^2 + ...).
    """
    spec = dataclasses.replace(SPEC, max_episode_steps=steps)
    config = dataclasses.replace(CONFIG, cost_limit=10.0)
    limit = sum(10.0 / steps * 0.9**t for t in range(1_000))
    assert float(sac_lagrangian.limit(spec, config)) == pytest.approx(limit, rel=1e-5)
    state = fresh(config)

    def constant(x: jax.Array) -> jax.Array:
        """Of the critic's parameters the last bias, [C, 1], is its value; all others are 0."""
        return jnp.full_like(x, limit) if x.shape == (1, 1) else jnp.zeros_like(x)

    critic = jax.tree.map(constant, state.cost_critic.parameters)
    batch = batch_of()
    each = jnp.full_like(batch.reward, 10.0 / steps)
    batch = batch.replace(
        extras={"cost": each}, terminated=jnp.zeros_like(batch.terminated), truncated=each > 0
    )
    state = state.replace(target_cost_critic=critic)
    loss, metrics = sac_lagrangian.cost_loss(critic, state, batch, KEY, config)
    assert float(metrics["cost/target"]) == pytest.approx(limit, rel=1e-5)
    assert float(loss) < 1e-10 * limit


def test_costs_without_discount_are_refused() -> None:
    with pytest.raises(ValueError, match=r"cost-discount is 1, it must be below 1"):
        sac_lagrangian.check(SPEC, dataclasses.replace(CONFIG, cost_discount=1.0))


def test_environments_without_costs_or_time_limits_are_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match=r"signal 'cost', and 'rljax/Pendulum' gives none. If .*: --env signals-cost/rljax",
    ):
        run.train("sac_lagrangian", "rljax/Pendulum", 100, out=tmp_path / "run")
    with pytest.raises(
        ValueError, match=r"spreads the cost limit .*: 'test/Example-v0' has no time limit"
    ):
        sac_lagrangian.check(dataclasses.replace(SPEC, max_episode_steps=None), CONFIG)


@pytest.mark.learn
def test_it_keeps_the_limit_that_sac_breaks(tmp_path: Path) -> None:
    how: dict[str, Any] = {"seeds": 2, "eval_every": 30_000, "eval_episodes": 30}
    changes: dict[str, Any] = {
        "hidden": (64, 64),
        "warmup_steps": 2_000,
        "num_envs": 4,
        "num_updates": 4,
    }
    free = run.train(
        "sac", "rljax/PointHazards", 30_000, config=changes, out=tmp_path / "sac", **how
    )
    limited = changes | {"cost_limit": 10.0}
    bound = run.train(
        "sac_lagrangian",
        "rljax/PointHazards",
        30_000,
        config=limited,
        out=tmp_path / "bound",
        **how,
    )
    costs = [
        json.loads((out / "summary.json").read_text())["final"]["signals"]["cost"]
        for out in (free, bound)
    ]
    assert costs[0] > 15.0
    assert costs[1] < 0.7 * costs[0]
