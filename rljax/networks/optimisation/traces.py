"""Optimisers with eligibility traces.

Elsayed et al., arXiv:2410.14606. For parameters w with trace e, the gradient g of what a positive
error should raise, such as V(s), and the temporal-difference error delta:

  e <- gamma lambda e + g
  M  = alpha kappa max(|delta|, 1) |e|_1          the 1-norm is over all parameters
  w <- w + alpha / max(M, 1) delta e
  e <- 0                                          when an episode ends, or credit assignment does
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax.agent import Array, Number
from rljax.networks.normalise import zeroed


class ObGDState(struct.PyTreeNode):
    """The trace of every parameter."""

    trace: Any  # shaped as the parameters


class AdaptiveObGDState(struct.PyTreeNode):
    """The trace of every parameter, and the second moment of its steps."""

    trace: Any
    second_moment: Any  # running mean of (delta e)^2
    count: Array  # [] int32: steps so far


def obgd(
    kappa: Number,
    discount: Number,
    trace_decay: Number,
    learning_rate: Number = 1.0,
) -> optax.GradientTransformationExtraArgs:
    """Overshooting-bounded gradient descent: `update(gradient, state, error=delta, reset=end)`.

    Added updates ascend. `error` [] is delta; `reset` [] bool clears the trace after this step.
    """

    def init(params: Any) -> ObGDState:
        return ObGDState(jax.tree.map(jnp.zeros_like, params))

    def update(
        updates: Any,
        state: ObGDState,
        params: Any = None,
        *,
        error: Array,
        reset: Array,
        **extra_args: Any,
    ) -> tuple[Any, ObGDState]:
        trace = _decayed(state.trace, updates, discount * trace_decay)
        size = _bounded(learning_rate, kappa, error, trace) * error
        return jax.tree.map(lambda e: size * e, trace), ObGDState(_cleared(trace, reset))

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def adaptive_obgd(
    kappa: Number,
    discount: Number,
    trace_decay: Number,
    learning_rate: Number = 1.0,
    second_moment_decay: Number = 0.999,
    epsilon: float = 1e-8,
) -> optax.GradientTransformationExtraArgs:
    """`obgd` with traces divided by the running root mean square of delta e, also in the bound.

      v <- beta v + (1 - beta) (delta e)^2,   e~ = e / sqrt(v / (1 - beta^t) + epsilon)

    A reset does not clear v.
    """

    def init(params: Any) -> AdaptiveObGDState:
        zeros = jax.tree.map(jnp.zeros_like, params)
        return AdaptiveObGDState(zeros, jax.tree.map(jnp.copy, zeros), jnp.zeros((), jnp.int32))

    def update(
        updates: Any,
        state: AdaptiveObGDState,
        params: Any = None,
        *,
        error: Array,
        reset: Array,
        **extra_args: Any,
    ) -> tuple[Any, AdaptiveObGDState]:
        trace = _decayed(state.trace, updates, discount * trace_decay)
        count = jnp.asarray(optax.safe_increment(state.count))
        beta, unbias = second_moment_decay, 1.0 - second_moment_decay**count
        moment = jax.tree.map(
            lambda v, e: beta * v + (1.0 - beta) * jnp.square(error * e), state.second_moment, trace
        )
        scaled = jax.tree.map(lambda e, v: e / jnp.sqrt(v / unbias + epsilon), trace, moment)
        size = _bounded(learning_rate, kappa, error, scaled) * error
        after = AdaptiveObGDState(_cleared(trace, reset), moment, count)
        return jax.tree.map(lambda e: size * e, scaled), after

    return optax.GradientTransformationExtraArgs(init, update)  # pyright: ignore[reportArgumentType]


def optimiser(
    adaptive: bool,
    kappa: Number,
    discount: Number,
    trace_decay: Number,
    learning_rate: Number,
    second_moment_decay: Number,
) -> optax.GradientTransformationExtraArgs:
    """`adaptive_obgd` or `obgd`."""
    bounds = (kappa, discount, trace_decay, learning_rate)
    return adaptive_obgd(*bounds, second_moment_decay) if adaptive else obgd(*bounds)


def restart(state: Any) -> Any:
    """A pytree in which all traces are 0."""
    return zeroed(state, (ObGDState, AdaptiveObGDState), "trace")


def _decayed(trace: Any, gradient: Any, decay: Number) -> Any:
    return jax.tree.map(lambda e, g: decay * e + g, trace, gradient)


def _bounded(learning_rate: Number, kappa: Number, error: Array, trace: Any) -> Array:
    """alpha / max(M, 1), []."""
    norm = sum(jnp.abs(e).sum() for e in jax.tree.leaves(trace))
    overshoot = learning_rate * kappa * jnp.maximum(jnp.abs(error), 1.0) * norm  # M
    return learning_rate / jnp.maximum(overshoot, 1.0)


def _cleared(trace: Any, reset: Array) -> Any:
    return jax.tree.map(lambda e: jnp.where(reset, 0.0, e), trace)
