"""Surrogates: what a policy is moved along on a rollout of the last one, and what keeps it near.

pi_k the rollout's policy, r = pi(a|s) / pi_k(a|s), A advantage, epsilon, t and tau below; each loss
is a mean over a minibatch

  clip  -min(r A, clip(r, 1 +- epsilon) A)                                   PPO [1, eq. 7]
  mdpo  -r A + KL(pi(.|s) || pi_k(.|s)) / t                                  MDPO [2]
  pmd   (A - tau log r)^2 / (2 tau),  tau = 1 / t                            PMD-mean [3]
  dpo   -(r A - max(0, (r - 1) A - 2 tanh((r - 1) A / 2)))      where A >= 0
        -(r A - max(0, A log r - 0.6 tanh(A log r / 0.6)))      elsewhere    DPO [4]

At pi = pi_k all have the slope of the policy gradient, -A grad log pi. "pmd" is written for
language models, with the return of a whole answer in place of A; per action, with generalised
advantages and divided by 2 tau, it is our construction. With `trust_steps` epsilon and t fall to 0
over the run: [2]'s code has t = 1 - k / K in iteration k of K. [5] finds that learnt objectives do
so too, trust more at first and less at the end; nothing is learnt here.

[1] Schulman et al., PPO, arXiv:1707.06347
[2] Tomar et al., Mirror Descent Policy Optimization, arXiv:2005.09814
[3] PMD-mean, arXiv:2602.05933
[4] Lu et al., Discovered Policy Optimisation, arXiv:2210.05639
[5] Jackson et al., Discovering Temporally-Aware RL Algorithms, arXiv:2402.05828
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Literal, TypeVar

import jax
import jax.numpy as jnp

from rljax.agent import Array, Metrics, Number, config
from rljax.networks.optimisation import optimisers
from rljax.requirements import NonNegative, Positive

Kind = Literal["clip", "mdpo", "pmd", "dpo"]
GAINS, LOSSES = 2.0, 0.6  # constants of DPO's drift where A >= 0 and elsewhere; [4]
LEAST = 1e-3  # of what `trust_steps` leaves of epsilon and t

Settings = TypeVar("Settings", bound="WithSurrogate")
T = TypeVar("T")


@config
class WithSurrogate:
    """Settings of what a policy is moved along: a base of an agent's Config."""

    surrogate: Kind = "clip"  # rljax/networks/optimisation/surrogates.py
    clip_ratio: NonNegative = 0.2  # epsilon (clip); arXiv:1707.06347
    mirror_step: Positive = 1.0  # t (mdpo, pmd); arXiv:2005.09814
    trust_steps: Positive | None = None  # share of the run until epsilon and t are 0; MDPO: 1
    target_kl: Positive | None = None  # no pass follows one of a larger mean KL; CleanRL


def at(settings: Settings, rollouts: Array | int) -> Settings:
    """The Config after `rollouts` [] of `num_envs` times `num_steps` steps."""
    if settings.trust_steps is None:
        return settings
    trust = jnp.maximum(optimisers.left(settings, rollouts, settings.trust_steps), LEAST)
    changed = {name: trust * getattr(settings, name) for name in ("clip_ratio", "mirror_step")}
    return dataclasses.replace(settings, **changed)


def loss(
    log_ratio: Array, advantage: Array, settings: WithSurrogate, kl: Array | float = 0.0
) -> tuple[Array, Metrics]:
    """The mean loss [] of log r [B] and A [B], and metrics.

    "mdpo" needs `kl` [B], the divergence of pi from pi_k.
    """
    ratio, step = jnp.exp(log_ratio), settings.mirror_step
    loss, metrics = clipped(log_ratio, advantage, settings.clip_ratio)
    match settings.surrogate:
        case "mdpo":
            loss = (kl / step - ratio * advantage).mean()
        case "pmd":
            loss = 0.5 * step * jnp.square(advantage - log_ratio / step).mean()
        case "dpo":
            loss = (drift(log_ratio, advantage) - ratio * advantage).mean()
    return loss, metrics | {"actor/loss": loss}


def clipped(log_ratio: Array, advantage: Array, epsilon: Number) -> tuple[Array, Metrics]:
    """The same for "clip" alone."""
    ratio = jnp.exp(log_ratio)
    inside = jnp.clip(ratio, 1.0 - epsilon, 1.0 + epsilon)
    loss = -jnp.minimum(ratio * advantage, inside * advantage).mean()
    return loss, {
        "actor/loss": loss,
        "actor/kl": (ratio - 1.0 - log_ratio).mean(),
        "actor/clipped": (jnp.abs(ratio - 1.0) > epsilon).mean(),
    }


def passes(
    epoch: Callable[[T, Array], tuple[T, Metrics]], networks: T, keys: Array, limit: Number | None
) -> tuple[T, Metrics]:
    """What `epoch(networks, key)` makes of networks, once for each key [E], and its mean metrics.

    No pass follows one whose mean "actor/kl" is above `limit`. Several learners of one program
    take the time of all passes even so.
    """
    if limit is None:
        networks, metrics = jax.lax.scan(epoch, networks, keys)
        return networks, jax.tree.map(jnp.mean, metrics)
    shapes = jax.eval_shape(epoch, networks, keys[0])[1]
    nothing = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), shapes)

    def one(carry: tuple[T, Array], key: Array) -> tuple[tuple[T, Array], tuple[Metrics, Array]]:
        networks, goes_on = carry
        networks, metrics = jax.lax.cond(
            goes_on, lambda x: epoch(x, key), lambda x: (x, nothing), networks
        )
        return (networks, goes_on & (metrics["actor/kl"].mean() <= limit)), (metrics, goes_on)

    (networks, _), (metrics, active) = jax.lax.scan(one, (networks, jnp.asarray(True)), keys)
    number = active.sum()
    metrics = {name: x.reshape(len(keys), -1).mean(1).sum() / number for name, x in metrics.items()}
    return networks, metrics | {"actor/passes": number.astype(jnp.float32)}


def drift(log_ratio: Array, advantage: Array) -> Array:
    """What "dpo" takes off r A [B]."""

    def beyond(x: Array, scale: Number) -> Array:
        return jax.nn.relu(x - scale * jnp.tanh(x / scale))

    gains = beyond((jnp.exp(log_ratio) - 1.0) * advantage, GAINS)
    return jnp.where(advantage >= 0, gains, beyond(log_ratio * advantage, LOSSES))
