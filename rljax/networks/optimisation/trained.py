"""Parameters together with the state of the optimiser that moves them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax.agent import Array, Metrics


class Trained(struct.PyTreeNode):
    """A network, several of them or an array, with its optimiser's state.

    The optimiser itself is no part of it: an agent makes it from its Config in each update, so
    that a learning rate can be traced.

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
        """The output of the network, where the parameters are one network."""
        return self.parameters(*inputs, **options)

    def step(
        self,
        optimiser: optax.GradientTransformation,
        loss: Callable[..., tuple[Array, Metrics]],
        *arguments: Any,
    ) -> tuple[Trained, Metrics]:
        """Take one step down the gradient of `loss(parameters, *arguments)`.

        The loss returns a scalar [] and its metrics, which are handed on.
        """
        gradient, metrics = jax.grad(loss, has_aux=True)(self.parameters, *arguments)
        return self.apply(optimiser, gradient), metrics

    def step_mutable(
        self,
        optimiser: optax.GradientTransformation,
        loss: Callable[..., tuple[Array, tuple[Any, Metrics]]],
        *arguments: Any,
    ) -> tuple[Trained, Metrics]:
        """Take one step of a network with collections, such as batch statistics.

        The loss returns a scalar [] and a pair: the network with its new collections, as
        `network.apply_mutable` gives it, and metrics. Parameters move from where they were. The
        optimiser must leave leaves without a gradient as they are: Adam does, weight decay does
        not.
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
        """Take one step down the gradient of a mean over a batch [B, ...], in `number` equal parts.

        The loss is `loss(parameters, part, *inputs)` for a part [B / number, ...] of the batch.
        Gradients and metrics are means over the parts, which are computed one after another: each
        may fit into a CPU's cache where the whole batch does not.
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
        """Take one step on each of N batches: the loss's further arguments,
        with a leading axis [N].

        Metrics are [N].
        """

        def learn(trained: Trained, batch: tuple[Any, ...]) -> tuple[Trained, Metrics]:
            return trained.step(optimiser, loss, *batch)

        return jax.lax.scan(learn, self, batches)

    def apply(
        self, optimiser: optax.GradientTransformation, gradient: Any, **signals: Any
    ) -> Trained:
        """Take one step along a `gradient` of the parameters' shapes.

        `signals` are further arguments of optimisers that take some, such as those with traces.
        """
        changes, optimiser_state = optimiser.update(
            gradient, self.optimiser_state, self.parameters, **signals
        )
        return Trained(optax.apply_updates(self.parameters, changes), optimiser_state)


def clipped(
    optimiser: optax.GradientTransformation, max_norm: Array | float
) -> optax.GradientTransformation:
    """An optimiser on gradients whose norm over all parameters is at most `max_norm`;
    0: no limit.
    """
    limit = jnp.where(jnp.asarray(max_norm) > 0, max_norm, jnp.inf)
    return optax.chain(optax.clip_by_global_norm(limit), optimiser)


def cosine_rate(rate: Array | float, step: Array, steps: Array | float | None) -> Array | float:
    """A learning rate [] after `step` updates: half a cosine, 0 from `steps` on; None: constant."""
    if steps is None:
        return rate
    return rate * 0.5 * (1.0 + jnp.cos(jnp.pi * jnp.minimum(step / steps, 1.0)))


def parameters_of(network: Any) -> Any:
    """The parameters of a `Trained`; anything else is returned as it is."""
    return network.parameters if isinstance(network, Trained) else network
