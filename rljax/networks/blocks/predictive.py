"""A critic that also predicts what follows: its own next features, and the reward.

f features of a state with its action, u the activation, C = 40

  f     = features(s, a)
  l     = head(u(f)) + C b        b: parameters, at first HL-Gauss's probabilities of 0
  g, h  = prediction(u(f))        of the next features and of the reward

With classes of values, b makes the first values 0; a single value has no b.
Voelcker et al., REPPO, arXiv:2507.11019, and its code.
"""

from __future__ import annotations

from flax import linen as nn

from rljax.agent import Array
from rljax.networks.initialisation import Initialisation
from rljax.networks.layers import ACTIVATIONS, MLP, Activation, Module, Norm

START = 40.0  # C


class PredictiveCritic(Module):
    """From inputs [..., I_1], [..., I_2], ... to values [...] or classes [..., K], features
    [..., F] and predictions [..., F + 1], the reward's last.
    """

    hidden: tuple[int, ...]  # of each of the three parts
    features: int  # F
    outputs: int = 1  # K
    activation: Activation = "silu"
    initialisation: Initialisation = "lecun_normal"
    layer_norm: Norm = "rms"

    @nn.compact
    def __call__(self, *inputs: Array, first: Array | None = None) -> tuple[Array, Array, Array]:
        """`first` [K] is b of fresh parameters."""
        features = self._part("features", self.features)(*inputs)
        x = ACTIVATIONS[self.activation](features)
        outputs = self._part("head", self.outputs)(x)
        if self.outputs > 1:
            outputs += START * self.param("start", lambda *_: first, (self.outputs,))
        prediction = self._part("prediction", self.features + 1)(x)
        return (outputs.squeeze(-1) if self.outputs == 1 else outputs), features, prediction

    def _part(self, name: str, size: int) -> MLP:
        style = (self.activation, self.initialisation)
        return MLP(self.hidden, size, *style, layer_norm=self.layer_norm, name=name)
