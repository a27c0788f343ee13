"""PPO-Lagrangian against float64 NumPy written from the papers and from OmniSafe's code,
its multiplier, and what it learns among hazards.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec, Part, Transition, Weighted
from rljax.agents import ppo_lagrangian
from rljax.networks import distributions
from rljax.networks.optimisation import multipliers
from rljax.runs import run
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2, signals=(Part("cost", ()),))
STEPS, ENVS = 4, 3
CONFIG = ppo_lagrangian.Config(
    num_steps=STEPS,
    num_envs=ENVS,
    batch_size=6,
    num_epochs=2,
    actor_hidden=(8, 8),
    critic_hidden=(8, 8),
    activation="relu",
    learning_rate=1e-2,
    cost_limit=0.3,
    init_multiplier=0.7,
    cost_discount=0.9,
    cost_trace_decay=0.6,
)
KEY = jax.random.key(0)


def rollout(seed: int = 0, spec: EnvSpec = SPEC) -> Transition:
    """A rollout [T, E] with every kind of end."""
    generator = np.random.default_rng(seed)
    batch = jax.tree.map(
        lambda x: x.reshape(STEPS, ENVS, *x.shape[1:]), reference.transitions(seed, STEPS * ENVS)
    )
    raw: Any = 0.5 * generator.normal(size=(STEPS, ENVS, 2)).astype(np.float32)
    if spec.discrete:
        raw = generator.integers(0, spec.action_size, size=(STEPS, ENVS)).astype(np.int32)
    log_prob = generator.normal(-2.0, 0.3, size=(STEPS, ENVS)).astype(np.float32)
    cost = (generator.random((STEPS, ENVS)) < 0.6).astype(np.float32)
    extras = {"raw": jnp.asarray(raw), "log_prob": jnp.asarray(log_prob), "cost": jnp.asarray(cost)}
    return batch.replace(
        action=jnp.asarray(raw if spec.discrete else np.clip(raw, -1, 1)), extras=extras
    )


def example() -> tuple[EnvSpec, ppo_lagrangian.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, rollout()


def fresh(config: ppo_lagrangian.Config, spec: EnvSpec = SPEC) -> ppo_lagrangian.State:
    """A State to start from, whose parameters are drawn by NumPy."""
    generator = np.random.default_rng(3)
    shapes = jax.eval_shape(lambda key: ppo_lagrangian.init(key, spec, config), KEY)
    drawn = jax.tree.map(
        lambda x: jnp.asarray(generator.normal(0, 0.3, x.shape), x.dtype),
        shapes.actor_critic.parameters,
    )
    settings = multipliers.MultiplierSettings.of(config)
    multiplier = multipliers.create(config.init_multiplier, settings)
    return reference.state(ppo_lagrangian, spec, config, actor_critic=drawn, multiplier=multiplier)


def each(critics: multipliers.ValueAndCost) -> tuple[Any, Any]:
    """The critics of rewards and of costs."""
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


class Reference:
    """One learner in float64: sums along episodes term by term, gradients by hand."""

    def __init__(self, state: ppo_lagrangian.State, config: ppo_lagrangian.Config) -> None:
        self.config = config
        networks = state.actor_critic.parameters
        self.actor = reference.mlp(networks.actor)
        self.critics = [reference.mlp(critic) for critic in each(networks.critics)]
        self.log_std = np.asarray(networks.log_std, np.float64)
        self.adam = reference.Adam(config.learning_rate, config.adam_epsilon)
        self.running, self.sums = [np.zeros(ENVS), np.zeros(ENVS)], [[], []]
        self.total = np.zeros(ENVS)  # cost of running episodes
        self.multiplier = config.init_multiplier if config.multiplier == "gradient" else 0.0
        self.moments, self.moves = [0.0, 0.0], 0  # of Adam
        self.controller = Controller(config)

    def scaled(
        self, which: int, values: np.ndarray, discount: float, ended: np.ndarray
    ) -> np.ndarray:
        """Rewards or costs [T, E] divided by the std of their discounted sums so far."""
        for t in range(STEPS):
            self.running[which] = values[t] + discount * self.running[which]
            self.sums[which].append(self.running[which])
            self.running[which] = np.where(ended[t], 0.0, self.running[which])
        scaled = values / np.sqrt(np.ravel(self.sums[which]).var() + 1e-8)
        return np.clip(scaled, -10, 10) if which == 0 else scaled

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
        excess = mean - config.cost_limit
        if config.multiplier == "pid":
            self.multiplier = self.controller.move(mean, config.cost_limit)
        else:
            self.moves += 1
            self.moments = [
                0.9 * self.moments[0] - 0.1 * excess,
                0.999 * self.moments[1] + 0.001 * excess**2,
            ]
            first, second = (
                self.moments[0] / (1 - 0.9**self.moves),
                self.moments[1] / (1 - 0.999**self.moves),
            )
            self.multiplier = max(
                0.0, self.multiplier - config.multiplier_rate * first / (np.sqrt(second) + 1e-8)
            )
        return mean

    def values(self, which: int, observation: np.ndarray) -> np.ndarray:
        """V or V_c [...]."""
        output = reference.forward(self.critics[which], observation.reshape(-1, 3))[0]
        return output.reshape(observation.shape[:-1])

    def advantages(
        self, which: int, observation: Any, following: Any, gain: Any, batch: Transition
    ) -> np.ndarray:
        """The sum of discounted errors up to the end of each step's episode or of the rollout."""
        config = self.config
        discount = (config.discount, config.cost_discount)[which]
        decay = (config.trace_decay, config.cost_trace_decay)[which]
        alive = 1.0 - np.asarray(batch.terminated, np.float64)
        error = (
            gain
            + discount * alive * self.values(which, following)
            - self.values(which, observation)
        )
        result = np.zeros((STEPS, ENVS))
        for t in range(STEPS):
            for e in range(ENVS):
                weight = 1.0
                for later in range(t, STEPS):
                    result[t, e] += weight * error[later, e]
                    if batch.terminated[later, e] or batch.truncated[later, e]:
                        break
                    weight *= discount * decay
        return result

    def combined(self, advantage: np.ndarray, price: np.ndarray) -> np.ndarray:
        """One advantage of both: OmniSafe's buffer standardises that of rewards over all samples
        of a rollout and centres that of costs, and its PPOLag combines them. So does the authors'
        code (safe_rl/pg/buffer.py, run_agent.py).
        """
        config = self.config
        if config.normalise_costs:  # the critic's units, back to those of the cost
            price = price * np.sqrt(np.ravel(self.sums[1]).var() + 1e-8)
        if config.normalise_advantages:
            advantage = (advantage - advantage.mean()) / (advantage.std() + 1e-8)
        return (advantage - self.multiplier * (price - price.mean())) / (1 + self.multiplier)

    def minibatch(
        self, observation: Any, raw: Any, old: Any, advantage: Any, targets: Any
    ) -> dict[str, float]:
        """One step of Adam down the loss; the metrics before it."""
        config, size = self.config, len(raw)
        mean, inputs = reference.forward(self.actor, observation)
        std = np.exp(self.log_std)
        scaled = (raw - mean) / std
        log_prob = (-0.5 * scaled**2 - self.log_std - 0.5 * np.log(2 * np.pi)).sum(axis=1)
        ratio = np.exp(log_prob - old)
        clipped = np.clip(ratio, 1 - config.clip_ratio, 1 + config.clip_ratio)
        slope = np.where(ratio * advantage <= clipped * advantage, -ratio * advantage, 0.0) / size
        gradient: list[Any] = [
            reference.backward(self.actor, inputs, slope[:, None] * scaled / std)[0]
        ]
        metrics = {
            "actor/loss": -np.minimum(ratio * advantage, clipped * advantage).mean(),
            "actor/entropy": (self.log_std + 0.5 * np.log(2 * np.pi * np.e)).sum(),
            "actor/kl": (ratio - 1 - (log_prob - old)).mean(),
            "actor/clipped": (np.abs(ratio - 1) > config.clip_ratio).mean(),
        }
        for critic, target, names in zip(
            self.critics, targets, (("loss", "value"), ("cost_loss", "cost_value")), strict=True
        ):
            output, inputs = reference.forward(critic, observation)
            change = output[:, 0] - target
            gradient.append(
                reference.backward(critic, inputs, config.value_cost * change[:, None] / size)[0]
            )
            metrics |= {
                f"critic/{names[0]}": 0.5 * (change**2).mean(),
                f"critic/{names[1]}": output.mean(),
            }
        gradient.append((slope[:, None] * (scaled**2 - 1)).sum(axis=0) - config.entropy_cost)
        flat = [x for part in gradient[:-1] for x in part] + [gradient[-1]]
        norm = np.sqrt(sum((x**2).sum() for x in flat))
        gradient = reference.zip_map(lambda x: x * min(1.0, config.max_grad_norm / norm), gradient)
        parameters = [self.actor, *self.critics, self.log_std]
        self.actor, *self.critics, self.log_std = self.adam.step(parameters, gradient)
        return metrics

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        """Learn from a rollout; minibatches in the agent's order."""
        config = self.config
        ended = np.asarray(batch.terminated | batch.truncated)
        reward, cost = (np.asarray(x, np.float64) for x in (batch.reward, batch.extras["cost"]))
        episodes = self.move(cost, ended)
        gains = [self.scaled(0, reward, config.discount, ended)]
        scaled = self.scaled(1, cost, config.cost_discount, ended)
        gains.append(scaled if config.normalise_costs else cost)
        observation = np.asarray(batch.observation, np.float64)
        following = np.asarray(batch.next_observation, np.float64)
        metrics = []
        for epoch_key in jax.random.split(key, config.num_epochs):
            both = [self.advantages(k, observation, following, gains[k], batch) for k in range(2)]
            targets = [both[k] + self.values(k, observation) for k in range(2)]
            order = np.asarray(
                distributions.permutation(jax.random.split(epoch_key)[0], STEPS * ENVS)
            )
            raw, old = (np.asarray(batch.extras[name], np.float64) for name in ("raw", "log_prob"))
            for part in order.reshape(-1, config.batch_size):
                rows = (
                    observation.reshape(-1, 3)[part],
                    raw.reshape(-1, 2)[part],
                    old.ravel()[part],
                )
                advantage = self.combined(*both).ravel()[part]
                aims = [x.ravel()[part] for x in targets]
                metrics.append(self.minibatch(*rows, advantage, aims))
        means = {name: float(np.mean([line[name] for line in metrics])) for name in metrics[0]}
        return means | {
            "cost/multiplier": self.multiplier,
            "cost/episode": 0.0 if episodes is None else episodes,
        }


CASES: dict[str, dict[str, Any]] = {
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
    "above the limit, raw advantages": {
        "cost_limit": 9.0,
        "multiplier_rate": 0.3,
        "normalise_advantages": False,
    },
}


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(3):
        batch, key = rollout(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        plain = {name: x.value if isinstance(x, Weighted) else x for name, x in metrics.items()}
        reference.assert_metrics(plain, expected.update(batch, key))
    networks = state.actor_critic.parameters
    reference.assert_same(reference.mlp(networks.actor), expected.actor, "actor")
    reference.assert_same(
        [reference.mlp(x) for x in each(networks.critics)], expected.critics, "critics"
    )
    np.testing.assert_allclose(state.multiplier.value, expected.multiplier, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(state.cost_returns.running, expected.total, rtol=1e-6)


def test_a_controller_equals_that_of_omnisafe() -> None:
    """With its gains, over costs that rise, oscillate, fall and rise; rollouts without an episode
    between them change nothing. Its smoothing and delay, and others.
    """
    costs = [90.0, 85.0, 90.0, *np.linspace(60.0, 30.0, 9), 10.0, 40.0, *[0.0] * 60]
    costs += [*np.linspace(0.0, 80.0, 20), *[25.0, 60.0] * 5]
    default = ppo_lagrangian.Config(multiplier="pid")
    other = dataclasses.replace(default, smoothing_p=0.7, smoothing_d=0.3, delay=3, gain_d=0.5)
    for config in (default, other):
        settings = multipliers.MultiplierSettings.of(config)
        move = jax.jit(functools.partial(multipliers.update, settings=settings))
        multiplier = multipliers.create(config.init_multiplier, settings)
        expected, values = Controller(config), []
        for cost in costs:
            multiplier = move(multiplier, Weighted(jnp.asarray(7.0), jnp.zeros(())))
            multiplier = move(multiplier, Weighted(jnp.asarray(cost), jnp.ones(())))
            values.append((float(multiplier.value), expected.move(cost, config.cost_limit)))
        ours, theirs = np.transpose(values)
        np.testing.assert_allclose(ours, theirs, rtol=1e-4, atol=1e-4)
        assert min(theirs) == 0.0 < max(theirs)
    settings = multipliers.MultiplierSettings.of(default)
    multiplier = multipliers.create(default.init_multiplier, settings)
    cost = Weighted(jnp.asarray(900.0), jnp.ones(()))
    first = 0.1 * 0.05 * 875 + (0.001 + 0.01 * 875) + 0.01 * 0.05 * 900  # P, I and D
    assert float(multipliers.update(multiplier, cost, settings).value) == pytest.approx(first)


@pytest.mark.parametrize("kind", ["gradient", "pid"])
def test_a_multiplier_stays_below_its_cap(kind: Any) -> None:
    settings = multipliers.MultiplierSettings(kind, 25.0, 0.5, (0.1, 0.01, 0.01), largest=1.5)
    multiplier = multipliers.create(0.5, settings)
    for _ in range(5):
        cost = Weighted(jnp.asarray(900.0), jnp.ones(()))
        multiplier = multipliers.update(multiplier, cost, settings)
    assert float(multiplier.value) == 1.5


def test_a_rare_cost_counts_in_full() -> None:
    """One of 50 in 20,000 steps, more than ten times the std of its discounted sums."""
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
        multiplier = multipliers.update(
            multiplier, Weighted(jnp.asarray(cost), jnp.ones(())), settings
        )
        values.append(float(multiplier.value))
    assert values[4] > values[0] > 0.5
    assert min(values) == values[-1] == 0.0
    waited = multipliers.update(multiplier, Weighted(jnp.asarray(1e3), jnp.zeros(())), settings)
    assert jax.tree.all(jax.tree.map(lambda a, b: bool((a == b).all()), waited, multiplier))


def test_without_a_multiplier_it_is_ppo() -> None:
    """The policy follows the rewards alone, and the cost critic learns beside it."""
    config = dataclasses.replace(
        CONFIG, init_multiplier=0.0, multiplier_rate=0.0, max_grad_norm=0.0
    )
    state, free = fresh(config), rollout()
    free = free.replace(extras={**free.extras, "cost": 0.0 * free.extras["cost"]})
    (one, _), (other, _) = (update(state, batch, KEY, 0, config) for batch in (rollout(), free))
    one, other = one.actor_critic.parameters, other.actor_critic.parameters
    reference.assert_same(reference.mlp(one.actor), reference.mlp(other.actor), "actor")
    first, second = (x.critics.cost_critic(SPEC.example()) for x in (one, other))
    assert (first != second).all()


def test_an_environment_without_costs_is_refused(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError,
        match="agent 'ppo_lagrangian' learns from the signal 'cost', and 'Pendulum-v1' gives",
    ):
        run.train("ppo_lagrangian", "Pendulum-v1", 4096, out=tmp_path / "run")


@pytest.mark.learn
def test_it_keeps_the_limit_that_ppo_breaks(tmp_path: Path) -> None:
    """With a limit of 10.

    Who stays at a place of its choice earns about 0, who runs straight to the goals 420.
    """
    found = {}
    for agent, steps, config in (
        ("ppo", 128_000, {}),
        ("ppo_lagrangian", 256_000, {"cost_limit": 10.0}),
    ):
        settings: dict[str, Any] = {
            "seeds": 2,
            "config": config,
            "eval_every": steps,
            "eval_episodes": 50,
        }
        out = run.train(agent, "rljax/PointHazards", steps, out=tmp_path / agent, **settings)
        found[agent] = json.loads((out / "summary.json").read_text())["final"]
    assert found["ppo"]["signals"]["cost"] > 20
    assert found["ppo_lagrangian"]["signals"]["cost"] < 12
    assert found["ppo"]["mean"] > found["ppo_lagrangian"]["mean"] > 150
