"""Critics that prefer the policy's actions, so that it explores; the reverse of `conservatism`.

  G    = mean [Q(s, mu(s)) - log sum_k exp Q(s, a_k)]    a_k: the data's a, mu(s') and U[-1, 1]^A
  L(Q) = the agent's loss - eta sum_c G_c

Liu et al., Maximize to Explore (MEX), arXiv:2305.18258, and its code, github.com/agentification/MEX
(3125f9c), IO.py with `use_baseline`. There the second critic's data action has the first one's
value.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp

from rljax.agent import Array


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
