"""Policies fitted to weighted samples within bounds on KL divergences, and the dual variables of
these bounds, as MPO has them.

p' = Normal(mu', sigma') the old policy, Normal(mu, sigma) the one that is fitted,
j = 1 ... J objectives, v_jn values of N samples a_n of p', eta_j temperatures,
alpha_x multipliers, epsilon bounds, x of the mean and of the std, all for each dimension

  eta, alpha  = softplus(z) + 1e-8,  Adam moves z, at least -18                    [2]
  w_n         = sum_j softmax_n(v_jn / eta_j)                                      [1, eq. 4], [3]
  p_mean      = Normal(mu, sigma'),  p_std = Normal(mu', sigma)                    [1, 4.2.2]
  fit         = -mean sum_n w_n (log p_mean(a_n) + log p_std(a_n))
  K_x         = mean KL(p' || p_x)
  L           = sum_j eta_j (epsilon_j + mean log mean_n exp(v_jn / eta_j))        [1, eq. 4], [3]
                + sum_x alpha_x (epsilon_x - K_x)

[1] Abdolmaleki et al., Relative Entropy Regularized Policy Iteration, arXiv:1812.02256
[2] Hoffman et al., Acme, arXiv:2006.00979, its jax/losses/mpo.py
[3] Abdolmaleki et al., Multi-Objective Policy Optimization, arXiv:2005.07513
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Loss, Number
from rljax.networks import distributions
from rljax.networks.optimisation.trained import Trained

LEAST, LEAST_RAW = 1e-8, -18.0  # of duals, and of what Adam moves; [2]


class Duals(struct.PyTreeNode):
    """z, or what `positive` makes of it."""

    temperatures: Array  # [J] eta
    multipliers: Array  # [2, D] alpha, of divergences by the mean and by the std

    @classmethod
    def create(
        cls, temperatures: tuple[Number, ...], multipliers: tuple[Number, ...], number: int
    ) -> Duals:
        """z of the values of each eta, and of alpha for `number` divergences of each kind."""
        each = jnp.repeat(raw(jnp.asarray(multipliers, jnp.float32))[:, None], number, axis=1)
        return cls(raw(jnp.asarray(temperatures, jnp.float32)), each)


class Samples(NamedTuple):
    """Weighted actions of the old policy in R states."""

    observation: Any  # [R, O...]
    policy: tuple[Array, Array]  # mu' and sigma' [R, A]
    action: Array  # [N, R, A]
    values: Array  # [J, N, R]
    weight: Array  # [N, R]

    def fit(self, mean: Array, std: Array) -> Array:
        """The fit [] of a policy [R, A]."""
        old_mean, old_std = self.policy
        by_mean: Any = distributions.gaussian(mean, old_std).log_prob(self.action)
        by_std: Any = distributions.gaussian(old_mean, std).log_prob(self.action)
        return -(self.weight * (by_mean + by_std)).sum(axis=0).mean()

    def divergences(self, mean: Array, std: Array, per_dimension: bool) -> Array:
        """K [2, A] by the mean and by the std of a policy [R, A], or their sums [2, 1]."""
        kl = distributions.decoupled_kl(*self.policy, mean, std).mean(axis=1)
        return kl if per_dimension else kl.sum(axis=1, keepdims=True)


def raw(value: Array) -> Array:
    """z [...] whose softplus is `value` [...], above 0."""
    return value + jnp.log(-jnp.expm1(-value))


def positive(duals: Duals) -> Duals:
    """eta and alpha."""
    return jax.tree.map(lambda x: jax.nn.softplus(x) + LEAST, duals)


def bounded(duals: Trained) -> Trained:
    """The same with each z at least -18."""
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
