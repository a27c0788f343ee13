"""IFQL against float64 NumPy written from the papers, its flow's gradient by differences."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import numpy as np

from rljax.agent import Transition
from rljax.agents import ifql
from tests.agents import reference, trees, value_learning
from tests.agents.test_qc import H, chunks
from tests.agents.value_learning import KEY, SIZES, SPEC

CONFIG = ifql.Config(
    **SIZES, value_lr=3e-2, activation="relu", layer_norm=False, flow_steps=3, num_candidates=4
)
PROBE = {"layer_norm": False}
POLICY_IS_A_DRAW = True  # also without exploring


def example() -> Any:
    return SPEC, CONFIG, reference.transitions()


class Reference(value_learning.Networks):
    """Equations 5 and 6 of arXiv:2110.06169 and equation 4 of arXiv:2502.02538; of chunks and of
    many critics, agents/ifql.py of arXiv:2601.14234's code.
    """

    def __init__(self, state: ifql.State, config: ifql.Config) -> None:
        super().__init__(state, config, actor=reference.field)

    def judged(self, observation: np.ndarray, action: np.ndarray) -> np.ndarray:
        if self.config.pessimism is None:
            return reference.smallest(self.targets, observation, action)[0]
        q = np.stack([reference.value(critic, observation, action)[0] for critic in self.targets])
        return q.mean(axis=0) - self.config.pessimism * q.std(axis=0)

    def update(self, batch: Transition, key: jax.Array, step: int) -> dict[str, float]:
        observation, action, successor, _, alive = value_learning.arrays(batch)
        length, reward, whole = reference.chunk_return(batch, self.config.discount)
        q = self.judged(observation, action)
        next_v = value_learning.state_values(self.value, successor)
        y = reward + self.config.discount**length * alive * next_v
        metrics = self.fit_value(observation, q)
        metrics |= self.fit_critics(observation, action, y, whole)

        key_noise, key_time = jax.random.split(key)
        noise = np.asarray(jax.random.normal(key_noise, action.shape), np.float64)
        time = np.asarray(jax.random.uniform(key_time, (len(action),)), np.float64)
        between = (1.0 - time[:, None]) * noise + time[:, None] * action

        def flow_loss(actor: Any) -> float:
            velocity = reference.of_field(actor, between, observation, time)
            error = np.square(velocity - (action - noise)).mean(axis=-1)
            return float((error * whole).mean())

        metrics["actor/loss"] = flow_loss(self.actor)
        self.actor = self.actor_adam.step(self.actor, reference.differences(flow_loss, self.actor))
        return metrics


CASES = {
    "default": {},
    "chunks, many critics": {"chunk_length": H, "num_critics": 4, "pessimism": 0.5},
    "three critics": {"num_critics": 3, "expectile": 0.6},
}

update = jax.jit(ifql.update)
act = jax.jit(ifql.act, static_argnames="explore")


@reference.cases(CASES, quick=2)
def test_updates_equal_the_papers(changes: Any) -> None:
    config = dataclasses.replace(CONFIG, **changes)
    state = reference.state(ifql, SPEC, config)
    batches = reference.transitions if config.chunk_length == 1 else chunks
    value_learning.assert_updates_equal(update, state, config, Reference, batches=batches)


def test_takes_the_best_of_the_flows_actions() -> None:
    state, observation = reference.state(ifql, SPEC, CONFIG), reference.observed()
    noise = np.asarray(jax.random.normal(KEY, (12, 4, 2)), np.float64)
    flow, critics = reference.field(state.actor), reference.critics(state.critic)
    actions, values = [], []
    for i in range(4):
        action = noise[:, i]
        for step in range(3):
            time = np.full(12, step / 3)
            action = action + reference.of_field(flow, action, observation, time) / 3
        actions.append(np.clip(action, -1.0, 1.0))
        values.append(reference.smallest(critics, observation, actions[-1])[0])
    best = np.argmax(values, axis=0)
    assert len(set(best)) > 1
    action, extras, memory = act(state, observation, KEY, CONFIG, explore=False)
    trees.assert_close(action, np.stack(actions)[best, np.arange(12)])
    assert extras == {}
    assert memory is None


def test_only_termination_cuts_the_bootstrap() -> None:
    value_learning.assert_only_termination_cuts_the_bootstrap(
        update, reference.state(ifql, SPEC, CONFIG), CONFIG
    )
