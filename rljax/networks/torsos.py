"""Torsos: the layers between observations and the last layer.

docs/torsos.md describes their settings and iru [1]; `compute` is T. With several cells, the next
one uses tanh(c) as h, and the last tanh(c) is added.

recall [2], with e the input's projection, in each of T steps:

    h <- W_r [h; o] + b_r,  then for each block    h starts as e
    h <- act(h + W_2 act(W_1 h + b_1) + b_2)

drc [3], with e the encoded picture, and h_d and c_d of layer d, in each of T ticks for each layer:

    z   = [e; h_{d-1}; h_d; pooled(h_d); edge]   the first layer has the last one's h, a tick ago
    c_d <- sigmoid(f) c_d + sigmoid(i) tanh(j)   f, i, j, o: 3x3 convolutions of z
    h_d <- sigmoid(o) tanh(c_d)                  then a dense layer over [h_D; e]

[1] Ghugare et al., arXiv:2602.05999
[2] Bansal et al., Deep Thinking with recall, arXiv:2202.05826
[3] Guez et al., arXiv:1901.03559
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, ClassVar, Literal, NamedTuple

import jax
from flax import linen as nn

from rljax import agent, networks
from rljax.agent import Acting, Array, EnvSpec, config, same_fields
from rljax.networks import (
    ACTIVATIONS,
    Activation,
    Dense,
    Initialisation,
    encoders,
    joined,
    user_modules,
)
from rljax.networks.blocks import residual
from rljax.networks.layers import LayerNorm, Module, copies
from rljax.networks.recurrent import memory_layers
from rljax.networks.recurrent.thinking import DRC, Recall, Span, ThinkingIRU
from rljax.networks.user_modules import UserTorso
from rljax.system.user_files import FileClass, is_class_name

Kind = Literal["mlp", "resnet", "simba", "bronet", "iru", "recall", "drc"] | FileClass
OfVectors = Literal["mlp", "resnet", "simba", "bronet", "iru", "recall"] | FileClass
OF_ONE_WIDTH = ("resnet", "simba", "bronet", "iru", "recall")
THINKING = ("iru", "recall", "drc")  # torsos that use `compute`
MOST_STEPS = 100_000


class TorsoSettings(NamedTuple):
    """An agent's torsos, named as in `WithTorso` and `WithMemoryAlone`."""

    torso: Kind
    compute: int
    progressive: Any  # float or None
    activation: Activation  # of the hidden layers
    initialisation: Initialisation  # of all layers
    layer_norm: Any = False  # of an mlp: `networks.Norm`
    grid: tuple[int, int] | None = None
    encoder: encoders.Kind = "auto"
    memory: memory_layers.Kind = "none"
    memory_hidden: tuple[int, ...] = (64,)
    memory_length: int = 64
    memory_span: int | None = None
    without: tuple[str, ...] = ()  # parts of observations that this network does not see

    @classmethod
    def of(cls, config: Any, **others: Any) -> TorsoSettings:
        """By a Config, with `others` in place of its fields."""
        return cls(**same_fields(config, cls._fields) | others)

    @classmethod
    def of_actor(cls, config: Any) -> TorsoSettings:
        """Those of an actor whose Config has `critic_parts`."""
        return cls.of(config, without=config.critic_parts)

    def before(self, spec: EnvSpec, body: nn.Module) -> nn.Module:
        """`body` behind an encoder of observations; a DRC takes the pictures themselves."""
        if self.torso == "drc":
            return body
        style = (self.activation, self.initialisation, self.layer_norm, self.without)
        return encoders.encoded(spec, encoders.EncoderSettings(self.encoder, *style), body)


@config
class WithThinking:
    """Settings of torsos that may think, but see no pictures: a base of an agent's Config."""

    acting: ClassVar[Acting] = Acting(settings=("compute",))

    compute: int = 1  # T, thinking steps of torsos that take any number of them
    progressive: float | None = None  # weight of the loss after some steps; arXiv:2202.05826


@config
class WithTorso:
    """Settings of torsos: a base of an agent's Config."""

    acting: ClassVar[Acting] = Acting(settings=("compute",))

    encoder: encoders.Kind = "auto"  # convolutions, where pictures are observed
    torso: Kind = "mlp"  # of all networks: rljax/networks/torsos.py
    compute: int = 1  # T, thinking steps of torsos that take any number of them
    progressive: float | None = None  # weight of the loss after some steps; arXiv:2202.05826
    grid: tuple[int, int] | None = None  # rows and columns that a drc sees in a vector


@config
class WithMemoryAlone:
    """Settings of a memory without progressive loss: a base of an agent's Config."""

    memory: memory_layers.Kind = "none"  # what is kept between steps: rljax/networks/memories.py
    memory_hidden: tuple[int, ...] = (64,)  # widths of the memory's layers
    memory_length: int = 64  # steps that gtrxl sees
    memory_span: int | None = None  # steps that others bridge at the start; None: as published


@config
class WithMemory(WithTorso, WithMemoryAlone):
    """Settings of torsos and memories: a base of an agent's Config."""


def check(
    spec: EnvSpec, settings: TorsoSettings, *hidden: tuple[int, ...], noisy: bool = False
) -> None:
    """Raise `ValueError` for settings that fit no torso, or none with noisy weights."""
    kind, compute, grid = settings.torso, settings.compute, settings.grid
    agent.require_at_least(settings, compute=1)
    if compute > MOST_STEPS:
        raise ValueError(f"--config.compute is {compute:,}, it must be at most {MOST_STEPS:,}.")
    if compute > 1 and kind not in THINKING and settings.memory != "iru":
        raise ValueError(
            f"--config.compute is {compute}, --config.torso {kind} has nothing to do more than "
            f"once. Choose one that has: --config.torso {' or '.join(THINKING)}"
        )
    if noisy and kind in THINKING:
        raise ValueError(
            f"--config.exploration noisy is for --config.torso mlp or resnet, not for {kind}."
        )
    if settings.progressive is not None:
        agent.require_range(settings, progressive=(0, 1))
        if kind not in THINKING:
            raise ValueError(
                f"--config.progressive is for torsos that think ({', '.join(THINKING)}), not "
                f"for {kind}."
            )
    for parts in hidden:
        if kind != "mlp" and not parts and not is_class_name(kind):
            raise ValueError(
                f"--config.torso {kind} needs at least one number for its hidden layers."
            )
        if kind in OF_ONE_WIDTH and len(set(parts)) > 1:
            raise ValueError(
                f"all parts of a torso '{kind}' must have the same width, "
                f"not {' '.join(map(str, parts))}."
            )
    check_memory(settings)
    shape = spec.observation_shape
    if kind != "drc":
        if grid is not None:
            raise ValueError(f"--config.grid is for --config.torso drc, not {kind}.")
        encoders.check(spec, encoders.EncoderSettings(settings.encoder))
        if is_class_name(kind):
            for parts in hidden:
                user_modules.check(kind, "torso", _features(spec, settings), parts)
    elif is_class_name(settings.encoder):
        raise ValueError(
            f"--config.torso drc takes the pictures themselves, without --config.encoder "
            f"{settings.encoder}: leave one of them out."
        )
    elif spec.parts:
        raise ValueError(
            f"--config.torso drc takes one picture, '{spec.name}' shows {agent.shown(spec)}. Use: "
            "--config.torso mlp"
        )
    elif grid is None and len(shape) != 3:
        raise ValueError(
            f"observations have shape {shape}, a DRC is for pictures: give their rows and columns, "
            "for example --config.grid 5 5"
        )
    elif grid is not None and (len(shape) != 1 or shape[0] % math.prod(grid)):
        raise ValueError(
            f"observations of shape {shape} hold no pictures of --config.grid {grid[0]} "
            f"{grid[1]} cells."
        )


def _features(spec: EnvSpec, settings: TorsoSettings) -> Any:
    """The shapes of a torso's inputs."""
    first = encoders.encoder_or_none(spec, encoders.EncoderSettings(settings.encoder))
    observations = spec.shaped(user_modules.ROWS)
    if first is None:
        return observations
    key = jax.random.key(0)
    return jax.eval_shape(lambda x: first.init_with_output(key, x)[0], observations)


def check_action_input(spec: EnvSpec, settings: TorsoSettings, dueling: bool) -> None:
    """Raise `ValueError` where an action cannot be an input of the torso."""
    clashes = {"dueling": dueling, "torso drc": settings.torso == "drc"}
    for flag, clash in (clashes | {"encoder": not spec.is_vector}).items():
        if clash:
            raise ValueError(
                f"--config.action-input does not go with --config.{flag}: "
                "it is an input beside a vector."
            )


def check_memory(settings: TorsoSettings) -> None:
    """Raise `ValueError` for settings that fit no memory."""
    kind, hidden, span = settings.memory, settings.memory_hidden, settings.memory_span
    agent.require_widths(settings, "memory_hidden")
    agent.require_at_least(settings, memory_length=1)
    if span is not None:
        agent.require_at_least(settings, memory_span=2)
        if kind in ("none", "gtrxl"):
            instead = "leave it out" if kind == "none" else "gtrxl has --config.memory-length"
            raise ValueError(
                "--config.memory-span is for --config.memory gru, lstm, lru or iru, not "
                f"{kind}: {instead}."
            )
    if kind == "none":
        return
    if settings.progressive is not None:
        raise ValueError(
            "--config.progressive is for torsos that forget: use it without "
            f"--config.memory {kind}."
        )
    if not hidden:
        raise ValueError(
            f"--config.memory {kind} needs --config.memory-hidden: one width per layer."
        )
    if kind in ("lru", "gtrxl", "iru") and len(set(hidden)) > 1:
        raise ValueError(
            f"all layers of --config.memory {kind} must have the same width, "
            f"not {' '.join(map(str, hidden))}."
        )


def torso(spec: EnvSpec, settings: TorsoSettings, hidden: tuple[int, ...]) -> nn.Module:
    """The torso behind an encoder: observations [..., O...] to features [..., m]."""
    return settings.before(spec, _torso(settings, hidden))


def _torso(settings: TorsoSettings, hidden: tuple[int, ...]) -> nn.Module:
    if is_class_name(settings.torso):
        return UserTorso(user_modules.made(settings.torso, "torso", hidden))
    style = (settings.activation, settings.initialisation)
    match settings.torso:
        case "mlp":
            return networks.MLP(hidden, None, *style, layer_norm=settings.layer_norm)
        case "resnet":
            return ResNet(hidden, *style)
        case "simba":
            return residual.SimBa(hidden, *style)
        case "bronet":
            return residual.BroNet(hidden, *style)
        case "iru":
            return ThinkingIRU(hidden, settings.compute, settings.initialisation)
        case "recall":
            return Recall(hidden, settings.compute, *style)
        case "drc":
            return DRC(hidden, settings.compute, *style, grid=settings.grid)
    raise ValueError(f"no torso '{settings.torso}'.")


def network(
    spec: EnvSpec,
    settings: TorsoSettings,
    hidden: tuple[int, ...],
    features: int,
    output_scale: float = 1.0,
) -> nn.Module:
    """An encoder, a torso and a dense layer: observations [..., O...] to [..., features]."""
    return settings.before(spec, _network(settings, hidden, features, output_scale))


def _network(
    settings: TorsoSettings, hidden: tuple[int, ...], features: int, output_scale: float
) -> nn.Module:
    body = _torso(settings, hidden)
    if settings.torso == "mlp":
        return body.clone(features=features, output_scale=output_scale)
    return Headed(body, features, settings.initialisation, output_scale)


def ensemble(
    spec: EnvSpec,
    settings: TorsoSettings,
    size: int,
    hidden: tuple[int, ...],
    features: int,
    output_scale: float = 1.0,
) -> nn.Module:
    """`size` copies of `network` behind one encoder, to [C, ...], or [C, ..., K] for K > 1."""
    if settings.torso == "mlp":
        style = (settings.activation, settings.initialisation, settings.layer_norm)
        body = networks.Ensemble(size, hidden, *style, features, output_scale)
    else:
        body = TorsoEnsemble(size, _network(settings, hidden, features, output_scale))
    return settings.before(spec, body)


def last(settings: TorsoSettings, features: int, output_scale: float = 1.0) -> nn.Module:
    """The dense layer after a shared torso: [..., m] to [..., features]."""
    return networks.MLP(
        (), features, initialisation=settings.initialisation, output_scale=output_scale
    )


class Headed(Module):
    """A torso with a dense layer after it, to [..., features]."""

    torso: nn.Module
    features: int
    initialisation: Initialisation = "torch"
    output_scale: float = 1.0  # gain of the last layer's orthogonal initialisation
    use_bias: bool = True  # of the last layer

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        options = {} if span is None else {"span": span}
        style = (self.initialisation, self.output_scale, True)
        output = Dense(self.features, *style, use_bias=self.use_bias, name="output")
        return output(self.torso(*inputs, **options))


class TorsoEnsemble(Module):
    """`size` independent copies of a network as one batched product, to [C, ...] or [C, ..., K]."""

    size: int
    member: nn.Module

    @nn.compact
    def __call__(self, *inputs: Array, span: Span | None = None) -> Array:
        call = copies(lambda member, x: member(x, span=span), self.size)
        outputs = call(self.member, joined(inputs))
        return outputs.squeeze(-1) if outputs.shape[-1] == 1 else outputs


class ResNet(Module):
    """Residual blocks of two layers, normalisation and activation before each and at the end."""

    hidden: tuple[int, ...]
    activation: Activation = "relu"
    initialisation: Initialisation = "torch"

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        width, act, gain = self.hidden[0], ACTIVATIONS[self.activation], math.sqrt(2.0)
        x = Dense(width, self.initialisation, gain, name="input")(joined(inputs))
        for block in range(len(self.hidden)):
            y = x
            for layer in range(2):
                y = act(LayerNorm(name=f"norm_{block}_{layer}")(y))
                y = Dense(width, self.initialisation, gain, name=f"hidden_{block}_{layer}")(y)
            x = x + y
        return act(LayerNorm(name="norm")(x))


def spans(key: Array, compute: int) -> Span:
    """The steps of progressive training [2]: n ~ U{0, ..., T - 1} without gradient, then k ~ U{1,
    ..., T - n} with.
    """
    key_start, key_number = jax.random.split(key)
    start = jax.random.randint(key_start, (), 0, compute)
    return Span(start, start + jax.random.randint(key_number, (), 1, compute - start + 1))


def during(networks_: Any, span: Span) -> Any:
    """A tree of networks, in which those that think take the steps of `span` only."""

    def bind(network: Any) -> Any:
        module = getattr(network, "module", None)
        for part in ("body", "member", "torso"):
            module = getattr(module, part, module)
        thinks = isinstance(module, ThinkingIRU | Recall | DRC)
        return network.replace(options={"span": span}) if thinks else network

    return jax.tree.map(bind, networks_, is_leaf=lambda x: isinstance(x, networks.Network))


def progressive(
    loss: Callable[..., tuple[Array, Any]], settings: TorsoSettings
) -> Callable[..., tuple[Array, Any]]:
    """The progressive loss [2]: (1 - alpha) `loss` after all steps + alpha `loss` after some.

    `loss(networks, ..., key)` returns a scalar and metrics. alpha is `settings.progressive`; None:
    `loss` itself.
    """
    if settings.progressive is None:
        return loss

    def mixed(networks_: Any, *inputs: Any) -> tuple[Array, Any]:
        whole, metrics = loss(networks_, *inputs)
        span = spans(jax.random.fold_in(inputs[-1], 1), settings.compute)
        part, _ = loss(during(networks_, span), *inputs)
        return (1.0 - settings.progressive) * whole + settings.progressive * part, metrics

    return mixed
