"""Columns of data sets and of rings against plain Python loops."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from rljax.buffers.rows import AS_STORED, RewardMap, RingRows
from rljax.buffers.storage.ring import ReplayBuffer
from tests.buffers.reference import located
from tests.helpers.replay_buffers import (
    LEARNERS,
    drawn,
    history,
    keys,
    of_all_kinds,
    of_episodes,
    sample,
)


def recorded(steps: int = 62, seed: int = 0, discrete: bool = False) -> Transition:
    """One environment's episodes with ends of both kinds; the last one ends with the data."""
    (rows,) = history(1, steps, seed)
    generator = np.random.default_rng(seed)
    row = np.arange(steps, dtype=np.float32)[:, None]
    action = generator.integers(0, 9, steps) if discrete else generator.normal(size=(steps, 2))
    fields: Any = (
        row,
        action.astype(np.int32 if discrete else np.float32),
        np.array([x.reward for x in rows], np.float32),
        np.array([x.terminated for x in rows]),
        np.array([x.truncated for x in rows]),
        row + 1,
    )
    return Transition(*fields)


# Next actions.


@pytest.mark.parametrize("discrete", [False, True])
def test_next_actions_of_a_data_set_equal_a_loop(discrete: bool) -> None:
    data = recorded(discrete=discrete)
    kinds = data.terminated, data.truncated, data.terminated & data.truncated
    assert all(kind.any() for kind in kinds)
    assert not (data.terminated | data.truncated)[-1]
    before = data.action.copy()
    found = buffers.NextAction().of_data(data)
    number = len(data.reward)
    for i in range(number):
        has = i + 1 < number and not data.terminated[i] and not data.truncated[i]
        assert found["has_next_action"][i] == has
        np.testing.assert_array_equal(
            found["next_action"][i], data.action[i + 1] if has else 0 * data.action[i]
        )
    assert found["next_action"].dtype == data.action.dtype
    np.testing.assert_array_equal(data.action, before)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("discrete", [False, True])
@of_all_kinds
def test_next_actions_of_a_ring_equal_a_loop(
    num_envs: int, slots: int, steps: int, discrete: bool
) -> None:
    """At ends and limits, round the seam; the newest row of each environment has none."""
    rows = history(num_envs, steps, seed=3)
    buffer = of_episodes(rows, slots)
    if not discrete:  # the time, and what says whose it is
        action = jnp.stack([1.0 * buffer.data.action, buffer.data.observation[..., 1]], axis=-1)
        buffer = buffer.replace(data=buffer.data.replace(action=action))
    declared = buffers.Replay(
        replay_size=slots * num_envs,
        batch_size=200,
        num_updates=3,
        num_envs=num_envs,
        columns=(buffers.NextAction(),),
    )
    batch = sample(declared, buffer, None, keys())
    assert set(batch.extras) == {"time", "next_action", "has_next_action"}
    assert batch.extras["next_action"].shape == batch.action.shape
    assert batch.extras["next_action"].dtype == batch.action.dtype
    found, without = set(), 0
    for learner, row in drawn(batch):
        stored, start = located(rows, slots, row)
        here = stored[start]
        has = start + 1 < len(stored) and not here.terminated and not here.truncated
        assert row.extras["has_next_action"] == has
        following = stored[start + 1].time if has else 0
        expected = following if discrete else [following, here.environment if has else 0]
        np.testing.assert_array_equal(row.extras["next_action"], expected)
        found.add((learner, *here[:3]))
        without += start + 1 == len(stored)
    assert len(found) == LEARNERS * num_envs * min(slots, steps)
    assert without > 0


def test_columns_change_no_draw() -> None:
    buffer = of_episodes(history(3, 17), 7)
    declared = buffers.Replay(replay_size=21, batch_size=50, num_envs=3)
    columns = dataclasses.replace(declared, columns=(buffers.NextAction(),))
    plain, more = (sample(x, buffer, None, keys()) for x in (declared, columns))
    kept = {name: more.extras[name] for name in plain.extras}
    jax.tree.map(np.testing.assert_array_equal, plain, more.replace(extras=kept))


# Returns to go.


@pytest.mark.slow
@pytest.mark.parametrize("discount", [0.0, 0.9, 0.99, 1.0])
def test_returns_to_go_equal_a_loop_in_float64(discount: float) -> None:
    data = recorded(500, seed=2)
    assert data.truncated.any()
    found = buffers.ReturnToGo(discount=discount).of_data(data)["return_to_go"]
    assert found.dtype == np.float32
    assert found.shape == (500,)
    exact, factor = np.zeros(500), float(np.float32(discount))
    for i in reversed(range(500)):
        ends = i == 499 or data.terminated[i] or data.truncated[i]
        exact[i] = float(data.reward[i]) + (0.0 if ends else factor * exact[i + 1])
    np.testing.assert_allclose(found, exact, rtol=1e-6, atol=1e-7)


def test_long_returns_to_go_are_summed_in_float64() -> None:
    """In float32 the sum would be off by more than 1e-4 of it."""
    data = recorded(100_000)
    never = np.zeros(100_000, np.bool_)
    data = data.replace(reward=np.full(100_000, 0.1, np.float32), terminated=never, truncated=never)
    found = buffers.ReturnToGo(discount=1.0).of_data(data)["return_to_go"]
    np.testing.assert_allclose(found, float(np.float32(0.1)) * np.arange(100_000, 0, -1), rtol=1e-6)


def test_returns_to_go_are_the_same_for_all_learners() -> None:
    data = recorded()
    one = buffers.ReturnToGo(discount=0.9).of_data(data)
    for same in ((0.9, 0.9), np.full(3, 0.9, np.float32)):
        alike: Any = buffers.ReturnToGo(discount=same)  # type: ignore[arg-type]
        np.testing.assert_array_equal(alike.of_data(data)["return_to_go"], one["return_to_go"])


@pytest.mark.slow
@of_all_kinds
def test_returns_to_go_of_a_ring_equal_a_loop(num_envs: int, slots: int, steps: int) -> None:
    """Of rewards as they are learnt from; none where the episode has not ended in the ring."""
    rewards = RewardMap(10.0, -5.0)
    rows = history(num_envs, steps, seed=3)
    buffer = of_episodes(rows, slots)
    declared = buffers.Mixed(
        replay_size=slots * num_envs,
        batch_size=200,
        num_updates=3,
        num_envs=num_envs,
        columns=(buffers.ReturnToGo(discount=0.9),),
        offline_share=0.0,
        reward_map=rewards,
    )
    data = jax.tree.map(lambda x: np.asarray(x[0, :1]), buffer.data)
    batch = sample(declared, buffer, declared.prepare(data), keys())
    without = set()
    for _, row in drawn(batch):
        stored, start = located(rows, slots, row)
        rest = stored[start:]
        ends = [i for i, x in enumerate(rest) if x.terminated or x.truncated]
        assert row.extras["has_return_to_go"] == bool(ends)
        without.add(not ends)
        known = rest[: ends[0] + 1] if ends else []
        total = sum(0.9**i * rewards(float(x.reward)) for i, x in enumerate(known))
        np.testing.assert_allclose(row.extras["return_to_go"], total, rtol=1e-5, atol=1e-5)
    assert False in without


@pytest.mark.slow
def test_a_failure_goes_on_for_ever() -> None:
    """Rewards of -5 until a limit return -5 / (1 - 0.9) = -50;
    until an end, or beside another reward, their sum.
    """
    reward = np.array([-5, -5, -5, 5, -5, -5, -5, -5], np.float32)
    terminated = np.array([0, 0, 0, 0, 0, 0, 0, 1], bool)
    truncated = np.array([0, 1, 0, 0, 1, 0, 0, 0], bool)
    data = recorded(8).replace(reward=reward, terminated=terminated, truncated=truncated)
    column = buffers.ReturnToGo(discount=0.9, failure=-5.0)
    expected = [-50, -50, -5 + 0.9 * 5 - 0.81 * 5, 5 - 0.9 * 5, -50, -13.55, -9.5, -5]
    found = column.of_data(data)
    np.testing.assert_allclose(found["return_to_go"], expected, rtol=1e-6)
    assert found["has_return_to_go"].all()
    ring = jax.tree.map(jnp.asarray, data)
    later = jnp.arange(7, -1, -1)
    of_ring = column.of_replay(ring, RingRows(jnp.arange(8), later, 1, 8, AS_STORED))
    np.testing.assert_allclose(of_ring["return_to_go"], expected, rtol=1e-5)
    assert of_ring["has_return_to_go"].all()


def test_long_returns_to_go_of_a_ring() -> None:
    """Of many blocks, the last step beyond a whole number of them."""
    number = 1_003
    data = recorded(number)
    ends = np.arange(number) == number - 2
    reward = np.random.default_rng(0).normal(size=number).astype(np.float32)
    data = data.replace(reward=reward, terminated=np.zeros(number, bool), truncated=ends)
    at = RingRows(jnp.arange(number), jnp.arange(number - 1, -1, -1), 1, number, AS_STORED)
    found = buffers.ReturnToGo(discount=0.99).of_replay(jax.tree.map(jnp.asarray, data), at)
    expected = buffers.ReturnToGo(discount=0.99).of_data(data)["return_to_go"]
    np.testing.assert_array_equal(found["has_return_to_go"], np.arange(number) < number - 1)
    np.testing.assert_allclose(found["return_to_go"][:-1], expected[:-1], rtol=1e-4, atol=1e-4)


def test_settings_of_returns_to_go_that_differ_are_refused() -> None:
    other: Any = buffers.ReturnToGo(discount=(0.9, 0.99))  # type: ignore[arg-type]
    failure: Any = buffers.ReturnToGo(discount=0.9, failure=(-1.0, -5.0))  # type: ignore[arg-type]
    kinds = buffers.Replay(replay_size=8, batch_size=4), buffers.Dataset(batch_size=4)
    for column, flag in ((other, "discount"), (failure, "failure-reward")):
        message = rf"once for all learners: give one --config\.{flag}\.$"
        for declared in kinds:
            with pytest.raises(ValueError, match=message):
                dataclasses.replace(declared, columns=(column,)).check()


def test_batches_of_a_data_set_carry_its_columns() -> None:
    data = recorded()
    declared = buffers.Dataset(
        batch_size=50,
        num_updates=4,
        columns=(buffers.NextAction(), buffers.ReturnToGo(discount=0.9), buffers.Source()),
    )
    prepared = declared.prepare(data)
    assert not data.extras, "what was given stays as it was"
    batch = sample(declared, None, prepared, keys())
    assert set(batch.extras) == {
        "next_action",
        "has_next_action",
        "return_to_go",
        "has_return_to_go",
        "offline",
    }
    rows = np.asarray(batch.observation[..., 0]).astype(int)
    for name, column in prepared.extras.items():
        np.testing.assert_array_equal(batch.extras[name], column[rows], err_msg=name)


# Sources.


def new_experience(data: Transition, number: int = 7) -> ReplayBuffer:
    """The data's rows with negative observations."""
    example = jax.tree.map(lambda x: np.stack([x[:1]] * LEARNERS), data)
    buffer = ReplayBuffer.create(example, 10)
    for i in range(number):
        rows = jax.tree.map(lambda x, i=i: jnp.asarray(np.stack([x[i : i + 1]] * LEARNERS)), data)
        buffer = buffer.add(rows.replace(observation=-1.0 - rows.observation))
    return buffer


@pytest.mark.slow
@pytest.mark.parametrize("share", [0.25, 0.5, "pooled"])
def test_rows_say_whether_they_are_of_the_data_set(share: Any) -> None:
    data = recorded()
    declared = buffers.Mixed(
        replay_size=10,
        batch_size=16,
        num_updates=20,
        columns=(buffers.Source(), buffers.NextAction()),
        offline_share=share,
    )
    batch = sample(declared, new_experience(data), declared.prepare(data), keys())
    old = np.asarray(batch.observation[..., 0]) >= 0
    offline = np.asarray(batch.extras["offline"])
    assert offline.dtype == np.bool_
    np.testing.assert_array_equal(offline, old)
    assert 0 < old.sum() < old.size
    if share != "pooled":
        first = round(share * 16)
        np.testing.assert_array_equal(
            offline, np.broadcast_to(np.arange(16) < first, offline.shape)
        )
    # Those of the ring are the first of the data, and the newest has no next action.
    row = np.asarray(batch.observation[..., 0])
    row = np.where(old, row, -1.0 - row).astype(int)
    expected = buffers.NextAction().of_data(data)
    has = expected["has_next_action"][row] & (old | (row < 6))
    np.testing.assert_array_equal(batch.extras["has_next_action"], has)
    following = np.where(has[..., None], expected["next_action"][row], 0)
    np.testing.assert_array_equal(batch.extras["next_action"], following)


def test_rows_of_a_replay_alone_are_new() -> None:
    declared = buffers.Replay(replay_size=10, batch_size=16, columns=(buffers.Source(),))
    batch = sample(declared, new_experience(recorded()), None, keys())
    assert batch.extras["offline"].shape == (LEARNERS, 1, 16)
    assert not batch.extras["offline"].any()
