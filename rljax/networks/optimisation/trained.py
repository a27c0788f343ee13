"""Parameters with their optimiser's state."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax.agent import Array, Metrics, Number
from rljax.networks.layers import Network


class Trained(struct.PyTreeNode):
    """One or several networks, or an array, with their optimiser's state.

    Agents make the optimiser anew in each update, so that its rate can be traced.

      critic = Trained.create(network, optax.adam(config.critic_lr))
      critic, metrics = critic.step(optax.adam(config.critic_lr), critic_loss, state, batch)
    """

    parameters: Any  # all leaves are floats
    optimiser_state: optax.OptState

    @classmethod
    def create(cls, parameters: Any, optimiser: optax.GradientTransformation) -> Trained:
        """Parameters before the optimiser's first step."""
        return cls(parameters, optimiser.init(parameters))

    def __call__(self, *inputs: Any, **options: Any) -> Any:
        return self.parameters(*inputs, **options)

    def step(
        self,
        optimiser: optax.GradientTransformation,
        loss: Callable[..., tuple[Array, Metrics]],
        *arguments: Any,
    ) -> tuple[Trained, Metrics]:
        """One step down the gradient of `loss(parameters, *arguments)`: a scalar [] and metrics.

        An optimiser may take the `metrics`.
        """
        gradient, metrics = jax.grad(loss, has_aux=True)(self.parameters, *arguments)
        return self.apply(
            optax.with_extra_args_support(optimiser), gradient, metrics=metrics
        ), metrics

    def step_mutable(
        self,
        optimiser: optax.GradientTransformation,
        loss: Callable[..., tuple[Array, tuple[Any, Metrics]]],
        *arguments: Any,
    ) -> tuple[Trained, Metrics]:
        """`step` for a network with collections.

        The loss returns a scalar [] and a pair: the network of `apply_mutable` and metrics. The
        optimiser must leave leaves without a gradient as they are, without weight decay.
        """
        gradient, (moved, metrics) = jax.grad(loss, has_aux=True)(self.parameters, *arguments)
        return self.replace(parameters=moved).apply(optimiser, gradient), metrics

    def step_in_parts(
        self,
        optimiser: optax.GradientTransformation,
        loss: Callable[..., tuple[Array, Metrics]],
        batch: Any,
        number: int,
        *inputs: Any,
    ) -> tuple[Trained, Metrics]:
        """`step` for the mean loss over a batch [B, ...], in `number` equal parts in turn.

        `loss(parameters, part, *inputs)` takes a part [B / number, ...]. Metrics are means over
        parts.
        """
        parts = jax.tree.map(lambda x: x.reshape(number, -1, *x.shape[1:]), batch)
        slope = jax.grad(loss, has_aux=True)
        slopes = jax.lax.map(lambda part: slope(self.parameters, part, *inputs), parts)
        gradient, metrics = jax.tree.map(lambda x: x.mean(axis=0), slopes)
        return self.apply(optimiser, gradient), metrics

    def fit(
        self,
        optimiser: optax.GradientTransformation,
        loss: Callable[..., tuple[Array, Metrics]],
        batches: tuple[Any, ...],
    ) -> tuple[Trained, Metrics]:
        """A `step` for each of N batches: arguments of the loss [N, ...]. Metrics are [N]."""

        def learn(trained: Trained, batch: tuple[Any, ...]) -> tuple[Trained, Metrics]:
            return trained.step(optimiser, loss, *batch)

        return jax.lax.scan(learn, self, batches)

    def apply(
        self, optimiser: optax.GradientTransformation, gradient: Any, **signals: Any
    ) -> Trained:
        """One step along a `gradient`, then the networks' projection, if they have one.

        `signals` are for optimisers such as with traces.
        """
        changes, optimiser_state = optimiser.update(
            gradient, self.optimiser_state, self.parameters, **signals
        )
        moved = optax.apply_updates(self.parameters, changes)
        return Trained(projected(moved), optimiser_state)


def projected(parameters: Any) -> Any:
    """Parameters in which every `Network` is `projected`."""
    return jax.tree.map(
        lambda x: x.projected() if isinstance(x, Network) else x,
        parameters,
        is_leaf=lambda x: isinstance(x, Network),
    )


def clipped(
    optimiser: optax.GradientTransformation, max_norm: Number
) -> optax.GradientTransformation:
    """An optimiser on gradients with a norm over all parameters of at most `max_norm`; 0 is no
    limit.
    """
    limit = jnp.where(jnp.asarray(max_norm) > 0, max_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optimiser)


def cosine_rate(rate: Number, step: Array, steps: Number | None) -> Number:
    """A learning rate [] after `step` updates: half a cosine, 0 from `steps` on; None: constant."""
    if steps is None:
        return rate
    return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / steps, 1.0)))


def parameters_of(network: Any) -> Any:
    """The parameters of a `Trained`, or what it is instead."""
    return network.parameters if isinstance(network, Trained) else network
