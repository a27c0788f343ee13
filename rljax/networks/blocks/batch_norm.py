"""Networks with batch normalisation, for joint passes over (s, a) and (s', a').

m, v mean and variance over a batch, M and V the running ones, c the momentum

  training     y = scale (x - m) / sqrt(v + epsilon) + shift
               M <- c M + (1 - c) m,  V <- c V + (1 - c) v;  of B rows "unbiased": v B / (B - 1)
  renormed     y = scale (x - m + d sqrt(v) / r) / sqrt(v / r^2 + epsilon) + shift
               r = sqrt(v + epsilon) / sqrt(V + epsilon) in [1/3, 3],
               d = (m - M) / sqrt(V + epsilon) in [-5, 5], without a gradient  [2], code of [3]
  else         y = scale (x - M) / sqrt(V + epsilon) + shift

A pass in training mode has `train=True`, and `Network.apply_mutable` returns the network with new
M and V.

[1] Ioffe and Szegedy, Batch Normalization, arXiv:1502.03167
[2] Ioffe, Batch Renormalization, arXiv:1702.03275
[3] Bhatt et al., CrossQ, arXiv:1902.05605
[4] Palenicek et al., XQC, arXiv:2509.25174
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array, Metrics, choose
from rljax.networks.initialisation import Initialisation
from rljax.networks.layers import ACTIVATIONS, Activation, Dense, Module, Network, joined

Place = Literal["before", "after"]  # of the activation
MovedLoss = tuple[Array, tuple[Network, Metrics]]  # of a network with new statistics


class BatchNorm(Module):
    """Batch normalisation of inputs [B, n] over B, or by running statistics."""

    momentum: float = 0.99  # c
    epsilon: float = 1e-3
    renormed_after: int | None = None  # passes in training mode; None: never
    unbiased: bool = False  # V, as in PyTorch

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        size = x.shape[-1]
        mean = self.variable("batch_stats", "mean", jnp.zeros, size)
        variance = self.variable("batch_stats", "variance", jnp.ones, size)
        passes = self._passes()
        scale = self.param("scale", nn.initializers.ones, (size,))
        shift = self.param("shift", nn.initializers.zeros, (size,))
        if not train:
            y = (x - mean.value) * jax.lax.rsqrt(variance.value + self.epsilon)
            return scale * y + shift
        axes = tuple(range(x.ndim - 1))
        m, v = x.mean(axis=axes), x.var(axis=axes)
        used = (m, v)
        if passes is not None:
            used = choose(passes.value >= self.renormed_after, self._renormed(m, v), used)
        y = (x - used[0]) * jax.lax.rsqrt(used[1] + self.epsilon)
        if not self.is_initializing():
            if self.unbiased:
                rows = x.size // size
                v = v * (rows / max(rows - 1, 1))
            mean.value = self.momentum * mean.value + (1.0 - self.momentum) * m
            variance.value = self.momentum * variance.value + (1.0 - self.momentum) * v
            if passes is not None:
                passes.value += 1.0
        return scale * y + shift

    def _passes(self) -> Any:
        if self.renormed_after is None:
            return None
        return self.variable("batch_stats", "passes", jnp.zeros, ())

    def _renormed(self, m: Array, v: Array) -> tuple[Array, Array]:
        """The mean and the variance that are used instead."""
        mean, variance = (self.get_variable("batch_stats", x) for x in ("mean", "variance"))
        running = jnp.sqrt(variance + self.epsilon)
        r = jnp.clip(jnp.sqrt(v + self.epsilon) / running, 1.0 / 3.0, 3.0)
        d = jnp.clip((m - mean) / running, -5.0, 5.0)
        r, d = jax.lax.stop_gradient((r, d))
        return m - d * jnp.sqrt(v) / r, v / jnp.square(r)


class BatchNormMLP(Module):
    """Dense layers, each with batch normalisation before or after its activation, to [...,
    features]. The input is normalised, too.

    With `unit_norm` the weights into each output unit have length 1: see `project`. Layers with
    normalisation before the activation have no bias.
    """

    hidden: tuple[int, ...]
    features: int
    place: Place = "before"
    activation: Activation = "relu"
    initialisation: Initialisation = "orthogonal"
    unit_norm: bool = False
    momentum: float = 0.99
    renormed_after: int | None = None

    @nn.compact
    def __call__(self, *inputs: Array, train: bool = False) -> Array:
        x = self._norm("norm_input")(joined(inputs), train=train)
        style = (self.initialisation, math.sqrt(2.0))
        before = self.place == "before"
        for i, width in enumerate(self.hidden):
            norm = self._norm(f"norm_{i}")
            x = Dense(width, *style, use_bias=not before, name=f"hidden_{i}")(x)
            x = norm(x, train=train) if before else x
            x = ACTIVATIONS[self.activation](x)
            x = x if before else norm(x, train=train)
        return Dense(self.features, *style, last=True, name="output")(x)

    def _norm(self, name: str) -> BatchNorm:
        return BatchNorm(self.momentum, renormed_after=self.renormed_after, name=name)

    def project(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """Parameters whose weights into each output unit have length 1, with `unit_norm`; [4]."""
        return unit_columns(params) if self.unit_norm else params


def joint(first: Any, second: Any) -> Any:
    """The rows of two trees of arrays [B, ...] after each other, [2 B, ...], for a joint pass."""
    return jax.tree.map(lambda *parts: jnp.concatenate(parts), first, second)


def unit_columns(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters of layers with kernels [..., I, O] of length 1 over I."""

    def projected(path: Any, x: Array) -> Array:
        if path[-1].key != "kernel":
            return x
        return x / jnp.linalg.norm(x, axis=-2, keepdims=True)

    return jax.tree_util.tree_map_with_path(projected, params)
