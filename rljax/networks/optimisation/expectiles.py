"""Values as expectiles tau of Q, the values of the data's actions: [1, eq. 5].

  L(V) = mean [ |tau - 1(u < 0)| u^2 ],  u = Q(s, a) - V(s)

Several values V_c learn without critics, each from a target y_c of its own [2]:

  L(V) = sum_c mean [ |tau - 1(u < 0)| (y_c - V_c(s))^2 ]
  u    = min_c y_c - mean_c V'_c(s)

[1] Kostrikov et al., arXiv:2110.06169
[2] Park et al., HIQL, arXiv:2307.11949; the authors' code
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Loss, Number, Transition
from rljax.networks.ensembles import smallest


def weight(q: Array, v: Array, expectile: Number) -> Array:
    """|tau - 1(u < 0)| [...] of values q and v [...]."""
    return jnp.where(q < v, 1.0 - expectile, expectile)


def loss(value: Any, q: Array, observation: Any, expectile: Number) -> Loss:
    """L(V) for values q [B]; `value` maps observations [B, O...] to [B, 1]."""
    v = value(observation)[:, 0]  # [B]
    loss = (weight(q, v, expectile) * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


def ensemble_loss(v: Array, target_v: Array, y: Array, expectile: Number) -> Loss:
    """L(V) of several values for V_c(s), V'_c(s) and y_c [C, B]."""
    share = weight(smallest(y), target_v.mean(axis=0), expectile)  # [B]
    loss = (share * jnp.square(y - v)).mean(axis=-1).sum()
    return loss, {"value/loss": loss, "value/v": v.mean(), "value/target": y.mean()}


def state_values(value: Any, batch: Transition) -> tuple[Array, Array]:
    """V(s) and V(s') [B] of a batch, in one pass of a `value` to [2 B, 1]."""
    pair = (batch.observation, batch.next_observation)
    both = jax.tree.map(lambda *x: jnp.concatenate(x), *pair)
    v = value(both)[:, 0]
    return v[: batch.reward.size], v[batch.reward.size :]
