"""SAC-Lagrangian against float64 NumPy written from its sources."""

from __future__ import annotations

import dataclasses
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
from rljax.runs import records, run
from tests.agents import actor_critic, reference, test_ppo_lagrangian

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
    return SPEC, CONFIG, batch_of()


def fresh(config: sac_lagrangian.Config) -> sac_lagrangian.State:
    """A State to start from."""
    multiplier = multipliers.create(config.init_multiplier, MultiplierSettings.of(config, 0.0))
    return reference.state(sac_lagrangian, SPEC, config, multiplier=multiplier)


class Reference(actor_critic.SAC):
    """SAC in float64 with a critic of costs and a multiplier,
    from Ray et al. and arXiv:2007.03964.
    """

    def __init__(self, state: Any, config: Any) -> None:
        super().__init__(state, config)
        self.cost_critic = reference.exact(state.cost_critic)
        self.target_cost_critic = reference.exact(state.target_cost_critic)
        self.adams["cost_critic"] = reference.Adam(config.cost_lr)
        self.multiplier_adam = reference.Adam(config.multiplier_rate)
        self.multiplier = config.init_multiplier if config.multiplier == "gradient" else 0.0
        self.controller = test_ppo_lagrangian.Controller(config)

    def weigh(self, cost: float) -> None:
        """The limit of an episode, spread over its steps, as the sum of a series without end,
        and the multiplier's next value.
        """
        config = self.config
        limit = sum(config.cost_limit / STEPS * config.cost_discount**t for t in range(1_000))
        if config.multiplier == "pid":
            self.multiplier = self.controller.move(cost, limit)
            return
        value = self.multiplier_adam.step(np.array(self.multiplier), np.array(limit - cost))
        self.multiplier = max(0.0, float(value))

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        config, weight = self.config, self.multiplier
        key_critic, key_actor, key_cost = jax.random.split(key, 3)
        metrics = self.teach_critics(batch, self.target(batch, key_critic))

        next_action = self.next_sample(batch, key_cost)[0]
        following = batch.next_observation
        next_cost = reference.smallest(self.target_cost_critic, following, next_action)[0]
        alive = 1.0 - batch.terminated
        y = batch.extras["cost"] + config.cost_discount * alive * next_cost
        observation, action = batch.observation, batch.action
        loss, _, gradient = reference.squared_errors(self.cost_critic, observation, action, y)
        self.move("cost_critic", gradient)
        metrics |= {"cost/loss": loss, "cost/target": y.mean()}

        # L(pi) (1 + nu) = mean [alpha log pi - q + nu C]: as for SAC, with the slope of q - nu C in
        # the action.
        noise = reference.noise(key_actor, batch.action.shape)
        action, log_prob = self.sample(self.actor, observation, noise)
        (q, slope), (cost, rise) = (
            reference.smallest(x, observation, action) for x in (self.critic, self.cost_critic)
        )
        loss = (self.temperature * log_prob - q + weight * cost).mean() / (1.0 + weight)
        self.climb(batch, noise, slope - weight * rise, share=1.0 / (1.0 + weight))
        metrics |= {"actor/loss": loss, "cost/value": cost.mean()}
        metrics |= self.cool(-log_prob.mean(), action.shape[1])
        self.weigh(float(cost.mean()))
        self.follow("critic", "cost_critic")
        return metrics | {"cost/multiplier": self.multiplier}


update = jax.jit(sac_lagrangian.update)


@pytest.mark.parametrize("multiplier", ["gradient", "pid"])
def test_updates_equal_the_sources(multiplier: Any) -> None:
    config = dataclasses.replace(CONFIG, multiplier=multiplier)
    begin = fresh(config)
    state, _ = reference.assert_updates(update, begin, config, Reference, batch_of)
    assert state.multiplier.value != begin.multiplier.value


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
    message = r"signal 'cost', and 'rljax/Pendulum' gives none. If .*: --env signals-cost/rljax"
    with pytest.raises(ValueError, match=message):
        run.train("sac_lagrangian", "rljax/Pendulum", 100, out=tmp_path / "run")
    message = r"spreads the cost limit .*: 'test/Example-v0' has no time limit"
    with pytest.raises(ValueError, match=message):
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
    costs = []
    for agent, limit in (("sac", {}), ("sac_lagrangian", {"cost_limit": 10.0})):
        config, out = changes | limit, tmp_path / agent
        run.train(agent, "rljax/PointHazards", 30_000, config=config, out=out, **how)
        costs.append(records.read_summary(out)["final"]["signals"]["cost"])
    assert costs[0] > 15.0
    assert costs[1] < 0.7 * costs[0]
