"""Distributions of actions, all from distrax."""

from __future__ import annotations

import distrax
import jax.numpy as jnp

from rljax.agent import Array

SquashedGaussian = distrax.Transformed


def squashed_gaussian(mean: Array, log_std: Array) -> SquashedGaussian:
    """tanh of a diagonal Gaussian, over [..., A] in (-1, 1).

    The log-probability is summed over A and counts in normalised units:
      log p(a) = sum_i [ log N(u_i; mean_i, std_i) - 2 (log 2 - u_i - softplus(-2 u_i)) ],  a = tanh u
    Sample with `sample_and_log_prob`: recovering u from a rounded a loses precision near the bounds.
    """
    base = distrax.MultivariateNormalDiag(mean, jnp.exp(log_std))
    return distrax.Transformed(base, distrax.Block(distrax.Tanh(), ndims=1))
