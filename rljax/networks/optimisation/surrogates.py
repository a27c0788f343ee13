"""Surrogates: what a policy is moved along on a rollout of the last one, and what keeps it near.

pi_k the rollout's policy, r = pi(a|s) / pi_k(a|s), A advantage, epsilon, t and tau below; each loss
is a mean over a minibatch

  clip     -min(r A, clip(r, 1 +- epsilon) A)                                   PPO [1, eq. 7]
  penalty  -r A + beta KL(pi_k(.|s) || pi(.|s)),  beta = 1 / t                  PPO [1, eq. 8]
  mdpo     -r A + KL(pi(.|s) || pi_k(.|s)) / t                                  MDPO [2]
  pmd      (A - tau log r)^2 / (2 tau),  tau = 1 / t                            PMD-mean [3]
  dpo      -(r A - max(0, (r - 1) A - 2 tanh((r - 1) A / 2)))      where A >= 0
           -(r A - max(0, A log r - 0.6 tanh(A log r / 0.6)))      elsewhere    DPO [4]

At pi = pi_k all have the slope of the policy gradient, -A grad log pi. "pmd" is written for
language models, with the return of a whole answer in place of A; per action, with generalised
advantages and divided by 2 tau, it is our construction. With `trust_steps` epsilon and t fall to 0
over the run: [2]'s code has t = 1 - k / K in iteration k of K. [5] finds that learnt objectives do
so too, trust more at first and less at the end; nothing is learnt here.

What is `adaptive` keeps the divergence near `desired_kl`, written d:
  rate     the learning rate, after each minibatch: divided by 1.5 where KL(pi || pi_k) > 2 d,
           times 1.5 where it is below d / 2; from 1e-5 to 1e-2               [6]
  penalty  beta, after each rollout: times 2 where KL(pi_k || pi), a mean over the last pass, is
           above 1.5 d, halved where it is below d / 1.5                      [1, section 4]

[1] Schulman et al., PPO, arXiv:1707.06347
[2] Tomar et al., Mirror Descent Policy Optimization, arXiv:2005.09814
[3] PMD-mean, arXiv:2602.05933
[4] Lu et al., Discovered Policy Optimisation, arXiv:2210.05639
[5] Jackson et al., Discovering Temporally-Aware RL Algorithms, arXiv:2402.05828
[6] github.com/google/brax, training/agents/ppo/optimizer.py
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, Literal, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import optax

from rljax.agent import Array, Metrics, Number, config
from rljax.networks import distributions
from rljax.networks.optimisation import optimisers
from rljax.requirements import NonNegative, Positive

Kind = Literal["clip", "penalty", "mdpo", "pmd", "dpo"]
Adaptive = Literal["nothing", "rate", "penalty"]
EXACT = "actor/exact_kl"  # the metric of the divergence over all actions
GAINS, LOSSES = 2.0, 0.6  # constants of DPO's drift where A >= 0 and elsewhere; [4]
LEAST = 1e-3  # of what `trust_steps` leaves of epsilon and t

Settings = TypeVar("Settings", bound="WithSurrogate")
T = TypeVar("T")


@config
class WithSurrogate:
    """Settings of what a policy is moved along: a base of an agent's Config."""

    surrogate: Kind = "clip"  # rljax/networks/optimisation/surrogates.py
    clip_ratio: NonNegative = 0.2  # epsilon (clip); arXiv:1707.06347
    mirror_step: Positive = 1.0  # t (penalty, mdpo, pmd); arXiv:2005.09814
    trust_steps: Positive | None = None  # share of the run until epsilon and t are 0; MDPO: 1
    target_kl: Positive | None = None  # no pass follows one of a larger mean KL; CleanRL
    adaptive: Adaptive = "nothing"  # what keeps the KL near desired_kl; rate: Brax, rsl_rl
    desired_kl: Positive = 0.01  # of what is adaptive; Brax


def check(settings: Any) -> None:
    """Raise `ValueError` for what does not fit."""
    if settings.adaptive == "penalty" and settings.surrogate != "penalty":
        raise ValueError(
            "--config.adaptive penalty adapts the weight of a penalty: it needs --config.surrogate "
            f"penalty, which is '{settings.surrogate}'."
        )
    if settings.adaptive == "rate" and settings.decay_steps is not None:
        raise ValueError(
            "--config.adaptive rate and --config.decay-steps both set the learning rate: use "
            "--config.decay-steps None."
        )


def optimiser(step: Array | int, settings: Any) -> optax.GradientTransformation:
    """The networks' optimiser after `step` [] rollouts, by an agent's Config."""
    decayed = optimisers.decayed(settings, step)
    rate = 1.0 if settings.adaptive == "rate" else decayed
    moved = optimisers.optimiser(rate, step, settings, settings.adam_epsilon)
    if settings.adaptive != "rate":
        return moved
    return optax.chain(moved, following_kl(settings.learning_rate, settings.desired_kl))


class AdaptiveRate(NamedTuple):
    """The state of `following_kl`."""

    learning_rate: Array  # []


def following_kl(first: Number, desired: Number) -> optax.GradientTransformationExtraArgs:
    """A learning rate that begins with `first` and adapts to the metric `EXACT`, as in [6]."""

    def init(params: Any) -> AdaptiveRate:
        del params
        return AdaptiveRate(jnp.asarray(first, jnp.float32))

    def update(
        updates: Any, state: Any, params: Any = None, **signals: Any
    ) -> tuple[Any, AdaptiveRate]:
        del params
        kl, rate = signals["metrics"][EXACT], state.learning_rate
        slower, faster = jnp.maximum(rate / 1.5, 1e-5), jnp.minimum(1.5 * rate, 1e-2)
        adapted = jnp.where((kl > 0.0) & (kl < 0.5 * desired), faster, rate)
        rate = jnp.where(kl > 2.0 * desired, slower, adapted)
        return jax.tree.map(lambda x: rate * x, updates), AdaptiveRate(rate)

    return optax.GradientTransformationExtraArgs(init, update)


def reweighted(penalty: Array, metrics: Metrics, settings: WithSurrogate) -> Array:
    """beta [] after a rollout whose `passes` have these metrics: [1, section 4]."""
    if settings.adaptive != "penalty":
        return penalty
    kl, desired = metrics[EXACT], settings.desired_kl
    halved = jnp.where(kl < desired / 1.5, 0.5 * penalty, penalty)
    return jnp.where(kl > 1.5 * desired, 2.0 * penalty, halved)


def needs_divergence(settings: WithSurrogate) -> bool:
    """Whether a loss needs `divergence`."""
    return settings.surrogate in ("penalty", "mdpo") or settings.adaptive != "nothing"


def divergence(
    new: distributions.Distribution, old: distributions.Distribution, settings: WithSurrogate
) -> Array:
    """KL [...] between pi and pi_k, over all actions: KL(pi_k || pi) for "penalty"."""
    if settings.surrogate == "penalty":
        return jnp.asarray(old.kl_divergence(new))
    return jnp.asarray(new.kl_divergence(old))


def at(settings: Settings, rollouts: Array | int, penalty: Array) -> Settings:
    """The Config after `rollouts` [] of `num_envs` times `num_steps` steps, with an adaptive beta
    [] of `penalty`.
    """
    if settings.adaptive == "penalty":
        settings = dataclasses.replace(settings, mirror_step=1.0 / penalty)
    if settings.trust_steps is None:
        return settings
    trust = jnp.maximum(optimisers.left(settings, rollouts, settings.trust_steps), LEAST)
    changed = {name: trust * getattr(settings, name) for name in ("clip_ratio", "mirror_step")}
    return dataclasses.replace(settings, **changed)


def loss(
    log_ratio: Array, advantage: Array, settings: WithSurrogate, kl: Array | float = 0.0
) -> tuple[Array, Metrics]:
    """The mean loss [] of log r [B] and A [B], and metrics; `kl` [B] is the `divergence`, where
    it is needed.
    """
    ratio, step = jnp.exp(log_ratio), settings.mirror_step
    loss, metrics = clipped(log_ratio, advantage, settings.clip_ratio)
    if needs_divergence(settings):
        metrics[EXACT] = jnp.mean(kl)
    match settings.surrogate:
        case "mdpo" | "penalty":
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
    epoch: Callable[[T, Array], tuple[T, Metrics]], networks: T, key: Array, settings: Any
) -> tuple[T, Metrics]:
    """What `num_epochs` passes of `epoch(networks, key)` make of networks, and mean metrics; of
    `EXACT` the mean in the last pass.

    No pass follows one whose mean "actor/kl" is above `target_kl`. Several learners of one program
    take the time of all passes even so.
    """
    keys, limit = jax.random.split(key, settings.num_epochs), settings.target_kl
    if limit is None:
        networks, metrics = jax.lax.scan(epoch, networks, keys)
        last = {EXACT: metrics[EXACT][-1]} if EXACT in metrics else {}
        return networks, jax.tree.map(jnp.mean, metrics | last)
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
    each = {name: x.reshape(len(keys), -1).mean(1) for name, x in metrics.items()}
    metrics = {name: x.sum() / number for name, x in each.items()}
    if EXACT in each:
        metrics[EXACT] = each[EXACT][number - 1]
    return networks, metrics | {"actor/passes": number.astype(jnp.float32)}


def drift(log_ratio: Array, advantage: Array) -> Array:
    """What "dpo" takes off r A [B]."""

    def beyond(x: Array, scale: Number) -> Array:
        return jax.nn.relu(x - scale * jnp.tanh(x / scale))

    gains = beyond((jnp.exp(log_ratio) - 1.0) * advantage, GAINS)
    return jnp.where(advantage >= 0, gains, beyond(log_ratio * advantage, LOSSES))
