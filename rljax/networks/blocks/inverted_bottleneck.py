"""Residual networks of inverted bottlenecks with batch normalisation, as in FlashSAC [1].

H is the width, k the expansion, BN batch normalisation

  x <- W_0 BN(inputs)                                   [H]
  x <- x + relu(BN(W_2 relu(BN(W_1 x))))                W_1: [H, k H], W_2: [k H, H]; each block
  y  = W RMS(x) + b                                     RMS: `RMSNorm`

With `unit_norm`, after each step of the optimiser and at the start:

  W <- W / |W|                                          the weights into each unit
  (scale, shift) <- n^1/2 (scale, shift) / |(scale, shift)|    of BN of n units
  scale <- n^1/2 scale / |scale|                        of RMS

[1] Kim et al., FlashSAC, arXiv:2604.04539, and its code
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array
from rljax.networks.blocks.batch_norm import BatchNorm
from rljax.networks.layers import ACTIVATIONS, Activation, Dense, Module, RMSNorm, joined

SMALLEST = 1e-8  # of lengths that divide; [1]


class InvertedBottleneck(Module):
    """x [B, H] and what a layer of `expansion` H units makes of it."""

    expansion: int
    activation: Activation = "relu"

    @nn.compact
    def __call__(self, x: Array, *, train: bool = False) -> Array:
        width, activation = x.shape[-1], ACTIVATIONS[self.activation]
        y = x
        for i, units in enumerate((self.expansion * width, width)):
            y = Dense(units, "orthogonal", use_bias=False, name=f"hidden_{i}")(y)
            y = activation(normed(f"norm_{i}")(y, train=train))
        return x + y


class InvertedBottleneckMLP(Module):
    """Inputs [B, I_1], ... through residual blocks to [B, features]."""

    hidden: tuple[int, ...]  # H for each block; all are equal
    features: int
    expansion: int = 4  # k
    activation: Activation = "relu"
    unit_norm: bool = True

    @nn.compact
    def __call__(self, *inputs: Array, train: bool = False) -> Array:
        x = normed("norm_input")(joined(inputs), train=train)
        x = Dense(self.hidden[0], "orthogonal", use_bias=False, name="embedding")(x)
        for i in range(len(self.hidden)):
            block = InvertedBottleneck(self.expansion, self.activation, name=f"block_{i}")
            x = block(x, train=train)
        x = RMSNorm(name="norm_output")(x)
        return Dense(self.features, "orthogonal", last=True, name="output")(x)

    def project(self, params: Mapping[str, Any]) -> Mapping[str, Any]:
        """The parameters after `unit_layers`, with `unit_norm`."""
        return unit_layers(params) if self.unit_norm else params


def normed(name: str) -> BatchNorm:
    """Batch normalisation as in PyTorch."""
    return BatchNorm(epsilon=1e-5, unbiased=True, name=name)


def unit_layers(params: Mapping[str, Any]) -> Mapping[str, Any]:
    """Parameters with weights of length 1 into each unit, and normalisations of n units whose scale
    and shift have the length n^1/2 together. Biases stay as they are.
    """
    if "kernel" in params:
        kernel = params["kernel"]  # [..., I, O]
        length = jnp.linalg.norm(kernel, axis=-2, keepdims=True)
        return {**params, "kernel": kernel / jnp.maximum(length, SMALLEST)}
    if "scale" in params:
        squares = sum(jnp.square(x).sum(axis=-1, keepdims=True) for x in params.values())
        factor = math.sqrt(params["scale"].shape[-1]) / jnp.sqrt(squares + SMALLEST)
        return {name: factor * x for name, x in params.items()}
    return {name: unit_layers(layer) for name, layer in params.items()}
