"""Encoders of any observation, to features [..., m].

    vectors              themselves
    pictures [H, W, K] through convolutions; bytes are divided by 255 first
    other arrays         flattened
    dictionaries         the features of all parts but the action mask, ordered by name; those of
                         actors without the parts that are for critics alone: `WithCriticParts`

The convolutions, by `EncoderSettings.encoder`:

    nature     32 8x8 stride 4, 64 4x4 stride 2, 64 3x3 stride 1, a dense layer of 512           [1]
    impala     three stages of 16, 32 and 32 channels, each a convolution, a pooling that
               halves the picture and two residual blocks of two convolutions, 3x3 all;
               a dense layer of 256                                                              [2]
    small      16 3x3 stride 1, a dense layer of 128: for pictures of a few cells                [3]
    efficient  32 5x5 stride 5, 64 5x5 stride 5, a dense layer of 256                            [5]
    auto       nature from 36 pixels on, small below

A user's own encoder stands before vectors too: `rljax.networks.user_modules`.

[1] Mnih et al., DQN, Nature 518, 2015
[2] Espeholt et al., IMPALA, arXiv:1802.01561, figure 3, the large architecture
[3] Young and Tian, MinAtar, arXiv:1903.03176
[4] Gallici et al., PQN, arXiv:2407.04811, and its code
[5] van Hasselt et al., data-efficient Rainbow, arXiv:1906.05243
"""

from __future__ import annotations

import math
from typing import Any, Literal, NamedTuple

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax import networks
from rljax.agent import MASK, Array, EnvSpec, Number, config, same_fields
from rljax.networks import (
    Activation,
    Dense,
    Encoded,
    Initialisation,
    Norm,
    initialisers,
    user_modules,
)
from rljax.networks.layers import Module, activated
from rljax.networks.user_modules import UserEncoder
from rljax.system.user_files import FileClass, is_class_name

Kind = Literal["auto", "nature", "impala", "small", "efficient"] | FileClass
LAYERS = {  # channels, width and stride of each convolution
    "nature": ((32, 8, 4), (64, 4, 2), (64, 3, 1)),
    "small": ((16, 3, 1),),
    "efficient": ((32, 5, 5), (64, 5, 5)),
}
WIDTHS = {"nature": 512, "impala": 256, "small": 128, "efficient": 256}  # of the dense layer
STAGES = (16, 32, 32)  # channels of impala's stages
# Pixels of a picture's shorter side.
LEAST: dict[Kind, int] = {"nature": 36, "efficient": 25, "small": 3}


class EncoderSettings(NamedTuple):
    """What an agent chooses for its encoder."""

    encoder: Kind = "auto"
    activation: Activation = "relu"  # of the dense layer
    initialisation: Initialisation = "torch"
    # of the dense layer, and over channels of convolutions other than impala's [4]
    layer_norm: Norm = False
    without: tuple[str, ...] = ()  # parts of observations that this network does not see

    @classmethod
    def of(cls, config: Any) -> EncoderSettings:
        """Those of a Config, without normalised layers."""
        return cls(**same_fields(config, ("encoder", "activation", "initialisation")))


@config
class WithCriticParts:
    """What critics alone see: a base of an agent's Config."""

    critic_parts: tuple[str, ...] = ()  # parts of observations that the actor does not see

    @property
    def unseen(self) -> tuple[str, ...]:
        """See `rljax.agent.unseen`."""
        return self.critic_parts


def of_actor(config: Any) -> EncoderSettings:
    """The settings of an actor whose Config has `critic_parts`."""
    return EncoderSettings.of(config)._replace(without=config.critic_parts)


def check_with_parts(spec: EnvSpec, config: WithCriticParts, shared: bool = False) -> None:
    """Raise `ValueError` for an encoder that does not fit, for `critic_parts` that observations
    lack, where the actor would see none, and where actor and critic have a `shared` torso.
    """
    check(spec, EncoderSettings.of(config))
    if config.critic_parts and shared:
        raise ValueError(
            "--config.critic-parts are what the actor does not see: it needs a torso of its own, "
            "without --config.shared and --config.memory."
        )
    parts = [part.name for part in spec.parts if part.name != MASK]
    for name in config.critic_parts:
        if name not in parts:
            raise ValueError(
                f"--config.critic-parts names '{name}', and '{spec.name}' shows "
                f"{', '.join(parts) or 'no parts'}. What Brax and Playground show critics alone "
                "comes with privileged/ before the environment's name."
            )
    if parts and not set(parts) - set(config.critic_parts):
        raise ValueError("--config.critic-parts names all parts: the actor would see nothing.")


def encoded(spec: EnvSpec, settings: EncoderSettings, body: nn.Module) -> nn.Module:
    """`body`, behind an encoder of its first input where it needs one."""
    first = encoder_or_none(spec, settings)
    return body if first is None else Encoded(first, body)


def encoder_or_none(spec: EnvSpec, settings: EncoderSettings) -> nn.Module | None:
    """The same; None where observations are vectors and the encoder is not a user's."""
    is_needed = not spec.is_vector or is_class_name(settings.encoder)
    return encoder(spec, settings) if is_needed else None


def create(
    spec: EnvSpec, settings: EncoderSettings, body: nn.Module, key: Array, *inputs: Any
) -> networks.Network:
    """A fresh `encoded` network for one observation and the example `inputs`."""
    return networks.create(encoded(spec, settings, body), key, spec.example(), *inputs)


def encoder(spec: EnvSpec, settings: EncoderSettings) -> nn.Module:
    """The encoder of an environment's observations."""
    if is_class_name(settings.encoder):
        return UserEncoder(spec, user_modules.made(settings.encoder, "encoder"))
    check(spec, settings)
    return Encoder(spec, settings)


def check(spec: EnvSpec, settings: EncoderSettings) -> None:
    """Raise `ValueError` where the convolutions, or a user's module, do not fit."""
    if is_class_name(settings.encoder):
        user_modules.check(settings.encoder, "encoder", user_modules.example(spec))
        return
    for part in jax.tree.leaves(spec.observation):
        if len(part.shape) != 3:
            continue
        size, kind = min(part.shape[:2]), chosen(settings, part.shape)
        least = LEAST.get(kind, 0)
        if size < least:
            advice = "small" if size >= LEAST["small"] else "impala"
            raise ValueError(
                f"--config.encoder {kind} needs pictures of at least {least} x {least} pixels, "
                f"'{spec.name}' shows {part.shape[0]} x {part.shape[1]}. Use: --config.encoder "
                f"{advice}"
            )


def chosen(settings: EncoderSettings, shape: tuple[int, ...]) -> Kind:
    """The convolutions for pictures of a shape [H, W, K]."""
    if settings.encoder != "auto":
        return settings.encoder
    if min(shape[:2]) >= LEAST["nature"]:
        return "nature"
    return "small" if min(shape[:2]) >= LEAST["small"] else "impala"


class Encoder(Module):
    """From observations [..., O...] to features [..., m]."""

    spec: EnvSpec
    settings: EncoderSettings

    @nn.compact
    def __call__(self, observation: Any) -> Array:
        features = []
        parts = observation if self.spec.parts else {"": observation}
        shapes = {part.name: part.shape for part in self.spec.parts}
        for name in sorted(parts.keys() - {MASK, *self.settings.without}):
            x, shape = parts[name], shapes.get(name, self.spec.observation_shape)
            leading = x.shape[: x.ndim - len(shape)]
            if len(shape) == 3:
                pictures = Pictures(self.settings, name=f"pictures_{name}" if name else "pictures")
                features.append(pictures(x.reshape(-1, *shape)).reshape(*leading, -1))
            else:
                features.append(x.reshape(*leading, -1).astype(jnp.float32))
        return features[0] if len(features) == 1 else jnp.concatenate(features, axis=-1)


class Pictures(Module):
    """Convolutions and a dense layer: pictures [N, H, W, K] to features [N, m]."""

    settings: EncoderSettings

    @nn.compact
    def __call__(self, pictures: Array) -> Array:
        kind = chosen(self.settings, pictures.shape[1:])
        x = pictures.astype(jnp.float32)
        x = x / 255.0 if pictures.dtype == jnp.uint8 else x
        if kind == "impala":
            for i, channels in enumerate(STAGES):
                x = self._convolution(f"stage_{i}", x, channels)
                x = nn.max_pool(x, (3, 3), strides=(2, 2), padding="SAME")
                for j in range(2):
                    y = self._convolution(f"block_{i}_{j}_0", nn.relu(x), channels)
                    x = x + self._convolution(f"block_{i}_{j}_1", nn.relu(y), channels)
            x = nn.relu(x)
        else:
            for i, (channels, width, stride) in enumerate(LAYERS[kind]):
                name = f"convolution_{i}"
                x = self._convolution(name, x, channels, width, stride, 0)
                x = activated(x, "relu", self.settings.layer_norm, f"{name}_norm")
        dense = Dense(WIDTHS[kind], self.settings.initialisation, math.sqrt(2.0), name="dense")
        x, norm = dense(x.reshape(x.shape[0], -1)), self.settings.layer_norm
        return activated(x, self.settings.activation, norm, "dense_norm")

    def _convolution(
        self, name: str, x: Array, channels: int, width: int = 3, stride: int = 1, padding: int = 1
    ) -> Array:
        shape = (width, width, x.shape[-1], channels)
        fan_in = math.prod(shape[:-1])
        kernel_init, bias_init = initialisers(self.settings.initialisation, fan_in, math.sqrt(2.0))
        kernel = self.param(f"{name}_kernel", kernel_init, shape)
        bias = self.param(f"{name}_bias", bias_init, (channels,))
        if padding:
            side = (padding, padding)
            x = jnp.pad(x, ((0, 0), side, side, (0, 0)))
        return convolve(x, kernel, stride) + bias


def perturbed(key: Array, observation: Any, radius: Number, number: int) -> Any:
    """Observations [n, B, O...] around [B, O...]: the same n steps of U(-radius, radius), in
    networks' units.
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
    """Convolution of pictures [N, H, W, K] and kernel [w, w, K, C], unpadded, to [N, H', W', C]."""
    width, channels = len(kernel), kernel.shape[-1]
    if stride > 1 and width % stride == 0:
        rows, columns = ((size - width) // stride * stride + width for size in pictures.shape[1:3])
        pictures = _blocks(pictures[:, :rows, :columns], stride)
        kernel = jnp.moveaxis(_blocks(jnp.moveaxis(kernel, -1, 0), stride), 0, -1)
        width, stride = width // stride, 1
    return networks.patches(pictures, width, stride) @ kernel.reshape(-1, channels)


def _blocks(x: Array, size: int) -> Array:
    """Blocks of pixels as channels: [N, H, W, K] to [N, H / size, W / size, size size K]."""
    number, height, width, channels = x.shape
    x = x.reshape(number, height // size, size, width // size, size, channels).swapaxes(2, 3)
    return x.reshape(number, height // size, width // size, -1)
