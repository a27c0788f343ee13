"""Policies whose action ends a chain of Gaussian steps.

A chain x_0 ... x_K begins with noise, and x_{k+1} = mu + sigma z with z standard normal, where mu
and sigma are functions of x_k. Its density is known, so that it can be moved as any policy's.
"""

from __future__ import annotations

from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Number, Transition, config
from rljax.networks.generative import Embedding, Noising, StepNoise
from rljax.requirements import Count, Positive

Moments = Callable[[Array, Array], tuple[Array, Array]]  # of a step from a point at a time

LOG_PROBS = (-5.0, 2.0)  # limits of the log p of each number of a step; arXiv:2409.00588's code


@config
class WithDenoising:
    """Settings of a chain of denoising steps, of which the last are tuned, as DPPO's authors have
    them: a base of an agent's Config.
    """

    denoising_steps: Count = 20  # T; arXiv:2409.00588
    tuned_steps: Count = 10  # K, the last ones; arXiv:2409.00588
    noising: Noising = "cosine"  # growth of noise; arXiv:2409.00588
    noise_min: StepNoise = 0.1  # least std of a step; arXiv:2409.00588
    noise_clip: Positive = 3.0  # limit of the steps' normal numbers; arXiv:2409.00588
    density_min: StepNoise = 0.1  # least std in log p; arXiv:2409.00588
    embedding: Embedding = 16  # features of the step; arXiv:2409.00588

    def log_prob(self, following: Array, mean: Array, std: Array) -> Array:
        """log p [...] of steps to `following` [..., A], a mean over numbers within `LOG_PROBS`."""
        std = jnp.maximum(std, self.density_min)
        each = jax.scipy.stats.norm.logpdf(following, mean, std)
        return jnp.clip(each, *LOG_PROBS).mean(axis=-1)


def walk(
    moments: Moments, times: Array, start: Array, noise: Array, least: Number = 0.0
) -> tuple[Array, Array, Array]:
    """A chain x [..., K + 1, A] from x_0 `start` [..., A], with mu and sigma [..., K, A].

    `moments(x_k, t_k)` are those of x_{k+1} = mu + max(sigma, least) z, for `times` t [K] and
    `noise` z [K, ..., A].
    """

    def move(point: Array, inputs: tuple[Array, Array]) -> tuple[Array, tuple[Array, ...]]:
        time, noise = inputs
        mean, std = moments(point, jnp.full(point.shape[:-1], time))
        following = mean + jnp.maximum(std, least) * noise
        return following, (following, mean, jnp.broadcast_to(std, mean.shape))

    points, mean, std = jax.lax.scan(move, start, (times, noise))[1]
    chain = jnp.concatenate([start[None], points])
    chain, mean, std = (jnp.moveaxis(x, 0, -2) for x in (chain, mean, std))
    return chain, mean, std


def of_flow(moments: Moments, start: Array, noise: Array) -> tuple[Array, Array, Array]:
    """A `walk` at times k / K, whose last point is clipped to [-1, 1]."""
    times = jnp.arange(len(noise)) / len(noise)
    chain, mean, std = walk(moments, times, start, noise)
    return chain.at[..., -1, :].set(jnp.clip(chain[..., -1, :], -1.0, 1.0)), mean, std


def likelihood(chain: Array, mean: Array, std: Array) -> tuple[Array, Array]:
    """log p and entropy [...] of chains [..., K + 1, A] with mu and sigma [..., K, A], over their
    (K + 1) A numbers; x_0 is standard normal.
    """
    start = jnp.zeros_like(chain[..., :1, :])
    mean = jnp.concatenate([start, mean], axis=-2)
    std = jnp.concatenate([start + 1.0, std], axis=-2)
    log_prob = jax.scipy.stats.norm.logpdf(chain, mean, std)
    entropy = 0.5 * np.log(2.0 * np.pi * np.e) + jnp.log(std)
    return log_prob.mean(axis=(-2, -1)), entropy.mean(axis=(-2, -1))


def steps_at(rollout: Transition, index: Array) -> Transition:
    """Steps of chains [B, ...], from a rollout [T, E, ...], by their `index` [B] of all T E K.

    Extras of the rollout are a `chain` [T, E, K + 1, A], `log_prob` of its steps [T, E, K] and
    others [T, E]. Those of a step are a `chain` of its two ends [B, 2, A], its own `log_prob`
    [B], `step` k [B] and the others.
    """
    extras = dict(rollout.extras)
    chain, log_prob = extras.pop("chain"), extras.pop("log_prob")
    length = log_prob.shape[-1]
    row, step = jnp.divmod(index, length)

    def flat(x: Array) -> Array:
        return x.reshape(-1, *x.shape[2:])

    batch = jax.tree.map(lambda x: flat(x)[row], rollout.replace(extras=extras))
    ends = flat(chain)[row[:, None], step[:, None] + jnp.arange(2)]
    own = {"chain": ends, "log_prob": flat(log_prob)[row, step], "step": step}
    return batch.replace(extras={**batch.extras, **own})
