"""Checkpoints of policies by their worst return, beside the authors' loop in plain Python."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import agent, buffers
from rljax.agent import Step
from rljax.networks.optimisation import assessment
from rljax.networks.optimisation.assessment import Assessment


@agent.config
class Settings(buffers.ReplaySettings, assessment.WithCheckpoints):
    """Those of an agent."""


def outcome(length: Any, total: Any, ended: Any) -> Step:
    return Step(
        observation=None,
        next_observation=None,
        reward=jnp.zeros(len(ended)),
        terminated=jnp.asarray(ended),
        truncated=jnp.zeros(len(ended), bool),
        episode_return=jnp.asarray(total, jnp.float32),
        episode_length=jnp.asarray(length, jnp.int32),
    )


@jax.jit
def review(state: Assessment, policy: Any, step: Step, time: Any, settings: Settings) -> Assessment:
    return state.reviewed(policy, step, time, settings)


class Authors:
    """`maybe_train_and_checkpoint`, with a policy's number of updates for its parameters."""

    def __init__(self, settings: Settings) -> None:
        self.settings, self.updates, self.actor, self.checkpoint = settings, 0, 0, 0
        self.episodes, self.steps, self.most = 0, 0, 1
        self.worst, self.best_worst = 1e8, -1e8

    def episode(self, length: int, total: float) -> None:
        self.episodes += 1
        self.steps += length
        self.worst = min(self.worst, total)
        if self.worst < self.best_worst:
            self.train()
        elif self.episodes == self.most:
            self.best_worst, self.checkpoint = self.worst, self.actor
            self.train()

    def train(self) -> None:
        for _ in range(self.steps):
            if self.updates == self.settings.late_updates:
                self.best_worst *= self.settings.late_share
                self.most = self.settings.late_episodes
            self.updates += 1
        self.actor, self.episodes, self.steps, self.worst = self.updates, 0, 0, 1e8


@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_policies_are_those_of_the_authors(sign: float) -> None:
    settings = Settings(late_updates=300, late_episodes=3)
    generator = np.random.default_rng(0)
    authors, state, time = Authors(settings), Assessment.create(jnp.zeros(()), settings), 0
    assert state is not None
    checkpoints = set()
    for i in range(150):
        length, total = int(generator.integers(1, 9)), sign * 100.0 + 20.0 * generator.normal() + i
        time += length
        authors.episode(length, np.float32(total))
        state = state.replace(updates=jnp.asarray(time, jnp.int32))
        step = outcome([length], [total], [True])
        state = review(state, jnp.asarray(time, jnp.float32), step, np.int32(time), settings)
        assert (float(state.best), float(state.candidate)) == (authors.checkpoint, authors.actor)
        np.testing.assert_allclose(state.best_worst, authors.best_worst, rtol=1e-5)
        checkpoints.add(authors.checkpoint)
    assert authors.most == 3
    assert bool(state.is_late)
    assert len(checkpoints) > 5


def test_only_a_candidates_own_episodes_count() -> None:
    """In three environments, whose warm-up of 7 steps ends after 3 of each."""
    settings = Settings(warmup_steps=7, num_envs=3)
    state = Assessment.create(jnp.zeros(()), settings)
    assert state is not None
    assert int(state.began) == 3
    # One began in the warm-up; one goes on; one counts.
    step = outcome([6, 4, 5], [-9.0, -8.0, 5.0], [True, False, True])
    state = review(state, jnp.ones(()), step, np.int32(8), settings)
    assert (float(state.best_worst), float(state.candidate), int(state.began)) == (5.0, 1.0, 8)
    # Both of these began before the candidate.
    step = outcome([6, 4, 5], [-9.0, -8.0, 5.0], [True, True, False])
    same = review(state, 2 * jnp.ones(()), step, np.int32(11), settings)
    jax.tree.map(np.testing.assert_array_equal, same, state)


def test_without_checkpoints_there_is_none() -> None:
    assert Assessment.create(jnp.zeros(()), Settings(checkpoints=False)) is None
