"""Optimism of an exploring actor, the optimist, learnt so that it stays near the policy.

KL divergence of the optimist from the policy, A dimensions of an action
beta weight of the critics' disagreement, w weight of KL in the optimist's loss

  L(beta) = beta (KL / A - target_kl)
  L(w)    = -w (KL / A - target_kl)
  beta, w = exp(low + (high - low) (1 + tanh x) / 2),  low = -10, high = 7.5

Adam moves both x. Nauman et al., BRO, arXiv:2405.16158, and its code.
"""

from __future__ import annotations

import math
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import optax

from rljax.agent import Array, Loss, Metrics, Number, config
from rljax.networks.optimisation.trained import Trained
from rljax.requirements import Between, NonNegative, Positive

LOW, HIGH = -10.0, 7.5  # of a weight's logarithm
MOMENTUM = 0.5  # beta_1 of Adam
Bounded = Annotated[float, Between(math.exp(-9.9), math.exp(7.4))]  # so that x is finite


@config
class WithOptimism:
    """Settings of an optimist: a base of an agent's Config."""

    optimism_lr: NonNegative = 3e-5  # of Adam, for beta and w; arXiv:2405.16158
    init_optimism: Bounded = 1.0  # beta at the start; arXiv:2405.16158
    init_kl_weight: Bounded = 0.25  # w at the start; arXiv:2405.16158
    target_kl: NonNegative = 0.05  # per dimension of an action; arXiv:2405.16158
    optimistic_std: Positive = 0.75  # share of the policy's std; arXiv:2405.16158


def create(settings: WithOptimism) -> Trained:
    """The x [] of both weights before the first step."""
    first = {"optimism": settings.init_optimism, "kl_weight": settings.init_kl_weight}
    return Trained.create(jax.tree.map(unbounded, first), optax.adam(settings.optimism_lr))


def weights(x: dict[str, Array]) -> dict[str, Array]:
    """Both weights []."""
    return jax.tree.map(bounded, x)


def step(weights_: Trained, kl: Array, action_size: int, settings: WithOptimism) -> Any:
    """The x [] after one step by a mean divergence [], and metrics."""
    adam = optax.adam(settings.optimism_lr, b1=MOMENTUM)
    return weights_.step(adam, loss, kl / action_size - settings.target_kl)


def loss(x: dict[str, Array], excess: Array) -> Loss:
    """L(beta) + L(w) where the divergence per dimension exceeds its target by `excess` []."""
    both = weights(x)
    loss = (both["optimism"] - both["kl_weight"]) * excess
    metrics: Metrics = {f"optimist/{name}": weight for name, weight in both.items()}
    return loss, metrics


def bounded(x: Array) -> Array:
    """A weight [] of x []."""
    return jnp.exp(LOW + (HIGH - LOW) * 0.5 * (1.0 + jnp.tanh(x)))


def unbounded(weight: Number) -> Array:
    """x [] of a weight []."""
    return jnp.arctanh(2.0 * (jnp.log(jnp.asarray(weight, jnp.float32)) - LOW) / (HIGH - LOW) - 1.0)
