"""PPO-Lagrangian against float64 NumPy written from the papers and from OmniSafe's code."""

from __future__ import annotations

import dataclasses
import functools
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Part, Transition, Weighted
from rljax.agents import ppo_lagrangian
from rljax.networks.optimisation import multipliers
from rljax.runs import records, run
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import ENVS, KEY, STEPS

SPEC = EnvSpec("test/Example-v0", (3,), 2, signals=(Part("cost", ()),))
CONFIG = ppo_lagrangian.Config(
    **on_policy.SIZES,
    cost_limit=0.3,
    init_multiplier=0.7,
    cost_discount=0.9,
    cost_trace_decay=0.6,
)


def example() -> Any:
    return SPEC, CONFIG, on_policy.rollout(0, SPEC)


def fresh(config: ppo_lagrangian.Config) -> ppo_lagrangian.State:
    settings = multipliers.MultiplierSettings.of(config)
    multiplier = multipliers.create(config.init_multiplier, settings)
    return reference.state(ppo_lagrangian, SPEC, config, multiplier=multiplier)


def each(critics: multipliers.ValueAndCost) -> tuple[Any, Any]:
    return critics.critic, critics.cost_critic


update = jax.jit(ppo_lagrangian.update)


class Controller:
    """The multiplier of OmniSafe's PIDLagrangian, common/pid_lagrange.py, with `sum_norm`:
    the sum of losses is divided by 1 + nu, and nu has no cap.
    """

    def __init__(self, config: Any) -> None:
        self.config = config
        self.integral, self.mean_excess, self.mean_cost = config.init_multiplier, 0.0, 0.0
        self.past = [0.0]  # means of the cost, the newest last: at most `delay` of them

    def move(self, cost: float, limit: float) -> float:
        """The multiplier after episodes with this mean cost."""
        config = self.config
        excess = cost - limit
        self.integral = max(0.0, self.integral + config.gain_i * excess)
        self.mean_excess *= config.smoothing_p
        self.mean_excess += (1 - config.smoothing_p) * excess
        self.mean_cost *= config.smoothing_d
        self.mean_cost += (1 - config.smoothing_d) * cost
        growth = max(0.0, self.mean_cost - self.past[0])
        output = config.gain_p * self.mean_excess + self.integral + config.gain_d * growth
        self.past = [*self.past, self.mean_cost][-config.delay :]
        return max(0.0, output)


class Reference(on_policy.Learner):
    """One learner, with a price on costs."""

    def __init__(self, state: ppo_lagrangian.State, config: ppo_lagrangian.Config) -> None:
        networks = state.actor_critic.parameters
        super().__init__(config, networks.actor, networks.log_std, each(networks.critics))
        self.total = np.zeros(ENVS)  # cost of running episodes
        self.multiplier = config.init_multiplier if config.multiplier == "gradient" else 0.0
        self.adam_of_multiplier = reference.Adam(config.multiplier_rate)
        self.controller = Controller(config)

    def move(self, cost: np.ndarray, ended: np.ndarray) -> float | None:
        """Move the multiplier; the mean cost of the episodes that ended, None where none did."""
        config, totals = self.config, []
        for t in range(STEPS):
            self.total = self.total + cost[t]
            totals += list(self.total[ended[t]])
            self.total = np.where(ended[t], 0.0, self.total)
        if not totals:
            return None
        mean = float(np.mean(totals))
        if config.multiplier == "pid":
            self.multiplier = self.controller.move(mean, config.cost_limit)
        else:  # up, where costs are above the limit
            slope = config.cost_limit - mean
            self.multiplier = max(0.0, self.adam_of_multiplier.step(self.multiplier, slope))
        return mean

    def combined(self, advantage: np.ndarray, price: np.ndarray) -> np.ndarray:
        """OmniSafe's buffer standardises advantages of rewards over a rollout and centres those of
        costs; its PPOLag combines them, as the authors' safe_rl/pg/buffer.py and run_agent.py do.
        """
        config = self.config
        if config.normalise_costs:  # the critic's units, back to those of the cost
            price = price * self.std(1)
        if config.normalise_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return (advantage - self.multiplier * (price - price.mean())) / (1 + self.multiplier)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        config = self.config
        ended = np.asarray(batch.terminated | batch.truncated)
        cost = np.asarray(batch.extras["cost"], np.float64)
        episodes = self.move(cost, ended)
        reward, scaled = self.scaled(0, batch.reward, batch), self.scaled(1, cost, batch)
        cost = scaled if config.normalise_costs else cost
        observation, raw, old = map(
            on_policy.rows, (batch.observation, batch.extras["raw"], batch.extras["log_prob"])
        )
        metrics = []
        for epoch_key in jax.random.split(key, config.num_epochs):
            both = [self.advantages(k, batch, x) for k, x in enumerate((reward, cost))]
            advantage = self.combined(*both)
            targets = [x + self.values(k, observation) for k, x in enumerate(both)]
            explained = on_policy.explained(both[0], targets[0])
            for part in on_policy.minibatches(jax.random.split(epoch_key)[0], config.batch_size):
                rows = (observation[part], raw[part], old[part], advantage[part])
                line = self.proximal_step(*rows, [x[part] for x in targets])
                metrics.append(line | explained)
        return on_policy.means(metrics) | {
            "cost/multiplier": self.multiplier,
            "cost/episode": 0.0 if episodes is None else episodes,
        }


CASES = {
    "gradient": {},
    "pid, raw costs": {
        "multiplier": "pid",
        "normalise_costs": False,
        "gain_p": 0.5,
        "gain_i": 0.3,
        "gain_d": 0.2,
        "smoothing_p": 0.4,
        "smoothing_d": 0.6,
        "delay": 2,
    },
    "above the limit, raw advantages, entropy": {
        "cost_limit": 9.0,
        "multiplier_rate": 0.3,
        "normalise_advantages": False,
        "entropy_cost": 0.1,
    },
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = on_policy.rollout(step, SPEC), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        plain = {name: x.value if isinstance(x, Weighted) else x for name, x in metrics.items()}
        reference.assert_metrics(plain, expected.update(batch, key, step))
    networks = state.actor_critic.parameters
    reference.assert_same(reference.mlp(networks.actor), expected.actor, "actor")
    reference.assert_same(
        [reference.mlp(x) for x in each(networks.critics)], expected.critics, "critics"
    )
    np.testing.assert_allclose(state.multiplier.value, expected.multiplier, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.cost_returns.running, expected.total, rtol=1e-6)


def moved(multiplier: Any, cost: float, settings: Any, episodes: float = 1.0) -> Any:
    """A multiplier after a rollout."""
    weighted = Weighted(jnp.asarray(cost), jnp.asarray(episodes))
    return multipliers.update(multiplier, weighted, settings)


def test_a_controller_equals_that_of_omnisafe() -> None:
    """Over costs that rise, oscillate and fall; rollouts without an episode change nothing."""
    costs = [90.0, 85.0, 90.0, *np.linspace(60.0, 30.0, 9), 10.0, 40.0, *[0.0] * 60]
    costs += [*np.linspace(0.0, 80.0, 20), *[25.0, 60.0] * 5]
    default = ppo_lagrangian.Config(multiplier="pid")
    other = dataclasses.replace(default, smoothing_p=0.7, smoothing_d=0.3, delay=3, gain_d=0.5)
    for config in (default, other):
        settings = multipliers.MultiplierSettings.of(config)
        move = jax.jit(functools.partial(moved, settings=settings))
        multiplier = multipliers.create(config.init_multiplier, settings)
        expected, values = Controller(config), []
        for cost in costs:
            multiplier = move(move(multiplier, 7.0, episodes=0.0), cost)
            values.append((float(multiplier.value), expected.move(cost, config.cost_limit)))
        ours, theirs = np.transpose(values)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        assert min(theirs) == 0.0 < max(theirs)
    settings = multipliers.MultiplierSettings.of(default)
    multiplier = moved(multipliers.create(default.init_multiplier, settings), 900.0, settings)
    first = 0.1 * 0.05 * 875 + (0.001 + 0.01 * 875) + 0.01 * 0.05 * 900  # P, I and D
    assert float(multiplier.value) == pytest.approx(first)


@pytest.mark.parametrize("kind", ["gradient", "pid"])
def test_a_multiplier_stays_below_its_cap(kind: Any) -> None:
    settings = multipliers.MultiplierSettings(kind, 25.0, 0.5, (0.1, 0.01, 0.01), largest=1.5)
    multiplier = multipliers.create(0.5, settings)
    for _ in range(5):
        multiplier = moved(multiplier, 900.0, settings)
    assert float(multiplier.value) == 1.5


def test_a_rare_cost_counts_in_full() -> None:
    """One of 50 in 20,000 steps: more than ten times the std of its sums."""
    cost = jnp.zeros((5_000, 4)).at[2_000, 1].set(50.0)
    costs, scaled, _ = multipliers.observe(
        multipliers.create_costs(4), cost, jnp.zeros(cost.shape, bool), 0.99
    )
    assert float(scaled.max()) > 10
    np.testing.assert_allclose(scaled * multipliers.scale(costs, True), cost, rtol=1e-5)


@pytest.mark.parametrize("kind", ["gradient", "pid"])
def test_a_multiplier_rises_above_the_limit_falls_below_it_and_waits_for_episodes(
    kind: Any,
) -> None:
    settings = multipliers.MultiplierSettings(kind, 25.0, 0.1, (0.1, 0.01, 0.01))
    multiplier = multipliers.create(0.5, settings)
    values = []
    for cost in [100.0] * 5 + [0.0] * 60:
        multiplier = moved(multiplier, cost, settings)
        values.append(float(multiplier.value))
    assert values[4] > values[0] > 0.5
    assert min(values) == values[-1] == 0.0
    assert trees.equal(moved(multiplier, 1e3, settings, episodes=0.0), multiplier)


def test_without_a_multiplier_it_is_ppo() -> None:
    """The policy follows the rewards alone, and the cost critic learns beside it."""
    free = {"init_multiplier": 0.0, "multiplier_rate": 0.0, "max_grad_norm": 0.0}
    config = dataclasses.replace(CONFIG, **free)
    state, batch = fresh(config), on_policy.rollout(0, SPEC)
    free = batch.replace(extras={**batch.extras, "cost": 0.0 * batch.extras["cost"]})
    (one, _), (other, _) = (update(state, x, KEY, 0, config) for x in (batch, free))
    one, other = one.actor_critic.parameters, other.actor_critic.parameters
    reference.assert_same(reference.mlp(one.actor), reference.mlp(other.actor), "actor")
    first, second = (x.critics.cost_critic(SPEC.example()) for x in (one, other))
    assert (first != second).all()


def test_an_environment_without_costs_is_refused(tmp_path: Path) -> None:
    message = "agent 'ppo_lagrangian' learns from the signal 'cost', and 'Pendulum-v1' gives"
    with pytest.raises(ValueError, match=message):
        run.train("ppo_lagrangian", "Pendulum-v1", 4096, out=tmp_path / "run")


@pytest.mark.learn
def test_it_keeps_the_limit_that_ppo_breaks(tmp_path: Path) -> None:
    """Who stays earns about 0, who runs straight to the goals 420."""
    found = {}
    for agent, steps, config in (
        ("ppo", 128_000, {}),
        ("ppo_lagrangian", 256_000, {"cost_limit": 10.0}),
    ):
        out = run.train(
            agent,
            "rljax/PointHazards",
            steps,
            out=tmp_path / agent,
            seeds=2,
            config=config,
            eval_every=steps,
            eval_episodes=50,
        )
        found[agent] = records.read_summary(out)["final"]
    assert found["ppo"]["signals"]["cost"] > 20
    assert found["ppo_lagrangian"]["signals"]["cost"] < 12
    assert found["ppo"]["mean"] > found["ppo_lagrangian"]["mean"] > 150
