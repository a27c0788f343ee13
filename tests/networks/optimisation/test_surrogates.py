"""Surrogates against float64 NumPy, written from the papers; gradients by differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest

from rljax import agent
from rljax.agents import ppo
from rljax.networks import distributions
from rljax.networks.optimisation import surrogates


@agent.config
class Config(surrogates.WithSurrogate):
    """Settings of surrogates, and of the rollouts that they are for."""

    num_envs: int = 2
    num_steps: int = 5


GENERATOR = np.random.default_rng(0)
LOG_RATIO = GENERATOR.normal(0.0, 0.5, size=40)
ADVANTAGE = GENERATOR.normal(0.3, 2.0, size=40)
KL = GENERATOR.random(40)


def clip(log_ratio: float, a: float, kl: float) -> float:
    """arXiv:1707.06347, equation 7."""
    r = np.exp(log_ratio)
    if a >= 0:
        return -min(r, 1.3) * a
    return -max(r, 0.7) * a


def mdpo(log_ratio: float, a: float, kl: float) -> float:
    """arXiv:2005.09814, on-policy, negated, with t = 0.4."""
    return -np.exp(log_ratio) * a + kl / 0.4


def pmd(log_ratio: float, a: float, kl: float) -> float:
    """The squared regression of A on tau log r, with tau = 2.5, over 2 tau."""
    return (a - 2.5 * log_ratio) ** 2 / 5.0


def dpo(log_ratio: float, a: float, kl: float) -> float:
    """arXiv:2210.05639, with alpha = 2 and beta = 0.6."""
    r = np.exp(log_ratio)
    if a >= 0:
        f = max(0.0, (r - 1.0) * a - 2.0 * np.tanh((r - 1.0) * a / 2.0))
    else:
        f = max(0.0, log_ratio * a - 0.6 * np.tanh(log_ratio * a / 0.6))
    return -(r * a - f)


def penalty(log_ratio: float, a: float, kl: float) -> float:
    """arXiv:1707.06347, equation 8, negated, with beta = 2.5."""
    return 2.5 * kl - np.exp(log_ratio) * a


CASES: dict[Any, Callable[[float, float, float], float]] = {
    "clip": clip,
    "penalty": penalty,
    "mdpo": mdpo,
    "pmd": pmd,
    "dpo": dpo,
}


def settings(kind: Any, **changes: Any) -> Config:
    return Config(surrogate=kind, clip_ratio=0.3, mirror_step=0.4, **changes)


@pytest.mark.parametrize("kind", CASES)
def test_loss_and_gradient_are_the_papers(kind: Any) -> None:
    rows = list(zip(LOG_RATIO, ADVANTAGE, KL, strict=True))
    expected = np.mean([CASES[kind](*row) for row in rows])
    slopes = [
        (CASES[kind](x + 1e-6, a, k) - CASES[kind](x - 1e-6, a, k)) / 2e-6 for x, a, k in rows
    ]
    with jax.enable_x64():

        def mean(log_ratio: Any) -> Any:
            return surrogates.loss(log_ratio, ADVANTAGE, settings(kind), jnp.asarray(KL))[0]

        loss, gradient = jax.value_and_grad(mean)(jnp.asarray(LOG_RATIO))
    np.testing.assert_allclose(loss, expected, rtol=1e-6)
    np.testing.assert_allclose(len(rows) * np.asarray(gradient), slopes, rtol=1e-5, atol=1e-8)


@pytest.mark.parametrize("kind", CASES)
def test_at_the_last_policy_all_have_the_slope_of_the_policy_gradient(kind: Any) -> None:
    def mean(log_ratio: Any) -> Any:
        return surrogates.loss(log_ratio, jnp.asarray(ADVANTAGE), settings(kind))[0]

    gradient = jax.grad(mean)(jnp.zeros(len(ADVANTAGE)))
    np.testing.assert_allclose(len(ADVANTAGE) * np.asarray(gradient), -ADVANTAGE, rtol=1e-5)


def test_metrics_count_what_clipping_touches() -> None:
    log_ratio = jnp.log(jnp.asarray([1.0, 1.2, 1.4, 0.5]))
    _, metrics = surrogates.loss(log_ratio, jnp.ones(4), settings("dpo"))
    assert metrics["actor/clipped"] == 0.5
    kl = np.mean([r - 1.0 - np.log(r) for r in (1.0, 1.2, 1.4, 0.5)])
    np.testing.assert_allclose(metrics["actor/kl"], kl, rtol=1e-5)


def test_trust_falls_over_the_run_and_stays_above_nothing() -> None:
    """Rollouts of 10 steps, and 40 steps until nothing is left."""
    config = settings("clip", trust_steps=40.0)
    left = [surrogates.at(config, rollouts, jnp.ones(())) for rollouts in (0, 1, 3, 4, 9)]
    shares = np.array([1.0, 0.75, 0.25, 1e-3, 1e-3])
    np.testing.assert_allclose([x.clip_ratio for x in left], 0.3 * shares, rtol=1e-5)
    np.testing.assert_allclose([x.mirror_step for x in left], 0.4 * shares, rtol=1e-5)
    constant = dataclasses.replace(config, trust_steps=None)
    assert surrogates.at(constant, 3, jnp.ones(())) is constant


def test_divergences_are_those_of_gaussians() -> None:
    """KL(p || q) = log(s_q / s_p) + (s_p^2 + (m_p - m_q)^2) / (2 s_q^2) - 1 / 2, by hand."""
    new = distributions.gaussian(jnp.asarray([[0.3]]), jnp.asarray([0.5]))
    old = distributions.gaussian(jnp.asarray([[-0.1]]), jnp.asarray([0.8]))
    of_new = np.log(0.8 / 0.5) + (0.25 + 0.16) / 1.28 - 0.5
    of_old = np.log(0.5 / 0.8) + (0.64 + 0.16) / 0.5 - 0.5
    for kind, expected in (("mdpo", of_new), ("clip", of_new), ("penalty", of_old)):
        kl = surrogates.divergence(new, old, settings(kind))
        np.testing.assert_allclose(kl, [expected], rtol=1e-5)


def test_an_adaptive_penalty_doubles_and_halves() -> None:
    """arXiv:1707.06347, section 4, for a desired divergence of 0.3."""
    config = settings("penalty", adaptive="penalty", desired_kl=0.3)
    for kl, expected in ((0.1, 1.0), (0.19, 1.0), (0.21, 2.0), (0.44, 2.0), (0.46, 4.0)):
        metrics = {surrogates.EXACT: jnp.asarray(kl)}
        penalty = surrogates.reweighted(jnp.asarray(2.0), metrics, config)
        assert penalty == expected
        assert surrogates.at(config, 0, penalty).mirror_step == 1.0 / expected
    fixed = settings("penalty")
    assert surrogates.reweighted(jnp.asarray(2.0), {}, fixed) == 2.0
    assert surrogates.at(fixed, 0, jnp.asarray(8.0)) is fixed


def test_an_adaptive_rate_is_that_of_brax() -> None:
    optimizer = pytest.importorskip("brax.training.agents.ppo.optimizer")
    peer = optax.inject_hyperparams(optax.sgd)(learning_rate=3e-4)
    theirs, ours = peer.init(jnp.ones(2)), surrogates.following_kl(3e-4, 0.01)
    state = ours.init(jnp.ones(2))
    divergences = [0.0, 0.004, 0.001, 0.02, 0.021, 0.5, *10 * [1e-3], *25 * [1.0]]
    rates = []
    for kl in divergences:
        theirs, rate = optimizer.adaptive_kl_learning_rate(theirs, jnp.asarray(kl), 0.01)
        metrics = {surrogates.EXACT: jnp.asarray(kl)}
        changes, state = ours.update(jnp.ones(2), state, metrics=metrics)
        np.testing.assert_allclose(changes, 2 * [rate], rtol=1e-5)
        rates.append(float(rate))
    assert min(rates) == pytest.approx(1e-5)
    assert max(rates) == pytest.approx(1e-2)


@pytest.mark.parametrize(("limit", "made"), [(None, 5), (2.5, 3), (0.5, 1), (9.0, 5)])
def test_no_pass_follows_one_beyond_the_limit(limit: float | None, made: int) -> None:
    """Pass n moves a number by 1, and has a mean KL of n over two minibatches."""

    def epoch(network: Any, key: Any) -> Any:
        kl = jnp.stack([network + 0.5, network + 1.5])
        metrics = {"actor/kl": kl, surrogates.EXACT: kl, "critic/explained_variance": network}
        return network + 1.0, metrics

    config, key = ppo.Config(target_kl=limit, num_epochs=5), jax.random.key(0)
    network, metrics = jax.jit(lambda network: surrogates.passes(epoch, network, key, config))(
        jnp.zeros(())
    )
    assert network == made
    np.testing.assert_allclose(metrics["actor/kl"], np.mean(range(1, made + 1)))
    np.testing.assert_allclose(metrics[surrogates.EXACT], made)
    np.testing.assert_allclose(metrics["critic/explained_variance"], np.mean(range(made)))
    assert metrics.get("actor/passes", 5.0) == made


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"adaptive": "penalty"}, "it needs --config.surrogate penalty, which is 'clip'"),
        ({"adaptive": "rate", "decay_steps": 0.5}, "both set the learning rate"),
    ],
)
def test_what_adapts_must_be_there(changes: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        surrogates.check(ppo.Config(**changes))
