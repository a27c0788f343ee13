"""Old and new rows in one batch."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from rljax.buffers.rows import AS_STORED, RewardMap
from rljax.buffers.storage.ring import ReplayBuffer
from tests.buffers.test_dataset import WEIGHTS, assert_drawn
from tests.helpers.counting import ROWS, dataset
from tests.helpers.replay_buffers import sample

NEW = [-6.0, -5.0, -4.0, -3.0, -2.0, -1.0]  # rewards of the ring's rows


def ring(size: int = 20, online: int = 6, extras: tuple[str, ...] = ()) -> ReplayBuffer:
    """A ring of one learner with `online` rewards below 0; extras say the reward, too."""
    example = jax.tree.map(lambda x: jnp.asarray(x[None, :1]), dataset())

    def at(reward: float) -> Transition:
        rewards = jnp.full((1, 1), reward)
        return example.replace(reward=rewards, extras=dict.fromkeys(extras, rewards))

    buffer = ReplayBuffer.create(at(0.0), size)
    for i in range(online):
        buffer = buffer.add(at(-1.0 - i))
    return buffer


def mixed(batch_size: int = 16, **changes: Any) -> buffers.Mixed:
    return buffers.Mixed(replay_size=20, batch_size=batch_size, **changes)


def batches(
    declared: buffers.Mixed, buffer: ReplayBuffer | None = None, data: Transition | None = None
) -> Transition:
    keys = jax.random.split(jax.random.key(0), 1)
    found = sample(declared, buffer or ring(), declared.prepare(data or dataset()), keys)
    return jax.tree.map(lambda x: np.asarray(x)[0], found)


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(("share", "rows"), [(0.5, 8), (0.25, 4), (0.0, 0)])
def test_a_fixed_share_of_a_batch_is_old(share: float, rows: int) -> None:
    reward = batches(mixed(num_updates=30, offline_share=share)).reward
    old = reward > 0
    assert (old.sum(axis=1) == rows).all()
    assert old[:, :rows].all(), "they come first"
    assert sorted(set(reward[~old].tolist())) == NEW, "what is stored, and no empty row"


@pytest.mark.parametrize(("online", "rows"), [(1, 14), (2, 12), (4, 8), (6, 8)])
def test_the_share_goes_from_one_to_another_over_new_transitions(online: int, rows: int) -> None:
    declared = mixed(num_updates=30, offline_share=(1.0, 0.5, 4))
    reward = batches(declared, ring(online=online)).reward
    old = reward > 0
    assert (old.sum(axis=1) == rows).all(), "1 - 0.5 online / 4 of 16, and from 4 on the half"
    assert old[:, :rows].all()
    assert sorted(set(reward[~old].tolist())) == NEW[6 - online :]


@pytest.mark.parametrize(("share", "old_share"), [(0.5, 0.5), ("pooled", ROWS / (ROWS + 6))])
def test_old_rows_can_have_weights(share: Any, old_share: float) -> None:
    declared = mixed(num_updates=1_000, offline_share=share, columns=(buffers.NextAction(),))
    data = buffers.with_weights(declared.prepare(dataset()), WEIGHTS / WEIGHTS.sum())
    found = sample(declared, ring(), data, jax.random.split(jax.random.key(1), 1))
    assert set(found.extras) == {"next_action", "has_next_action"}
    reward = np.asarray(found.reward).ravel()
    old = reward > 0
    assert abs(old.mean() - old_share) < 0.02
    assert_drawn(reward[old])
    counts = np.unique(reward[~old], return_counts=True)[1]
    assert len(counts) == 6
    np.testing.assert_allclose(counts, (~old).sum() / 6, atol=5 * np.sqrt((~old).sum() / 6))


def test_pooled_old_and_new_are_one_storage() -> None:
    batch = batches(mixed(num_updates=2_000, offline_share="pooled"))
    reward, number = batch.reward, ROWS + 6
    drawn, counts = np.unique(reward, return_counts=True)
    assert drawn.tolist() == [*NEW, *range(1, ROWS + 1)]
    expected = reward.size / number
    assert np.abs(counts - expected).max() < 5 * np.sqrt(expected), "each as often"
    old = np.asarray(dataset().observation)[np.maximum(reward, 1).astype(int) - 1]
    np.testing.assert_array_equal(batch.observation[reward > 0], old[reward > 0], "whole rows")


both_kinds = pytest.mark.parametrize("share", [0.5, "pooled"])


@pytest.mark.slow_after(1)
@both_kinds
def test_new_rewards_are_transformed_as_the_old_ones_were(share: Any) -> None:
    plain, changed, sparse = (
        batches(mixed(num_updates=10, offline_share=share, reward_map=rewards)).reward
        for rewards in (AS_STORED, RewardMap(10.0, -5.0), RewardMap(sparse=True))
    )
    new = plain < 0
    assert 0 < new.sum() < new.size
    np.testing.assert_array_equal(changed, np.where(new, 10.0 * plain - 5.0, plain))
    np.testing.assert_array_equal(sparse, np.where(new, -1.0, plain))


@both_kinds
def test_extras_that_old_and_new_rows_have_survive(share: Any) -> None:
    """Of those of one source alone, half of a batch would have none."""
    reward = dataset().reward
    data = dataset().replace(extras={"old": reward, "both": reward, "two": 2 * reward})
    buffer = ring(extras=("both", "two", "new"))
    batch = batches(mixed(num_updates=10, offline_share=share), buffer, data)
    assert set(batch.extras) == {"both", "two"}
    assert 0 < (batch.reward < 0).sum() < batch.reward.size
    np.testing.assert_array_equal(batch.extras["both"], batch.reward)
    np.testing.assert_array_equal(
        batch.extras["two"], np.where(batch.reward > 0, 2, 1) * batch.reward
    )


@both_kinds
def test_rewards_of_several_steps_are_summed_in_both(share: Any) -> None:
    """Against a loop over each row's episode, with rewards that are mapped before the sum."""
    draw, rewards = buffers.NStep(steps=3, discount=jnp.array([0.5])), RewardMap(10.0, -5.0)  # type: ignore[arg-type]
    declared = mixed(num_updates=20, offline_share=share, draw=draw, reward_map=rewards)
    data = dataset()
    data = data.replace(truncated=np.arange(ROWS) % 4 == 3, terminated=np.arange(ROWS) % 8 == 7)
    batch = batches(declared, data=data)
    assert set(batch.extras) == {"discount"}
    ends = data.terminated | data.truncated
    expected = {}
    for row in range(ROWS):
        last = min(row + 2, ROWS - 1, row + int(np.argmax(np.append(ends[row:], True))))
        steps = range(row, last + 1)
        total = sum(0.5 ** (i - row) * float(data.reward[i]) for i in steps)
        expected[float(data.action[row, 0])] = total, 0.5 ** len(steps), last
    old = batch.reward > 0
    assert 0 < old.sum() < old.size
    for index in np.argwhere(old):
        total, discount, last = expected[float(batch.action[tuple(index)][0])]
        row = jax.tree.map(lambda x, at=tuple(index): x[at], batch)
        np.testing.assert_allclose(
            (row.reward, row.extras["discount"]), (total, discount), rtol=1e-6
        )
        np.testing.assert_array_equal(row.next_observation, data.next_observation[last])
        assert (row.terminated, row.truncated) == (data.terminated[last], data.truncated[last])
    new = [-15.0, -25.0, -35.0, -45.0, -55.0, -65.0, 0.0, 0.0]  # 10 r - 5 of NEW, oldest first
    sums = {(new[i] + new[i + 1] / 2 + new[i + 2] / 4, 0.5 ** min(3, 6 - i)) for i in range(6)}
    found = zip(batch.reward[~old].tolist(), batch.extras["discount"][~old].tolist(), strict=True)
    assert set(found) == sums


def test_updates_begin_when_the_warm_up_is_over() -> None:
    """The data set fills a batch: one new row is enough."""
    assert [mixed().ready(steps) for steps in (0, 1, 15)] == [False, True, True]
    assert [mixed(warmup_steps=10).ready(steps) for steps in (0, 1, 9, 10)] == [
        False,
        False,
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("draw", "source"),
    [
        (buffers.Prioritised(exponent=0.5), "--config.prioritised"),
        (buffers.Sequences(length=5, every=2), "--config.length"),
        (buffers.Decisions(length=5, discount=0.9), "this agent"),
    ],
)
def test_draws_that_need_new_experience_alone_are_refused(draw: Any, source: str) -> None:
    replay = buffers.Replay(replay_size=20, batch_size=16, draw=draw)
    message = f"^{source} draws from a replay of new experience alone, not with --data.$"
    with pytest.raises(ValueError, match=message):
        buffers.Mixed.of(replay, 0.5, AS_STORED)


def test_a_mixture_is_all_that_the_replay_was() -> None:
    changes: Any = {
        "num_envs": 3,
        "num_steps": 2,
        "num_updates": 4,
        "warmup_steps": 5,
        "normalise_observations": True,
    }
    replay = buffers.Replay(replay_size=20, batch_size=16, columns=(buffers.Source(),), **changes)
    made = buffers.Mixed.of(replay, "pooled", RewardMap(2.0, 1.0))
    rewards = RewardMap(2.0, 1.0)
    assert made == mixed(
        columns=(buffers.Source(),), offline_share="pooled", reward_map=rewards, **changes
    )
    assert (made.kind, made.steps_per_iteration) == ("mixed", 6)
