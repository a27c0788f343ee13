"""The squashed Gaussian against its closed form, up to where tanh u is 1 in float32."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.networks import distributions
from tests.networks.reference import assert_close, doubles, normal

KEY = jax.random.key(3)


def grid(limit: float, log_std: float, size: int = 200) -> tuple[jax.Array, jax.Array]:
    """Means from -limit to limit [B, 2], and one log std for all."""
    columns = np.linspace(-limit, limit, size), np.linspace(limit, 0.3 - limit, size)
    mean = jnp.asarray(np.stack(columns, axis=-1), jnp.float32)
    return mean, jnp.full_like(mean, log_std)


def unsquashed(mean: Any, log_std: Any) -> np.ndarray:
    """The Gaussian sample u for KEY."""
    draw = jax.jit(lambda *of: distributions.squashed_gaussian(*of).distribution.sample(seed=KEY))
    return doubles(draw(mean, log_std))


@jax.jit
def sampled(mean: Any, log_std: Any) -> Any:
    return distributions.squashed_gaussian(mean, log_std).sample_and_log_prob(seed=KEY)


@jax.jit
def log_prob_of(action: Any, mean: Any, log_std: Any) -> Any:
    return distributions.squashed_gaussian(mean, log_std).log_prob(action)


def log_prob(u: np.ndarray, mean: np.ndarray, log_std: np.ndarray) -> np.ndarray:
    """sum_i [ log N(u_i; mean_i, std_i) - log (1 - tanh(u_i)^2) ], with 1 - tanh^2 = 1 / cosh^2."""
    gaussian = -0.5 * np.square((u - mean) / np.exp(log_std)) - log_std - 0.5 * np.log(2 * np.pi)
    return (gaussian + 2 * np.log(np.cosh(u))).sum(axis=-1)


@pytest.mark.parametrize("log_std", [-3.0, 0.0, 2.0])
def test_log_prob_of_samples_is_the_closed_form(log_std: float) -> None:
    mean, spread = grid(15.0, log_std)
    action, result = sampled(mean, spread)
    u = unsquashed(mean, spread)
    assert np.abs(u).max() > 14.0
    np.testing.assert_allclose(action, np.tanh(u), atol=1e-6)
    assert result.shape == mean.shape[:-1], "summed over action dimensions"
    # u - mean is rounded to about 1e-6, which the narrowest of these Gaussians magnifies 20 times.
    expected = log_prob(u, doubles(mean), doubles(spread))
    np.testing.assert_allclose(result, expected, rtol=2e-5, atol=3e-4)


def test_log_prob_of_given_actions_agrees_away_from_the_bounds() -> None:
    mean, spread = grid(2.0, -1.0)
    action, expected = sampled(mean, spread)
    alone = jax.jit(lambda *of: distributions.squashed_gaussian(*of).sample(seed=KEY))(mean, spread)
    np.testing.assert_array_equal(action, alone)
    np.testing.assert_allclose(log_prob_of(action, mean, spread), expected, rtol=1e-3, atol=1e-3)


def test_samples_have_the_moments_of_the_gaussian() -> None:
    mean, log_std = jnp.array([0.5, -1.0]), jnp.array([-1.0, 0.3])
    draw = jax.jit(
        lambda *of: distributions.squashed_gaussian(*of).sample(seed=KEY, sample_shape=(20_000,))
    )
    action = draw(mean, log_std)
    u = np.arctanh(np.asarray(action, np.float64).clip(-1 + 1e-7, 1 - 1e-7))
    np.testing.assert_allclose(u.mean(axis=0), mean, atol=0.04)
    np.testing.assert_allclose(u.std(axis=0), np.exp(log_std), rtol=0.03)


@pytest.mark.parametrize("log_std", [-20.0, -3.0, 0.0, 2.0])
def test_gradients_are_finite_and_the_closed_form(log_std: float) -> None:
    mean, spread = grid(15.0, log_std)

    def total(mean: Any, spread: Any) -> Any:
        return distributions.squashed_gaussian(mean, spread).sample_and_log_prob(seed=KEY)[1].sum()

    by_mean, by_log_std = map(np.asarray, jax.jit(jax.grad(total, argnums=(0, 1)))(mean, spread))
    u = unsquashed(mean, spread)
    assert np.isfinite([by_mean, by_log_std]).all()
    # With u = mean + std noise, the Gaussian's density at u depends on the std only.
    np.testing.assert_allclose(by_mean, 2 * np.tanh(u), atol=1e-5)
    expected = -1 + 2 * np.tanh(u) * (u - doubles(mean))
    np.testing.assert_allclose(by_log_std, expected, rtol=1e-5, atol=1e-5)


def test_another_tanh_keeps_log_stds_within_their_bounds() -> None:
    settings = SimpleNamespace(log_std_min=-10.0, log_std_max=2.0)
    output = jnp.array([0.3, -0.2, 0.1, 0.0, 0.5, -40.0])
    pi: Any = distributions.squashed_within(output, settings).distribution
    np.testing.assert_allclose(pi.loc, output[:3])
    expected = np.exp([-4.0, -10.0 + 6.0 * (1.0 + np.tanh(0.5)), -10.0])
    np.testing.assert_allclose(pi.scale_diag, expected, rtol=1e-5)


def test_actions_stay_within_the_bounds() -> None:
    mean, spread = grid(50.0, 2.0)
    action, result = sampled(mean, spread)
    assert np.abs(np.asarray(action)).max() <= 1.0
    assert np.isfinite(np.asarray(result)).all()


@pytest.mark.parametrize("rows", [1, 2, 5, 64, 65, 2**16, 2**16 + 1])
def test_permutation_holds_each_index_once(rows: int) -> None:
    order = np.asarray(jax.jit(lambda key: distributions.permutation(key, rows))(jax.random.key(3)))
    assert order.dtype == np.int32
    np.testing.assert_array_equal(np.sort(order), np.arange(rows))


def test_each_order_is_equally_likely() -> None:
    draw = jax.vmap(lambda key: distributions.permutation(key, 4))
    drawn = jax.jit(draw)(jax.random.split(jax.random.key(0), 24_000))
    _, counts = np.unique(np.asarray(drawn) @ np.array([64, 16, 4, 1]), return_counts=True)
    assert len(counts) == 24
    chi_square = float(np.square(counts - 1000).sum() / 1000)  # mean 23, variance 46
    assert 23 - 3 * np.sqrt(46) < chi_square < 23 + 5 * np.sqrt(46)


@pytest.mark.slow
def test_numbers_and_choices_are_independent() -> None:
    """Log-density and entropy are sums; samples and modes have whole numbers behind the numbers."""
    generator = np.random.default_rng(0)
    output, std = generator.normal(size=(6, 2 + 3 + 4)), np.array([0.3, 2.0])
    pi = distributions.gaussian_beside(jnp.asarray(output), jnp.asarray(std), (3, 4))
    numbers, choices = generator.normal(size=(6, 2)), generator.integers((3, 4), size=(6, 2))
    action = np.concatenate([numbers, choices], axis=1)

    def logs(output: np.ndarray) -> list[np.ndarray]:
        logits = [output[:, 2:5], output[:, 5:]]
        return [x - np.log(np.exp(x).sum(axis=1, keepdims=True)) for x in logits]

    units = (numbers - output[:, :2]) / std
    density = (-0.5 * units**2 - np.log(std) - 0.5 * np.log(2 * np.pi)).sum(axis=1)
    chosen = sum(log[np.arange(6), choices[:, i]] for i, log in enumerate(logs(output)))
    np.testing.assert_allclose(pi.log_prob(jnp.asarray(action)), density + chosen, rtol=1e-5)
    entropy = (0.5 * np.log(2 * np.pi * np.e) + np.log(std)).sum()
    entropy = entropy - sum((np.exp(x) * x).sum(axis=1) for x in logs(output))
    np.testing.assert_allclose(pi.entropy(), entropy, rtol=1e-5)
    wide, away = std[::-1], output[:, :2] - output[::-1, :2]
    other = distributions.gaussian_beside(jnp.asarray(output[::-1]), jnp.asarray(wide), (3, 4))
    kl = (np.log(wide / std) + (std**2 + away**2) / (2 * wide**2) - 0.5).sum(axis=1)
    both = zip(logs(output), logs(output[::-1]), strict=True)
    kl = kl + sum((np.exp(p) * (p - q)).sum(axis=1) for p, q in both)
    np.testing.assert_allclose(pi.kl_divergence(other), kl, rtol=1e-4)
    modes = np.stack([x.argmax(axis=1) for x in logs(output)], axis=1)
    best = np.concatenate([output[:, :2], modes], axis=1)
    np.testing.assert_allclose(pi.mode(), best, rtol=1e-6)
    plain = distributions.gaussian_beside(jnp.zeros((20_000, 9)), jnp.ones(2), (3, 4))
    drawn = np.asarray(plain.sample(seed=KEY))
    np.testing.assert_allclose(drawn[:, :2].std(axis=0), 1.0, atol=0.03)
    spec = EnvSpec("test/Both-v0", (3,), 9, choices=(3, 4))
    uniform = np.asarray(distributions.uniform(KEY, spec, (1000,)))
    assert np.abs(uniform[:, :2]).max() <= 1.0
    for rows in (drawn, uniform):
        assert rows.shape[1:] == spec.action_shape
        assert [np.unique(rows[:, i]).tolist() for i in (2, 3)] == [[0, 1, 2], [0, 1, 2, 3]]
    clipped = distributions.clipped(jnp.asarray([[-3.0, 0.5, 2.0, 3.0]]), spec)
    np.testing.assert_array_equal(clipped, [[-1.0, 0.5, 2.0, 3.0]])


def test_symmetric_kl_is_the_sum_of_both_directions() -> None:
    mean, log_std, other_mean, other_log_std = map(jnp.asarray, normal(4, 5, 3))
    p = distributions.gaussian(mean, jnp.exp(log_std))
    q = distributions.gaussian(other_mean, jnp.exp(other_log_std))
    divergence = distributions.symmetric_kl(mean, log_std, other_mean, other_log_std)
    assert_close(divergence, p.kl_divergence(q) + q.kl_divergence(p), rtol=1e-4, atol=0.0)
