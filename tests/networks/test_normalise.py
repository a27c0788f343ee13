"""Running statistics against all samples at once."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.networks import normalise
from tests.networks.reference import doubles

update = jax.jit(normalise.update)


def chunks(
    sizes: list[int], shape: tuple[int, ...] = (3,), mean: float = 0.0, std: float = 1.0
) -> list[np.ndarray]:
    """The variance between chunks counts too."""
    generator = np.random.default_rng(0)
    return [
        generator.normal(mean + 2 * i * std, std, (n, *shape)).astype(np.float32)
        for i, n in enumerate(sizes)
    ]


@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (100.0, 1.0), (-1e-3, 1e-4), (5e4, 3e3)])
def test_chunks_of_uneven_sizes_are_as_everything_at_once(mean: float, std: float) -> None:
    parts = chunks([1, 7, 2, 100, 1, 1, 33], mean=mean, std=std)
    statistics = normalise.create((3,))
    for part in parts:
        statistics = update(statistics, part)
    samples = doubles(np.concatenate(parts))
    assert float(statistics.count) == 145
    np.testing.assert_allclose(statistics.mean, samples.mean(axis=0), rtol=1e-6, atol=1e-6 * std)
    np.testing.assert_allclose(statistics.variance, samples.var(axis=0), rtol=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("shape", [(), (4,), (2, 3)])
def test_any_shape_of_observations(shape: tuple[int, ...]) -> None:
    (part,) = chunks([50], shape)
    statistics = normalise.update(normalise.create(shape), jnp.asarray(part))
    assert statistics.mean.shape == statistics.variance.shape == shape
    result = np.asarray(normalise.normalise(statistics, jnp.asarray(part)))
    np.testing.assert_allclose(result.mean(axis=0), 0.0, atol=1e-6)
    np.testing.assert_allclose(result.std(axis=0), 1.0, rtol=1e-5)


def test_neutral_before_the_first_sample() -> None:
    samples = jnp.array([[-3.0, 0.0, 9.5], [1e-6, 2.0, 0.1]])
    np.testing.assert_array_equal(normalise.normalise(normalise.create((3,)), samples), samples)


def test_a_small_variance_is_not_lost_in_the_initial_one() -> None:
    samples = np.random.default_rng(0).normal(0.0, 1e-5, (100, 1)).astype(np.float32)
    statistics = normalise.update(normalise.create((1,)), jnp.asarray(samples))
    np.testing.assert_allclose(statistics.variance, doubles(samples).var(axis=0), rtol=1e-5)


@pytest.mark.parametrize(("count", "std"), [(1e7, 1.0), (1e7, 1e-3), (2.0**24, 30.0)])
def test_single_samples_neither_drift_nor_vanish(count: float, std: float) -> None:
    """A million more samples like those before change little."""
    samples = np.random.default_rng(0).normal(0.0, std, size=1_000).astype(np.float32)
    samples = (samples - samples.mean()) * np.float32(std / samples.std())
    before = normalise.Statistics(jnp.float32(count), jnp.zeros(()), jnp.float32(std**2))

    @jax.jit
    def after(statistics: normalise.Statistics, scale: jax.Array) -> normalise.Statistics:
        one = lambda statistics, x: (normalise.update(statistics, scale * x[None]), None)  # noqa: E731
        block = lambda statistics, _: (jax.lax.scan(one, statistics, samples)[0], None)  # noqa: E731
        return jax.lax.scan(block, statistics, None, length=1_000)[0]

    same = after(before, jnp.float32(1.0))
    np.testing.assert_allclose(same.mean, 0.0, atol=1e-5 * std)
    np.testing.assert_allclose(same.variance, std**2, rtol=1e-5)
    doubled = after(before, jnp.float32(2.0))
    gone = (count / (count + 1e6)) if count < 2**24 else (1 - 2.0**-24) ** 1e6
    np.testing.assert_allclose(doubled.variance, std**2 * (gone + 4 * (1 - gone)), rtol=1e-4)


def test_a_stream_of_2_to_the_31_samples_goes_on() -> None:
    nothing = jnp.zeros(())
    full = normalise.Moments(
        jnp.int32(2**31 - 1), nothing, jnp.float32(2.0**31), (nothing, nothing)
    )
    moments = normalise.count(full, jnp.float32(1.0))
    assert int(moments.count) == 2**31 - 1
    np.testing.assert_allclose(moments.variance, 1.0, rtol=1e-6)


def test_constant_features_and_outliers_are_bounded() -> None:
    statistics = normalise.update(normalise.create((2,)), jnp.tile(jnp.array([[2.0, 3.0]]), (5, 1)))
    result = normalise.normalise(statistics, jnp.array([[2.0, 3.5], [2.0, -1e9]]))
    np.testing.assert_array_equal(result, [[0.0, 10.0], [0.0, -10.0]])


def test_one_more_chunk_after_ten_million_is_not_lost() -> None:
    count, mean, variance = 1e7, 1.0, 4.0
    before = normalise.Statistics(jnp.array(count), jnp.array([mean]), jnp.array([variance]))
    (part,) = chunks([1000], (1,), mean=500.0)
    after = normalise.update(before, jnp.asarray(part))
    first, second = (
        (count * old + new) / (count + 1000)
        for old, new in (
            (mean, doubles(part).sum()),
            (variance + mean**2, (doubles(part) ** 2).sum()),
        )
    )
    np.testing.assert_allclose(after.mean[0], first, rtol=1e-6)
    np.testing.assert_allclose(after.variance[0], second - first**2, rtol=1e-5)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("mean", "std"), [(0.0, 1.0), (30.0, 1.0), (-1e-3, 1e-4), (5e4, 3e3)])
def test_a_stream_is_as_exact_after_ten_million_samples(mean: float, std: float) -> None:
    number, block = 10_000_000, 1_000
    samples = np.random.default_rng(0).normal(mean, std, size=block).astype(np.float32)
    drift = np.linspace(0.0, 2.0 * std, number // block, dtype=np.float32)

    @jax.jit
    def run(samples: jax.Array, drift: jax.Array) -> normalise.Moments:
        def blocks(moments: normalise.Moments, shift: jax.Array) -> tuple[normalise.Moments, None]:
            one = lambda moments, x: (normalise.count(moments, x + shift), None)  # noqa: E731
            return jax.lax.scan(one, moments, samples)[0], None

        return jax.lax.scan(blocks, normalise.create_moments(()), drift)[0]

    moments = run(jnp.asarray(samples), jnp.asarray(drift))
    sums = np.zeros(2)
    for shift in drift:
        exact = doubles(samples + shift) - mean
        sums += exact.sum(), np.square(exact).sum()
    average = sums[0] / number
    variance = (sums[1] - number * average**2) / (number - 1)
    assert int(moments.count) == number
    exact = float(moments.mean) + float(moments.lost[0])
    np.testing.assert_allclose(exact, mean + average, rtol=1e-7, atol=1e-6 * std)
    np.testing.assert_allclose(moments.variance, variance, rtol=1e-6)


def test_moments_of_few_samples() -> None:
    moments = normalise.create_moments((2,))
    np.testing.assert_array_equal(moments.variance, [1.0, 1.0])
    sample = jnp.asarray([3.0, -1.0])
    moments = normalise.count(moments, sample)
    np.testing.assert_array_equal(moments.variance, [1.0, 1.0])
    np.testing.assert_array_equal(normalise.standard_score(moments, sample), [0.0, 0.0])
    moments = normalise.count(moments, sample + 2.0)
    np.testing.assert_allclose(moments.variance, [2.0, 2.0])  # n - 1 below
    kept = normalise.count_where(jnp.asarray(False), moments, sample)
    np.testing.assert_array_equal(kept.mean, moments.mean)
    assert int(kept.count) == 2


def test_rewards_are_scaled_by_the_std_of_their_discounted_sum() -> None:
    generator = np.random.default_rng(0)
    rewards, ended = generator.normal(2.0, 3.0, size=40), np.arange(40) % 13 == 12
    total, running, sums = normalise.create_discounted_sum(), 0.0, []
    for reward, end in zip(rewards, ended, strict=True):
        running = 0.9 * (1.0 - end) * running + reward
        sums.append(running)
        total, found = normalise.scale_reward(total, jnp.float32(reward), jnp.asarray(end), 0.9)
        std = np.std(sums, ddof=1) if len(sums) > 1 else 1.0
        np.testing.assert_allclose(found, reward / np.sqrt(std**2 + 1e-8), rtol=1e-5)
