"""Values as expectiles tau of Q, the values of the data's actions: [1, eq. 5].

  L(V) = mean [ |tau - 1(u < 0)| u^2 ],  u = Q(s, a) - V(s)

[1] Kostrikov et al., arXiv:2110.06169
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Loss, Number, Transition


def weight(q: Array, v: Array, expectile: Number) -> Array:
    """|tau - 1(u < 0)| [...] of values q and v [...]."""
    return jnp.where(q < v, 1.0 - expectile, expectile)


def loss(value: Any, q: Array, observation: Any, expectile: Number) -> Loss:
    """L(V) for values q [B]; `value` maps observations [B, O...] to [B, 1]."""
    v = value(observation)[:, 0]  # [B]
    loss = (weight(q, v, expectile) * jnp.square(q - v)).mean()
    return loss, {"value/loss": loss, "value/v": v.mean()}


def state_values(value: Any, batch: Transition) -> tuple[Array, Array]:
    """V(s) and V(s') [B] of a batch, in one pass of a `value` to [2 B, 1]."""
    pair = (batch.observation, batch.next_observation)
    both = jax.tree.map(lambda *x: jnp.concatenate(x), *pair)
    v = value(both)[:, 0]
    return v[: batch.reward.size], v[batch.reward.size :]
