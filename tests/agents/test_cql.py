"""CQL against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from rljax.agent import EnvSpec, Transition
from rljax.agents import cql
from tests.agents import actor_critic, reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "critic_hidden": (8, 8),
    "batch_size": 5,
    "num_parts": 1,
    "num_actions": 3,
    "bc_steps": 2,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "temperature_lr": 3e-2,
    "target_rate": 0.1,
}
CONFIG = cql.Config(**SIZES)
KEY = jax.random.key(0)
# Critics are not held low.
PROBE: dict[str, Any] = {"penalty_weight": 0.0, "critic_hidden": (32, 32)}


def example() -> tuple[EnvSpec, cql.Config, Transition]:
    return SPEC, dataclasses.replace(CONFIG, lagrange=True), reference.transitions()


class Reference(actor_critic.SAC):
    """CQL(H) in float64, from arXiv:2006.04779, with the settings that agents/cql.py adds."""

    def __init__(self, state: Any, config: Any) -> None:
        super().__init__(state, config)
        self.log_multiplier = np.log(config.init_multiplier)
        self.adams["multiplier"] = reference.Adam(config.critic_lr)

    def values(
        self, critics: list[Any], observation: np.ndarray, action: np.ndarray
    ) -> tuple[np.ndarray, list[Any]]:
        """Q_c(s, a) [C, K, B] of actions [K, B, A], and the inputs of each critic's layers."""
        several = np.broadcast_to(observation, (len(action), *observation.shape))
        rows = np.concatenate([several, action], axis=-1)
        passes = [reference.forward(critic, rows.reshape(-1, rows.shape[-1])) for critic in critics]
        values = np.stack([q.reshape(action.shape[:2]) for q, _ in passes])
        return values, [inputs for _, inputs in passes]

    def critic_loss(self, batch: Transition, key: Any) -> tuple[dict[str, float], list[Any]]:
        """Metrics and the critics' gradient."""
        config, number, size = self.config, self.config.num_actions, len(batch.reward)
        key_policy, key_uniform = jax.random.split(key)
        shape = (1 + number, 2 * size, batch.action.shape[1])
        noise = reference.noise(key_policy, shape)
        both = np.concatenate([batch.observation, batch.next_observation])
        action, log_prob = self.sample(self.actor, both, noise)
        action, next_action = np.split(action, 2, axis=1)
        log_prob, next_log_prob = np.split(log_prob, 2, axis=1)

        # The target: one action without or with entropy, or the best of N by each critic or by the
        # smaller.
        next_q = self.values(self.target_critic, batch.next_observation, next_action)[0]
        if config.backup == "max":
            next_q = next_q[:, 1:].max(axis=1).min(axis=0)
        elif config.backup == "max_of_min":
            next_q = next_q[:, 1:].min(axis=0).max(axis=0)
        else:
            next_q = next_q[:, 0].min(axis=0)
        if config.backup == "entropy":
            next_q = next_q - self.temperature * next_log_prob[0]
        y = self.bootstrapped(batch, next_q)

        # Equation 4, with 3 N candidates.
        box = reference.uniform(key_uniform, (number, *batch.action.shape))
        candidates = np.concatenate([batch.action[None], box, action[1:], next_action[1:]])
        q, inputs = self.values(self.critic, batch.observation, candidates)
        q, free = self.bounded(q, batch)
        logits = q.copy()
        if config.importance_sampling:
            volume = np.full((number, size), np.log(0.5 ** shape[-1]))
            logits[:, 1:] -= np.concatenate([volume, log_prob[1:], next_log_prob[1:]])
            logits[:, 0] = -np.inf
        temperature = config.gap_temperature
        gap = temperature * logsumexp(logits / temperature, axis=1) - q[:, 0]  # [C, B]
        low = -np.inf if config.gap_min is None else config.gap_min
        high = np.inf if config.gap_max is None else config.gap_max
        self.clipped = (gap < low) | (gap > high)
        mean_gap = np.clip(gap, low, high).mean(axis=1)

        # Errors in Q of the data's action and of the candidates: the soft maximum's slope is a
        # softmax.
        weight = config.penalty_weight * (np.exp(self.log_multiplier) if config.lagrange else 1.0)
        change = softmax(logits / temperature, axis=1)
        change[:, 0] -= 1.0
        change = change * weight * (~self.clipped)[:, None] * free / size
        change[:, 0] += 2.0 * (q[:, 0] - y) / size
        pairs = zip(self.critic, inputs, change, strict=True)
        gradient = [
            reference.backward(critic, rows, dq.reshape(-1, 1))[0] for critic, rows, dq in pairs
        ]
        error = np.square(q[:, 0] - y).mean(axis=1).sum()
        return {
            "critic/loss": error + sum(self.penalty(g) for g in mean_gap),
            "critic/error": error,
            "critic/gap": mean_gap.mean(),
            "critic/q": q[:, 0].mean(),
            "critic/target": y.mean(),
        }, gradient

    def bounded(self, q: np.ndarray, batch: Transition) -> tuple[np.ndarray, np.ndarray]:
        """The values [C, 1 + 3 N, B] that the gaps see, and where they move with the critics."""
        return q, np.ones_like(q)

    def penalty(self, gap: float) -> float:
        """w G, or m (w G - tau), or m w (G - tau)."""
        config, m = self.config, np.exp(self.log_multiplier)
        if not config.lagrange:
            return config.penalty_weight * gap
        if config.weighted_target:
            return m * config.penalty_weight * (gap - config.target_gap)
        return m * (config.penalty_weight * gap - config.target_gap)

    def clone(self, batch: Transition, key: Any) -> dict[str, float]:
        """The actor towards the data's actions: log N of u = artanh a has the slopes z / std in the
        mean and z^2 - 1 in log std.
        """
        noise = reference.noise(key, batch.action.shape)
        log_prob = self.sample(self.actor, batch.observation, noise)[1]
        mean, log_std = self.heads(self.actor, batch.observation)[:2]
        u = np.arctanh(np.clip(batch.action, -1.0 + 1e-5, 1.0 - 1e-5))
        z = (u - mean) / np.exp(log_std)
        loss = (self.temperature * log_prob - actor_critic.log_density(u, mean, log_std)).mean()
        self.climb(batch, noise, 0.0, np.concatenate([z / np.exp(log_std), z**2 - 1.0], axis=1))
        return {"actor/loss": loss, **self.cool(-log_prob.mean(), batch.action.shape[1])}

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, float]:
        """One update and its metrics; the actor sees critics after their step or before it."""
        config, old = self.config, self.critic
        key_critic, key_actor = jax.random.split(key)
        metrics, gradient = self.critic_loss(batch, key_critic)  # whatever `num_parts` is
        self.move("critic", gradient)
        if step < config.bc_steps:
            metrics |= self.clone(batch, key_actor)
        else:
            judges = self.critic if config.update_order == "critic_first" else old
            metrics |= self.improve(batch, key_actor, judges)
        if config.lagrange:
            # Linear in m, so its slope in log m is itself.
            cost = self.penalty(metrics["critic/gap"])
            metrics |= {"multiplier/loss": -cost, "multiplier/value": np.exp(self.log_multiplier)}
            self.log_multiplier = self.adams["multiplier"].step(self.log_multiplier, -cost)
        self.follow("critic")
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "the authors'": {},
    "entropy backed up, no importance sampling, in parts, together": {
        "backup": "entropy",
        "importance_sampling": False,
        "gap_temperature": 0.5,
        "num_parts": 5,
        "update_order": "together",
        "init_temperature": 0.4,
        "target_entropy": -0.7,
        "penalty_weight": 3.0,
    },
    "maximum backed up, the authors' multiplier": {
        "backup": "max",
        "lagrange": True,
        "init_multiplier": 0.6,
        "gap_temperature": 2.0,
    },
    "CORL's maximum and multiplier, clipped gaps, three critics": {
        "backup": "max_of_min",
        "lagrange": True,
        "weighted_target": True,
        "target_gap": 0.8,
        "init_multiplier": 2.718,
        "gap_min": 4.0,
        "gap_max": 5.0,
        "num_critics": 3,
        "log_std_offset": -0.5,
        "log_std_min": -1.1,
        "log_std_max": 0.0,
        "bc_steps": 0,
    },
}

update = jax.jit(cql.update)
act = jax.jit(cql.act, static_argnames="explore")
fresh = functools.partial(reference.state, cql, SPEC)


def critic_loss(critic: Any, state: Any, batch: Transition, config: Any, agent: Any = cql) -> Any:
    """The critics' loss on candidates, with its metrics."""
    part = (batch, agent.candidates(state, batch, KEY, config))
    return agent.critic_loss(critic, part, state, jax.random.fold_in(KEY, 1), config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    reference.assert_updates(update, fresh(config), config, Reference)


def test_the_cases_clip_some_and_not_all() -> None:
    config = dataclasses.replace(CONFIG, **list(CASES.values())[-1])
    expected = Reference(fresh(config), config)
    expected.critic_loss(reference.float64(reference.transitions()), KEY)
    assert 0.0 < expected.clipped.mean() < 1.0
    assert 0.0 < actor_critic.clipped_share(expected) < 1.0


def test_init_starts_at_the_initial_temperature_and_multiplier() -> None:
    config = dataclasses.replace(CONFIG, init_temperature=0.3, init_multiplier=0.2)
    state = jax.jit(lambda key: cql.init(key, SPEC, config))(KEY)
    starts = [state.log_temperature.parameters, state.log_multiplier.parameters]
    np.testing.assert_allclose(starts, np.log([0.3, 0.2]), rtol=1e-6)


@pytest.mark.parametrize("curvature", [0.0, 3.0])
def test_soft_maximum_approaches_the_integral_over_all_actions(curvature: float) -> None:
    # Each candidate's exp(Q) / p is an unbiased estimate of the integral of exp(Q) over [-1, 1]^2;
    # their number is left out.
    config = dataclasses.replace(CONFIG, num_actions=20_000)
    zero: Any = lambda s, a: jnp.zeros((1, *a.shape[:2]))  # noqa: E731
    output = jnp.asarray([0.2, 0.2, np.log(0.9), np.log(0.9)])
    actor: Any = lambda s: jnp.broadcast_to(output, (*s.shape[:-1], 4))  # noqa: E731
    state = fresh(CONFIG).replace(actor=actor, target_critic=zero)
    critic: Any = lambda s, a: -curvature * jnp.square(a - 0.3).sum(axis=-1)[None]  # noqa: E731
    metrics = critic_loss(critic, state, reference.transitions(), config)[1]
    action = np.linspace(-1.0, 1.0, 2_001)
    integral = np.trapezoid(np.exp(-curvature * (action - 0.3) ** 2), action) ** 2
    estimate = metrics["critic/gap"] + metrics["critic/q"] - np.log(3 * config.num_actions)
    np.testing.assert_allclose(estimate, np.log(integral), atol=0.01)


def test_critic_loss_by_hand() -> None:
    config = dataclasses.replace(
        CONFIG, discount=0.5, penalty_weight=2.0, importance_sampling=False
    )
    state = fresh(CONFIG).replace(
        target_critic=lambda s, a: jnp.array([[[3.0, 1.0]], [[2.0, 5.0]]])
    )
    critic: Any = lambda s, a: jnp.broadcast_to(  # noqa: E731
        jnp.array([[[10.0, 20.0]], [[12.0, 23.0]]]), (2, 10, 2)
    )
    loss, metrics = critic_loss(critic, state, reference.two_rows(), config)
    # y = (1 + 0.5 min(3, 2), 2) = (2, 2);  errors (8, 18) and (10, 21);
    # (64 + 324 + 100 + 441) / 2. All ten candidates are worth the data's action: G = log 10.
    error, gap = 464.5, np.log(10.0)
    parts = [metrics[f"critic/{name}"] for name in ("target", "q", "error", "gap")]
    np.testing.assert_allclose(
        [loss, *parts], [error + 2 * 2.0 * gap, 2.0, 16.25, error, gap], rtol=1e-6
    )


@pytest.mark.parametrize(("backup", "expected"), [("max", 3.0), ("max_of_min", 2.0)])
def test_maximum_over_actions_comes_before_or_after_the_minimum(
    backup: Any, expected: float
) -> None:
    config = dataclasses.replace(CONFIG, backup=backup, num_actions=2, discount=1.0)
    values = jnp.array([[[1.0], [4.0]], [[3.0], [2.0]]])  # two critics, two actions
    state = fresh(CONFIG).replace(target_critic=lambda s, a: jnp.broadcast_to(values, (2, 2, 5)))
    batch = reference.transitions().replace(reward=np.zeros(5), terminated=np.zeros(5, bool))
    metrics = critic_loss(state.critic.parameters, state, batch, config)[1]
    np.testing.assert_allclose(metrics["critic/target"], expected)


def test_random_critics_are_penalised_as_in_wsrl() -> None:
    """WSRL's loss is the mean squared error of all critics plus alpha times the mean gap of those
    drawn; here it is C times that. All candidates are worth the same: a gap is log 10.
    """
    batch = reference.two_rows()
    config = dataclasses.replace(
        CONFIG, num_critics=3, min_critics=2, penalty_weight=5.0, importance_sampling=False
    )
    state = fresh(CONFIG).replace(target_critic=lambda s, a: jnp.zeros((3, len(a), 2)))
    values = jnp.array([[[10.0, 20.0]], [[12.0, 23.0]], [[0.0, 1.0]]])
    critic: Any = lambda s, a: jnp.broadcast_to(values, (3, 10, 2))  # noqa: E731
    loss, metrics = critic_loss(critic, state, batch, config)
    td_loss = np.square(np.asarray(values)[:, 0] - np.asarray(batch.reward)).mean()
    np.testing.assert_allclose(metrics["critic/gap"], np.log(10.0), rtol=1e-6)
    np.testing.assert_allclose(loss, 3 * (td_loss + 5.0 * np.log(10.0)), rtol=1e-6)


def test_penalty_lowers_actions_that_the_data_lack() -> None:
    batch = reference.transitions().replace(action=jnp.full((5, 2), 0.5))
    missing = jnp.asarray([[-0.9, -0.9], [-0.9, 0.9], [0.9, -0.9]])[:, None] * jnp.ones((3, 5, 2))

    heights = []
    for weight in (0.0, 5.0):
        config = dataclasses.replace(CONFIG, penalty_weight=weight)
        critic = reference.learnt(cql, fresh(CONFIG), batch, config).critic
        q = [critic(batch.observation, action).mean() for action in (missing, batch.action)]
        heights.append(q[0] - q[1])
    assert heights[1] < min(heights[0], 0.0) - 1.0


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_critic_loss_teaches_the_critic_alone() -> None:
    batch = reference.transitions()
    reference.assert_teaches_the_critic_alone(
        lambda critic, state: critic_loss(critic, state, batch, CONFIG)[0], fresh(CONFIG)
    )


def test_actor_clones_first_and_then_listens_to_the_critics() -> None:
    # At the bounds a density can be infinite.
    batch = reference.transitions().replace(action=jnp.ones((5, 2)))
    loss = jax.jit(jax.value_and_grad(cql.actor_loss, has_aux=True))
    state = fresh(CONFIG)
    other = state.replace(critic=jax.tree.map(lambda x: 2.0 * x, state.critic))
    for step, cloning in ((0, True), (1, True), (2, False)):
        both = [loss(s.actor.parameters, s, batch, KEY, step, CONFIG) for s in (state, other)]
        (values, gradients) = zip(*both, strict=True)
        assert np.isfinite(values[0][0])
        assert bool(values[0][0] == values[1][0]) == cloning
        assert all(np.isfinite(leaf).all() for leaf in jax.tree.leaves(gradients[0]))


@pytest.mark.parametrize("explore", [False, True])
def test_act_samples_the_policy_or_takes_its_mean(explore: bool) -> None:
    others = actor_critic.assert_acts_by_a_squashed_gaussian(act, fresh(CONFIG), CONFIG, explore)
    assert others == ({},)


def test_refuses_parts_of_unequal_size() -> None:
    with pytest.raises(
        ValueError, match=r"^--config\.num-parts is 2, it must divide the batch of 5\.$"
    ):
        cql.check(SPEC, dataclasses.replace(CONFIG, num_parts=2))
