"""Policies N(mu(s), 1) taken out of values: along their slope, or by weights.

a the data's actions, q values of clip(mu), A advantages of a, alpha imitation_weight,
beta inverse_temperature; mean |q| gives no gradient

  ddpg_bc  L = -mean q / mean |q| - alpha mean log pi(a)      [1]
  awr      w = min(exp(beta A), max_weight)                   [2]
           L = mean [ -w log pi(a) ]

[1] Park et al., arXiv:2410.20092, and its code, which adds 1e-6 to mean |q|
[2] Peng et al., arXiv:1910.00177, eq. 11
"""

from __future__ import annotations

from typing import Literal

import jax
import jax.numpy as jnp

from rljax.agent import Array, Loss, Number, config
from rljax.networks import policies
from rljax.networks.goals import pairs
from rljax.requirements import NonNegative

Kind = Literal["ddpg_bc", "awr"]


@config
class WithExtraction:
    """Settings of policies that are taken out of values: a base of an agent's Config."""

    policy_loss: Kind = "ddpg_bc"  # of the actor; OGBench
    imitation_weight: NonNegative = 0.3  # alpha of ddpg_bc; OGBench
    inverse_temperature: NonNegative = 3.0  # beta of awr: 0 imitates; OGBench
    max_weight: NonNegative = 100.0  # bound of the weights of awr; OGBench


def guided(mean: Array, q: Array, action: Array, imitation_weight: Number) -> Loss:
    """L of "ddpg_bc" for means [B, A], values [B] of them within bounds, and actions [B, A]."""
    imitation = policies.unit_distance(mean, action).mean()
    size = jax.lax.stop_gradient(jnp.abs(q).mean()) + 1e-6
    loss = -q.mean() / size + imitation_weight * imitation
    return loss, {
        "actor/loss": loss,
        "actor/q": q.mean(),
        "actor/imitation": imitation,
    }


def weighted(mean: Array, advantage: Array, action: Array, settings: WithExtraction) -> Loss:
    """L of "awr" for means [B, A], and advantages [B] of actions [B, A]."""
    beta, most = settings.inverse_temperature, settings.max_weight
    return pairs.weighted_imitation("actor", mean, action, advantage, beta, most)
