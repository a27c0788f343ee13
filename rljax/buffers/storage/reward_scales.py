"""Rewards of a replay divided by a scale of returns, when a batch is drawn.

  G    <- r + gamma G,  from 0 where an episode begins
  r    -> r / max(sqrt(Var[G]), max |G| / return_limit)

Var and max are over all steps and environments so far. With `carry_rewards`, as in the code of
FlashSAC, SimbaV2 and XQC, G begins anew one step early, at an episode's last reward, and goes on
from there into the next episode.

FlashSAC, arXiv:2604.04539; SimbaV2, arXiv:2502.15280; XQC, arXiv:2509.25174, without the limit.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition, same_fields
from rljax.buffers.experience import declaration
from rljax.buffers.storage.learners import PerLearner
from rljax.networks import normalise
from rljax.networks.normalise import Statistics


class SeenReturns(PerLearner):
    """The discounted sums of running episodes' rewards, and their statistics."""

    running: Array  # [P, E] G; with `carry_rewards` also after an end
    statistics: Statistics  # [P] of all G so far
    largest: Array  # [P] of all |G| so far

    @classmethod
    def create(cls, num_learners: int, num_envs: int) -> SeenReturns:
        """Before the first reward."""
        statistics = jax.vmap(lambda _: normalise.create(()))(jnp.arange(num_learners))
        return cls(jnp.zeros((num_learners, num_envs)), statistics, jnp.zeros(num_learners))

    def cut(self) -> SeenReturns:
        """The running episodes are lost."""
        return self.replace(running=jnp.zeros_like(self.running))


@declaration
class RewardScale:
    """How rewards of a replay are scaled."""

    discount: float  # gamma
    return_limit: float | None = None  # the largest |G| after scaling; None: no limit
    carry_rewards: bool = False

    @classmethod
    def of(cls, settings: Any) -> RewardScale | None:
        """By a Config's fields `normalise_rewards`, `discount`, `carry_rewards` and, if it has one,
        `return_limit`; None where rewards are not normalised.
        """
        if not settings.normalise_rewards:
            return None
        return cls(**same_fields(settings, ("discount", "return_limit", "carry_rewards")))

    def observe(self, seen: SeenReturns, transitions: Transition) -> SeenReturns:
        """Count new transitions [P, E, ...]."""
        ended = transitions.terminated | transitions.truncated
        discount = jnp.reshape(jnp.asarray(self.discount), (-1, 1))
        past = seen.running * (1.0 - ended) if self.carry_rewards else seen.running
        running, sums = normalise.next_sum(past, transitions.reward, ended, discount)
        return SeenReturns(
            running=sums if self.carry_rewards else running,
            statistics=jax.vmap(normalise.update)(seen.statistics, sums),
            largest=jnp.maximum(seen.largest, jnp.abs(sums).max(axis=1)),
        )

    def scaled(self, seen: SeenReturns, batches: Transition) -> Transition:
        """Batches [P, U, B, ...] with scaled rewards."""
        scale = jnp.sqrt(seen.statistics.variance + 1e-8)
        if self.return_limit is not None:
            scale = jnp.maximum(scale, seen.largest / self.return_limit)
        return batches.replace(reward=batches.reward / scale[:, None, None])
