"""Forbidden actions: never chosen, and never a part of what is learnt."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import MASK, EnvSpec, Part, Transition
from rljax.agents import cql_discrete, dqn
from rljax.learning import registry
from rljax.networks import distributions
from tests.agents import reference

ACTIONS, ROWS = 4, 64
PARTS = (Part(MASK, (ACTIONS,), "bool"), Part("observation", (3,)))
SPEC = EnvSpec("test/Masked-v0", (), ACTIONS, discrete=True, parts=PARTS)
NAMES = ("bc", "cql_discrete", "dqn", "iql", "ppo", "pqn", "r2d2", "riql", "sac_discrete")


def observations(seed: int) -> dict[str, np.ndarray]:
    """Each allows one action at least."""
    generator = np.random.default_rng(seed)
    mask = generator.random((ROWS, ACTIONS)) < 0.4
    mask[np.arange(ROWS), generator.integers(ACTIONS, size=ROWS)] = True
    return {MASK: mask, "observation": generator.normal(size=(ROWS, 3)).astype(np.float32)}


def transitions() -> Any:
    """Rows of allowed actions that end nowhere."""
    seen, nothing = observations(1), np.zeros(ROWS, bool)
    action = seen[MASK].argmax(axis=1).astype(np.int32)
    reward = np.random.default_rng(3).normal(size=ROWS).astype(np.float32)
    return Transition(seen, action, reward, nothing, nothing, observations(2))  # pyright: ignore


@pytest.mark.slow_after(3)
@pytest.mark.parametrize("name", NAMES)
def test_forbidden_actions_are_never_chosen(name: str) -> None:
    module: Any = registry.load_agent(name)
    config = module.Config(hidden=(8,)) if hasattr(module.Config(), "hidden") else module.Config()
    if name in ("bc", "riql"):  # the statistics below would make their policies nearly certain
        config = dataclasses.replace(config, normalise_observations=False)
    if name == "r2d2":  # the last environments of its ladder hardly explore
        config = dataclasses.replace(config, exploration="falling")
    seen = observations(0)

    state = reference.state(module, SPEC, config, action_size=ACTIONS)

    @jax.jit
    def act(keys: Any) -> Any:
        greedy = module.act(state, seen, keys[0], config, explore=False)[0]
        return greedy, jax.vmap(lambda key: module.act(state, seen, key, config, explore=True)[0])(
            keys
        )

    greedy, explored = map(np.asarray, act(jax.random.split(jax.random.key(1), 20)))
    assert seen[MASK][np.arange(ROWS), greedy].all()
    assert seen[MASK][np.arange(ROWS), explored].all()
    assert (
        len({(row, action) for draw in explored for row, action in enumerate(draw)}) > 1.3 * ROWS
    )  # not only one each


def test_targets_of_dqn_leave_forbidden_actions_out() -> None:
    """Whichever network chooses the largest."""
    batch, rows = transitions(), np.arange(ROWS)
    later = batch.next_observation
    state = reference.state(dqn, SPEC, dqn.Config(hidden=(8,)))

    @jax.jit
    def computed(state: Any) -> Any:
        targets = [
            dqn.critic_loss(state.critic, state, batch, dqn.Config(hidden=(8,), double=double))[1][
                "critic/target"
            ]
            for double in (False, True)
        ]
        return targets, state.critic(later)[0], state.target_critic(later)[0]

    found, online, q = map(np.asarray, computed(state))
    for target, judge in zip(found, (q, online), strict=True):
        best = np.where(later[MASK], judge, -np.inf).argmax(axis=1)
        expected, wrong = (
            (batch.reward + 0.99 * q[rows, x]).mean() for x in (best, judge.argmax(axis=1))
        )
        np.testing.assert_allclose(target, expected, rtol=1e-5)
        assert abs(target - wrong) > 1e-3  # it matters


@pytest.mark.slow
def test_the_loss_of_cql_leaves_forbidden_actions_out() -> None:
    """Target and penalty are over the allowed actions alone."""
    batch, rows = transitions(), np.arange(ROWS)
    seen, later = batch.observation, batch.next_observation
    config = cql_discrete.Config(hidden=(8,))
    state = reference.state(cql_discrete, SPEC, config)
    metrics = cql_discrete.critic_loss(state.critic, state, batch, config)[1]
    networks = ((state.critic, seen), (state.critic, later), (state.target_critic, later))
    q, judge, following = (np.asarray(network(x)[0], np.float64) for network, x in networks)
    best = np.where(later[MASK], judge, -np.inf).argmax(axis=1)
    target = batch.reward + 0.99 * following[rows, best]
    np.testing.assert_allclose(metrics["critic/target"], target.mean(), rtol=1e-5)
    soft = np.log(np.where(seen[MASK], np.exp(q), 0.0).sum(axis=1))
    gap = (soft - q[rows, batch.action]).mean()
    np.testing.assert_allclose(metrics["critic/gap"], gap, rtol=1e-5)
    assert abs((np.log(np.exp(q).sum(axis=1)) - soft).mean()) > 1e-3  # it matters


def test_masked_distributions_by_hand() -> None:
    logits = np.array([[1.0, 2.0, 3.0, 0.5]], np.float32)
    mask = np.array([[True, False, True, True]])
    pi = distributions.categorical(jnp.asarray(logits), jnp.asarray(mask))
    weights = np.where(mask, np.exp(logits), 0.0)
    share = weights / weights.sum()
    np.testing.assert_allclose(pi.prob(jnp.arange(4)[:, None])[:, 0], share[0], rtol=1e-6)
    kept = share[share > 0]
    np.testing.assert_allclose(pi.entropy(), -(kept * np.log(kept)).sum(), rtol=1e-6)

    def loss(logits: Any) -> Any:
        pi = distributions.categorical(logits, jnp.asarray(mask))
        return (pi.entropy() + pi.log_prob(jnp.array([2]))).sum()

    gradient = np.asarray(jax.grad(loss)(jnp.asarray(logits)))
    assert np.isfinite(gradient).all()
    assert gradient[0, 1] == 0.0


@pytest.mark.slow
def test_several_choices_are_independent() -> None:
    logits = np.random.default_rng(0).normal(size=(5, 7)).astype(np.float32)
    mask = np.ones((5, 7), bool)
    mask[:, [1, 4]] = False
    pi = distributions.discrete(jnp.asarray(logits), (3, 4), jnp.asarray(mask))
    parts = [np.where(mask[:, s], np.exp(logits[:, s]), 0.0) for s in (slice(0, 3), slice(3, 7))]
    parts = [part / part.sum(axis=1, keepdims=True) for part in parts]
    action = np.array([[0, 0], [2, 2], [0, 3], [2, 0], [0, 2]], np.int32)
    expected = sum(np.log(part[np.arange(5), action[:, i]]) for i, part in enumerate(parts))
    np.testing.assert_allclose(pi.log_prob(jnp.asarray(action)), expected, rtol=1e-5)
    entropy = [-(part * np.log(np.where(part > 0, part, 1.0))).sum(axis=1) for part in parts]
    np.testing.assert_allclose(pi.entropy(), sum(entropy), rtol=1e-5)
    np.testing.assert_array_equal(
        pi.mode(), np.stack([part.argmax(axis=1) for part in parts], axis=1)
    )
    drawn = jax.vmap(lambda key: pi.sample(seed=key))(jax.random.split(jax.random.key(0), 2_000))
    for i, part in enumerate(parts):
        found = (np.asarray(drawn)[..., i, None] == np.arange(part.shape[1])).mean(axis=0)
        np.testing.assert_allclose(found, part, atol=0.05)


@pytest.mark.slow
def test_uniform_actions_over_what_is_allowed() -> None:
    mask = jnp.asarray(observations(4)[MASK])
    drawn = np.asarray(distributions.uniform(jax.random.key(0), SPEC, (ROWS,), mask))
    assert mask[np.arange(ROWS), drawn].all()
    several = dataclasses.replace(SPEC, action_size=5, choices=(3, 2), parts=())
    drawn = np.asarray(distributions.uniform(jax.random.key(0), several, (500,)))
    np.testing.assert_array_equal(drawn.max(axis=0), [2, 1])
    assert drawn.min() == 0
