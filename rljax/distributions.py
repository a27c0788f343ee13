"""Distributions of actions, all from distrax."""

from __future__ import annotations

from typing import TYPE_CHECKING

import jax.numpy as jnp

from rljax.agent import Array

if TYPE_CHECKING:
    from distrax import Transformed as SquashedGaussian


def squashed_gaussian(mean: Array, log_std: Array) -> SquashedGaussian:
    """tanh of a diagonal Gaussian, over [..., A] in (-1, 1).

    The log-probability is summed over A and counts in normalised units:
      log p(a) = sum_i [ log N(u_i; mean_i, std_i) - 2 (log 2 - u_i - softplus(-2 u_i)) ],  a = tanh u
    Sample with `sample_and_log_prob`: recovering u from a rounded a loses precision near the bounds.
    """
    import distrax  # takes a second: only where a distribution is made

    base = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
    return distrax.Transformed(base, distrax.Block(distrax.Tanh(), ndims=1))
