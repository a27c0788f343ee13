"""CQL for discrete actions against float64 NumPy written from the paper."""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from scipy.special import logsumexp, softmax

from rljax.agent import EnvSpec, Transition
from rljax.agents import cql_discrete
from tests.agents import actor_critic, reference

ACTIONS = 4
SPEC = EnvSpec("test/Example-v0", (3,), ACTIONS, discrete=True)
CONFIG = cql_discrete.Config(
    hidden=(8, 8), batch_size=5, critic_lr=1e-2, target_rate=0.1, target_every=1
)
KEY = jax.random.key(0)


def example() -> tuple[EnvSpec, cql_discrete.Config, Transition]:
    return SPEC, CONFIG, reference.choices(ACTIONS)


class Reference(actor_critic.ActorCritic):
    """Discrete CQL in float64, from equation 4 of arXiv:2006.04779 with a double target."""

    def update(self, batch: Transition, key: Any, step: int) -> dict[str, Any]:
        """One update, and its metrics.

        dG / dQ(s, .) = softmax - onehot(a); Huber's slope is the clipped error.
        """
        config, size, row = self.config, len(batch.reward), np.arange(len(batch.reward))
        action = batch.action
        online, target = (
            [reference.forward(critic, batch.next_observation)[0] for critic in critics]
            for critics in (self.critic, self.target_critic)
        )
        best = np.mean(online, axis=0).argmax(axis=1)
        y = self.bootstrapped(batch, np.min(target, axis=0)[row, best])

        errors, gaps, taken, gradients = [], [], [], []
        for critic in self.critic:
            each, inputs = reference.forward(critic, batch.observation)
            q = each[row, action]
            gaps.append((logsumexp(each, axis=1) - q).mean())
            error = q - y
            errors.append(
                np.where(np.abs(error) <= 1.0, 0.5 * error**2, np.abs(error) - 0.5).mean()
            )
            one_hot = np.eye(ACTIONS)[action]
            change = one_hot * np.clip(error, -1.0, 1.0)[:, None]
            change += config.penalty_weight * (softmax(each, axis=1) - one_hot)
            gradients.append(reference.backward(critic, inputs, change / size)[0])
            taken.append(q)
        self.move("critic", gradients)
        if (step + 1) % config.target_every == 0:
            self.follow("critic")
        return {
            "critic/loss": sum(errors) + config.penalty_weight * sum(gaps),
            "critic/error": sum(errors),
            "critic/gap": np.mean(gaps),
            "critic/q": np.mean(taken),
            "critic/target": y.mean(),
        }


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "three critics, light penalty": {"num_critics": 3, "penalty_weight": 0.1, "discount": 0.5},
    "copies": {"target_rate": 1.0, "target_every": 2},
}

update = jax.jit(cql_discrete.update)
act = jax.jit(cql_discrete.act, static_argnames="explore")
fresh = functools.partial(reference.state, cql_discrete, SPEC)


@pytest.mark.parametrize("changes", CASES.values(), ids=CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    batches = functools.partial(reference.choices, ACTIONS)
    reference.assert_updates(update, fresh(config), config, Reference, batches)


def test_loss_by_hand() -> None:
    batch = reference.two_rows(action=jnp.array([1, 0]))
    config = dataclasses.replace(CONFIG, discount=0.5, penalty_weight=2.0)
    each = jnp.array([[[0.0, 3.0], [1.5, 1.5]]])
    state: Any = fresh(CONFIG).replace(
        critic=lambda observation: each,
        target_critic=lambda observation, action: jnp.array([[6.0, 9.0]]),
    )
    loss, metrics = cql_discrete.critic_loss(state.critic, state, batch, config)
    # y = (1 + 0.5 6, 2); errors (-1, -0.5): Huber (0.5, 0.125); gaps log(1 + e^-3) and log 2
    gap = (np.log1p(np.exp(-3.0)) + np.log(2.0)) / 2.0
    np.testing.assert_allclose(
        [metrics["critic/error"], metrics["critic/gap"]], [0.3125, gap], rtol=1e-6
    )
    np.testing.assert_allclose(
        [loss, metrics["critic/target"]], [0.3125 + 2.0 * gap, 3.0], rtol=1e-6
    )


def test_the_penalty_lowers_what_the_data_lack() -> None:
    config = dataclasses.replace(CONFIG, penalty_weight=10.0)
    batch = reference.choices(ACTIONS)
    batch = batch.replace(
        action=np.zeros(5, np.int32), terminated=np.ones(5, bool), reward=np.zeros(5, np.float32)
    )
    state = reference.learnt(cql_discrete, fresh(config), batch, config)
    metrics = update(state, batch, KEY, 100, config)[1]
    q = np.asarray(state.critic(batch.observation))[0]
    assert (q[:, 1:] < q[:, :1] - 1.0).all()
    assert metrics["critic/gap"] < np.log(ACTIONS) / 2


def test_only_termination_cuts_the_bootstrap() -> None:
    reference.assert_only_termination_cuts_the_bootstrap(
        update, fresh(CONFIG), CONFIG, reference.choices(ACTIONS)
    )


def test_explores_by_a_share_of_uniform_actions() -> None:
    config = dataclasses.replace(CONFIG, epsilon=0.4)
    state, observation = fresh(config), np.broadcast_to(reference.observed()[:1], (20_000, 3))
    greedy = np.asarray(act(state, observation, KEY, config, explore=False)[0])
    assert (greedy == np.asarray(state.critic(jnp.asarray(observation[:1])))[0].argmax()).all()
    explored = np.asarray(act(state, observation, KEY, config, explore=True)[0])
    np.testing.assert_allclose((explored != greedy).mean(), 0.3, atol=0.02)


def test_refuses_continuous_actions() -> None:
    with pytest.raises(
        ValueError, match=r"^agent 'cql_discrete' chooses among .* Use: rljax train cql --env Pend"
    ):
        cql_discrete.check(EnvSpec("Pendulum-v1", (3,), 1), CONFIG)
