"""Noisy layers: the distribution of their weights, and what stays as it is.

Noise that lasts: its distribution.
"""

from __future__ import annotations

import functools
import itertools
import statistics
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import EnvSpec
from rljax.networks import noise, torsos

KEY = jax.random.key(0)
SPEC = EnvSpec("test/Example-v0", (3,), 4, discrete=True)
MEAN_ROOT = 0.8222  # E sqrt|x| of a standard Gaussian: 2^(1/4) Gamma(3/4) / sqrt(pi)
MEAN_SIZE = np.sqrt(2.0 / np.pi)  # E |x|


sampled = jax.jit(noise.sampled)


@functools.cache
def network(deviation: Any = 0.5, size: int = 2, spec: EnvSpec = SPEC) -> networks.Network:
    """An ensemble with noise."""
    settings: Any = torsos.TorsoSettings("mlp", 1, None, "relu", "torch", True)
    module = torsos.ensemble(spec, settings, size, (6, 5), 4)
    create = lambda key: noise.noisy(networks.create(module, key, spec.example()), deviation)  # noqa: E731
    return jax.jit(create)(jax.random.key(0))


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
    plain, drawn = (
        network(),
        jax.jit(jax.vmap(lambda key: noise.sampled(network(), key)))(
            jax.random.split(jax.random.key(1), 20_000)
        ),
    )
    for name, inputs in (("hidden_0", 3), ("output", 5)):
        layer, own = (x.params["members"][name] for x in (drawn, plain))
        assert set(layer) == {"kernel", "bias"}
        sigma = 0.5 / np.sqrt(inputs)
        for part in ("kernel", "bias"):
            units = (np.asarray(layer[part]) - np.asarray(own[part])) / sigma
            np.testing.assert_allclose(units.mean(axis=0), 0.0, atol=0.03)
            variance = MEAN_SIZE ** (2 if part == "kernel" else 1)
            np.testing.assert_allclose(units.var(axis=0), variance, rtol=0.08)
        kernel = (np.asarray(layer["kernel"]) - np.asarray(own["kernel"])) / sigma  # [N, C, I, O]
        bias = (np.asarray(layer["bias"]) - np.asarray(own["bias"])) / sigma
        # factors
        np.testing.assert_allclose(
            np.sign(kernel[:, :, 0] * kernel[:, :, 1]).std(axis=2), 0.0, atol=1e-6
        )
        np.testing.assert_allclose(np.abs(kernel).mean(), MEAN_ROOT**2, rtol=0.02)
        assert np.abs(np.corrcoef(bias[:, 0, 0], bias[:, 1, 0])[0, 1]) < 0.03, (
            "members have noise of their own"
        )
        assert np.abs(np.corrcoef(bias[:, 0, 0], bias[:, 0, 1])[0, 1]) < 0.03


@pytest.mark.slow
def test_means_are_used_without_noise() -> None:
    observation = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), jnp.float32)
    noisy_one, silent = network(), network(0.0)
    plain = sampled(silent, jax.random.key(2))
    np.testing.assert_allclose(noisy_one(observation), plain(observation), rtol=1e-6)
    other = sampled(noisy_one, jax.random.key(2))(observation)
    assert np.abs(np.asarray(other) - np.asarray(plain(observation))).min() > 0


@pytest.mark.slow
def test_networks_of_a_tree_have_noise_of_their_own() -> None:
    first, second, plain = sampled(
        (network(), network(), network().params["members"]["output"]), jax.random.key(0)
    )
    one, two = (x.params["members"]["output"]["kernel"] for x in (first, second))
    assert np.abs(np.asarray(one) - np.asarray(two)).min() > 0
    np.testing.assert_array_equal(plain["kernel"], network().params["members"]["output"]["kernel"])


@pytest.mark.slow
def test_learning_reaches_means_and_deviations() -> None:
    def loss(network: networks.Network) -> Any:
        return jnp.square(noise.sampled(network, jax.random.key(0))(jnp.ones((4, 3))) - 3.0).sum()

    own = network()
    gradient = jax.jit(jax.grad(loss))(own).params["members"]["output"]
    without = jax.jit(jax.grad(lambda x: jnp.square(x(jnp.ones((4, 3))) - 3.0).sum()))
    plain = without(sampled(own, jax.random.key(0)))
    exact = plain.params["members"]["output"]
    np.testing.assert_allclose(gradient["kernel"], exact["kernel"], rtol=1e-5)
    drawn = sampled(own, jax.random.key(0)).params["members"]["output"]["bias"]
    units = (np.asarray(drawn) - np.asarray(own.params["members"]["output"]["bias"])) / (
        0.5 / np.sqrt(5)
    )
    np.testing.assert_allclose(gradient["bias_deviation"], exact["bias"] * units, rtol=1e-3)


@pytest.mark.slow
def test_convolutions_have_no_noise_and_the_dense_layer_behind_them_has() -> None:
    pictures = EnvSpec("test/Pictures-v0", (10, 10, 4), 4, discrete=True, observation_dtype="uint8")
    layers = network(size=1, spec=pictures).params["encoder"]["pictures"]
    assert "kernel_deviation" in layers["dense"]
    assert not [name for name in layers if name.endswith("deviation")]


ENVS, STEPS = 256, 512


@functools.cache
def series(kind: Any, limit: int | None = STEPS) -> np.ndarray:
    """Noise [T, E, A] of a whole episode in many environments."""
    spec = EnvSpec("test/Example-v0", (3,), 2, max_episode_steps=limit)
    memory = jax.tree.map(
        lambda x: jnp.broadcast_to(x, (ENVS, *jnp.shape(x))), noise.initial(kind, spec)
    )

    def step(memory: Any, key: Any) -> Any:
        drawn, memory = noise.draw(key, (ENVS, 2), memory)
        return memory, drawn

    return np.asarray(
        jax.jit(lambda keys: jax.lax.scan(step, memory, keys))(jax.random.split(KEY, STEPS))[1]
    )


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("kind", ["white", "held", "pink"])
def test_every_step_of_an_episode_is_standard_normal(kind: Any) -> None:
    drawn = series(kind)
    for rows in (drawn[0], drawn[STEPS // 2], drawn[-1]):
        found = np.sort(rows.ravel())
        expected = [
            statistics.NormalDist().inv_cdf((i + 0.5) / len(found)) for i in range(len(found))
        ]
        assert np.abs(found - expected)[10:-10].max() < 0.4
        np.testing.assert_allclose([found.mean(), found.std()], [0.0, 1.0], atol=0.18)
    np.testing.assert_allclose([drawn.mean(), drawn.std()], [0.0, 1.0], atol=0.05)
    numbers = drawn.reshape(STEPS, -1)
    assert np.abs(np.corrcoef(numbers[:, 0::2].ravel(), numbers[:, 1::2].ravel())[0, 1]) < 0.05, (
        "one noise per number"
    )


def test_holds_have_the_lengths_of_a_truncated_zeta_distribution() -> None:
    drawn = series("held")
    changes = np.any(drawn[1:] != drawn[:-1], axis=-1)  # [T - 1, E]
    np.testing.assert_array_equal(changes, np.all(drawn[1:] != drawn[:-1], axis=-1))
    lengths = np.concatenate([np.diff(np.flatnonzero(changes[:, i])) for i in range(ENVS)])
    counts = np.bincount(lengths, minlength=18)[1:]
    weights = np.arange(1.0, 17.0) ** -2
    np.testing.assert_allclose(
        counts[:16] / counts.sum(), weights / weights.sum(), rtol=0.1, atol=1e-3
    )
    assert counts[16:].sum() == 0
    assert len({tuple(column) for column in changes.T}) == ENVS, (
        "environments hold for times of their own"
    )


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("kind", "slope", "limit"), [("white", 0, STEPS), ("pink", -1, STEPS), ("pink", -1, 200)]
)
def test_the_power_falls_as_the_kind_says(kind: Any, slope: float, limit: int) -> None:
    drawn = series(kind, limit)[-limit:]
    power = np.square(np.abs(np.fft.rfft(drawn, axis=0))).mean(axis=(1, 2))[1:-1]
    frequency = np.arange(1, len(power) + 1) / limit
    edges = np.geomspace(1.0 / limit, 0.5, 9)  # equal weight to each part of the logarithmic axis
    parts = [(frequency >= low) & (frequency < high) for low, high in itertools.pairwise(edges)]
    points = np.array(
        [
            [np.log(frequency[part]).mean(), np.log(power[part]).mean()]
            for part in parts
            if part.any()
        ]
    )
    found, start = np.polyfit(*points.T, 1)
    assert abs(found - slope) < 0.1
    assert np.abs(points[:, 1] - (start + found * points[:, 0])).max() < 0.4


def test_a_time_limit_makes_the_slowest_process() -> None:
    for limit, number in ((1, 1), (10, 2), (200, 6), (1_000, 8), (None, 8)):
        memory: Any = noise.initial(
            "pink", EnvSpec("test/Example-v0", (3,), 2, max_episode_steps=limit)
        )
        assert memory.parts.shape == (number, 2)
