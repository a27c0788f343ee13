"""The ring of transitions against a deque; writing to it never copies it."""

from __future__ import annotations

from collections import deque

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers, envs
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.learning.drivers.compiled import CompiledDriver
from rljax.learning.learner import Learner
from tests.helpers import counting
from tests.helpers.replay_buffers import LEARNERS, assert_in_place, numbered, transitions
from tests.helpers.replay_buffers import empty as ring


def replay_of(
    replay_size: int = 10, batch_size: int = 4, warmup_steps: int = 0, num_envs: int = 1
) -> buffers.Replay:
    return buffers.Replay(
        replay_size=replay_size, batch_size=batch_size, warmup_steps=warmup_steps, num_envs=num_envs
    )


@pytest.mark.parametrize(
    ("replay_size", "num_envs", "capacity"),
    [(10, 1, 10), (10, 3, 9), (12, 3, 12), (5, 5, 5), (9, 5, 5)],
)
def test_capacity_is_whole_steps(replay_size: int, num_envs: int, capacity: int) -> None:
    replay = ring(replay_size, num_envs)
    assert replay.capacity == capacity
    assert {x.shape[:2] for x in jax.tree.leaves(replay.data)} == {(LEARNERS, capacity)}
    assert (int(replay.size), int(replay.position)) == (0, 0)


@pytest.mark.parametrize(("replay_size", "num_envs"), [(10, 1), (11, 3), (4, 4), (13, 6)])
def test_ring_holds_what_a_deque_would(replay_size: int, num_envs: int) -> None:
    replay = ring(replay_size, num_envs)
    capacity = replay.capacity
    kept = [deque(maxlen=capacity) for _ in range(LEARNERS)]
    add = jax.jit(ReplayBuffer.add)
    for time in range(3 * capacity // num_envs + 2):  # three times round and a bit
        numbers = numbered(time, num_envs)
        replay = add(replay, transitions(numbers))
        for learner in range(LEARNERS):
            kept[learner].extend(numbers[learner])
        written = (time + 1) * num_envs
        assert (int(replay.size), int(replay.position)) == (
            min(written, capacity),
            written % capacity,
        )
        oldest_first = (
            int(replay.position) - int(replay.size) + np.arange(int(replay.size))
        ) % capacity
        found = jax.tree.map(lambda x, rows=oldest_first: np.asarray(x)[:, rows], replay.data)
        expected = transitions(np.array(kept))
        jax.tree.map(np.testing.assert_array_equal, found, expected)


def test_kinds_are_kept_and_counters_are_shared() -> None:
    replay = ring(10, 2).add(transitions(numbered(0, 2)))
    assert replay.data.action.dtype == jnp.int32
    assert replay.data.terminated.dtype == jnp.bool_
    assert replay.data.observation.shape == (LEARNERS, 10, 2)
    assert replay.position.shape == replay.size.shape == ()


def test_rows_not_yet_written_stay_empty() -> None:
    replay = ring(10, 2).add(transitions(numbered(0, 2)))
    for leaf in jax.tree.leaves(replay.data):
        assert not np.asarray(leaf)[:, 2:].any()


@pytest.mark.parametrize(
    ("steps", "warmup_steps", "ready"),
    [(3, 0, False), (4, 0, True), (9, 10, False), (10, 10, True)],
)
def test_updates_wait_for_the_warm_up_and_a_batch(
    steps: int, warmup_steps: int, ready: bool
) -> None:
    assert replay_of(batch_size=4, warmup_steps=warmup_steps).ready(steps) is ready
    assert bool(jax.jit(lambda n: replay_of(4, 4, warmup_steps).ready(n))(steps)) is ready


def test_impossible_sizes() -> None:
    replay_of(4, 4, num_envs=4).check()
    message = (
        r"^--config\.batch-size is 5, more than --config\.replay-size 4 transitions can "
        r"hold\. Lower .* raise"
    )
    with pytest.raises(ValueError, match=message):
        replay_of(4, 5).check()
    message = (
        r"^--config\.replay-size is 4, one step of --config\.num-envs 5 environments would "
        r"not fit\. Raise it"
    )
    with pytest.raises(ValueError, match=message):
        replay_of(4, 4, num_envs=5).check()


def test_the_declaration_makes_the_ring() -> None:
    declared = replay_of(replay_size=11, warmup_steps=7, num_envs=3)
    assert (declared.kind, declared.random_steps, declared.steps_per_iteration) == ("replay", 7, 3)
    buffer = declared.create(transitions(np.zeros((LEARNERS, 3))))
    jax.tree.map(np.testing.assert_array_equal, buffer, ring(11, 3))


# In place: a ring of megabytes, and programs that may need kilobytes beside it.

ROWS = 50_000


def test_donated_ring_is_written_in_place() -> None:
    replay, new = ring(ROWS, 3), transitions(numbered(0, 3))
    add = jax.jit(ReplayBuffer.add, donate_argnums=0)
    assert_in_place(add.lower(replay, new).compile(), replay.data)
    before = replay.data.observation.unsafe_buffer_pointer()
    replay = add(replay, new)
    assert replay.data.observation.unsafe_buffer_pointer() == before


def test_copy_would_be_noticed() -> None:
    """Without donation the ring is copied, and the measure says so."""
    replay, new = ring(ROWS, 3), transitions(numbered(0, 3))
    with pytest.raises(AssertionError):
        assert_in_place(jax.jit(ReplayBuffer.add).lower(replay, new).compile(), replay.data)


@pytest.mark.slow
@pytest.mark.parametrize(("num_learners", "num_steps", "num_updates"), [(1, 1, 1), (2, 2, 3)])
def test_driver_inside_the_program_copies_no_ring(
    num_learners: int, num_steps: int, num_updates: int
) -> None:
    environment = envs.make("rljax/Endless")
    config = counting.settings(
        num_learners, replay_size=200_000, num_envs=2, num_steps=num_steps, num_updates=num_updates
    )
    learner = Learner(counting.Fake(), environment.spec, num_learners)
    driver = CompiledDriver(learner, environment, config)
    driver.start(range(num_learners))
    advance = driver.loop.advance.lower(
        driver.carry, jnp.asarray(1, jnp.int32), driver.hyper, None
    ).compile()
    assert_in_place(advance, driver.learners.storage.data)
