"""Embeddings of states and of states with actions, which predict the next state's, and networks
that read them.

f, g the encoders, e an embedding, x other inputs

  unit(x)  = x / mean |x|  over the last axis
  z_s      = unit(f(s)),  z_sa = g(z_s, a)
  L(f, g)  = mean (z_sa - z_s')^2  without a gradient through z_s'
  network: h = unit(W x + b), then dense layers of [h, e]

Fujimoto et al., For SALE: State-Action Representation Learning, arXiv:2306.02451, section 4.1.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn
from flax import struct

from rljax.agent import Array, EnvSpec, Transition, config
from rljax.networks import encoders
from rljax.networks.encoders import EncoderSettings
from rljax.networks.initialisation import Initialisation
from rljax.networks.layers import MLP, Activation, Dense, Module, Network, copies, create, joined
from rljax.networks.optimisation.trained import Trained
from rljax.requirements import Count, Widths


@config
class WithEmbeddings:
    """Settings of the encoders: a base of an agent's Config."""

    encoder_hidden: Widths = (256, 256)  # of f and g; arXiv:2306.02451
    embedding_size: Count = 256  # numbers in an embedding; arXiv:2306.02451


def unit(x: Array) -> Array:
    """x [..., n] with a mean magnitude of 1: `AvgL1Norm`."""
    return x / jnp.maximum(jnp.abs(x).mean(axis=-1, keepdims=True), 1e-8)


class UnitMLP(Module):
    """An MLP whose outputs have a mean magnitude of 1."""

    hidden: tuple[int, ...]
    features: int
    activation: Activation = "elu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        style = (self.activation, self.initialisation)
        return unit(MLP(self.hidden, self.features, *style, name="layers")(*inputs))


class EmbeddedMLP(Module):
    """An MLP that reads its last input, an embedding, behind the first layer."""

    hidden: tuple[int, ...]  # the first is the layer before the embedding
    features: int
    activation: Activation = "elu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        *others, embedding = inputs
        x = unit(Dense(self.hidden[0], self.initialisation, name="first")(joined(others)))
        style = (self.activation, self.initialisation)
        return MLP(self.hidden[1:], self.features, *style, name="layers")(x, embedding)


class EmbeddedEnsemble(Module):
    """`size` independent `EmbeddedMLP`s with one output each, to [C, ...]."""

    size: int
    hidden: tuple[int, ...]
    activation: Activation = "elu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        style = (self.activation, self.initialisation)
        members = copies(EmbeddedMLP, self.size)(self.hidden, 1, *style, name="members")
        return members(*inputs).squeeze(-1)


class Embedding(struct.PyTreeNode):
    """The encoders."""

    of_state: Network  # [O...] -> [Z]
    of_pair: Network  # [Z], [A] -> [Z]

    def values(self, critic: Network | Trained, observation: Any, action: Array) -> Array:
        """Values [C, ...] of actions [..., A], by critics that read [z_sa, z_s] [..., 2 Z]."""
        state = self.of_state(observation)
        return critic(observation, action, joined([self.of_pair(state, action), state]))


class EmbeddedPolicy(struct.PyTreeNode):
    """An actor with the encoder of its observations."""

    actor: Network  # [O...], [Z] -> [A]: before tanh
    embedding: Network  # [O...] -> [Z]

    def __call__(self, observation: Any) -> Array:
        """Actions [..., A] for observations [..., O...]."""
        return jnp.tanh(self.actor(observation, self.embedding(observation)))


def create_encoders(
    key: Array,
    spec: EnvSpec,
    encoding: EncoderSettings,
    settings: WithEmbeddings,
    activation: Activation = "elu",
    initialisation: Initialisation = "torch",
) -> Embedding:
    """Fresh encoders."""
    hidden, size = settings.encoder_hidden, settings.embedding_size
    key_state, key_pair = jax.random.split(key)
    style = (activation, initialisation)
    of_state = encoders.create(spec, encoding, UnitMLP(hidden, size, *style), key_state)
    inputs = (jnp.zeros(size), jnp.zeros(spec.action_shape))
    return Embedding(of_state, create(MLP(hidden, size, *style), key_pair, *inputs))


def prediction_error(encoder: Embedding, batch: Transition) -> Array:
    """(z_sa - z_s')^2 [..., Z], without a gradient through z_s'."""
    following = jax.lax.stop_gradient(encoder.of_state(batch.next_observation))
    predicted = encoder.of_pair(encoder.of_state(batch.observation), batch.action)
    return jnp.square(predicted - following)
