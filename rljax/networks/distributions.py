"""Distributions of actions, all from distrax, and random permutations."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax
import jax.numpy as jnp

from rljax.agent import Array

if TYPE_CHECKING:
    from distrax import Distribution
    from distrax import Transformed as SquashedGaussian


def squashed_gaussian(mean: Array, log_std: Array) -> SquashedGaussian:
    """tanh of a diagonal Gaussian, over [..., A] in (-1, 1).

    The log-probability is summed over A, in normalised units:
      log p(a) = sum_i [ log N(u_i; mean_i, std_i) - 2 (log 2 - u_i - softplus(-2 u_i)) ],  a = tanh u
    Sample with `sample_and_log_prob`: computing u from a rounded a loses precision near the bounds.
    """
    import distrax  # the import takes a second: only when it is needed

    base = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
    return distrax.Transformed(base, distrax.Block(distrax.Tanh(), ndims=1))


def gaussian(mean: Array, std: Array) -> Distribution:
    """A diagonal Gaussian over [..., A]; its log-probability is summed over A."""
    import distrax

    return distrax.MultivariateNormalDiag(mean, jnp.broadcast_to(std, mean.shape))


def categorical(logits: Array) -> Distribution:
    """A softmax over the last axis of `logits` [..., A]; samples are int32 [...]."""
    import distrax

    return distrax.Categorical(logits=logits)


def tanh_log_slope(raw: Array) -> Array:
    """sum_i log(1 - tanh(u_i)^2) [...] of raw actions [..., A]. Squashing subtracts it from a log-density."""
    return (2.0 * (jnp.log(2.0) - raw - jax.nn.softplus(-2.0 * raw))).sum(axis=-1)


def permutation(key: Array, rows: int) -> Array:
    """The indices 0 to `rows` - 1 in random order, int32 [rows].

    Each index is packed below random bits, and all are sorted as one array. On the CPU this takes a ninth of the time
    of `jax.random.permutation`. Two indices with equal bits keep their order: the probability is at most 2^-16 a pair.
    """
    width = max(1, (rows - 1).bit_length())
    if width > 16:  # too few random bits would remain
        return jax.random.permutation(key, rows)
    bits = jax.random.bits(key, (rows,)) << width
    return (jnp.sort(bits | jnp.arange(rows, dtype=jnp.uint32)) & (2**width - 1)).astype(jnp.int32)
