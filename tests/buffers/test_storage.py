"""The ring of transitions against a deque, and that writing to it never copies it."""

from __future__ import annotations

import types
from collections import deque
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.agent import Transition
from rljax.buffers import samplers
from rljax.buffers.storage import STORAGES, Replay, Rollout
from rljax.training.drivers.compiled import CompiledDriver
from rljax.training.learner import Learner
from tests.training import test_learner

LEARNERS = 2


def settings(replay_size: int = 10, batch_size: int = 4, warmup_steps: int = 0) -> Any:
    """What a ring reads of a config."""
    return types.SimpleNamespace(replay_size=replay_size, batch_size=batch_size, warmup_steps=warmup_steps)


def transitions(numbers: Any) -> Transition:
    """Transitions [P, E] that can be told apart in every field by their numbers [P, E]."""
    number = np.asarray(numbers, np.float32)
    parts: Any = {
        "observation": np.stack([number, -number], axis=-1),
        "action": np.asarray(numbers, np.int32),
        "reward": number / 2,
        "terminated": number % 2 == 0,
        "truncated": number % 3 == 0,
        "next_observation": np.stack([number + 1, -number - 1], axis=-1),
        "extras": {"log_prob": -number},
    }
    return Transition(**parts)


def ring(replay_size: int, num_envs: int) -> Replay:
    """An empty ring."""
    return Replay.create(transitions(np.zeros((LEARNERS, num_envs))), settings(replay_size))


def numbered(time: int, num_envs: int) -> np.ndarray:
    """Numbers [P, E] of the transitions of one step; no two are the same, in no learner."""
    return 1 + time * num_envs + np.arange(num_envs) + 100_000 * np.arange(LEARNERS)[:, None]


@pytest.mark.parametrize(
    ("replay_size", "num_envs", "capacity"), [(10, 1, 10), (10, 3, 9), (12, 3, 12), (5, 5, 5), (9, 5, 5)]
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
    add = jax.jit(Replay.add)
    for time in range(3 * capacity // num_envs + 2):  # three times round and a bit
        numbers = numbered(time, num_envs)
        replay = add(replay, transitions(numbers))
        for learner in range(LEARNERS):
            kept[learner].extend(numbers[learner])
        written = (time + 1) * num_envs
        assert (int(replay.size), int(replay.position)) == (min(written, capacity), written % capacity)
        oldest_first = (int(replay.position) - int(replay.size) + np.arange(int(replay.size))) % capacity
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
    ("steps", "warmup_steps", "ready"), [(3, 0, False), (4, 0, True), (9, 10, False), (10, 10, True)]
)
def test_updates_wait_for_the_warm_up_and_a_batch(steps: int, warmup_steps: int, ready: bool) -> None:
    assert Replay.ready(steps, settings(batch_size=4, warmup_steps=warmup_steps)) is ready
    assert bool(jax.jit(lambda n: Replay.ready(n, settings(4, 4, warmup_steps)))(steps)) is ready


def test_impossible_sizes() -> None:
    Replay.check(settings(4, 4), 4)
    message = r"^--config\.batch-size is 5, more than --config\.replay-size 4 transitions can hold\. Lower .* raise"
    with pytest.raises(ValueError, match=message):
        Replay.check(settings(4, 5), 1)
    message = r"^--config\.replay-size is 4, one step of --config\.num-envs 5 environments would not fit\. Raise it"
    with pytest.raises(ValueError, match=message):
        Replay.check(settings(4, 4), 5)


def test_storages_have_their_names() -> None:
    assert STORAGES["replay"] is Replay


# In place: a ring of megabytes, and programs that may need kilobytes beside it.

ROWS = 50_000


def nbytes(tree: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def assert_in_place(compiled: Any, buffer: Any) -> None:
    """A program's memory holds no second copy of `buffer`, and its result lies where the argument lay."""
    memory = compiled.memory_analysis()
    size = nbytes(buffer)
    assert size > 2e6
    assert memory.temp_size_in_bytes < 0.05 * size
    assert memory.alias_size_in_bytes > 0.99 * size
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.05 * size


def test_donated_ring_is_written_in_place() -> None:
    replay, new = ring(ROWS, 3), transitions(numbered(0, 3))
    add = jax.jit(Replay.add, donate_argnums=0)
    assert_in_place(add.lower(replay, new).compile(), replay.data)
    before = replay.data.observation.unsafe_buffer_pointer()
    replay = add(replay, new)
    assert replay.data.observation.unsafe_buffer_pointer() == before


def test_ring_in_a_loop_is_written_and_read_in_place() -> None:
    replay, keys = ring(ROWS, 3), jax.random.split(jax.random.key(0), LEARNERS)

    def one(_: Any, carry: Any) -> Any:
        replay, total = carry
        replay = replay.add(transitions(numbered(0, 3)))  # the order counts: reading first would copy
        return replay, total + samplers.uniform(
            replay, keys, types.SimpleNamespace(num_updates=2, batch_size=16)
        ).reward.sum()

    loop = jax.jit(lambda replay, n: jax.lax.fori_loop(0, n, one, (replay, 0.0)), donate_argnums=0)
    assert_in_place(loop.lower(replay, 5).compile(), replay.data)


def test_copy_would_be_noticed() -> None:
    """The measure itself: without donation the ring is copied, and the analysis says so."""
    replay, new = ring(ROWS, 3), transitions(numbered(0, 3))
    with pytest.raises(AssertionError):
        assert_in_place(jax.jit(Replay.add).lower(replay, new).compile(), replay.data)


@pytest.mark.parametrize(("num_learners", "num_steps", "num_updates"), [(1, 1, 1), (2, 2, 3)])
def test_driver_inside_the_program_copies_no_ring(num_learners: int, num_steps: int, num_updates: int) -> None:
    environment = envs.make("rljax/Endless")
    config = test_learner.settings(
        num_learners, replay_size=200_000, num_envs=2, num_steps=num_steps, num_updates=num_updates
    )
    learner = Learner(test_learner.Fake(), environment.spec, num_learners, config.num_envs)
    driver = CompiledDriver(learner, environment, config)
    driver.start(range(num_learners))
    advance = driver._advance.lower(driver.carry, jnp.asarray(1, jnp.int32), config, None).compile()
    assert_in_place(advance, driver.learners.storage.data)


def rollout_settings(num_steps: int = 4, num_envs: int = 3, batch_size: int = 6) -> Any:
    """What a rollout reads of a config."""
    return types.SimpleNamespace(num_steps=num_steps, num_envs=num_envs, batch_size=batch_size)


def test_rollout_holds_the_last_steps_in_order() -> None:
    rollout = Rollout.create(transitions(np.zeros((LEARNERS, 3))), rollout_settings())
    assert {x.shape[:3] for x in jax.tree.leaves(rollout.data)} == {(LEARNERS, 4, 3)}
    add = jax.jit(Rollout.add, donate_argnums=0)
    for time in range(8):
        rollout = add(rollout, transitions(numbered(time, 3)))
    expected = transitions(np.stack([numbered(time, 3) for time in range(4, 8)], axis=1))
    jax.tree.map(np.testing.assert_array_equal, rollout.data, expected)
    assert int(rollout.position) == 0
    batch = samplers.whole(rollout, jax.random.split(jax.random.key(0), LEARNERS), rollout_settings())
    assert batch.reward.shape == (LEARNERS, 1, 4, 3)


def test_rollout_is_written_in_place() -> None:
    rollout = Rollout.create(transitions(np.zeros((LEARNERS, 3))), rollout_settings(num_steps=ROWS))
    compiled = jax.jit(Rollout.add, donate_argnums=0).lower(rollout, transitions(numbered(0, 3))).compile()
    assert_in_place(compiled, rollout.data)


def test_rollout_is_ready_when_it_is_full() -> None:
    ready = [Rollout.ready(steps, rollout_settings()) for steps in (0, 11, 12, 24)]
    assert ready == [False, False, True, True]


def test_minibatches_that_do_not_divide_a_rollout_are_refused() -> None:
    Rollout.check(rollout_settings(), 3)
    with pytest.raises(ValueError, match=r"batch-size is 5, .* 4 x --config.num-envs 3 = 12 transitions. Nearest: 4"):
        Rollout.check(rollout_settings(batch_size=5), 3)
