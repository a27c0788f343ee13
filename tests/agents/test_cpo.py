"""CPO against float64 NumPy written from the paper and from its authors' later code,
openai/safety-starter-agents, safe_rl/pg/agents.py.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.optimize import minimize, minimize_scalar

from rljax.agent import EnvSpec, Part, Transition, Weighted
from rljax.agents import cpo
from rljax.networks import distributions
from rljax.networks.optimisation import multipliers
from rljax.runs import records, run
from tests.agents import on_policy, reference, trees
from tests.agents.on_policy import ENVS, STEPS

SPEC = EnvSpec("test/Example-v0", (3,), 2, signals=(Part("cost", ()),))
CONFIG = cpo.Config(
    **on_policy.SIZES, cg_steps=40, cost_limit=0.8, cost_discount=0.9, cost_trace_decay=0.6
)


def example() -> Any:
    return SPEC, CONFIG, on_policy.rollout(0, SPEC)


@jax.jit
def dual(*numbers: Any) -> Any:
    return multipliers.dual(*numbers)


@pytest.mark.parametrize("seed", range(3))
def test_the_dual_solves_the_problem(seed: int) -> None:
    """Against SciPy's SLSQP, in coordinates in which H is the identity."""
    generator, kinds = np.random.default_rng(seed), set()
    for number in range(40):
        root = generator.normal(size=(4, 4))
        hessian = root @ root.T + 0.1 * np.eye(4)
        g, b = generator.normal(size=(2, 4)) * 10 ** generator.uniform(-2, 1, (2, 1))
        limit = 10 ** generator.uniform(-3, 0)
        of_g, of_b = np.linalg.solve(hessian, g), np.linalg.solve(hessian, b)
        reach = np.sqrt(2 * limit * (b @ of_b))  # by which b.x can change
        excess = 0.0 if number % 10 == 0 else generator.normal() * reach
        found = dual(*map(jnp.float32, (g @ of_g, g @ of_b, b @ of_b, excess, limit)))
        x = -(float(found.of_gain) * of_g + float(found.of_cost) * of_b)
        assert x @ hessian @ x / 2 <= limit * 1.001
        assert bool(found.recovers) == (excess > reach)
        if excess > reach:
            np.testing.assert_allclose(b @ x, -reach, rtol=1e-3)
            kinds.add("recovers")
            continue
        kinds.add("limited" if float(found.of_cost) > 0 else "free")
        assert excess + b @ x <= 1e-3 * reach
        lower, radius = np.linalg.cholesky(hessian), np.sqrt(2 * limit)
        gain, cost = (np.linalg.solve(lower, v) for v in (g, b))
        gain, cost = gain / np.linalg.norm(gain), cost / np.linalg.norm(cost)

        def inside(y: Any) -> Any:
            return 1.0 - y @ y

        def cheap(y: Any, cost: Any = cost, excess: float = excess / reach) -> Any:
            return -(excess + cost @ y)

        constraints = [{"type": "ineq", "fun": x} for x in (inside, cheap)]
        start = -cost * max(excess, 0.0) / reach
        best: Any = minimize(
            lambda y, gain=gain: gain @ y, start, constraints=constraints, tol=1e-10
        )
        assert gain @ (lower.T @ x) / radius <= best.fun + 2e-3
    assert kinds == {"free", "limited", "recovers"}


def test_the_dual_has_an_answer_where_nothing_is_to_gain_or_to_keep() -> None:
    one, zero = jnp.ones(()), jnp.zeros(())
    for numbers in ((zero, zero, one), (one, zero, zero), (zero, zero, zero)):
        for excess in (-1.0, 0.0, 0.05, 1.0):
            found = dual(*numbers, excess * one, 0.01)
            assert all(np.isfinite(x) for x in found)


def each(critics: multipliers.ValueAndCost) -> list[reference.MLP]:
    """The critics of rewards and of costs in float64."""
    return [reference.mlp(x) for x in (critics.critic, critics.cost_critic)]


class Reference(on_policy.TrustRegion):
    """One learner, with the dual by a search.

    `case` names the update as the authors' code does: 4 nothing costs, 3 the whole trust region
    keeps the limit, 2 a part of it does, 1 the limit is broken and a part of it keeps it, 0 the
    limit is broken and no part of it keeps it.
    """

    def __init__(self, state: cpo.State, config: Any) -> None:
        super().__init__(config, state.actor.mean, state.actor.log_std)
        self.critics = each(state.critics.parameters)
        self.total, self.length = np.zeros(ENVS), np.zeros(ENVS)  # of running episodes
        self.last = (0.0, 0.0)

    def count(self, cost: np.ndarray, ended: np.ndarray) -> None:
        """Mean cost and length of episodes that ended in this rollout, or in the last with any."""
        found = []
        for t in range(STEPS):
            self.total, self.length = self.total + cost[t], self.length + 1
            found += list(zip(self.total[ended[t]], self.length[ended[t]], strict=True))
            keeps = 1.0 - ended[t]
            self.total, self.length = self.total * keeps, self.length * keeps
        if found:
            self.last = tuple(np.mean(found, axis=0))

    def step(self, observation: np.ndarray, raw: np.ndarray, gains: np.ndarray) -> dict[str, float]:
        """Move the policy; `gains` [N, 2]."""
        config = self.config
        inputs, scaled = self.policy(observation, raw)
        gain, price = (self.flat(*self.score(inputs, scaled, x / len(raw))) for x in gains.T)
        g, b, hessian = -gain, price, self.hessian(inputs)
        of_g, of_b = np.linalg.solve(hessian, g), np.linalg.solve(hessian, b)
        q, r, s = g @ of_g, g @ of_b, b @ of_b
        excess = (self.last[0] - config.cost_limit) / max(self.last[1], 1.0)
        meets = 2 * config.kl_limit - excess**2 / s >= 0
        if b @ b <= 1e-8 and excess < 0:
            self.case = 4
        elif excess < 0:
            self.case = 2 if meets else 3
        else:
            self.case = 1 if meets else 0
        self.multiplier = 0.0
        if self.case == 0:
            change = -np.sqrt(2 * config.kl_limit / s) * of_b
        else:

            def multiplier(scale: float) -> float:
                return max(0.0, (scale * excess - r) / s)

            def negative(log_scale: float) -> float:
                scale = np.exp(log_scale)
                nu = multiplier(scale)
                total = q + 2 * nu * r + nu * nu * s
                return total / (2 * scale) + scale * config.kl_limit - nu * excess

            found: Any = minimize_scalar(
                negative, bounds=(-20, 20), method="bounded", options={"xatol": 1e-12}
            )
            scale = np.exp(found.x)
            self.multiplier = multiplier(scale)
            change = -(of_g + self.multiplier * of_b) / scale

        start = self.flat(self.actor, self.log_std)
        judged = self.judge(observation, raw, gains * [-1.0, 1.0])
        (loss, cost), _ = judged(start)
        share = 0.0
        for k in range(config.backtracks):
            (new, new_cost), kl = judged(start + config.backtrack**k * change)
            improves = new <= loss if self.case > 1 else True
            if kl <= config.kl_limit and improves and new_cost - cost <= max(-excess, 0.0):
                share = config.backtrack**k
                break
        metrics = {"actor/entropy": self.entropy(), "actor/step": share}
        point = start + share * change
        (loss, cost), kl = judged(point)
        self.actor, self.log_std = self.shaped(point)
        metrics |= {"actor/loss": loss, "cost/loss": cost, "actor/kl": kl}
        return metrics | {"cost/recovers": float(self.case == 0)}

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        config = self.config
        ended = np.asarray(batch.terminated | batch.truncated)
        self.count(np.asarray(batch.extras["cost"], np.float64), ended)
        gains = (batch.reward, batch.extras["cost"])
        both = [self.advantages(k, batch, self.scaled(k, x, batch)) for k, x in enumerate(gains)]
        rows, raw = map(on_policy.rows, (batch.observation, batch.extras["raw"]))
        targets = [x + self.values(k, rows) for k, x in enumerate(both)]
        advantage = (both[0] - both[0].mean()) / (both[0].std() + 1e-8)
        price = (both[1] - both[1].mean()) * self.std(1)
        metrics, lines = self.step(rows, raw, np.stack([advantage, price], axis=1)), []
        metrics |= on_policy.explained(both[0], targets[0])
        for epoch_key in jax.random.split(key, config.num_epochs):
            for part in on_policy.minibatches(epoch_key, config.batch_size):
                line, gradient = self.errors(rows[part], [x[part] for x in targets])
                gradient = reference.limited(gradient, config.max_grad_norm)
                self.critics = self.adam.step(self.critics, gradient)
                lines.append(line)
        return metrics | on_policy.means(lines)


def test_updates_equal_the_paper() -> None:
    """The same program with three limits: far away, near, and out of reach."""
    kinds, update = [], jax.jit(cpo.update)
    for limit in (100.0, 0.8, 0.0):
        config = dataclasses.replace(CONFIG, cost_limit=limit)
        state = reference.state(cpo, SPEC, config)
        expected = Reference(state, config)
        for step in range(3):
            batch, key = on_policy.rollout(step, SPEC), jax.random.key(step)
            state, metrics = update(state, batch, key, step, config)
            wanted = expected.update(batch, key)
            plain = {x: float(y) for x, y in metrics.items() if not isinstance(y, Weighted)}
            assert plain == pytest.approx(wanted, rel=2e-3, abs=2e-5)
            kinds.append((expected.case, expected.multiplier > 0, wanted["actor/step"]))
        reference.assert_same(each(state.critics.parameters), expected.critics, "critics")
        actor = [*reference.mlp(state.actor.mean), np.asarray(state.actor.log_std)]
        expected_actor = [*expected.actor, expected.log_std]
        trees.assert_close(actor, expected_actor, rtol=2e-3, atol=2e-4)
        np.testing.assert_allclose(state.episode_statistics, expected.last, rtol=1e-6)
    assert {kind[0] for kind in kinds} >= {0, 1, 3}
    assert {kind[1] for kind in kinds} == {False, True}
    assert len({kind[2] for kind in kinds}) > 1, "some steps are shortened"


ANGLES = (5, 10, 20, 30, 45, 60, 80)  # degrees between the directions of rewards and costs
SHARES = (0.1, 0.3, 0.5, 0.7, 0.9)  # excess by what one step can change the cost
# A Gaussian of unit variance without inputs, with actions in pairs around its mean: H is the
# identity, and gradients lie in the plane of the mean action.
PLAIN = dataclasses.replace(
    CONFIG, actor_hidden=(), init_log_std=0.0, damping=1e-4, normalise_costs=False, cost_limit=0.0
)


@jax.jit
def policy_step(raw: Any, advantages: Any, excess: Any, kl_limit: Any) -> Any:
    """The mean action [2] after one step, and the metrics, for arrays [N, 2]."""
    state = reference.state(cpo, SPEC, PLAIN)
    actor = jax.tree.map(jnp.zeros_like, state.actor)
    state = state.replace(actor=actor, episode_statistics=jnp.stack([excess, jnp.ones(())]))
    extras = {"raw": jnp.asarray(raw), "advantage": jnp.asarray(advantages)}
    batch = on_policy.rollout(0, SPEC).replace(observation=jnp.zeros((len(raw), 3)), extras=extras)
    config = dataclasses.replace(PLAIN, kl_limit=kl_limit)
    actor, metrics = cpo.policy_step(state, batch, config)
    return actor.mean(jnp.zeros(3)), metrics


@pytest.mark.parametrize("angle", ANGLES)
def test_above_the_limit_it_takes_each_step_that_kl_and_costs_allow(angle: float) -> None:
    """The authors' line search asks for rewards in its cases 2 to 4 only.

    The cost's gradient is the first axis of the plane. The best step goes along it to the limit,
    and with the rest of the trust region to the side of the rewards.
    """
    cosine, sine = np.cos(np.radians(angle)), np.sin(np.radians(angle))
    kl_limit = 0.01
    radius = np.sqrt(2.0 * kl_limit)
    raw = np.array([[1, 0], [-1, 0], [0, 1], [0, -1]], np.float32)
    advantages = np.stack([raw @ [cosine, sine], raw @ [1.0, 0.0]], axis=1).astype(np.float32)
    slope = np.square(raw[:, 0]).mean()  # of the surrogate of costs
    losses = []
    for share in SHARES:
        mean, metrics = policy_step(raw, advantages, share * radius * slope, kl_limit)
        expected = radius * np.array([-share, np.sqrt(1.0 - share**2)])
        np.testing.assert_allclose(mean, expected, rtol=1e-3, atol=1e-4)
        assert float(metrics["actor/step"]) == 1.0
        assert float(metrics["actor/kl"]) <= kl_limit
        losses.append(float(metrics["actor/loss"]))
    assert max(losses) > 0 or angle > 64, "some of these steps lower the rewards"


def test_below_the_limit_a_step_must_not_lower_the_rewards() -> None:
    """The surrogate of these advantages, sinh x (2 - cosh x), is below 0 at a distance of 1.6, and
    above 0 at 0.8 of it.
    """
    raw = np.array([[1, 0], [-1, 0], [2, 0], [-2, 0], [0, 1], [0, -1]], np.float32)
    advantages = np.array([[4, 0], [-4, 0], [-1, 0], [1, 0], [0, 1], [0, -1]], np.float32)
    steps = (policy_step(raw, advantages, excess, 1.28)[1] for excess in (-10.0, 0.05))
    shares = [float(metrics["actor/step"]) for metrics in steps]
    assert shares == [pytest.approx(0.8), 1.0]


def test_choices_of_several_actions_have_their_kl() -> None:
    one, other = (jnp.asarray(np.random.default_rng(seed).normal(size=(4, 5))) for seed in range(2))
    pi, other_pi = (distributions.discrete(x, (2, 3)) for x in (one, other))
    kl: Any = pi.kl_divergence(other_pi)
    expected = 0.0
    for part in (slice(0, 2), slice(2, 5)):
        p, q = (np.exp(np.asarray(x)[:, part], dtype=np.float64) for x in (one, other))
        p, q = (x / x.sum(axis=1, keepdims=True) for x in (p, q))
        expected = expected + (p * np.log(p / q)).sum(axis=1)
    np.testing.assert_allclose(kl, expected, rtol=1e-5)


@pytest.mark.learn
def test_it_keeps_the_limit(tmp_path: Path) -> None:
    """Uniform actions earn about 0, PPO 420 at a cost of 30."""
    out = run.train(
        "cpo",
        "rljax/PointHazards",
        256_000,
        out=tmp_path / "run",
        seeds=2,
        config={"cost_limit": 10.0},
        eval_every=256_000,
        eval_episodes=50,
    )
    found = records.read_summary(out)["final"]
    assert found["signals"]["cost"] < 13
    assert found["mean"] > 50
