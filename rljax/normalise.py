"""Running statistics of inputs: mean and variance of a stream, merged batch by batch."""

from __future__ import annotations

import jax.numpy as jnp
from flax import struct

from rljax.agent import Array


class Statistics(struct.PyTreeNode):
    """Mean and variance of everything seen so far, per feature.

    The count is a float32 and stops growing at 2^24, the last integer it holds exactly; from there on the
    statistics are an exponential average over the last 16.8 million samples.
    """

    count: Array  # [] samples seen
    mean: Array  # [O...]
    variance: Array  # [O...] population variance; ones before the first sample


def create(shape: tuple[int, ...]) -> Statistics:
    """Statistics of nothing yet: normalising with them changes nothing."""
    return Statistics(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape))


def update(statistics: Statistics, samples: Array) -> Statistics:
    """Merge samples [N, O...] by the parallel form of Welford's algorithm (Chan et al. 1979)."""
    number = samples.shape[0]
    count = jnp.minimum(statistics.count + number, 2.0**24)
    weight = jnp.minimum(number / count, 1.0)
    mean = samples.mean(axis=0)
    difference = mean - statistics.mean
    variance = (
        (1.0 - weight) * statistics.variance
        + weight * samples.var(axis=0)
        + weight * (1.0 - weight) * jnp.square(difference)
    )
    return Statistics(count, statistics.mean + weight * difference, variance)


def normalise(statistics: Statistics, samples: Array, limit: float = 10.0) -> Array:
    """Shift and scale samples [..., O...] to zero mean and unit variance, clipped to [-limit, limit]."""
    return jnp.clip(
        (samples - statistics.mean) / jnp.sqrt(statistics.variance + 1e-8),
        -limit,
        limit,
    )
