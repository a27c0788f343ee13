"""DMSD and Pipeline equal NeoRL-2's. `neorl2_transitions.npz` holds two episodes of DMSD's
published validation file (CC BY 4.0): in one both targets change, in the other only one; and
an episode of each task that polixir/NeoRL2 at b50d91d gave for random actions, also beyond
[-1, 1]. Pipeline's flow reaches its upper bound there.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import datasets, envs
from rljax.envs.tasks.neorl2 import DMSD, DMSDState, Pipeline, PipelineState


@pytest.fixture(scope="module")
def recorded() -> dict[str, np.ndarray]:
    with np.load(Path(__file__).with_name("neorl2_transitions.npz")) as file:
        return dict(file)


def test_recorded_transitions_of_dmsd_replay(recorded: dict[str, np.ndarray]) -> None:
    task = DMSD("rljax/DMSD")
    first, action = recorded["dmsd_observation"][:, 0], recorded["dmsd_action"]
    targets = recorded["dmsd_next_observation"][:, [0, -1], 4:]

    def episode(first: Any, action: Any, targets: Any) -> Any:
        def body(state: DMSDState, action: Any) -> Any:
            observation, state, reward, terminated, truncated, _ = task.step(
                jax.random.key(0), state, action
            )
            return state, (observation, reward, terminated | truncated)

        state = DMSDState(first[:2], first[2:4], targets, jnp.zeros((), jnp.int32))
        return jax.lax.scan(body, state, action)[1]

    observation, reward, ended = jax.jit(jax.vmap(episode))(first, action, targets)
    np.testing.assert_array_equal(
        observation[..., 4:], recorded["dmsd_next_observation"][..., 4:], "after 50 steps"
    )
    np.testing.assert_allclose(observation, recorded["dmsd_next_observation"], atol=1e-5)
    # At the target, log(|x| + 0.01) magnifies float32's rounding of a position 100 times.
    np.testing.assert_allclose(reward, recorded["dmsd_reward"], atol=1e-3)
    assert not ended.any()


def test_recorded_transitions_of_pipeline_replay(recorded: dict[str, np.ndarray]) -> None:
    task = Pipeline("rljax/Pipeline")
    first = recorded["pipeline_first"]

    def body(state: PipelineState, given: Any) -> Any:
        action, target = given
        state = state.replace(observation=state.observation.at[1].set(target))
        observation, state, reward, *_ = task.step(jax.random.key(0), state, action)
        return state, (observation, reward)

    assert (first[2:27] == first[0]).all()
    assert (first[27:] == 0).all()
    task.change = 0.0
    given = (recorded["pipeline_action"][:, None], recorded["pipeline_target"])
    state = PipelineState(jnp.repeat(first[:1], task.delay), jnp.asarray(first))
    observation, reward = jax.jit(lambda: jax.lax.scan(body, state, given))()[1]
    np.testing.assert_allclose(observation[:, 0], recorded["pipeline_outlet"], rtol=1e-6)
    np.testing.assert_allclose(observation[-1], recorded["pipeline_last"], rtol=1e-6)
    np.testing.assert_allclose(reward, recorded["pipeline_reward"], atol=1e-5)
    assert recorded["pipeline_outlet"].max() == Pipeline.highest
    assert len(np.unique(recorded["pipeline_target"])) > 1


def test_dmsd_begins_as_published() -> None:
    observation, state = jax.jit(jax.vmap(DMSD("rljax/DMSD").reset))(
        jax.random.split(jax.random.key(0), 4000)
    )
    largest = np.abs(observation).max(axis=0)
    np.testing.assert_allclose(largest, [0.25, 0.25, 0.1, 0.1, 1.5, 1.5], rtol=0.02)
    changes = np.asarray(state.targets[:, 0] != state.targets[:, 1])
    np.testing.assert_allclose(changes.mean(axis=0), 0.5, atol=0.03)
    assert changes.all(axis=1).mean() == pytest.approx(0.25, abs=0.03), "each mass draws alone"


@pytest.mark.slow
def test_pipeline_begins_and_changes_as_published() -> None:
    task = Pipeline("rljax/Pipeline")

    def one(key: Any) -> Any:
        begin, go = jax.random.split(key)
        first, state = task.reset(begin)
        return first, task.step(go, state, jnp.zeros(1))[0]

    first, second = map(
        np.asarray, jax.jit(jax.vmap(one))(jax.random.split(jax.random.key(0), 40000))
    )
    assert 80 <= first[:, 0].min() < 80.1
    assert 119.9 < first[:, 0].max() < 120
    values, counts = np.unique(first[:, 1], return_counts=True)
    np.testing.assert_array_equal(values, Pipeline.targets)
    np.testing.assert_allclose(counts / len(first), 0.25, atol=0.02)
    assert (first[:, 1] != second[:, 1]).mean() == pytest.approx(0.003 * 3 / 4, abs=0.001)


@pytest.mark.parametrize(("task", "limit"), [("DMSD", 100), ("Pipeline", 1000)])
def test_are_the_environments_of_their_data(task: str, limit: int) -> None:
    assert (
        datasets.environment(f"neorl2/{task}-v0")
        == f"rljax/{task}"
        == datasets.environment(f"neorl2/{task}-val")
    )
    assert envs.make(f"rljax/{task}").spec.max_episode_steps == limit
