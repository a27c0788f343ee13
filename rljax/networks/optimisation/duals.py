"""Dual variables of bounds on KL divergences, as MPO has them.

j = 1 ... J objectives, v_jn the values of N samples,
eta_j temperatures, epsilon_j bounds of the samples' weights,
K_d divergences of a policy, alpha_d multipliers, epsilon_d their bounds

  eta, alpha  = softplus(x) + 1e-8,  Adam moves x, at least -18                    [2]
  w_n         = sum_j softmax_n(v_jn / eta_j)                                      [1, eq. 4], [3]
  L           = sum_j eta_j (epsilon_j + mean log mean_n exp(v_jn / eta_j))        [1, eq. 4], [3]
                + sum_d alpha_d (epsilon_d - K_d)                                  [1, 4.2.2]

[1] Abdolmaleki et al., Relative Entropy Regularized Policy Iteration, arXiv:1812.02256
[2] Hoffman et al., Acme, arXiv:2006.00979, its jax/losses/mpo.py
[3] Abdolmaleki et al., Multi-Objective Policy Optimization, arXiv:2005.07513
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Loss, Number
from rljax.networks.optimisation.trained import Trained

LEAST, LEAST_RAW = 1e-8, -18.0  # of duals, and of what Adam moves; [2]


class Duals(struct.PyTreeNode):
    """x, or what `positive` makes of it."""

    temperatures: Array  # [J] eta
    multipliers: Array  # [2, D] alpha, of divergences by the mean and by the std

    @classmethod
    def create(
        cls, temperatures: tuple[Number, ...], multipliers: tuple[Number, ...], number: int
    ) -> Duals:
        """x of the values of each eta, and of alpha for `number` divergences of each kind."""
        each = jnp.repeat(raw(jnp.asarray(multipliers, jnp.float32))[:, None], number, axis=1)
        return cls(raw(jnp.asarray(temperatures, jnp.float32)), each)


def raw(value: Array) -> Array:
    """x [...] whose softplus is `value` [...], above 0."""
    return value + jnp.log(-jnp.expm1(-value))


def positive(duals: Duals) -> Duals:
    """eta and alpha."""
    return jax.tree.map(lambda x: jax.nn.softplus(x) + LEAST, duals)


def bounded(duals: Trained) -> Trained:
    """The same with each x at least -18."""
    least: Any = jax.tree.map(lambda x: jnp.maximum(x, LEAST_RAW), duals.parameters)
    return duals.replace(parameters=least)


def weights(duals: Duals, values: Array) -> Array:
    """w [N, ...] of values [J, N, ...]."""
    return jax.nn.softmax(_divided(values, positive(duals).temperatures), axis=1).sum(axis=0)


def loss(duals: Duals, values: Array, kl: Array, bounds: Array, kl_bounds: Array) -> Loss:
    """L for values [J, N, ...] with bounds [J], and divergences [2, D] with bounds [2]."""
    dual = positive(duals)
    sums = jax.nn.logsumexp(_divided(values, dual.temperatures), axis=1) - jnp.log(values.shape[1])
    means = sums.mean(axis=tuple(range(1, sums.ndim)))  # [J]
    loss = (dual.temperatures * (bounds + means)).sum()
    loss += (dual.multipliers * (kl_bounds[:, None] - kl)).sum()
    by_mean, by_std = dual.multipliers.mean(axis=1)
    return loss, {
        "dual/loss": loss,
        "dual/temperature": dual.temperatures[0],
        "dual/multiplier_mean": by_mean,
        "dual/multiplier_std": by_std,
    }


def _divided(values: Array, temperatures: Array) -> Array:
    return values / temperatures.reshape(-1, *[1] * (values.ndim - 1))
