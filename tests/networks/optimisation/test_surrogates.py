"""Surrogates against float64 NumPy, written from the papers; gradients by differences."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent
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


CASES: dict[Any, Callable[[float, float, float], float]] = {
    "clip": clip,
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
    left = [surrogates.at(config, rollouts) for rollouts in (0, 1, 3, 4, 9)]
    shares = np.array([1.0, 0.75, 0.25, 1e-3, 1e-3])
    np.testing.assert_allclose([x.clip_ratio for x in left], 0.3 * shares, rtol=1e-5)
    np.testing.assert_allclose([x.mirror_step for x in left], 0.4 * shares, rtol=1e-5)
    constant = dataclasses.replace(config, trust_steps=None)
    assert surrogates.at(constant, 3) is constant


@pytest.mark.parametrize(("limit", "made"), [(None, 5), (2.5, 3), (0.5, 1), (9.0, 5)])
def test_no_pass_follows_one_beyond_the_limit(limit: float | None, made: int) -> None:
    """Pass n moves a number by 1, and has a mean KL of n over two minibatches."""

    def epoch(network: Any, key: Any) -> Any:
        kl = jnp.stack([network + 0.5, network + 1.5])
        return network + 1.0, {"actor/kl": kl, "critic/explained_variance": network}

    keys = jax.random.split(jax.random.key(0), 5)
    network, metrics = jax.jit(lambda network: surrogates.passes(epoch, network, keys, limit))(
        jnp.zeros(())
    )
    assert network == made
    np.testing.assert_allclose(metrics["actor/kl"], np.mean(range(1, made + 1)))
    np.testing.assert_allclose(metrics["critic/explained_variance"], np.mean(range(made)))
    assert metrics.get("actor/passes", 5.0) == made
