"""Running statistics of inputs: mean and variance of a stream, merged batch by batch."""

from __future__ import annotations

import jax
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


def standardise(statistics: Statistics, samples: Array, epsilon: float = 1e-3) -> Array:
    """Shift and scale samples [..., O...] by the mean and std of a data set, which has seen them all: no clip.

    `epsilon` is added to the std, as in TD3+BC (arXiv:2106.06860) and those after it.
    """
    return (samples - statistics.mean) / (jnp.sqrt(statistics.variance) + epsilon)


class Returns(struct.PyTreeNode):
    """Discounted sums of the rewards of running episodes, whose std is the scale of rewards."""

    running: Array  # [E]
    statistics: Statistics  # of all sums so far []


def create_returns(num_envs: int) -> Returns:
    """Nothing gathered yet."""
    return Returns(jnp.zeros(num_envs), create(()))


def scale_rewards(
    returns: Returns, reward: Array, ended: Array, discount: Array | float, limit: float = 10.0
) -> tuple[Returns, Array]:
    """Count a rollout's rewards [T, E] and divide them by the std of the discounted return, clipped to [-limit, limit].

    `ended` [T, E] marks the last steps of episodes, after which the sums begin again. No mean is subtracted.
    """

    def forwards(running: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        reward, ended = inputs
        running = reward + discount * running
        return running * (1.0 - ended), running

    running, sums = jax.lax.scan(forwards, returns.running, (reward, ended))
    statistics = update(returns.statistics, sums.ravel())
    scaled = jnp.clip(reward / jnp.sqrt(statistics.variance + 1e-8), -limit, limit)
    return Returns(running, statistics), scaled
