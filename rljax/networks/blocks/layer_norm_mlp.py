"""Acme's networks for control: layer normalisation and tanh after the first layer alone.

  h_1   = tanh(LayerNorm(W_1 x + b_1))
  h_i   = activation(W_i h_i-1 + b_i)
  y     = W h + b

W_i ~ U(+-sqrt(0.999 / width of layer i)), biases 0; as in all of [1]'s agents for control.

[1] Hoffman et al., Acme, arXiv:2006.00979, acme/jax/networks/continuous.py
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array
from rljax.networks.layers import ACTIVATIONS, Activation, LayerNorm, Module, copies, joined

HIDDEN = nn.initializers.variance_scaling(0.333, "fan_out", "uniform")
# Weights of the last layer, of means and deviations, of values, of classes of values, and of values
# as in all other layers. The first three are normal distributions cut at 2 std.
OUTPUTS: dict[str, Callable] = {
    "policy": nn.initializers.variance_scaling(1e-4, "fan_in", "truncated_normal"),
    "value": nn.initializers.truncated_normal(0.01),
    "classes": nn.initializers.variance_scaling(1e-5, "fan_in", "truncated_normal"),
    "layer": HIDDEN,
}
Output = Literal["policy", "value", "classes", "layer"]


class LayerNormMLP(Module):
    """An MLP from inputs [..., I_1], [..., I_2], ... to [..., features]."""

    hidden: tuple[int, ...]
    features: int
    activation: Activation = "elu"
    output: Output = "policy"  # what the last layer is for, by which its weights begin

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        x = joined(inputs)
        for i, width in enumerate(self.hidden):
            x = self._dense(f"hidden_{i}", x, width, HIDDEN)
            if i == 0:
                x = jnp.tanh(LayerNorm(epsilon=1e-5, name="norm_0")(x))
            else:
                x = ACTIVATIONS[self.activation](x)
        return self._dense("output", x, self.features, OUTPUTS[self.output])

    def _dense(self, name: str, x: Array, width: int, initialiser: Callable) -> Array:
        shape = (x.shape[-1], width)
        kernel = self.param(f"{name}_kernel", initialiser, shape)
        bias = self.param(f"{name}_bias", nn.initializers.zeros_init(), (width,))
        return x @ kernel + bias


class LayerNormEnsemble(Module):
    """`size` independent `LayerNormMLP`s with the same inputs: to [C, ...], or [C, ..., K]."""

    size: int
    hidden: tuple[int, ...]
    features: int = 1  # K
    activation: Activation = "elu"
    output: Output = "value"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        style = (self.hidden, self.features, self.activation, self.output)
        outputs = copies(LayerNormMLP, self.size)(*style, name="members")(joined(inputs))
        return outputs.squeeze(-1) if self.features == 1 else outputs
