"""Goals of states in a replay: as of a data set with the same episodes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.agents import gciql, hiql
from rljax.buffers import windows
from rljax.buffers.goals.of_data import GoalDraws, GoalRows, SubgoalDraws
from rljax.buffers.goals.trajectories import Recorded, Stored
from rljax.buffers.mixed import Mixed
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.learning import configuration
from rljax.runs import records
from tests.buffers.test_goals import data, train, walks
from tests.environments import goal_field
from tests.runs import parts

__all__ = ["walks"]

ENVS, STEPS, KEPT = 3, 50, 40  # of each environment, of which the ring has the newest
NOWHERE = -77.0  # the goals that were asked for, which no draw keeps


def episodes(seed: int) -> tuple[Transition, np.ndarray]:
    """Steps [T, E, ...] of episodes of random lengths, and their times in the episode, from 1."""
    generator = np.random.default_rng(seed)
    ends = generator.random((STEPS, ENVS)) < 0.15
    time = np.zeros((STEPS, ENVS), np.int32)
    for t in range(STEPS):
        time[t] = 1 if t == 0 else np.where(ends[t - 1], 1, time[t - 1] + 1)
    number = np.arange(STEPS)[:, None] + 100.0 * np.arange(ENVS)
    state = np.stack([number, -number], axis=-1).astype(np.float32)
    goal = np.full_like(state, NOWHERE)
    own = generator.random(ends.shape) < 0.5
    pair, after = (np.concatenate([x, goal], axis=-1) for x in (state, state + 0.5))
    columns: Any = (pair, number[..., None], number + 7.0, ends & own, ends & ~own)
    return Transition(*columns, after), time


def ring_of(steps: Transition, time: np.ndarray) -> ReplayBuffer:
    """One learner's ring with the newest steps, which has wrapped around."""
    timed = jax.tree.map(lambda x: jnp.asarray(x)[None], steps.replace(extras={"time": time}))
    row = lambda t: jax.tree.map(lambda x: x[:, t], timed)  # noqa: E731
    buffer = ReplayBuffer.create(row(0), KEPT * ENVS)
    add = jax.jit(lambda buffer, rows: buffer.add(rows))
    for t in range(STEPS):
        buffer = add(buffer, row(t))
    return jax.tree.map(lambda x: x[0] if x.ndim else x, buffer)


def recorded(steps: Transition) -> Transition:
    """The newest steps as a data set of states, one environment behind the other."""
    newest = jax.tree.map(
        lambda x: np.moveaxis(x[-KEPT:], 1, 0).reshape(KEPT * ENVS, *x.shape[2:]), steps
    )
    states = (newest.observation[:, :2], newest.next_observation[:, :2])
    ends = newest.truncated | newest.terminated
    ends[KEPT - 1 :: KEPT] = True  # where the ring's newest row is
    cut = newest.replace(observation=states[0], next_observation=states[1], truncated=ends)
    whole = windows.with_last_rows(cut)
    return whole.replace(truncated=newest.truncated)


def draws(seed: int, number: int) -> SubgoalDraws:
    """Random draws of 500 rows of the data set."""
    generator = np.random.default_rng(seed)

    def goals() -> GoalRows:
        steps = generator.integers(0, 6, 500).astype(np.int32)
        share = np.where(steps > 0, generator.random(500), 0.0).astype(np.float32)
        other = generator.integers(0, number, 500).astype(np.int32)
        return GoalRows(other, steps, share, generator.random(500) < 0.3)

    row = generator.integers(0, number, 500).astype(np.int32)
    return SubgoalDraws(GoalDraws(row, goals(), goals()), goals())


@pytest.mark.parametrize("seed", [0, 1])
def test_batches_are_those_of_a_data_set_with_these_episodes(seed: int) -> None:
    steps, time = episodes(seed)
    ring, whole = ring_of(steps, time), recorded(steps)
    drawn = draws(seed, KEPT * ENVS)
    draw = hiql.experience(hiql.Config(subgoal_steps=4, option_steps=3)).draw
    expected = draw.batch(Recorded(whole), drawn)

    def in_ring(row: np.ndarray) -> np.ndarray:
        environment, step = row // KEPT, row % KEPT
        return (((STEPS - KEPT + step) * ENVS + environment) % (KEPT * ENVS)).astype(np.int32)

    def moved(goal: GoalRows) -> GoalRows:
        return goal._replace(other=in_ring(goal.other))

    pairs, option = drawn.goals, drawn.option
    assert option is not None
    there = SubgoalDraws(
        GoalDraws(in_ring(pairs.row), moved(pairs.value), moved(pairs.actor)), moved(option)
    )
    batch = jax.jit(lambda ring, drawn: draw.batch(Stored(ring, ENVS), drawn))(ring, there)
    assert jax.tree.structure(batch) == jax.tree.structure(expected)
    for found, wanted in zip(jax.tree.leaves(batch), jax.tree.leaves(expected), strict=True):
        np.testing.assert_array_equal(found, wanted)
    assert NOWHERE not in np.asarray(batch.observation)
    assert 0 < expected.terminated.mean() < 1


def stacked(steps: Transition, time: np.ndarray) -> ReplayBuffer:
    """Two learners' equal rings."""
    ring = ring_of(steps, time)
    return jax.tree.map(lambda x: jnp.stack([x, x]) if x.ndim else x, ring)


@pytest.mark.parametrize("share", [0.0, 0.4])
def test_a_share_of_a_batch_has_goals_of_the_data(share: float) -> None:
    steps, time = episodes(2)
    config = configuration.stack(gciql.Config(batch_size=200, num_envs=ENVS, num_updates=3), 2)
    online = gciql.experience(config).online
    mixed = jax.tree.map(jnp.asarray, Mixed.of(online, share))
    prepared = jax.tree.map(jnp.asarray, windows.with_last_rows(data()))
    shifted = prepared.replace(observation=prepared.observation + 1000.0)
    keys = jax.random.split(jax.random.key(0))
    batch = mixed.sample(stacked(steps, time), shifted, keys)
    assert batch.observation.shape == (2, 3, 200, 4)
    old = round(share * 200)
    state, goal = (np.asarray(batch.observation[..., at]) for at in (0, 2))
    for part in (state, goal, np.asarray(batch.extras["actor_observation"][..., 2])):
        assert (part[..., :old] >= 1000).all()
        assert (part[..., old:] < 1000).all()
        assert (part[..., old:] != NOWHERE).all()
    same = (state == goal)[..., old:].mean()
    assert 0.2 < same < 0.4, "a share of goals are the states themselves, and in last rows most"
    np.testing.assert_array_equal(np.asarray(batch.terminated), state == goal)
    assert len(np.unique(state[..., old:])) > 0.9 * KEPT * ENVS


@pytest.mark.learn
@pytest.mark.parametrize("agent", ["gciql", "hiql"])
def test_goes_on_online_and_is_resumed_exactly(agent: str, tmp_path: Path, walks: str) -> None:
    def online(steps: int, out: Path) -> Path:
        settings: Any = {"agent": agent, "then_online": steps - 100}
        return train(100, out, walks, {"num_envs": 2}, **settings)

    parts.resumed(online, 200, 300, tmp_path)


@pytest.mark.learn
def test_reaches_more_goals_after_more_experience(tmp_path: Path) -> None:
    """A clone of random walks, and then of what it has reached itself."""
    few = str(goal_field.walks(tmp_path / "few.npz", number=4))
    config: Any = {"num_envs": 5, "batch_size": 128, "num_updates": 2}
    settings: Any = {"agent": "gcbc", "then_online": 6_000, "eval_every": 2_000}
    out = train(1_000, tmp_path / "run", few, config, eval_episodes=50, **settings)
    success = [np.mean(line["success"]) for line in records.read(out, "evaluations")]
    assert np.mean(success[-2:]) > success[0] + 0.2
