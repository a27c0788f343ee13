"""Noisy layers: the distribution of their weights, and what stays as it is."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import networks
from rljax.agent import EnvSpec
from rljax.networks import noisy, torsos

SPEC = EnvSpec("test/Example-v0", (3,), 4, discrete=True)
MEAN_ROOT = 0.8222  # E sqrt|x| of a standard Gaussian: 2^(1/4) Gamma(3/4) / sqrt(pi)
MEAN_SIZE = np.sqrt(2.0 / np.pi)  # E |x|


sampled = jax.jit(noisy.sampled)


@functools.cache
def network(deviation: Any = 0.5, size: int = 2, spec: EnvSpec = SPEC) -> networks.Network:
    """An ensemble with noise."""
    settings: Any = torsos.Settings("mlp", 1, None, "relu", "torch", True)
    module = torsos.ensemble(spec, settings, size, (6, 5), 4)
    create = lambda key: noisy.noisy(networks.create(module, key, spec.example()), deviation)  # noqa: E731
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


def test_weights_have_their_means_and_deviations() -> None:
    plain, drawn = (
        network(),
        jax.jit(jax.vmap(lambda key: noisy.sampled(network(), key)))(jax.random.split(jax.random.key(1), 20_000)),
    )
    for name, inputs in (("hidden_0", 3), ("output", 5)):
        layer, own = (x.params["members"][name] for x in (drawn, plain))
        assert set(layer) == {"kernel", "bias"}
        sigma = 0.5 / np.sqrt(inputs)
        for part in ("kernel", "bias"):
            noise = (np.asarray(layer[part]) - np.asarray(own[part])) / sigma
            np.testing.assert_allclose(noise.mean(axis=0), 0.0, atol=0.03)
            variance = MEAN_SIZE ** (2 if part == "kernel" else 1)
            np.testing.assert_allclose(noise.var(axis=0), variance, rtol=0.08)
        kernel = (np.asarray(layer["kernel"]) - np.asarray(own["kernel"])) / sigma  # [N, C, I, O]
        bias = (np.asarray(layer["bias"]) - np.asarray(own["bias"])) / sigma
        np.testing.assert_allclose(np.sign(kernel[:, :, 0] * kernel[:, :, 1]).std(axis=2), 0.0, atol=1e-6)  # factors
        np.testing.assert_allclose(np.abs(kernel).mean(), MEAN_ROOT**2, rtol=0.02)
        assert np.abs(np.corrcoef(bias[:, 0, 0], bias[:, 1, 0])[0, 1]) < 0.03, "members have noise of their own"
        assert np.abs(np.corrcoef(bias[:, 0, 0], bias[:, 0, 1])[0, 1]) < 0.03


def test_means_are_used_without_noise() -> None:
    observation = jnp.asarray(np.random.default_rng(0).normal(size=(7, 3)), jnp.float32)
    noisy_one, silent = network(), network(0.0)
    plain = sampled(silent, jax.random.key(2))
    np.testing.assert_allclose(noisy_one(observation), plain(observation), rtol=1e-6)
    other = sampled(noisy_one, jax.random.key(2))(observation)
    assert np.abs(np.asarray(other) - np.asarray(plain(observation))).min() > 0


def test_networks_of_a_tree_have_noise_of_their_own() -> None:
    first, second, plain = sampled((network(), network(), network().params["members"]["output"]), jax.random.key(0))
    one, two = (x.params["members"]["output"]["kernel"] for x in (first, second))
    assert np.abs(np.asarray(one) - np.asarray(two)).min() > 0
    np.testing.assert_array_equal(plain["kernel"], network().params["members"]["output"]["kernel"])


def test_learning_reaches_means_and_deviations() -> None:
    def loss(network: networks.Network) -> Any:
        return jnp.square(noisy.sampled(network, jax.random.key(0))(jnp.ones((4, 3))) - 3.0).sum()

    own = network()
    gradient = jax.jit(jax.grad(loss))(own).params["members"]["output"]
    without = jax.jit(jax.grad(lambda x: jnp.square(x(jnp.ones((4, 3))) - 3.0).sum()))
    plain = without(sampled(own, jax.random.key(0)))
    exact = plain.params["members"]["output"]
    np.testing.assert_allclose(gradient["kernel"], exact["kernel"], rtol=1e-5)
    drawn = sampled(own, jax.random.key(0)).params["members"]["output"]["bias"]
    noise = (np.asarray(drawn) - np.asarray(own.params["members"]["output"]["bias"])) / (0.5 / np.sqrt(5))
    np.testing.assert_allclose(gradient["bias_deviation"], exact["bias"] * noise, rtol=1e-3)


def test_convolutions_have_no_noise_and_the_dense_layer_behind_them_has() -> None:
    pictures = EnvSpec("test/Pictures-v0", (10, 10, 4), 4, discrete=True, observation_dtype="uint8")
    layers = network(size=1, spec=pictures).params["encoder"]["pictures"]
    assert "kernel_deviation" in layers["dense"]
    assert not [name for name in layers if name.endswith("deviation")]
