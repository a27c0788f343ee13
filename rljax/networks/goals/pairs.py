"""Networks over states and goals, as OGBench has them: arXiv:2410.20092 and its authors' code."""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
from flax import linen as nn

from rljax import networks
from rljax.agent import Array, EnvSpec, Loss, Number, config
from rljax.networks import policies
from rljax.requirements import Widths

OUTPUT_SCALE = 0.1  # of an actor's last layer: a hundredth of the variance


@config
class WithGoalNetworks:
    """Settings of networks over states and goals: a base of an agent's Config."""

    hidden: Widths = (512, 512, 512)  # of all networks; OGBench
    activation: networks.Activation = "gelu_tanh"  # of hidden layers; OGBench
    layer_norm: bool = True  # of all but actors, after activation; OGBench
    initialisation: networks.Initialisation = "glorot_uniform"  # of all layers; OGBench

    def create_values(
        self, spec: EnvSpec, key: Array, number: int, *inputs: Array
    ) -> networks.Network:
        """A fresh `number` C of values of `inputs`, or of [state; goal]: to [C]."""
        settings: Any = self
        sizes = (number, settings.critic_widths)
        net = networks.Ensemble(*sizes, layer_norm=self.norm, **networks.style_of(self))
        return networks.create(net, key, *(inputs or (spec.example(),)))

    @property
    def norm(self) -> networks.Norm:
        """Where networks other than actors have a layer normalisation."""
        return "last" if self.layer_norm else False


def create_actor(
    spec: EnvSpec, key: Array, settings: Any, *inputs: Array, features: int | None = None
) -> networks.Network:
    """A fresh network of means by a Config: `inputs`, or [state; goal], to `features`, or actions
    [A].
    """
    features = spec.action_size if features is None else features
    net = networks.MLP(settings.hidden, features, **networks.style_of(settings))
    return actor_of(net, key, *(inputs or (spec.example(),)))


def actor_of(net: nn.Module, key: Array, *inputs: Array) -> networks.Network:
    """A fresh network of means by a module, whose output is small at first."""
    actor = networks.create(net, key, *inputs)
    return policies.with_output_scale(actor, OUTPUT_SCALE)


def weighted_imitation(
    name: str, mean: Array, action: Array, advantage: Array, beta: Number, most: Number
) -> Loss:
    """mean [ -w log N(a; mean, 1) ] for actions [B, A], w = min(exp(beta A), most) for advantages A
    [B], and metrics of an actor called `name`: advantage-weighted regression, arXiv:1910.00177.
    """
    weight = jnp.minimum(jnp.exp(beta * advantage), most)
    loss = (weight * policies.unit_distance(mean, action)).mean()
    return loss, {
        f"{name}/loss": loss,
        f"{name}/advantage": advantage.mean(),
        f"{name}/weight": weight.mean(),
    }


def scaled_to_sphere(x: Array) -> Array:
    """Vectors [..., K] with the length sqrt(K)."""
    square = jnp.square(x).mean(axis=-1, keepdims=True)
    return x / jnp.sqrt(jnp.maximum(square, 1e-12))
