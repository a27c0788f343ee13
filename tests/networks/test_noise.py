"""Noisy layers, and noise that lasts."""

from __future__ import annotations

import functools
import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
import scipy.stats

from rljax import networks
from rljax.agent import EnvSpec
from rljax.networks import noise, torsos
from tests.networks.reference import normal

KEY = jax.random.key(0)
SPEC = EnvSpec("test/Example-v0", (3,), 4, discrete=True)
MEAN_ROOT = 0.8222  # E sqrt|x| of a standard Gaussian: 2^(1/4) Gamma(3/4) / sqrt(pi)
MEAN_SIZE = np.sqrt(2.0 / np.pi)  # E |x|

sampled = jax.jit(noise.sampled)


@functools.cache
def network(deviation: Any = 0.5, size: int = 2, spec: EnvSpec = SPEC) -> networks.Network:
    settings = torsos.TorsoSettings("mlp", 1, None, "relu", "torch", True)
    module = torsos.ensemble(spec, settings, size, (6, 5), 4)
    create = lambda key: noise.noisy(networks.create(module, key, spec.example()), deviation)  # noqa: E731
    return jax.jit(create)(KEY)


def test_every_dense_layer_has_deviations() -> None:
    layers = network().params["members"]
    for name, inputs in (("hidden_0", 3), ("hidden_1", 6), ("output", 5)):
        assert set(layers[name]) == {"kernel", "bias", "kernel_deviation", "bias_deviation"}
        for part in ("kernel", "bias"):
            deviation = layers[name][f"{part}_deviation"]
            assert deviation.shape == layers[name][part].shape
            np.testing.assert_allclose(deviation, 0.5 / np.sqrt(inputs), rtol=1e-6)
    assert set(layers["norm_0"]) == {"scale", "bias"}


@pytest.mark.slow
def test_weights_have_their_means_and_deviations() -> None:
    noisy = network()
    draw = jax.jit(jax.vmap(lambda key: noise.sampled(noisy, key)))
    drawn = draw(jax.random.split(jax.random.key(1), 20_000))
    for name, inputs in (("hidden_0", 3), ("output", 5)):
        layer, means = (x.params["members"][name] for x in (drawn, noisy))
        assert set(layer) == {"kernel", "bias"}
        kernel, bias = (
            (np.asarray(layer[part]) - np.asarray(means[part])) / (0.5 / np.sqrt(inputs))
            for part in ("kernel", "bias")
        )
        for units, variance in ((kernel, MEAN_SIZE**2), (bias, MEAN_SIZE)):
            np.testing.assert_allclose(units.mean(axis=0), 0.0, atol=0.03)
            np.testing.assert_allclose(units.var(axis=0), variance, rtol=0.08)
        signs = np.sign(kernel[:, :, 0] * kernel[:, :, 1])  # of factors [N, C, I, O]
        np.testing.assert_allclose(signs.std(axis=2), 0.0, atol=1e-6)
        np.testing.assert_allclose(np.abs(kernel).mean(), MEAN_ROOT**2, rtol=0.02)
        for other in (bias[:, 1, 0], bias[:, 0, 1]):  # of another member, of another unit
            assert np.abs(np.corrcoef(bias[:, 0, 0], other)[0, 1]) < 0.03


@pytest.mark.slow
def test_means_are_used_without_noise() -> None:
    observation = jnp.asarray(normal(7, 3))
    noisy, plain = (sampled(network(*of), KEY)(observation) for of in ((), (0.0,)))
    np.testing.assert_allclose(network()(observation), plain, rtol=1e-6)
    assert np.abs(np.asarray(noisy) - np.asarray(plain)).min() > 0


@pytest.mark.slow
def test_networks_of_a_tree_have_noise_of_their_own() -> None:
    kernel = network().params["members"]["output"]["kernel"]
    first, second, plain = sampled((network(), network(), {"kernel": kernel}), KEY)
    one, two = (x.params["members"]["output"]["kernel"] for x in (first, second))
    assert np.abs(np.asarray(one) - np.asarray(two)).min() > 0
    np.testing.assert_array_equal(plain["kernel"], kernel)


@pytest.mark.slow
def test_learning_reaches_means_and_deviations() -> None:
    def loss(network: networks.Network) -> Any:
        return jnp.square(network(jnp.ones((4, 3))) - 3.0).sum()

    def of_noisy(network: networks.Network) -> Any:
        return loss(noise.sampled(network, KEY))

    plain = sampled(network(), KEY)
    means, slopes, drawn, exact = (
        tree.params["members"]["output"]
        for tree in (
            network(),
            jax.jit(jax.grad(of_noisy))(network()),
            plain,
            jax.jit(jax.grad(loss))(plain),
        )
    )
    np.testing.assert_allclose(slopes["kernel"], exact["kernel"], rtol=1e-5)
    units = (np.asarray(drawn["bias"]) - np.asarray(means["bias"])) / (0.5 / np.sqrt(5))
    np.testing.assert_allclose(slopes["bias_deviation"], exact["bias"] * units, rtol=1e-3)


@pytest.mark.slow
def test_convolutions_have_no_noise_and_the_dense_layer_behind_them_has() -> None:
    pictures = EnvSpec("test/Pictures-v0", (10, 10, 4), 4, discrete=True, observation_dtype="uint8")
    layers = network(size=1, spec=pictures).params["encoder"]["pictures"]
    assert "kernel_deviation" in layers["dense"]
    assert not [name for name in layers if name.endswith("deviation")]


ENVS, STEPS = 256, 512


@functools.cache
def series(kind: Any, limit: int | None = STEPS) -> np.ndarray:
    """Noise [T, E, A] of a whole episode."""
    spec = EnvSpec("test/Example-v0", (3,), 2, max_episode_steps=limit)
    initial = noise.initial(kind, spec)
    memory = jax.tree.map(lambda x: jnp.broadcast_to(x, (ENVS, *jnp.shape(x))), initial)

    def step(memory: Any, key: Any) -> Any:
        return noise.draw(key, (ENVS, 2), memory)[::-1]

    run = jax.jit(lambda keys: jax.lax.scan(step, memory, keys)[1])
    return np.asarray(run(jax.random.split(KEY, STEPS)))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["white", "held", "pink"])
def test_every_step_of_an_episode_is_standard_normal(kind: Any) -> None:
    drawn = series(kind)
    for rows in (drawn[0], drawn[STEPS // 2], drawn[-1]):
        numbers = np.sort(rows.ravel())
        places = (np.arange(len(numbers)) + 0.5) / len(numbers)
        assert np.abs(numbers - scipy.stats.norm.ppf(places))[10:-10].max() < 0.4
        np.testing.assert_allclose([numbers.mean(), numbers.std()], [0.0, 1.0], atol=0.18)
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0.0, 1.0], atol=0.05)
    both = drawn.reshape(-1, 2).T
    assert np.abs(np.corrcoef(both)[0, 1]) < 0.05, "one noise per number"


def test_holds_have_the_lengths_of_a_truncated_zeta_distribution() -> None:
    drawn = series("held")
    changes = np.any(drawn[1:] != drawn[:-1], axis=-1)  # [T - 1, E]
    np.testing.assert_array_equal(changes, np.all(drawn[1:] != drawn[:-1], axis=-1))
    lengths = np.concatenate([np.diff(np.flatnonzero(column)) for column in changes.T])
    counts = np.bincount(lengths, minlength=18)[1:]
    weights = np.arange(1.0, 17.0) ** -2
    expected = weights / weights.sum()
    np.testing.assert_allclose(counts[:16] / counts.sum(), expected, rtol=0.1, atol=1e-3)
    assert counts[16:].sum() == 0
    assert len({tuple(column) for column in changes.T}) == ENVS, "each holds for its own times"


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("kind", "slope", "limit"), [("white", 0, STEPS), ("pink", -1, STEPS), ("pink", -1, 200)]
)
def test_the_power_falls_as_the_kind_says(kind: Any, slope: float, limit: int) -> None:
    drawn = series(kind, limit)[-limit:]
    power = np.square(np.abs(np.fft.rfft(drawn, axis=0))).mean(axis=(1, 2))[1:-1]
    frequency = np.arange(1, len(power) + 1) / limit
    edges = np.geomspace(1.0 / limit, 0.5, 9)
    parts = [(frequency >= low) & (frequency < high) for low, high in itertools.pairwise(edges)]
    means = [
        [np.log(frequency[part]).mean(), np.log(power[part]).mean()] for part in parts if part.any()
    ]
    points = np.array(means)
    fitted, start = np.polyfit(*points.T, 1)
    assert abs(fitted - slope) < 0.1
    assert np.abs(points[:, 1] - (start + fitted * points[:, 0])).max() < 0.4


def test_a_time_limit_makes_the_slowest_process() -> None:
    for limit, number in ((1, 1), (10, 2), (200, 6), (1_000, 8), (None, 8)):
        spec = EnvSpec("test/Example-v0", (3,), 2, max_episode_steps=limit)
        assert noise.initial("pink", spec).parts.shape == (number, 2)
