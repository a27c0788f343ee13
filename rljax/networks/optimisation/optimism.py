"""Optimism: of an exploring actor, as in BRO, and of critics, as in MEX.

An optimist is an actor that stays near the policy [1].

KL divergence of the optimist from the policy, A dimensions of an action
beta weight of the critics' disagreement, w weight of KL in the optimist's loss

  L(beta) = beta (KL / A - kl_target)
  L(w)    = -w (KL / A - kl_target)
  beta, w = exp(low + (high - low) (1 + tanh x) / 2),  low = -10, high = 7.5

Adam moves both x.

Optimistic critics prefer the policy's actions mu(s), so that it explores [2], in the code of [3]
with `use_baseline`. There the second critic's data action has the first one's value.

  G    = mean [Q(s, mu(s)) - log sum_k exp Q(s, a_k)]    a_k: the data's a, mu(s') and U[-1, 1]^A
  L(Q) = the agent's loss - eta sum_c G_c

[1] Nauman et al., BRO, arXiv:2405.16158, and its code
[2] Liu et al., Maximize to Explore (MEX), arXiv:2305.18258
[3] github.com/agentification/MEX (3125f9c), IO.py
"""

from __future__ import annotations

import math
from collections.abc import Callable
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
    kl_target: NonNegative = 0.05  # per dimension of an action; arXiv:2405.16158
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
    return weights_.step(adam, loss, kl / action_size - settings.kl_target)


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


def gain(
    values: Callable[[Array], Array], of_data: Array, action: Array, following: Array, key: Array
) -> Array:
    """G [C] of critics with `values` [C, ..., B] of actions [..., B, A] in the batch's states.

    `of_data` [C, B] are those of the data's actions; mu(s) and mu(s') are [B, A] each.
    """
    uniform = jax.random.uniform(key, action.shape, minval=-1.0, maxval=1.0)
    q = values(jax.lax.stop_gradient(jnp.stack([action, following, uniform])))  # [C, 3, B]
    others = jnp.concatenate([of_data[:, None], q[:, 1:]], axis=1)
    return (q[:, 0] - jax.nn.logsumexp(others, axis=1)).mean(axis=-1)
