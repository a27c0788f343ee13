"""Embeddings and the networks that read them."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np

from rljax import networks
from rljax.agent import EnvSpec
from rljax.networks.blocks import embeddings
from rljax.networks.encoders import EncoderSettings
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SETTINGS = embeddings.WithEmbeddings(encoder_hidden=(8,), embedding_size=4)
KEY = jax.random.key(0)


def test_unit_has_a_mean_magnitude_of_1_also_of_nothing() -> None:
    x = np.random.default_rng(0).normal(size=(4, 7)).astype(np.float32)
    np.testing.assert_allclose(np.abs(embeddings.unit(x)).mean(axis=1), 1.0, rtol=1e-6)
    nothing = jnp.zeros((2, 3))
    np.testing.assert_array_equal(embeddings.unit(nothing), nothing)
    slope = jax.grad(lambda x: embeddings.unit(x).sum())(nothing)
    assert np.isfinite(slope).all()


def test_the_embedding_joins_behind_the_first_layer() -> None:
    """Its size does not change what the first layer gives: only its own part of the next one."""
    net = embeddings.EmbeddedMLP((5, 6, 7), 2)
    network = networks.create(net, KEY, jnp.zeros(3), jnp.zeros(4))
    shapes = jax.tree.map(jnp.shape, network.params)
    assert shapes["first"]["kernel"] == (3, 5)
    assert shapes["layers"]["hidden_0"]["kernel"] == (5 + 4, 6)
    assert shapes["layers"]["output"]["kernel"] == (7, 2)
    x, z = jnp.ones((9, 3)), jnp.ones((9, 4))
    np.testing.assert_allclose(network(x, z), network(x, z)[:1].repeat(9, axis=0), rtol=1e-6)


def test_the_prediction_teaches_no_next_state() -> None:
    encoder = embeddings.create_encoders(KEY, SPEC, EncoderSettings(), SETTINGS)
    batch = reference.transitions()

    def error(following: jax.Array) -> jax.Array:
        return embeddings.prediction_error(encoder, batch.replace(next_observation=following)).sum()

    assert not np.any(jax.grad(error)(batch.next_observation))
    assert embeddings.prediction_error(encoder, batch).shape == (5, 4)


def test_critics_read_both_embeddings() -> None:
    encoder = embeddings.create_encoders(KEY, SPEC, EncoderSettings(), SETTINGS)
    net = embeddings.EmbeddedEnsemble(3, (5, 6))
    critic = networks.create(net, KEY, jnp.zeros(3), jnp.zeros(2), jnp.zeros(8))
    s, a = jnp.ones((5, 3)), jnp.ones((5, 2))
    values = encoder.values(critic, s, a)
    assert values.shape == (3, 5)
    z = encoder.of_state(s)
    both = jnp.concatenate([encoder.of_pair(z, a), z], axis=1)
    np.testing.assert_allclose(values, critic(s, a, both), rtol=1e-6)
