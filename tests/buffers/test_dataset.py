"""Batches from a data set alone, uniform or by weight."""

from __future__ import annotations

from typing import Any

import jax
import numpy as np
import pytest

from rljax import buffers
from rljax.buffers.dataset import WHOLE, alias_table
from rljax.buffers.rows import trajectory_ends
from tests.buffers import reference
from tests.helpers import replay_buffers
from tests.helpers.counting import ROWS, dataset
from tests.helpers.replay_buffers import sample


def test_every_row_is_drawn_equally_often_and_whole() -> None:
    declared, keys = buffers.Dataset(batch_size=64, num_updates=50), replay_buffers.keys()
    batches = sample(declared, None, dataset(), keys)
    assert batches.observation.shape == (2, 50, 64, 2)
    for learner in np.asarray(batches.reward, int).reshape(2, -1):
        assert set(learner) == set(range(1, ROWS + 1))
        reference.assert_drawn(learner - 1, np.ones(ROWS))
    assert_taken_on_the_host(declared, dataset(), keys, batches)
    np.testing.assert_array_equal(batches.observation[..., 0], batches.reward)
    np.testing.assert_array_equal(batches.next_observation[..., 1], -batches.reward + 0.5)


def assert_taken_on_the_host(declared: Any, data: Any, keys: Any, batches: Any) -> None:
    """Learners have their own batches; the host can take them of data that the device lacks."""
    assert np.any(batches.reward[0] != batches.reward[1])
    drawn = jax.tree.map(np.asarray, declared.draw.random(keys, ROWS, declared))
    on_host = declared.draw.take(data, drawn)
    assert isinstance(on_host.reward, np.ndarray)
    jax.tree.map(np.testing.assert_array_equal, on_host, batches)


def test_trajectories_end_at_ends_at_limits_and_with_the_data() -> None:
    data: Any = dataset(6)
    ends = np.array([False, True, False, False, False, False])
    limits = np.array([False, False, False, True, False, False])
    given = data.replace(terminated=ends, truncated=limits)
    np.testing.assert_array_equal(trajectory_ends(given), [False, True, False, True, False, True])
    assert not given.terminated[-1], "what was given stays as it was"
    assert not given.truncated[-1]


def test_a_data_set_says_what_it_is() -> None:
    declared = buffers.Dataset(
        batch_size=8, num_updates=3, reward_transform="minus_one", learns_until=100.0
    )
    assert (declared.kind, declared.stages(10, 0), declared.observes) == ("dataset", (10, 0), ())
    assert (declared.steps_per_iteration, declared.online) == (3, None)
    assert declared.create(None) is None  # type: ignore[arg-type]
    assert declared.ready(0)
    prepared = declared.prepare(dataset())
    jax.tree.map(np.testing.assert_array_equal, prepared, dataset())


def test_rows_keep_the_extras_of_the_file() -> None:
    data: Any = dataset().replace(extras={"number": np.arange(1, ROWS + 1)})
    declared = buffers.Dataset(batch_size=8, columns=(buffers.Source(),))
    batch = sample(declared, None, declared.prepare(data), replay_buffers.keys())
    assert set(batch.extras) == {"number", "offline"}
    np.testing.assert_array_equal(batch.extras["number"], batch.reward)
    assert batch.extras["offline"].all()


def test_columns_that_a_draw_would_lose_are_refused() -> None:
    goals = buffers.Goals(
        discount=0.9,
        value_goal_current=0.2,
        value_goal_future=0.5,
        value_goal_times="even",
        actor_goal_current=0.0,
        actor_goal_future=1.0,
        actor_goal_times="even",
    )
    buffers.Dataset(batch_size=8, draw=goals).check()
    buffers.Dataset(batch_size=8, columns=(buffers.NextAction(),)).check()
    with pytest.raises(
        ValueError, match=r"^Goals draws rows without columns, and the agent asks for NextAction\."
    ):
        buffers.Dataset(batch_size=8, draw=goals, columns=(buffers.NextAction(),)).check()


# Weighted rows.


def probabilities(table: np.ndarray) -> list[int]:
    """What an alias table [N, 2] gives each row, in units of 2^-32 / N."""
    total = [0] * len(table)
    for row, (kept, alias) in enumerate(table.tolist()):
        total[row] += kept
        total[alias] += WHOLE - kept
    return total


@pytest.mark.parametrize("number", [1, 2, 7, 500])
@pytest.mark.parametrize("spread", [0.0, 0.1, 3.0, 100.0])
def test_an_alias_table_has_the_softmax(number: int, spread: float) -> None:
    score = spread * np.random.default_rng(number).normal(size=number)
    expected = np.exp(score - score.max())
    if number > 1:
        expected[1::3] = 0.0
    expected /= expected.sum()
    total = np.array(probabilities(alias_table(expected)))
    assert total.sum() == number * WHOLE
    np.testing.assert_allclose(
        total / WHOLE / number, expected, rtol=1e-14, atol=1.01 / WHOLE / number
    )
    assert (total[expected == 0] == 0).all(), "exactly never"


WEIGHTS = np.where(np.arange(ROWS) % 4 == 1, 0.0, np.exp(np.arange(ROWS) / 10.0))


def test_rows_are_drawn_as_often_as_their_weights_say_and_whole() -> None:
    data = buffers.with_weights(dataset(), WEIGHTS / WEIGHTS.sum())
    declared = buffers.Dataset(batch_size=64, num_updates=200, draw=buffers.WeightedRows())
    keys = replay_buffers.keys(3)
    batches = sample(declared, None, data, keys)
    assert batches.extras == {}, "the table stays behind"
    np.testing.assert_array_equal(batches.observation[..., 0], batches.reward)
    for learner in np.asarray(batches.reward).reshape(2, -1):
        assert_drawn(learner)
    assert_taken_on_the_host(declared, data, keys, batches)


@pytest.mark.slow
def test_half_of_a_batch_is_of_one_part() -> None:
    part = np.repeat(np.arange(3, dtype=np.float32), (10, 4, ROWS - 14))
    declared = buffers.Dataset(batch_size=32, num_updates=60, draw=buffers.PartRows(part=1))
    data = declared.prepare(dataset().replace(extras={"part": part}))
    keys = replay_buffers.keys(3)
    batches = sample(declared, None, data, keys)
    assert batches.reward.shape == (2, 60, 64)
    assert batches.extras == {}, "label and table stay behind"
    rows = np.asarray(batches.reward).astype(np.int64) - 1  # rewards are 1, 2, ...
    everybody, expert = np.split(rows, 2, axis=-1)
    assert set(everybody.ravel()) == set(range(ROWS))
    reference.assert_drawn(everybody, np.ones(ROWS))
    reference.assert_drawn(expert, part == 1)
    assert_taken_on_the_host(declared, data, keys, batches)


def assert_drawn(rewards: np.ndarray) -> None:
    """Rewards 1, 2, ... are drawn as often as `WEIGHTS` says."""
    reference.assert_drawn(rewards.astype(int) - 1, WEIGHTS)


def test_weighted_rows_keep_their_columns() -> None:
    columns = (buffers.NextAction(), buffers.ReturnToGo(discount=0.9))
    declared = buffers.Dataset(
        batch_size=64, num_updates=5, columns=columns, draw=buffers.WeightedRows()
    )
    prepared = declared.prepare(dataset())
    declared.check()
    weighted = buffers.with_weights(prepared, WEIGHTS / WEIGHTS.sum())
    batch = sample(declared, None, weighted, replay_buffers.keys()[:1])
    rows = np.asarray(batch.reward).astype(np.int64) - 1
    assert set(batch.extras) == {
        "next_action",
        "has_next_action",
        "return_to_go",
        "has_return_to_go",
    }
    for name, column in batch.extras.items():
        np.testing.assert_array_equal(column, prepared.extras[name][rows], err_msg=name)
