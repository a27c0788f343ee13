"""Checkpoints of policies by their worst return, for agents with `review`.

A candidate explores while the agent learns. It is dropped at its first episode with a return below
the best policy's worst one, and becomes the best policy after `length` episodes without. Then the
policy learnt so far is the next candidate. Only episodes that the candidate began count.

Fujimoto et al., For SALE: State-Action Representation Learning, arXiv:2306.02451, section 4.2.
There all updates of an assessment follow at its end; here they are made meanwhile. Their number
is the same.
"""

from __future__ import annotations

from typing import Any

import jax.numpy as jnp
import optax
from flax import struct

from rljax.agent import Array, Step, choose, config
from rljax.networks.optimisation.targets import copy
from rljax.requirements import Count, Share, Whole

FAR = 1e8  # beyond all returns


@config
class WithCheckpoints:
    """Settings of checkpoints of an agent with `review`: a base of its Config."""

    checkpoints: bool = True  # evaluate the policy with the best worst return; arXiv:2306.02451
    late_updates: Whole = 750_000  # until assessments are long; arXiv:2306.02451
    late_episodes: Count = 20  # of a long assessment, others have 1; arXiv:2306.02451
    late_share: Share = 0.9  # of the best worst return, which is left then; arXiv:2306.02451


class Assessment(struct.PyTreeNode):
    """The candidate, the best policy, and what is known of both."""

    candidate: Any  # explores
    best: Any  # is evaluated
    began: Array  # [] int32: steps of each environment at the candidate's start
    episodes: Array  # [] int32: those of the candidate so far
    worst: Array  # [] float32: their smallest return
    best_worst: Array  # [] float32: the best policy's smallest return
    updates: Array  # [] int32: so far
    is_late: Array  # [] bool: assessments are long

    @classmethod
    def create(cls, policy: Any, settings: Any) -> Assessment | None:
        """A first candidate, which begins after the warm-up; None without checkpoints.

        `settings` are those of `WithCheckpoints` and `ReplaySettings`.
        """
        if not settings.checkpoints:
            return None
        began = -(-settings.warmup_steps // settings.num_envs)
        return cls(
            candidate=copy(policy),
            best=copy(policy),
            began=jnp.asarray(began, jnp.int32),
            episodes=jnp.zeros((), jnp.int32),
            worst=jnp.asarray(FAR, jnp.float32),
            best_worst=jnp.asarray(-FAR, jnp.float32),
            updates=jnp.zeros((), jnp.int32),
            is_late=jnp.zeros((), jnp.bool_),
        )

    def updated(self) -> Assessment:
        """After an update of the agent."""
        return self.replace(updates=optax.safe_increment(self.updates))

    def reviewed(
        self, policy: Any, outcome: Step, time: Array, settings: WithCheckpoints
    ) -> Assessment:
        """After the episodes [E] that end in `outcome`; see an agent's `review`.

        `policy` is the next candidate where this assessment ends.
        """
        ended = outcome.terminated | outcome.truncated
        counts = ended & (time - outcome.episode_length >= self.began)
        episodes = self.episodes + counts.sum(dtype=jnp.int32)
        worst = jnp.minimum(self.worst, jnp.where(counts, outcome.episode_return, FAR).min())
        fails = worst < self.best_worst
        length = jnp.where(self.is_late, settings.late_episodes, 1)
        succeeds = ~fails & (episodes >= length)
        best_worst = jnp.where(succeeds, worst, self.best_worst)
        is_late = self.updates > settings.late_updates
        share = jnp.where(is_late & ~self.is_late, settings.late_share, 1.0)
        following = self.replace(
            candidate=policy,
            best=choose(succeeds, self.candidate, self.best),
            began=jnp.asarray(time, jnp.int32),
            episodes=jnp.zeros_like(episodes),
            worst=jnp.full_like(worst, FAR),
            best_worst=share * best_worst,
            is_late=is_late,
        )
        same = self.replace(episodes=episodes, worst=worst)
        return choose(counts.any() & (fails | succeeds), following, same)
