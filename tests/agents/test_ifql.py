"""IFQL against float64 NumPy written from the papers, its flow's gradient by differences,
and how it acts.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rljax.agent import EnvSpec, Transition
from rljax.agents import ifql
from tests.agents import reference

SPEC = EnvSpec("test/Example-v0", (3,), 2)
SIZES: dict[str, Any] = {
    "hidden": (8, 8),
    "batch_size": 5,
    "actor_lr": 1e-2,
    "critic_lr": 2e-2,
    "target_rate": 0.1,
}
CONFIG = ifql.Config(
    **SIZES, value_lr=3e-2, activation="relu", layer_norm=False, flow_steps=3, num_candidates=4
)
KEY = jax.random.key(0)
PROBE: dict[str, Any] = {"layer_norm": False}
POLICY_IS_A_DRAW = True  # also without exploring


def example() -> tuple[EnvSpec, ifql.Config, Transition]:
    """What the contract's tests run on."""
    return SPEC, CONFIG, reference.transitions()


class Reference:
    """IFQL in float64, from equations 5 and 6 of arXiv:2110.06169 and equation 4 of
    arXiv:2502.02538.
    """

    def __init__(self, state: ifql.State, config: ifql.Config) -> None:
        self.config = config
        self.actor, self.value = reference.field(state.actor), reference.mlp(state.value)
        self.critics, self.targets = (
            reference.critics(state.critic),
            reference.critics(state.target_critic),
        )
        rates = (config.actor_lr, config.critic_lr, config.value_lr)
        self.actor_adam, self.critic_adam, self.value_adam = map(reference.Adam, rates)

    def update(self, batch: Transition, key: jax.Array) -> dict[str, float]:
        """One update, and its metrics."""
        config = self.config
        observation = np.asarray(batch.observation, np.float64)
        successor = np.asarray(batch.next_observation, np.float64)
        action = np.asarray(batch.action, np.float64)
        q = reference.smallest(self.targets, observation, action)[0]
        next_v = reference.forward(self.value, successor)[0][:, 0]
        value_loss, v, gradient = reference.expectile(self.value, observation, q, config.expectile)
        self.value = self.value_adam.step(self.value, gradient)

        y = (
            np.asarray(batch.reward)
            + config.discount * (1.0 - np.asarray(batch.terminated)) * next_v
        )
        loss, q, gradient = reference.squared_errors(self.critics, observation, action, y)
        self.critics = self.critic_adam.step(self.critics, gradient)
        self.targets = reference.towards(self.critics, self.targets, config.target_rate)

        key_noise, key_time = jax.random.split(key)
        noise = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        time = np.asarray(jax.random.uniform(key_time, (len(action),)), np.float64)
        between = (1.0 - time[:, None]) * noise + time[:, None] * action

        def flow_loss(actor: Any) -> float:
            velocity = reference.of_field(actor, between, observation, time)
            return float(np.square(velocity - (action - noise)).mean())

        metrics = {
            "value/loss": value_loss,
            "value/v": v.mean(),
            "actor/loss": flow_loss(self.actor),
        }
        metrics |= {"critic/loss": loss, "critic/q": q.mean(), "critic/target": y.mean()}
        self.actor = self.actor_adam.step(self.actor, reference.differences(flow_loss, self.actor))
        return metrics


CASES: dict[str, dict[str, Any]] = {
    "default": {},
    "three critics": {"num_critics": 3, "expectile": 0.6},
}

update = jax.jit(ifql.update)
act = jax.jit(ifql.act, static_argnames="explore")


def fresh(config: ifql.Config) -> ifql.State:
    """A State to start from."""
    return reference.state(ifql, SPEC, config)


@reference.cases(CASES)
def test_updates_equal_the_papers(changes: dict[str, Any]) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = fresh(config)
    expected = Reference(state, config)
    for step in range(4):
        batch, key = reference.transitions(step), jax.random.key(step)
        state, metrics = update(state, batch, key, step, config)
        reference.assert_metrics(metrics, expected.update(batch, key))
    reference.assert_same(reference.critics(state.critic), expected.critics, "critic")
    reference.assert_same(reference.critics(state.target_critic), expected.targets, "target_critic")
    reference.assert_same(reference.mlp(state.value), expected.value, "value")
    reference.assert_same(reference.field(state.actor), expected.actor, "actor")


def test_takes_the_best_of_the_flows_actions() -> None:
    state, observation = fresh(CONFIG), reference.observed()
    noise = np.asarray(jax.random.normal(KEY, (12, 4, 2)), np.float64)
    flow, critics = reference.field(state.actor), reference.critics(state.critic)
    actions, values = [], []
    for i in range(4):
        action = noise[:, i]
        for step in range(3):
            action = (
                action + reference.of_field(flow, action, observation, np.full(12, step / 3)) / 3
            )
        actions.append(np.clip(action, -1.0, 1.0))
        values.append(reference.smallest(critics, observation, actions[-1])[0])
    best = np.argmax(values, axis=0)
    assert len(set(best)) > 1
    action, extras = act(state, observation, KEY, CONFIG, explore=False)
    np.testing.assert_allclose(action, np.stack(actions)[best, np.arange(12)], rtol=1e-4, atol=1e-5)
    assert extras == {}


def test_only_termination_cuts_the_bootstrap() -> None:
    state, batch = fresh(CONFIG), reference.transitions()
    never, always = np.zeros(5, bool), np.ones(5, bool)

    def target(**flags: np.ndarray) -> Any:
        return update(state, batch.replace(**flags), KEY, 0, CONFIG)[1]["critic/target"]

    assert target(terminated=never, truncated=always) == target(terminated=never, truncated=never)
    np.testing.assert_allclose(
        target(terminated=always, truncated=never), batch.reward.mean(), rtol=1e-6
    )
