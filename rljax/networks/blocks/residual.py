"""Residual blocks of dense layers with layer normalisation, one width for all.

  BroNet  x  = act(LN(W o))
          x <- x + LN(W_2 act(LN(W_1 x)))   each block; no activation after the sum  [1, figure 4]
  SimBa   x  = W o
          x <- x + W_2 act(W_1 LN(x))       each block, with 4 H units inside         [2, section 4]
          x <- LN(x)                        at the end
  IDQL    x  = W o
          x <- x + W_2 act(W_1 LN(x))       each block, with 4 H units inside         [3]
          y  = W act(x)                     at the end
  SkipMLP x  = act(LN(W_0 o))
          y  = act(LN(W_n ... act(LN(W_1 x))))   n layers, with LN or without
          x <- x + y                        each n layers; those behind the last sum add nothing
          y  = W x                          at the end                              [4], its code

[1] Nauman et al., BRO, arXiv:2405.16158
[2] Lee et al., SimBa, arXiv:2410.09754
[3] Hansen-Estruch et al., IDQL, arXiv:2304.10573
[4] Bortkiewicz et al., JaxGCRL, arXiv:2408.11052
"""

from __future__ import annotations

import math

from flax import linen as nn

from rljax.agent import Array
from rljax.networks.initialisation import Initialisation
from rljax.networks.layers import (
    ACTIVATIONS,
    Activation,
    Dense,
    Dropout,
    LayerNorm,
    Module,
    Norm,
    activated,
    joined,
)

EXPANSION = 4  # units inside a block of SimBa and of IDQL for each feature


class BroNet(Module):
    """BRO's blocks: inputs to features [..., H]."""

    hidden: tuple[int, ...]  # the width H, once for each block
    activation: Activation = "relu"
    initialisation: Initialisation = "orthogonal"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        act = ACTIVATIONS[self.activation]
        x = act(self._layer(joined(inputs), "input"))
        for i in range(len(self.hidden)):
            y = act(self._layer(x, f"{i}_0"))
            x = x + self._layer(y, f"{i}_1")
        return x

    def _layer(self, x: Array, name: str) -> Array:
        style = (self.initialisation, math.sqrt(2.0))
        return LayerNorm(name=f"norm_{name}")(
            Dense(self.hidden[0], *style, name=f"hidden_{name}")(x)
        )


class SimBa(Module):
    """SimBa's blocks: inputs, which should be normalised, to features [..., H]."""

    hidden: tuple[int, ...]  # the width H, once for each block
    activation: Activation = "relu"
    initialisation: Initialisation = "orthogonal"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        width, act = self.hidden[0], ACTIVATIONS[self.activation]
        x = Dense(width, self.initialisation, name="input")(joined(inputs))
        style = (self.initialisation, math.sqrt(2.0))
        for i in range(len(self.hidden)):
            y = LayerNorm(name=f"norm_{i}")(x)
            y = act(Dense(EXPANSION * width, *style, name=f"inner_{i}")(y))
            x = x + Dense(width, *style, name=f"outer_{i}")(y)
        return LayerNorm(name="norm")(x)


class ResidualMLP(Module):
    """IDQL's blocks between two layers: inputs to [..., features]."""

    hidden: tuple[int, ...]  # the width H, once for each block
    features: int
    activation: Activation = "mish"
    initialisation: Initialisation = "glorot_uniform"  # of the first layer and the last
    inner: Initialisation = "lecun_normal"  # of layers inside blocks

    @nn.compact
    def __call__(self, *inputs: Array, dropout: Dropout | None = None) -> Array:
        """`dropout` comes first in each block."""
        width, act = self.hidden[0], ACTIVATIONS[self.activation]
        x = Dense(width, self.initialisation, name="input")(joined(inputs))
        for i in range(len(self.hidden)):
            y = x if dropout is None else dropout(x, i)
            y = LayerNorm(name=f"norm_{i}")(y)
            y = act(Dense(EXPANSION * width, self.inner, name=f"inner_{i}")(y))
            x = x + Dense(width, self.inner, name=f"outer_{i}")(y)
        return Dense(self.features, self.initialisation, name="output")(act(x))


class SkipMLP(Module):
    """Dense layers and a last one: inputs to [..., features]. Behind the first, what goes into
    `skip` layers is added to what comes out.
    """

    hidden: tuple[int, ...]  # the width H, once for each layer
    features: int
    skip: int  # 0: nothing is added
    activation: Activation = "silu"
    initialisation: Initialisation = "fan_in_uniform"
    layer_norm: Norm = False

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        x = before = joined(inputs)
        for i, width in enumerate(self.hidden):
            x = Dense(width, self.initialisation, name=f"hidden_{i}")(x)
            x = activated(x, self.activation, self.layer_norm, f"norm_{i}")
            if i == 0:
                before = x
            elif self.skip and i % self.skip == 0:
                x = before = x + before
        return Dense(self.features, self.initialisation, name="output")(x)
