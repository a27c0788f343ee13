"""Soft values of discrete actions, with the policy's log-probability as a reward (Munchausen):

  pi = softmax(Q'(s, .) / tau)
  y  = r + alpha clip(tau log pi(a|s), floor, 0)
         + gamma (1 - terminated) sum_a' pi(a'|s') (Q'(s', a') - tau log pi(a'|s'))

[1] Vieillard et al., Munchausen Reinforcement Learning, arXiv:2007.14430, eq. 2 and appendix B;
    quantiles as in the code of its M-IQN: those of the same level are averaged over actions
"""

from __future__ import annotations

from typing import Annotated, NamedTuple

import jax.numpy as jnp

from rljax.agent import Array, config
from rljax.networks import distributions, heads
from rljax.requirements import Between, Positive, Share


@config
class WithMunchausen:
    """Settings of Munchausen's targets: a base of an agent's Config."""

    munchausen: bool = False  # soft targets with log-probabilities as rewards; arXiv:2007.14430
    munchausen_scale: Share = 0.9  # alpha, of log-probabilities; arXiv:2007.14430
    munchausen_temperature: Positive = 0.03  # tau, of pi; arXiv:2007.14430
    munchausen_floor: Annotated[float, Between(None, 0)] = -1.0  # of tau log pi; arXiv:2007.14430


class SoftStep(NamedTuple):
    """What makes a target soft."""

    bonus: Array  # [B], added to rewards
    policy: Array  # [B, A]: pi(.|s'), the weights of the next values
    penalty: Array  # [B]: tau sum_a' pi log pi at s', taken from their mean


def munchausen(q: Array, action: Array, next_q: Array, settings: WithMunchausen) -> SoftStep:
    """The step from the targets' values Q'(s, .) and Q'(s', .) [B, A], with actions int32 [B]."""
    tau = settings.munchausen_temperature
    pi, next_pi = (distributions.categorical(values / tau) for values in (q, next_q))
    log_probability = jnp.clip(tau * pi.log_prob(action), settings.munchausen_floor, 0.0)
    bonus = settings.munchausen_scale * log_probability
    return SoftStep(bonus, jnp.asarray(next_pi.probs), -tau * jnp.asarray(next_pi.entropy()))


def check(settings: WithMunchausen, double: bool, n_step: int, head: heads.Head) -> None:
    """Raise `ValueError` for settings that soft targets do not go with."""
    binned = isinstance(head, heads.Binned)
    clashes = {
        "double": (double, "the policy is the targets' own"),
        "n-step": (n_step > 1, "later rewards would lack their log-probabilities"),
        "distribution c51": (binned, "choose none or quantile, which have means over actions"),
    }
    for flag, (clash, reason) in clashes.items():
        if settings.munchausen and clash:
            raise ValueError(f"--config.munchausen does not go with --config.{flag}: {reason}.")
