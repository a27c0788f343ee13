"""Windows and chunks against plain loops over episodes of random lengths."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import EnvSpec, Transition
from rljax.buffers import windows
from rljax.buffers.rows import RewardMap
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.envs import last_step
from tests.helpers.replay_buffers import LEARNERS, Row, history, keys, sample

H, ENVS, SLOTS = 4, 3, 20


def transition(row: Row, learner: int, t: int, sign: float = 1.0) -> Transition:
    """One step, told apart by its observation: learner, environment, step of the environment."""
    place = np.array([learner, row.environment, t], np.float32)
    return Transition(
        observation=sign * place,
        action=np.array([10 * row.environment + t / 64, learner + t / 64], np.float32),
        reward=np.float32(row.reward),
        terminated=np.bool_(row.terminated),
        truncated=np.bool_(row.truncated),
        next_observation=sign * (place + 0.5),
    )


def stacked(rows: Any) -> Any:
    return jax.tree.map(lambda *x: np.stack(x), *rows)


def recorded(rows: list[Row]) -> Transition:
    return stacked([transition(row, 0, t) for t, row in enumerate(rows)])


def ring(rows: list[list[Row]], sign: float = 1.0) -> ReplayBuffer:
    """The newest `SLOTS` steps of each environment; each learner's rewards are its own."""

    def at(t: int) -> Transition:
        each = [
            stacked([transition(one[t], learner, t, sign) for one in rows])
            for learner in range(LEARNERS)
        ]
        step = stacked(each)
        return step.replace(reward=step.reward + np.arange(LEARNERS, dtype=np.float32)[:, None])

    buffer = ReplayBuffer.create(at(0), SLOTS * len(rows))
    add = jax.jit(ReplayBuffer.add)
    for t in range(len(rows[0])):
        buffer = add(buffer, at(t))
    return buffer


def assert_chunk(one: Transition, rows: list[Row], learner: int, shift: float = 0.0) -> int:
    """The valid steps of a chunk, which is that of the loop."""
    begin = int(abs(one.observation[2]))
    steps = [begin]
    while len(steps) < H and steps[-1] + 1 < len(rows):
        if rows[steps[-1]].terminated or rows[steps[-1]].truncated:
            break
        steps.append(steps[-1] + 1)
    last = rows[steps[-1]]
    number = len(steps)
    np.testing.assert_array_equal(one.extras["valid"], np.arange(H) < number)
    expected = [transition(rows[t], learner, t) for t in steps]
    np.testing.assert_array_equal(
        one.action.reshape(H, 2)[:number], np.stack([step.action for step in expected])
    )
    np.testing.assert_allclose(
        one.extras["rewards"][:number], [step.reward + shift for step in expected], rtol=1e-6
    )
    assert (one.terminated, one.truncated) == (last.terminated, last.truncated)
    np.testing.assert_array_equal(abs(one.next_observation[2]) // 1, steps[-1])
    return number


def each(batch: Transition) -> list[tuple[int, Transition]]:
    """(learner, row) of batches [P, U, B, ...]."""
    batch = jax.tree.map(np.asarray, batch)
    places = np.ndindex(batch.reward.shape)
    return [(place[0], jax.tree.map(lambda x, at=place: x[at], batch)) for place in places]


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("on_host", [False, True])
def test_chunks_of_a_data_set_equal_a_loop(weighted: bool, on_host: bool) -> None:
    (rows,) = history(1, 61, seed=1)
    declared = buffers.Dataset(batch_size=40, num_updates=3, chunk_length=H)
    data = recorded(rows)
    if weighted:
        declared = declared.weighted()
        weight = np.arange(1.0, 62.0)
        data = buffers.with_weights(data, weight / weight.sum())
    data = declared.prepare(data)
    if on_host:
        drawn = jax.tree.map(np.asarray, declared.random(keys(), len(rows)))
        batch = declared.take(data, drawn)
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(batch))
    else:
        batch = sample(declared, None, data, keys())
    lengths = {assert_chunk(one, rows, 0) for _, one in each(batch)}
    assert lengths == set(range(1, H + 1)), "of all lengths"
    assert set(batch.extras) == {"rewards", "valid"}
    np.testing.assert_array_equal(batch.reward, batch.extras["rewards"][..., 0])


@pytest.mark.parametrize("steps", [11, 20, 57])
def test_chunks_of_a_replay_equal_a_loop(steps: int) -> None:
    """Before it is full, when it is, and when it has begun anew."""
    rows = history(ENVS, steps, seed=2)
    declared = buffers.Replay(
        replay_size=SLOTS * ENVS, batch_size=64, num_envs=ENVS, num_updates=2, chunk_length=H
    )
    batch = sample(declared, ring(rows), None, keys())
    seen = set()
    for learner, one in each(batch):
        assert one.observation[0] == learner
        environment = int(one.observation[1])
        assert one.observation[2] >= steps - SLOTS
        seen.add(assert_chunk(one, rows[environment], learner, shift=learner))
    assert seen == set(range(1, H + 1))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("share", [0.5, "pooled", (1.0, 0.0, 10)])
def test_chunks_of_data_and_replay_are_mixed(share: Any) -> None:
    (old,), (new,) = history(1, 61, seed=1), history(1, 17, seed=2)
    declared = buffers.Mixed(
        replay_size=SLOTS,
        batch_size=32,
        num_updates=2,
        chunk_length=H,
        offline_share=share,
        reward_map=RewardMap(2.0, -1.0),
    )
    data = declared.prepare(recorded(old))
    batch = sample(declared, ring([new], sign=-1.0), data, keys())
    number = {True: 0, False: 0}
    for learner, one in each(batch):
        is_new = bool(one.next_observation[2] < 0)
        number[is_new] += 1
        if is_new:
            rewards = (one.extras["rewards"] + 1.0) / 2.0  # as they were stored
            one = one.replace(extras={**one.extras, "rewards": rewards})
            assert_chunk(one, new, learner, shift=learner)
        else:
            assert_chunk(one, old, 0)
    assert min(number.values()) > 0 or isinstance(share, tuple)


def test_chunks_of_one_step_are_transitions_bit_for_bit() -> None:
    (rows,) = history(1, 61, seed=1)
    data = recorded(rows)
    plain = buffers.Dataset(batch_size=40)
    single = dataclasses.replace(plain, chunk_length=1)
    batches = [sample(x, None, x.prepare(data), keys()) for x in (plain, single)]
    jax.tree.map(np.testing.assert_array_equal, *batches)
    batch = jax.tree.map(lambda x: x[0, 0], batches[0])
    assert buffers.with_chunk_return(batch, 0.9) is batch
    assert buffers.valid_actions(batch) is None


def test_returns_of_chunks_are_discounted_sums_of_the_episode() -> None:
    valid = np.array([[True, True, True], [True, False, False], [True, True, False]])
    rewards = np.array([[1.0, 2.0, 4.0], [3.0, 9.0, 9.0], [5.0, 7.0, 9.0]], np.float32)
    zeros: Any = jnp.zeros(3)
    batch = Transition(
        observation=zeros,
        action=jnp.zeros((3, 6)),
        reward=jnp.asarray(rewards[:, 0]),
        terminated=zeros > 0,
        truncated=zeros > 0,
        next_observation=zeros,
        extras={"valid": jnp.asarray(valid), "rewards": jnp.asarray(rewards)},
    )
    result = jax.jit(buffers.with_chunk_return)(batch, 0.5)
    np.testing.assert_allclose(result.reward, [1 + 1 + 1, 3, 5 + 3.5])
    np.testing.assert_allclose(result.extras["discount"], 0.125)
    np.testing.assert_array_equal(result.extras["weight"], [1, 0, 0])
    np.testing.assert_array_equal(buffers.valid_actions(batch), np.repeat(valid, 2, axis=-1))
    weighted = batch.replace(extras={**batch.extras, "weight": jnp.full(3, 0.3)})
    result = buffers.with_chunk_return(weighted, 0.5)
    np.testing.assert_allclose(result.extras["weight"], [0.3, 0, 0])


def test_a_chunk_longer_than_all_trajectories_is_refused() -> None:
    (rows,) = history(1, 61, seed=1)
    longest = max(row.time for row in rows) + 1
    windows.windowed(recorded(rows), longest)
    with pytest.raises(ValueError, match=f"longest trajectory of the data has {longest} steps"):
        buffers.Dataset(batch_size=4, chunk_length=longest + 1).prepare(recorded(rows))


def test_draws_that_know_no_chunks_refuse_them() -> None:
    draw = buffers.NStep(steps=2, discount=0.9)
    declared = buffers.Replay(replay_size=9, batch_size=4, chunk_length=2, draw=draw)
    with pytest.raises(ValueError, match="NStep draws rows without columns, and the agent asks"):
        declared.check()


def of_windows() -> buffers.Dataset:
    """Windows of trajectories with columns and the last step."""
    return buffers.Dataset(
        batch_size=400,
        num_updates=2,
        draw=buffers.TrajectoryWindows(length=H),
        columns=(buffers.ReturnToGo(), buffers.Time()),
        last_step=True,
    )


@pytest.mark.parametrize("on_host", [False, True])
def test_windows_of_trajectories(on_host: bool) -> None:
    """Against a loop: no row of another episode, and every row begins as many."""
    (rows,) = history(1, 61, seed=1)
    raw = recorded(rows)
    declared = of_windows()
    data = declared.prepare(raw)
    if on_host:
        batch = declared.take(data, jax.tree.map(np.asarray, declared.random(keys(), len(rows))))
        assert all(isinstance(leaf, np.ndarray) for leaf in jax.tree.leaves(batch))
    else:
        batch = sample(declared, None, data, keys())
    names = {"return_to_go", "has_return_to_go", "time", "valid"}
    assert set(batch.extras) == names
    spec = EnvSpec("test/Rows", (3,), 2)
    begins = []
    for place in np.ndindex(batch.reward.shape[:-1]):
        one = jax.tree.map(lambda x, at=place: np.asarray(x)[at], batch)
        begin = int(one.observation[0, 2])
        begins.append(begin)
        number = int(one.extras["valid"].sum())
        np.testing.assert_array_equal(one.extras["valid"], np.arange(H) < number)
        for i in range(number):
            t = begin + i
            start = max([0, *(s + 1 for s in range(t) if rows[s].terminated or rows[s].truncated)])
            end = next(
                (s for s in range(t, len(rows)) if rows[s].terminated or rows[s].truncated),
                len(rows) - 1,
            )
            assert start <= begin, "of one episode"
            assert i < number - 1 or end == t or number == H
            assert one.extras["time"][i] == t - start
            left = sum(rows[s].reward for s in range(t, end + 1))
            np.testing.assert_allclose(one.extras["return_to_go"][i], left, rtol=1e-5, atol=1e-5)
            np.testing.assert_array_equal(one.action[i], raw.action[t])
            state = raw.observation[t]
            expected = last_step.first(state, spec, xp=np)
            if t > start:
                before = (raw.action[t - 1], raw.reward[t - 1])
                expected = last_step.with_last_step(state, *before, spec, np)
            np.testing.assert_array_equal(one.observation[i], expected)
    counts = np.bincount(begins, minlength=len(rows))
    mean = len(begins) / len(rows)
    assert np.abs(counts - mean).max() < 5 * np.sqrt(mean), "each row as often"


@pytest.mark.parametrize("steps", [11, 57])
def test_windows_of_a_replay(steps: int) -> None:
    """Against a loop, before the ring is full and after it has begun anew: no row of another
    episode, windows end with episodes or the newest row alone, and every row begins as many.
    """
    rows = history(ENVS, steps, seed=2)
    declared = buffers.Replay(
        replay_size=SLOTS * ENVS,
        batch_size=45,
        num_envs=ENVS,
        num_updates=40,
        draw=buffers.EpisodeWindows(length=H),
    )
    declared.check()
    batch = jax.tree.map(np.asarray, sample(declared, ring(rows), None, keys()))
    assert batch.observation.shape == (LEARNERS, 40, 45, H, 3)
    begins, oldest = np.zeros((ENVS, steps)), max(steps - SLOTS, 0)
    for place in np.ndindex(batch.reward.shape[:-1]):
        one = jax.tree.map(lambda x, at=place: x[at], batch)
        learner, environment, begin = one.observation[0].astype(int)
        assert learner == place[0]
        begins[environment, begin] += 1
        number = int(one.extras["valid"].sum())
        np.testing.assert_array_equal(one.extras["valid"], np.arange(H) < number)
        expected = [(learner, environment, begin + i) for i in range(number)]
        np.testing.assert_array_equal(one.observation[:number], expected)
        ends = [x.terminated or x.truncated for x in rows[environment][begin : begin + number]]
        assert not any(ends[:-1])
        assert number == H or ends[-1] or begin + number == steps
    assert not begins[:, :oldest].any()
    mean = begins.sum() / begins[:, oldest:].size
    assert np.abs(begins[:, oldest:] - mean).max() < 5 * np.sqrt(mean), "each row as often"


def test_windows_longer_than_a_replay_are_refused() -> None:
    draw = buffers.EpisodeWindows(length=5)
    declared = buffers.Replay(replay_size=12, batch_size=4, num_envs=3, draw=draw)
    with pytest.raises(ValueError, match=r"a window has 5 steps, and --config\.replay-size 12"):
        declared.check()


def test_the_last_step_is_shown_beside_vectors_alone() -> None:
    declared = buffers.Dataset(batch_size=4, last_step=True)
    spec = declared.observed_spec(EnvSpec("test/Rows", (3,), 2), "rows")
    assert spec.observation_shape == (6,)
    assert declared.observes == ("last_step",)
    picture = EnvSpec("Picture", (4, 4, 3), 2, observation_dtype="uint8")
    with pytest.raises(ValueError, match=r"'rows' shows .* beside vectors alone"):
        declared.observed_spec(picture, "rows")
