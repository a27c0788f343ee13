"""OFQL against float64 NumPy written from the papers, its gradients by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agents import dql, ofql
from tests.agents import reference, value_learning
from tests.agents.value_learning import KEY, SIZES, SPEC

CONFIG = ofql.Config(
    **SIZES, activation="relu", embedding=4, num_candidates=4, average_every=1, average_from=0
)
PROBE = {"average_rate": 0.05}
POLICY_IS_A_DRAW = True  # also without exploring
AVERAGES = ("average_actor",)  # of the actor


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


class Reference(reference.Guided):
    """arXiv:2508.13904, and equation 6 of arXiv:2505.13447."""

    def noise(self, key: jax.Array, *rows: int) -> np.ndarray:
        """What becomes actions, [B, A]."""
        return np.asarray(jax.random.normal(key, (*rows, 2)), np.float64).reshape(-1, 2)

    def sampled(self, actor: Any, observation: np.ndarray, noise: np.ndarray) -> np.ndarray:
        """Actions [B, A] in one step."""
        zeros, ones = np.zeros(len(noise)), np.ones(len(noise))
        return np.clip(
            noise - reference.of_field(actor, noise, observation, zeros, ones), -1.0, 1.0
        )

    def imitation(
        self, observation: np.ndarray, action: np.ndarray, key: jax.Array
    ) -> reference.Imitation:
        """The squared error to what u should be; du/dt along the flow is a difference."""
        key_times, key_noise = jax.random.split(key)
        drawn = np.asarray(jax.random.normal(key_times, (2, len(action))), np.float64)
        start, time = np.sort(1.0 / (1.0 + np.exp(0.4 - drawn)), axis=0)
        flows = np.arange(len(action)) < self.config.flow_ratio * len(action)
        start = np.where(flows, time, start)
        noise = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        velocity, h = noise - action, 1e-6

        def u(actor: Any, time: np.ndarray) -> np.ndarray:
            noisy = (1.0 - time[:, None]) * action + time[:, None] * noise
            return reference.of_field(actor, noisy, observation, start, time)

        change = (u(self.actor, time + h) - u(self.actor, time - h)) / (2.0 * h)
        target = velocity - (time - start)[:, None] * change
        return lambda actor: (np.square(u(actor, time) - target).mean(), None)


CASES = {
    "default": {},
    "no row is a plain flow's, best of four": {
        "flow_ratio": 0.0,
        "max_q_backup": 4,
        "value_weight": 3.0,
    },
    "all rows are": {"flow_ratio": 1.0, "max_grad_norm": 0.05},
    "a rare average": {
        "average_every": 2,
        "average_from": 1,
        "average_rate": 0.3,
    },
}

update = jax.jit(ofql.update)
act = jax.jit(ofql.act, static_argnames="explore")


def fresh(config: ofql.Config) -> ofql.State:
    return reference.state(ofql, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    parts: Any = {"actor": reference.field, "average_actor": reference.field}
    value_learning.assert_updates_equal(update, fresh(config), config, Reference, **parts)


def test_times_are_sorted_and_equal_in_the_share_that_is_asked_for() -> None:
    for ratio in (0.0, 0.25, 1.0):
        start, time = ofql.times(KEY, 1000, dataclasses.replace(CONFIG, flow_ratio=ratio))
        assert np.all(start <= time)
        assert np.all((start > 0.0) & (time < 1.0))
        assert (np.asarray(start) == np.asarray(time)).mean() == ratio


@pytest.mark.learn
def test_critics_learn_as_diffusion_ql_does() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    theirs = dql.Config(**SIZES, activation="relu", max_grad_norm=None)
    batch = batch.replace(terminated=np.ones(5, bool))  # where the policies do not matter
    left = jax.grad(lambda critic: ofql.critic_loss(critic, state, batch, KEY, CONFIG)[0])(
        state.critic.parameters
    )
    other = reference.state(dql, SPEC, theirs).replace(target_critic=state.target_critic)
    right = jax.grad(lambda critic: dql.critic_loss(critic, other, batch, KEY, theirs)[0])(
        state.critic.parameters
    )
    jax.tree.map(lambda x, y: np.testing.assert_allclose(x, y, rtol=1e-6), left, right)


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(update, fresh(CONFIG), CONFIG)


def test_acts_by_the_average() -> None:
    state, observation = fresh(CONFIG), reference.observed()
    stays = state.replace(actor=jax.tree.map(np.zeros_like, state.actor))
    for average_acts, same in ((True, True), (False, False)):
        config = dataclasses.replace(CONFIG, num_candidates=1, average_acts=average_acts)
        action, other = (act(x, observation, KEY, config, explore=False)[0] for x in (state, stays))
        assert np.array_equal(action, other) == same
