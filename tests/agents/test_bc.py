"""BC against float64 NumPy written from its three losses."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import networks
from rljax.agent import Transition
from rljax.agents import bc
from rljax.networks.policies import Imitation
from tests.agents import reference, trees, value_learning
from tests.agents.value_learning import KEY, SPEC

CONFIG = bc.Config(hidden=(8, 8), batch_size=5, actor_lr=1e-2, normalise_observations=False)


def example() -> Any:
    config = dataclasses.replace(CONFIG, loss="log_prob", decay_steps=10.0, dropout=0.1)
    return SPEC, config, reference.transitions()


class Reference:
    """Behavioural cloning in float64: regression, or maximum likelihood."""

    def __init__(self, state: bc.State, config: bc.Config) -> None:
        self.config = config
        self.actor, self.adam = reference.actor(state.actor), reference.Adam(config.actor_lr)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        observation = np.asarray(batch.observation, np.float64)
        action = np.asarray(batch.action, np.float64)
        weight = 1.0 / action.shape[-1] if self.config.loss == "mse_mean" else 1.0
        distance, gradient = reference.imitation(
            self.actor, observation, action, weight, self.config, key
        )
        self.adam.rate = reference.cosine(self.config.actor_lr, step, self.config.decay_steps)
        self.actor = self.adam.step(self.actor, gradient)
        return {"actor/loss": (weight * distance).mean()}


CASES = {
    "default": {},
    "mse_sum": {"loss": "mse_sum"},
    "log_prob": {"loss": "log_prob"},
    "log_prob, clipped std": {"loss": "log_prob", "log_std_max": 0.0},
    "dropout": {"dropout": 0.5},
    "decay": {"decay_steps": 3.0},
}

update = jax.jit(bc.update)
actor_loss = jax.jit(bc.actor_loss)


def fresh(config: bc.Config) -> bc.State:
    return reference.state(bc, SPEC, config)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_supervised_learning(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key, step))
    reference.assert_same(reference.actor(state.actor), expected.actor, "actor")


def test_the_cases_clip_some_and_not_all() -> None:
    state = fresh(dataclasses.replace(CONFIG, loss="log_prob"))
    assert 0.0 < (np.asarray(state.actor.parameters.log_std) > 0.0).mean() < 1.0


@pytest.mark.parametrize(
    ("loss", "expected"),
    [("mse_mean", 0.125), ("mse_sum", 0.25), ("log_prob", np.log(2.0 * np.pi) + 0.125)],
)
def test_losses_by_hand(loss: Any, expected: float) -> None:
    action = np.array([[0.5, 0.0], [0.0, -0.5]], np.float32)  # 0.25 from (0, 0) twice
    batch = jax.tree.map(lambda x: x[:2], reference.transitions()).replace(action=action)
    mean: Any = lambda observation, dropout: jnp.zeros((2, 2))  # noqa: E731
    actor = networks.Actor(mean, jnp.zeros(2) if loss == "log_prob" else None)
    loss_of_rows = bc.actor_loss(actor, batch, KEY, dataclasses.replace(CONFIG, loss=loss))[0]
    np.testing.assert_allclose(loss_of_rows, expected, rtol=1e-6)


def test_mean_and_sum_differ_by_the_number_of_actions() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    mean, total = (
        actor_loss(state.actor.parameters, batch, KEY, dataclasses.replace(CONFIG, loss=loss))[0]
        for loss in ("mse_mean", "mse_sum")
    )
    np.testing.assert_allclose(total, 2.0 * mean, rtol=1e-6)


def test_likelihood_is_greatest_where_the_std_is_that_of_the_errors() -> None:
    config = dataclasses.replace(CONFIG, loss="log_prob")
    batch = reference.transitions(0, 50)
    actor = fresh(config).actor.parameters
    error = np.asarray(batch.action) - np.asarray(
        Imitation.of(CONFIG).mean(actor, batch.observation)
    )
    best = actor.replace(log_std=jnp.log(jnp.sqrt(jnp.mean(jnp.square(error), axis=0))))
    gradient = jax.jit(jax.grad(lambda actor: bc.actor_loss(actor, batch, KEY, config)[0]))(best)
    np.testing.assert_allclose(gradient.log_std, 0.0, atol=1e-5)
    assert np.abs(gradient.mean.params["output"]["bias"]).max() > 1e-2


def test_only_observations_and_actions_are_read() -> None:
    batch = reference.transitions()
    other = reference.transitions(1)
    mixed = other.replace(observation=batch.observation, action=batch.action)
    assert trees.equal(*(update(fresh(CONFIG), x, KEY, 0, CONFIG) for x in (batch, mixed)))


def test_rate_falls_to_zero_as_a_cosine() -> None:
    value_learning.assert_rate_falls_to_zero_as_a_cosine(bc, update, fresh(CONFIG), CONFIG)
