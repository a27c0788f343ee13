"""Another run's policy that remembers, and acts at each step before the agent."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Base
from rljax.envs.autoreset import AutoReset
from rljax.learning import agent_state
from rljax.learning.evaluation import CompiledEvaluator, HeldActions
from rljax.networks.inputs import Raw
from tests.helpers.counting import Counter, Fake, replay, settings
from tests.learning.drivers import kinds
from tests.learning.drivers.test_memory import Saved

LIMIT, ENVS, LEARNERS, STEPS = 5, 2, 2, 14
SIZES: Any = {"num_envs": ENVS, "batch_size": 4, "warmup_steps": 4, "replay_size": 64}


class Counting:
    """It acts by how many observations of the episode it has seen, and a random number."""

    def remember(self, spec: Any, config: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(
        self, state: Any, observation: Any, key: Any, config: Any, explore: bool, memory: Any
    ) -> Any:
        seen = memory[..., None].astype(jnp.float32)
        return state + seen + 0.5 * jax.random.uniform(key, seen.shape), {}, memory + 1


class Beside(Fake):
    """It does what its base does, and adds how many steps it remembers itself, in hundreds."""

    draw: buffers.Draw = buffers.Uniform()

    def experience(self, config: Any) -> Any:
        return replay(config, draw=self.draw).with_policy()

    def use_base(self, state: Any, base: Any, config: Any) -> Any:
        return (state, base) if base is not None else state[0]

    def base_acts(self, config: Any) -> bool:
        return True

    def remember(self, spec: Any, config: Any) -> Any:
        return jnp.zeros((), jnp.int32)

    def act(
        self, state: Any, observation: Any, key: Any, config: Any, explore: bool, memory: Any = None
    ) -> Any:
        action = state[1].act(observation, key) + 100.0 * memory[..., None]
        return action, {}, memory + 1

    def update(self, state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        """Rows are over `steps` steps: what the base does behind them counts those."""
        own, base = state
        steps = batch.next_observation[:, 0] - batch.observation[:, 0]
        done = jnp.round(batch.extras["next_base_action"] - batch.extras["base_action"])
        own, metrics = super().update(own, batch, key, step, config)
        return (own, base), metrics | {"wrong": (done[:, 0] != steps).mean(), "steps": steps.mean()}


def base_of(number: int) -> Base:
    state = jnp.full((number, 1), 1000.0) * jnp.arange(number)[:, None]
    spec = Counter(LIMIT).spec
    return Base(state, None, Counting(), spec, Raw(), None, remembers=True)


@pytest.mark.parametrize("kind", kinds.KINDS)
def test_actions_of_the_base_are_stored(kind: str) -> None:
    """What it does in the next state is what it does there at the next step, with the same random
    number; at a time limit it is what it would have done.
    """
    driver = kinds.driven(
        kind, [1, 2], STEPS, Beside(), Saved(LIMIT), LIMIT, base=base_of(LEARNERS), **SIZES
    )
    rows = jax.tree.map(np.asarray, driver.learners.storage.data)
    stored = rows.extras["base_action"][:, : STEPS * ENVS].reshape(LEARNERS, STEPS, ENVS)
    following = rows.extras["next_base_action"][:, : STEPS * ENVS].reshape(stored.shape)
    ends = rows.truncated[:, : STEPS * ENVS].reshape(stored.shape)
    times = np.arange(STEPS) % LIMIT
    expected = 1000.0 * np.arange(LEARNERS)[:, None, None] + times[:, None]
    assert np.all(np.floor(2 * (stored - expected)) == 0)
    assert np.all(np.floor(2 * (following - expected - 1)) == 0)
    assert len(np.unique(stored % 1)) == stored.size
    goes_on = ~ends[:, :-1]
    np.testing.assert_array_equal(following[:, :-1][goes_on], stored[:, 1:][goes_on])
    assert goes_on.sum() < goes_on.size
    action = rows.action[:, : STEPS * ENVS].reshape(stored.shape)
    np.testing.assert_allclose(action, stored + 100.0 * times[:, None], rtol=1e-6)


def test_rows_over_several_steps_have_the_last_ones_next_action() -> None:
    agent = Beside()
    agent.draw = buffers.NStep(steps=3, discount=0.9)
    driver = kinds.driven(
        "compiled", [1, 2], 3 * STEPS, agent, limit=LIMIT, base=base_of(LEARNERS), **SIZES
    )
    metrics = driver.report().metrics
    assert np.max(metrics["wrong"]) == 0.0
    assert np.all((metrics["steps"] > 1.5) & (metrics["steps"] < 3.0))


@pytest.mark.parametrize("hold", [1, 2])
def test_evaluations_have_both_memories(hold: int) -> None:
    """A base sees each step, also where the agent repeats its action."""
    environment: Any = AutoReset(Counter(LIMIT))
    agent, config = Beside(), settings(LEARNERS, **SIZES)
    keys = jax.random.split(jax.random.key(0), LEARNERS)
    create = jax.vmap(
        lambda key: agent_state.create(agent, key, environment.spec, Fake.Config(**SIZES), Raw())
    )
    state = create(keys).replace(base=base_of(LEARNERS))
    playing: Any = agent if hold == 1 else HeldActions(agent, hold)
    evaluator = CompiledEvaluator(playing, environment, LEARNERS)
    episodes = evaluator(state, evaluator.starts([1, 2], 3, 0), config)
    time = np.arange(LIMIT)
    least = (time + 1 + time - time % hold + 100 * (time // hold)).sum()
    least = least + 1000.0 * LIMIT * np.arange(LEARNERS)[:, None]
    assert np.all((episodes.returns > least) & (episodes.returns < least + 0.5 * LIMIT))
