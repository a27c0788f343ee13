"""What drivers share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.agents import stream_q
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.learning.drivers.driver import cut_episodes
from rljax.learning.learner import LearnerState
from rljax.networks.optimisation import traces
from tests.helpers import replay_buffers
from tests.helpers.counting import Fake, HostedCounter, OnPolicy
from tests.learning.drivers import kinds

NONE: Any = None
ENVS = 2


def state(agent: Any, storage: Any) -> LearnerState:
    return LearnerState(
        agent, storage, NONE, NONE, NONE, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32)
    )


def step(number: int, terminated: Sequence[bool] = (False, False)) -> Transition:
    """Two environments of one learner."""
    observation: Any = np.full((1, ENVS, 1), number, np.float32)
    ends, reward = np.array([terminated]), np.array([[1.0, 10.0]], np.float32)
    return Transition(
        observation, observation, reward, ends, np.zeros((1, ENVS), bool), observation + 1, {}
    )


@pytest.mark.slow
def test_n_steps_do_not_cross_the_seam() -> None:
    buffer, add = replay_buffers.create(step(0), 8), jax.jit(ReplayBuffer.add)
    for number in range(6):  # it has wrapped
        buffer = add(buffer, step(number, (number == 5, False)))
    cut: Any = cut_episodes(state(NONE, buffer), ENVS).storage
    np.testing.assert_array_equal(buffer.data.truncated, np.zeros((1, 8)))
    expected = np.zeros((1, 8), bool)
    expected[0, 3] = True  # the second environment's step 5; the first one's has ended by itself
    np.testing.assert_array_equal(cut.data.truncated, expected)
    for number in range(6, 8):
        cut = add(cut, step(number))
    three: Any = buffers.NStep(steps=3, discount=jnp.ones(1))  # type: ignore[arg-type]
    declared = buffers.Replay(replay_size=8, batch_size=200, num_envs=ENVS, draw=three)
    batch = replay_buffers.sample(declared, cut, None, jax.random.split(jax.random.key(0), 1))
    begun, after, reward = (
        np.asarray(x).ravel() for x in (batch.observation, batch.next_observation, batch.reward)
    )
    assert set(zip(begun, after, strict=True)) == {(4, 6), (5, 6), (6, 8), (7, 8)}
    steps = {4: 2, 5: 1, 6: 2, 7: 1}
    assert set(zip(begun, reward, strict=True)) == {
        (row, r * steps[row]) for row in steps for r in (1, 10)
    }


@pytest.mark.slow
@pytest.mark.parametrize("adaptive", [False, True])
def test_traces_begin_anew(adaptive: bool) -> None:
    config = stream_q.Config(hidden=(8,), adaptive=adaptive)
    spec = EnvSpec("CartPole", (3,), 2, discrete=True, max_episode_steps=100)
    agent = jax.jit(stream_q.init, static_argnums=1)(jax.random.key(0), spec, config)
    update = jax.jit(stream_q.update)
    row = Transition(*(jnp.ones(()) for _ in range(6)))
    row = row.replace(
        observation=jnp.ones(3), next_observation=jnp.ones(3), action=jnp.ones((), jnp.int32)
    )
    row = row.replace(terminated=jnp.zeros((), bool), truncated=jnp.zeros((), bool))
    row = row.replace(extras={"greedy": jnp.ones((), bool)})
    for _ in range(3):
        agent, _ = update(agent, row, jax.random.key(1), jnp.zeros((), jnp.int32), config)
    assert any(np.any(x != 0) for x in jax.tree.leaves(agent.critic.optimiser_state.trace))
    assert agent.returns.running != 0
    cut: Any = cut_episodes(state(agent, None), 1).agent
    assert isinstance(cut.critic.optimiser_state, (traces.ObGDState, traces.AdaptiveObGDState))
    assert not any(np.any(x != 0) for x in jax.tree.leaves(cut.critic.optimiser_state.trace))
    assert cut.returns.running == 0
    trace = agent.critic.optimiser_state.trace
    optimiser_state = cut.critic.optimiser_state.replace(trace=trace)
    same = cut.replace(
        critic=cut.critic.replace(optimiser_state=optimiser_state),
        returns=cut.returns.replace(running=agent.returns.running),
    )
    jax.tree.map(np.testing.assert_array_equal, same, agent)


class Forgetful(HostedCounter):
    def reset(self, seeds: Sequence[int] | None) -> np.ndarray:
        return super().reset(range(self.num_envs) if seeds is None else seeds)


@pytest.mark.slow
@pytest.mark.parametrize("kind", kinds.ON_HOST)
@pytest.mark.parametrize("module", [Fake, OnPolicy])
def test_drivers_cut_what_they_cannot_restore(kind: str, module: Any) -> None:
    changes: Any = {"num_envs": 3, "num_steps": 4, "batch_size": 12, "warmup_steps": 30}
    driver = kinds.driven(kind, [1, 2], 2, module(), Forgetful(100), **changes)
    driver.report()
    before = jax.tree.map(np.array, driver.learners.storage.data.truncated)
    assert not before.any()
    driver.restore(jax.tree.map(jnp.array, driver.arrays()), None)
    truncated = np.asarray(driver.learners.storage.data.truncated)
    newest = np.s_[:, 21:24] if module is Fake else np.s_[:, 3]
    assert truncated[newest].all()
    assert truncated.sum() == 6
    driver.advance(1)  # and it goes on
