"""Networks whose features and weights have length 1.

|x| length of a vector of features, W kernels without bias
S(x; i, s) = (i / s) g * x, with factors g that are learnt and begin at s
H width, L blocks, c a constant

  input   x <- [x, c] / |[x, c]|,  x <- S(W x; k, k),  x <- x / |x|         k = sqrt(2 / H)
  block   y  = W_2 (relu(S(W_1 x; k / 2, k / 2)) + 1e-8),  y <- y / |y|     4 H units inside
          x <- x + S(y - x; 1 / (L + 1), 1 / sqrt(H)),  x <- x / |x|
  head    o  = W_2 S(W_1 x; 1, 1) + b
  step    w <- w / |w| for the weights w into each unit                      at the start too

The effective factors of S begin at i, and Adam's steps move them by i / s times its rate.

Lee et al., SimbaV2, arXiv:2502.15280, and its code.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array
from rljax.networks.blocks.batch_norm import unit_columns
from rljax.networks.layers import Dense, Module, joined

EXPANSION = 4  # units inside a block for each feature
LEAST = 1e-8  # length by which a shorter vector is divided


class Scaler(Module):
    """Learnt factors of features [..., n], which begin at `start`."""

    start: float
    scale: float  # of the stored factors: their steps are `start / scale` times as long

    @nn.compact
    def __call__(self, x: Array) -> Array:
        factors = self.param("factors", nn.initializers.constant(self.scale), (x.shape[-1],))
        return (self.start / self.scale) * factors * x


class HypersphereMLP(Module):
    """Blocks of one width on the unit sphere, then one head for each of `features`.

    The heads' outputs are concatenated to [..., sum(features)].
    """

    hidden: tuple[int, ...]  # the width H, once for each block
    features: tuple[int, ...]
    constant: float = 3.0  # c, with which inputs end

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        width, blocks = self.hidden[0], len(self.hidden)
        x = joined(inputs)
        x = jnp.concatenate([x, jnp.full((*x.shape[:-1], 1), self.constant, x.dtype)], axis=-1)
        gain = math.sqrt(2.0 / width)
        x = unit(_scaled(unit(x), width, gain, "input"))
        for i in range(blocks):
            inner = gain / math.sqrt(EXPANSION)
            y = _scaled(x, EXPANSION * width, inner, f"inner_{i}")
            y = unit(_dense(nn.relu(y) + LEAST, width, f"outer_{i}"))
            x = x + Scaler(1.0 / (blocks + 1), 1.0 / math.sqrt(width), name=f"step_{i}")(y - x)
            x = unit(x)
        heads = [self._head(x, i) for i in range(len(self.features))]
        return jnp.concatenate(heads, axis=-1)

    def _head(self, x: Array, i: int) -> Array:
        y = _scaled(x, self.hidden[0], 1.0, f"head_{i}")
        bias = self.param(f"bias_{i}", nn.initializers.zeros, (self.features[i],))
        return _dense(y, self.features[i], f"output_{i}") + bias

    def project(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Parameters whose weights into each unit have length 1."""
        return unit_columns(params)


def unit(x: Array) -> Array:
    """Vectors [..., n] divided by their length, or by 1e-8 if they are shorter."""
    squares = jnp.square(x).sum(axis=-1, keepdims=True)
    return x * jax.lax.rsqrt(jnp.maximum(squares, LEAST**2))


def _dense(x: Array, units: int, name: str) -> Array:
    return Dense(units, "orthogonal", use_bias=False, name=name)(x)


def _scaled(x: Array, units: int, gain: float, name: str) -> Array:
    """S(W x; gain, gain)."""
    return Scaler(gain, gain, name=f"{name}_scaler")(_dense(x, units, name))
