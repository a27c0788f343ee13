"""Running statistics of inputs: mean and variance of a stream.

Functions of `Statistics` also take the trees of `of_observations`; parts without statistics stay as
they are. Sums are compensated (Neumaier 1974).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import optax
from flax import struct

from rljax.agent import Array, EnvSpec, Number, Transition


class Statistics(struct.PyTreeNode):
    """Mean and variance of all samples so far, per feature.

    From 2^24 samples on, they are an exponential average over as many.
    """

    count: Array  # [] samples seen
    mean: Array  # [O...]
    variance: Array  # [O...] population variance; ones before the first sample
    lost: tuple[Number, Number] = (0.0, 0.0)  # their rounding errors


def create(shape: tuple[int, ...]) -> Statistics:
    """Before the first sample: normalising only clips."""
    lost = (jnp.zeros(shape), jnp.zeros(shape))
    return Statistics(jnp.zeros(()), jnp.zeros(shape), jnp.ones(shape), lost)


def of_observations(spec: EnvSpec) -> Any:
    """Statistics per part of an environment's observations; None for bytes and masks."""
    return jax.tree.map(
        lambda x: create(x.shape) if x.dtype == jnp.float32 else None, spec.observation
    )


def update(statistics: Any, samples: Any) -> Any:
    """Merge samples [N, O...] by the parallel form of Welford's algorithm (Chan et al. 1979)."""
    if not isinstance(statistics, Statistics):
        return _each(update, statistics, samples, lambda _: None)
    number = samples.shape[0]
    count = jnp.minimum(statistics.count + number, 2.0**24)
    weight = jnp.minimum(number / count, 1.0)
    lost_mean, lost_variance = statistics.lost
    difference = (samples.mean(axis=0) - statistics.mean) - lost_mean
    # Small variances are lost in a difference from 1.
    variance = jnp.where(statistics.count > 0, statistics.variance, 0.0)
    within = (samples.var(axis=0) - variance) - lost_variance
    mean, lost_mean = _compensated(statistics.mean, lost_mean, weight * difference)
    growth = weight * within + weight * (1.0 - weight) * jnp.square(difference)
    variance, lost_variance = _compensated(variance, lost_variance, growth)
    return Statistics(count, mean, variance, (lost_mean, lost_variance))


def _each(
    function: Callable[..., Any], statistics: Any, samples: Any, without: Callable[[Any], Any]
) -> Any:
    if isinstance(statistics, dict):
        return {
            name: _each(function, statistics[name], samples[name], without) for name in statistics
        }
    return without(samples) if statistics is None else function(statistics, samples)


def normalise(statistics: Any, samples: Any) -> Any:
    """Samples [..., O...] with zero mean and unit variance, clipped to [-10, 10]."""
    if not isinstance(statistics, Statistics):
        return _each(normalise, statistics, samples, lambda x: x)
    return jnp.clip(standard_score(statistics, samples), -10.0, 10.0)


def standardise(statistics: Any, samples: Any) -> Any:
    """Samples [..., O...] by a data set's mean and std + 1e-3 (TD3+BC, arXiv:2106.06860), not
    clipped.
    """
    if not isinstance(statistics, Statistics):
        return _each(standardise, statistics, samples, lambda x: x)
    return (samples - statistics.mean) / (jnp.sqrt(statistics.variance) + 1e-3)


def of_data(samples: Any) -> Any:
    """Statistics as of `of_observations`, from a whole data set [N, O...]."""
    if isinstance(samples, dict):
        return {name: of_data(part) for name, part in samples.items()}
    if not jnp.issubdtype(samples.dtype, jnp.floating):
        return None
    return update(create(samples.shape[1:]), samples)


def standardise_batch(statistics: Any, batch: Transition) -> Transition:
    """A batch [B, ...] with standardised observations and next observations."""
    return batch.replace(
        observation=standardise(statistics, batch.observation),
        next_observation=standardise(statistics, batch.next_observation),
    )


def running_sums(
    running: Array, values: Array, ended: Array, discount: Number = 1.0
) -> tuple[Array, Array]:
    """Discounted sums of values [T, E]: those that go on [E], and those up to each step [T, E].

    They begin with `running` [E], and anew after steps in `ended` [T, E].
    """

    def forwards(running: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        return next_sum(running, *inputs, discount)

    return jax.lax.scan(forwards, running, (values, ended))


def next_sum(
    running: Array, value: Array, ended: Array, discount: Number = 1.0
) -> tuple[Array, Array]:
    """The sum that goes on after one more value, 0 where `ended`, and the sum up to it."""
    total = value + discount * running
    return total * (1.0 - ended), total


class Returns(struct.PyTreeNode):
    """Discounted sums of running episodes' rewards. Their std is the scale of rewards."""

    running: Array  # [E]
    statistics: Statistics  # of all sums so far, []


def create_returns(num_envs: int) -> Returns:
    """Before the first reward."""
    return Returns(jnp.zeros(num_envs), create(()))


def scale_rewards(
    returns: Returns, reward: Array, ended: Array, discount: Number, limit: float = 10.0
) -> tuple[Returns, Array]:
    """Count a rollout's rewards [T, E], and divide them by the std of the discounted return.

    `ended` [T, E] marks last steps of episodes. Results are uncentred and clipped to +-limit.
    """
    running, sums = running_sums(returns.running, reward, ended, discount)
    returns = Returns(running, update(returns.statistics, sums.ravel()))
    return returns, scaled_rewards(returns, reward, limit)


def scale_rollout(
    returns: Returns, batch: Transition, discount: Number
) -> tuple[Returns, Transition]:
    """`scale_rewards` for a rollout [T, E, ...]."""
    ended = batch.terminated | batch.truncated
    returns, reward = scale_rewards(returns, batch.reward, ended, discount)
    return returns, batch.replace(reward=reward)


def scaled_rewards(returns: Returns, reward: Array, limit: float = 10.0) -> Array:
    """Rewards [...] divided and clipped as by `scale_rewards`."""
    return jnp.clip(reward / jnp.sqrt(returns.statistics.variance + 1e-8), -limit, limit)


class Moments(struct.PyTreeNode):
    """Mean and sample variance of a stream, whose count stops growing at 2^31 - 1."""

    count: Array  # [] int32
    mean: Array  # [O...]
    squares: Array  # [O...] sum of squared deviations from the mean
    lost: tuple[Array, Array]  # [O...] each: their rounding errors

    @property
    def variance(self) -> Array:
        """Sample variance [O...], with n - 1 in the denominator; 1 before the second sample."""
        return jnp.where(self.count > 1, self.squares / jnp.maximum(self.count - 1, 1), 1.0)


def create_moments(shape: tuple[int, ...]) -> Moments:
    """Before the first sample."""
    lost = (jnp.zeros(shape), jnp.zeros(shape))
    return Moments(jnp.zeros((), jnp.int32), jnp.zeros(shape), jnp.zeros(shape), lost)


def count(moments: Moments, sample: Array) -> Moments:
    """Count one sample [O...], by Welford's algorithm (1962)."""
    number = jnp.asarray(optax.safe_increment(moments.count))
    lost_mean, lost_squares = moments.lost
    before = (sample - moments.mean) - lost_mean
    mean, lost_mean = _compensated(moments.mean, lost_mean, before / number)
    after = (sample - mean) - lost_mean
    squares, lost_squares = _compensated(moments.squares, lost_squares, before * after)
    return Moments(number, mean, squares, (lost_mean, lost_squares))


def count_where(flag: Array, moments: Moments, sample: Array) -> Moments:
    """Count the sample where `flag` [] is set."""
    return jax.tree.map(lambda new, old: jnp.where(flag, new, old), count(moments, sample), moments)


def standard_score(moments: Moments | Statistics, sample: Array) -> Array:
    """Samples [..., O...] with zero mean and unit variance, not clipped."""
    return (sample - moments.mean) / jnp.sqrt(moments.variance + 1e-8)


class DiscountedSum(struct.PyTreeNode):
    """The discounted sum of a stream's rewards. Its std is the scale of rewards."""

    running: Array  # []
    moments: Moments  # of all sums so far []


def create_discounted_sum() -> DiscountedSum:
    """Before the first reward."""
    return DiscountedSum(jnp.zeros(()), create_moments(()))


def scale_reward(
    total: DiscountedSum, reward: Array, ended: Array, discount: Number
) -> tuple[DiscountedSum, Array]:
    """Count one reward [] and divide it by the std of the discounted sum, uncentred, unclipped.

    `ended` [] resets the sum before this reward, as the authors do (arXiv:2410.14606).
    """
    running = discount * (1.0 - ended) * total.running + reward
    moments = count(total.moments, running)
    return DiscountedSum(running, moments), reward / jnp.sqrt(moments.variance + 1e-8)


def scale_transition(
    total: DiscountedSum, batch: Transition, discount: Number
) -> tuple[DiscountedSum, Transition]:
    """`scale_reward` for a stream's transition."""
    ended = batch.terminated | batch.truncated
    total, reward = scale_reward(total, batch.reward, ended, discount)
    return total, batch.replace(reward=reward)


def restart(state: Any) -> Any:
    """A pytree with the sums of streams' rewards at 0: episodes were lost."""
    return zeroed(state, DiscountedSum, "running")


def zeroed(state: Any, kinds: Any, field: str) -> Any:
    """A pytree with zeros in a field of all nodes of these classes."""

    def cleared(node: Any) -> Any:
        if not isinstance(node, kinds):
            return node
        return node.replace(**{field: jax.tree.map(jnp.zeros_like, getattr(node, field))})

    return jax.tree.map(cleared, state, is_leaf=lambda node: isinstance(node, kinds))


def _compensated(total: Array, lost: Number, term: Array) -> tuple[Array, Array]:
    """total + lost + term, rounded, and the rounding error."""
    term = term + lost
    rounded = total + term
    virtual = rounded - total
    return rounded, (total - (rounded - virtual)) + (term - virtual)
