"""The gated Transformer-XL [1].

[1] Parisotto et al., arXiv:1910.06764
[2] Dai et al., Transformer-XL, arXiv:1901.02860
"""

from __future__ import annotations

import functools
import math
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array
from rljax.networks.layers import Dense, Initialisation, LayerNorm, Module

HEADS = 4  # of the attention, or as many as divide the width
GATE_BIAS = 2.0  # of the gates, so that blocks begin near the identity; [1]


class GTrXL(Module):
    """Gated Transformer-XL.

    Its memory holds the `inputs` [..., L, m] of each block in the last L steps, newest last,
    without gradient, and how many are this episode's, `known` [...].
    """

    hidden: tuple[int, ...]
    initialisation: Initialisation = "torch"
    length: int = 64  # L

    @nn.compact
    def __call__(
        self, x: Array, first: Array, memory: Any, successor: Array | None = None
    ) -> tuple[Any, Any, Any]:
        steps, length, width = len(x), self.length, self.hidden[0]
        project = Dense(width, self.initialisation, name="input")
        tokens, time, leading = project(x), jnp.arange(steps), [1] * (x.ndim - 2)
        # [T, ...], of episodes.
        begins = jax.lax.cummax(jnp.where(first, time.reshape(-1, *leading), -memory["known"]))
        # Each query sees steps up to `last`.
        last, since, after = time, begins, jnp.zeros(steps, jnp.int32)
        if successor is not None:  # a step after `last`
            tokens = jnp.concatenate([tokens, project(successor)])
            last, since = jnp.concatenate([time, time]), jnp.concatenate([begins, begins])
            after = jnp.concatenate([after, after + 1])
        keys = jnp.arange(-length, steps)
        distance = (last + after)[:, None] - keys  # [N, L + T]
        near = (keys <= last[:, None]) & (distance <= length)
        near = near.reshape(*near.shape, *leading)
        allowed = near & (keys.reshape(-1, *leading) >= since[:, None])
        if successor is not None:
            shape = (2 * steps, steps)
            itself = jnp.arange(2 * steps)[:, None] - steps == time
            itself = jnp.broadcast_to(itself.reshape(*shape, *leading), shape + allowed.shape[2:])
            allowed = jnp.concatenate([allowed, itself], axis=1)
            distance = jnp.concatenate([distance, jnp.zeros(shape, jnp.int32)], axis=1)
        newest = []
        for layer, inputs in enumerate(memory["inputs"]):
            past = jnp.moveaxis(jax.lax.stop_gradient(inputs), -2, 0)  # [L, ..., m]
            newest.append(jnp.moveaxis(jnp.concatenate([past, tokens[:steps]])[-length:], 0, -2))
            block = GTrXLBlock(width, length, self.initialisation, name=f"block_{layer}")
            tokens = block(tokens, jnp.concatenate([past, tokens]), distance, allowed)
        known = jnp.minimum(steps - begins[-1], length)
        memory = {"inputs": tuple(newest), "known": known}
        return tokens[:steps], memory, None if successor is None else tokens[steps:]


class GTrXLBlock(Module):
    """One block: relative attention [2] and an MLP, each behind a gate."""

    width: int
    length: int
    initialisation: Initialisation

    @nn.compact
    def __call__(self, x: Array, seen: Array, distance: Array, allowed: Array) -> Array:
        """Outputs [N, ..., m] for queries [N, ..., m] that attend to `seen` [K, ..., m] where
        `allowed` [N, K, ...], `distance` [N, K] steps before them.
        """
        width, dense = self.width, functools.partial(Dense, initialisation=self.initialisation)
        heads = math.gcd(HEADS, width)
        size = width // heads
        norm = LayerNorm(name="norm")

        def split(x: Array) -> Array:
            return x.reshape(*x.shape[:-1], heads, size)

        query = split(dense(width, name="query")(norm(x)))
        both = dense(2 * width, name="seen")(norm(seen))
        key, value = split(both[..., :width]), split(both[..., width:])
        relative = split(dense(width, name="relative")(_waves(self.length, width)))  # [L + 1, H, d]
        content = self.param("content_bias", nn.initializers.zeros_init(), (heads, size))
        place = self.param("place_bias", nn.initializers.zeros_init(), (heads, size))
        by_content = jnp.einsum("n...hd,k...hd->nk...h", query + content, key)
        by_place = jnp.einsum("n...hd,lhd->nl...h", query + place, relative)
        index = jnp.clip(distance, 0, self.length)
        index = index.reshape(*index.shape, *[1] * (by_place.ndim - 2))
        logits = (by_content + jnp.take_along_axis(by_place, index, axis=1)) / math.sqrt(size)
        weight = jax.nn.softmax(jnp.where(allowed[..., None], logits, -1e9), axis=1)
        attended = jnp.einsum("nk...h,k...hd->n...hd", weight, value)
        attended = dense(width, name="attended")(attended.reshape(x.shape))
        x = Gate(width, self.initialisation, name="gate_attention")(x, jax.nn.relu(attended))
        hidden = jax.nn.relu(dense(2 * width, name="hidden")(LayerNorm(name="norm_hidden")(x)))
        hidden = jax.nn.relu(dense(width, name="output")(hidden))
        return Gate(width, self.initialisation, name="gate_hidden")(x, hidden)


class Gate(Module):
    """The gate of a GRU between a block's input x and its result y, [..., m]; [1, section 3.2]."""

    width: int
    initialisation: Initialisation

    @nn.compact
    def __call__(self, x: Array, y: Array) -> Array:
        width, style = self.width, self.initialisation
        of_y = Dense(3 * width, style, name="of_result")(y)
        of_x = Dense(2 * width, style, name="of_input")(x)
        r = jax.nn.sigmoid(of_y[..., :width] + of_x[..., :width])
        z = jax.nn.sigmoid(of_y[..., width : 2 * width] + of_x[..., width:] - GATE_BIAS)
        inner = Dense(width, style, name="of_reset")(r * x)
        return (1.0 - z) * x + z * jnp.tanh(of_y[..., 2 * width :] + inner)


def _waves(length: int, width: int) -> Array:
    """Sines and cosines [L + 1, m] of distances 0 to L."""
    half = -(-width // 2)
    angle = jnp.arange(length + 1)[:, None] / 10_000.0 ** (jnp.arange(half) / half)
    return jnp.concatenate([jnp.sin(angle), jnp.cos(angle)], axis=1)[:, :width]
