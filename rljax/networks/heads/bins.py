"""The bins of a critic that classifies values, around the returns of a data set."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Number, Transition
from rljax.networks.heads.kinds import OUTER

MARGIN = 0.1  # share of the returns' range that bins add at either end; own choice


def range_of_returns(data: Transition, discount: Number, scale: Number = 1.0) -> Array:
    """The smallest and largest discounted return [2] from any row of data [N, ...] in recorded
    order.

    A cut trajectory goes on with its mean reward, for at most 10,000 steps. `scale` multiplies
    rewards.
    """
    reward = scale * data.reward
    ends = data.terminated | data.truncated
    ends = ends.at[-1].set(True)
    starts = jnp.concatenate([jnp.ones((1,), bool), ends[:-1]])
    total, length = jax.lax.associative_scan(_sums, (reward, jnp.ones_like(reward), starts))[:2]
    going_on = total / length / jnp.maximum(1.0 - discount, 1e-4)
    after = jnp.where(data.terminated, 0.0, discount * going_on)
    inputs = (jnp.where(ends, 0.0, discount), jnp.where(ends, reward + after, reward))
    returns = jax.lax.associative_scan(_backwards, inputs, reverse=True)[1]
    return jnp.stack([returns.min(), returns.max()])


def _sums(left: Any, right: Any) -> Any:
    """Sums of two neighbouring spans of rows, without what lies before a start."""
    pairs = zip(left[:2], right[:2], strict=True)
    sums = [jnp.where(right[2], new, old + new) for old, new in pairs]
    return (*sums, left[2] | right[2])


def _backwards(later: Any, earlier: Any) -> Any:
    """G = b + a G' of two neighbouring spans, from the last row to the first."""
    return earlier[0] * later[0], earlier[1] + earlier[0] * later[1]


def bounds_of_bins(returns: Array, bins: int) -> Array:
    """Bins [2] for returns between two numbers [2], with a margin and outer bins for Gaussians."""
    low, high = returns
    spread = jnp.maximum(high - low, 1e-3 * jnp.maximum(jnp.abs(returns).max(), 1.0))
    wide = spread * (1.0 + 2.0 * MARGIN)
    wide = wide * bins / (bins - 2 * OUTER)
    return (low + high) / 2.0 + jnp.stack([-0.5 * wide, 0.5 * wide])
