"""Encoders: the layers that turn any observation into features.

An agent puts its network behind an encoder: `encoded(spec, settings, body)`. Where observations are
vectors, this is the body itself. Everything else becomes one vector of features [..., m], on which
the body works:

    pictures [H, W, K]   through convolutions, to a flat vector; bytes are divided by 255 first
    other arrays         flattened
    dictionaries         the features of all parts, concatenated in the order of their names,
                         without the action mask

The convolutions, by `EncoderSettings.encoder`:

    nature     32 8x8 stride 4, 64 4x4 stride 2, 64 3x3 stride 1, a dense layer of 512           [1]
    impala     three stages of 16, 32 and 32 channels, each a convolution, a pooling that
               halves the picture and two residual blocks of two convolutions, 3x3 all;
               a dense layer of 256                                                              [2]
    small      16 3x3 stride 1, a dense layer of 128: for pictures of a few cells                [3]
    efficient  32 5x5 stride 5, 64 5x5 stride 5, a dense layer of 256: the data-efficient
               Rainbow's                                                                         [5]
    auto       nature from 36 pixels on, small below

[1] Mnih et al., Human-level control through deep reinforcement learning, Nature 518, 2015
[2] Espeholt et al., IMPALA, arXiv:1802.01561, figure 3, the large architecture
[3] Young and Tian, MinAtar, arXiv:1903.03176
[4] Gallici et al., Simplifying Deep Temporal Difference Learning, arXiv:2407.04811, and its code
[5] van Hasselt et al., When to use parametric models in reinforcement learning?, arXiv:1906.05243

Convolutions are products with patches. On the CPU their gradients take a fifth to an eighteenth of
the time of those of XLA's own convolutions. Forwards, that of "small" takes less than half, and the
first one of "nature" twice the time.
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax import networks
from rljax.agent import MASK, Array, EnvSpec, same_fields
from rljax.networks import (
    ACTIVATIONS,
    Activation,
    Dense,
    Encoded,
    Initialisation,
    Norm,
    initialisers,
)
from rljax.networks.layers import LayerNorm, Module

Kind = Literal["auto", "nature", "impala", "small", "efficient"]
NATURE = ((32, 8, 4), (64, 4, 2), (64, 3, 1))  # channels, width and stride of each convolution
SMALL = ((16, 3, 1),)
EFFICIENT = ((32, 5, 5), (64, 5, 5))
STAGES = (16, 32, 32)  # channels of impala's stages
NATURE_FROM = 36  # pixels of the shorter side: the least that nature's convolutions take
LEAST = {"nature": NATURE_FROM, "efficient": 25}  # 3 of others


class EncoderSettings(NamedTuple):
    """What an agent chooses for its encoder."""

    encoder: Kind = "auto"  # the convolutions
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"
    # of the dense layer, and of nature's and small's convolutions over their channels [4]
    layer_norm: Norm = False

    @classmethod
    def of(cls, config: Any) -> EncoderSettings:
        """Those of a Config's `encoder`, `activation` and `initialisation`,
        without normalised layers.
        """
        return cls(**same_fields(config, ("encoder", "activation", "initialisation")))


def needed(spec: EnvSpec) -> bool:
    """Whether observations need an encoder: whether they are anything else than one vector."""
    return not spec.is_vector


def encoded(spec: EnvSpec, settings: EncoderSettings, body: nn.Module) -> nn.Module:
    """`body` behind an encoder.

    It takes an observation of the environment and what else the body takes.
    """
    return Encoded(encoder(spec, settings), body) if needed(spec) else body


def encoder_or_none(spec: EnvSpec, settings: EncoderSettings) -> Encoder | None:
    """The encoder of an environment's observations; None where they are vectors."""
    return encoder(spec, settings) if needed(spec) else None


def create(
    spec: EnvSpec, settings: EncoderSettings, body: nn.Module, key: Array, *inputs: Any
) -> networks.Network:
    """A fresh network: `body` behind an encoder, for one observation and the example `inputs`."""
    return networks.create(encoded(spec, settings, body), key, spec.example(), *inputs)


def encoder(spec: EnvSpec, settings: EncoderSettings) -> Encoder:
    """The encoder of an environment's observations, to features [..., m]."""
    check(spec, settings)
    return Encoder(spec, settings)


def check(spec: EnvSpec, settings: EncoderSettings) -> None:
    """Raise `ValueError` where the convolutions do not fit the pictures."""
    for part in jax.tree.leaves(spec.observation):
        if len(part.shape) != 3:
            continue
        size, kind = min(part.shape[:2]), chosen(settings, part.shape)
        least = LEAST.get(kind, 3)
        if size < least:
            advice = "--config.encoder small" if size >= 3 else "--config.encoder impala"
            if kind != "impala":
                raise ValueError(
                    f"--config.encoder {kind} needs pictures of at least {least} x {least} pixels, "
                    f"'{spec.name}' shows {part.shape[0]} x {part.shape[1]}. Use: {advice}"
                )


def chosen(settings: EncoderSettings, shape: tuple[int, ...]) -> Kind:
    """The convolutions for pictures of a shape [H, W, K]."""
    if settings.encoder != "auto":
        return settings.encoder
    smallest = min(shape[:2])
    return "nature" if smallest >= NATURE_FROM else "small" if smallest >= 3 else "impala"


class Encoder(Module):
    """From observations of one environment to features."""

    spec: EnvSpec
    settings: EncoderSettings

    @nn.compact
    def __call__(self, observation: Any) -> Array:
        """Map observations [..., O...] to features [..., m]."""
        features = []
        parts = observation if self.spec.parts else {"": observation}
        shapes = {part.name: part.shape for part in self.spec.parts} or {
            "": self.spec.observation_shape
        }
        for name in sorted(parts):
            if name == MASK:
                continue
            x, shape = parts[name], shapes[name]
            leading = x.shape[: x.ndim - len(shape)]
            if len(shape) == 3:
                pictures = x.reshape(-1, *shape)
                flat = Pictures(self.settings, name=f"pictures_{name}" if name else "pictures")(
                    pictures
                )
                features.append(flat.reshape(*leading, -1))
            else:
                features.append(x.reshape(*leading, -1).astype(jnp.float32))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


class Pictures(Module):
    """Convolutions and a dense layer."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, pictures: Array) -> Array:
        """Map pictures [N, H, W, K] to features [N, m]."""
        act, kind = ACTIVATIONS[self.settings.activation], chosen(self.settings, pictures.shape[1:])
        x = (
            pictures.astype(jnp.float32) / 255.0
            if pictures.dtype == jnp.uint8
            else pictures.astype(jnp.float32)
        )
        if kind == "impala":
            for i, channels in enumerate(STAGES):
                x = self._convolution(f"stage_{i}", x, channels)
                x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
                for j in range(2):
                    y = self._convolution(f"block_{i}_{j}_0", act(x), channels)
                    x = x + self._convolution(f"block_{i}_{j}_1", act(y), channels)
            x = act(x)
        else:
            layers = {"nature": NATURE, "efficient": EFFICIENT}.get(kind, SMALL)
            for i, (channels, width, stride) in enumerate(layers):
                name = f"convolution_{i}"
                x = self._hidden(name, self._convolution(name, x, channels, width, stride, "VALID"))
        width = {"nature": 512, "impala": 256, "small": 128, "efficient": 256}[kind]
        x = Dense(width, self.settings.initialisation, math.sqrt(2.0), name="dense")(
            x.reshape(len(x), -1)
        )
        return self._hidden("dense", x)

    def _hidden(self, name: str, x: Array) -> Array:
        """The activation of a layer [..., m], with its normalisation over m."""
        act, norm = ACTIVATIONS[self.settings.activation], self.settings.layer_norm
        if norm is True:
            x = LayerNorm(name=f"{name}_norm")(x)
        if norm == "plain":
            x = networks.centred(x)
        x = act(x)
        return LayerNorm(name=f"{name}_norm")(x) if norm == "last" else x

    def _convolution(
        self,
        name: str,
        x: Array,
        channels: int,
        width: int = 3,
        stride: int = 1,
        padding: str = "SAME",
    ) -> Array:
        shape = (width, width, x.shape[-1], channels)
        kernel_init, bias_init = initialisers(
            self.settings.initialisation, math.prod(shape[:-1]), math.sqrt(2.0)
        )
        kernel = self.param(f"{name}_kernel", kernel_init, shape)
        bias = self.param(f"{name}_bias", bias_init, (channels,))
        if padding == "SAME":
            side = width // 2
            x = jnp.pad(x, ((0, 0), (side, side), (side, side), (0, 0)))
        return convolve(x, kernel, stride) + bias


def perturbed(key: Array, observation: Any, radius: Array | float, number: int) -> Any:
    """Observations [n, B, O...] around those of a batch [B, O...]: the same n steps from each row.

    Each number moves by U(-radius, radius), in the units of networks: bytes of pictures are divided
    by 255 first, as an encoder does.
    """

    def around(key: Array, x: Array) -> Array:
        is_bytes = x.ndim == 4 and x.dtype == jnp.uint8
        x = x.astype(jnp.float32) / 255.0 if is_bytes else x
        steps = jax.random.uniform(key, (number, 1, *x.shape[1:]), minval=-1.0, maxval=1.0)
        return x + radius * steps

    parts, structure = jax.tree.flatten(observation)
    keys = jax.random.split(key, len(parts)) if len(parts) > 1 else [key]
    return jax.tree.unflatten(structure, [around(*pair) for pair in zip(keys, parts, strict=True)])


def convolve(pictures: Array, kernel: Array, stride: int = 1) -> Array:
    """Convolution without padding: pictures [N, H, W, K] and a kernel [w, w, K, C] to
    [N, H', W', C].

    Where the stride divides w, each block of stride x stride pixels becomes one pixel with as many
    times the channels, and the stride becomes 1. Fewer and longer rows are then copied to the
    patches.
    """
    width, channels = len(kernel), kernel.shape[-1]
    if stride > 1 and width % stride == 0:
        height, breadth = (
            (size - width) // stride * stride + width for size in pictures.shape[1:3]
        )
        pictures = _blocks(pictures[:, :height, :breadth], stride)
        kernel = jnp.moveaxis(_blocks(jnp.moveaxis(kernel, -1, 0), stride), 0, -1)
        width, stride = width // stride, 1
    return networks.patches(pictures, width, stride) @ kernel.reshape(-1, channels)


def _blocks(x: Array, size: int) -> Array:
    """Blocks of size x size pixels as channels: [N, H, W, K] to [N, H / size, W / size, size size
    K].
    """
    number, height, width, channels = x.shape
    x = x.reshape(number, height // size, size, width // size, size, channels).swapaxes(2, 3)
    return x.reshape(number, height // size, width // size, -1)
