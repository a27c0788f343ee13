"""Sequences: what windows hold, and how often each is drawn."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import MEMORY, Transition
from rljax.buffers.prioritised import Pending
from rljax.buffers.storage import successors
from rljax.buffers.storage.ring import ReplayBuffer
from tests.buffers import reference
from tests.helpers.counting import assert_equal, replay
from tests.helpers.replay_buffers import (
    LEARNERS,
    assert_in_place,
    keys,
    numbered,
    sample,
    transitions,
)
from tests.learning.drivers import kinds
from tests.learning.drivers.test_memory import STEPS, Remembering

LENGTH, EVERY, ENVS = 5, 2, 3
ALPHA = jnp.asarray([0.6, 1.0], jnp.float32)  # of each learner
BETA = jnp.asarray([0.4, 0.7], jnp.float32)


def declare(slots: int, exponent: Any = None, **changes: Any) -> buffers.Replay:
    """A replay of so many steps of each environment."""
    sizes: Any = {"batch_size": 50, "num_updates": 4, "remembers": True} | changes
    draw = buffers.Sequences(length=LENGTH, every=EVERY, exponent=exponent, correction=BETA)  # type: ignore[arg-type]
    return buffers.Replay(replay_size=slots * ENVS, num_envs=ENVS, draw=draw, **sizes)


def remembering(numbers: np.ndarray) -> Transition:
    plain, number = transitions(numbers), np.asarray(numbers, np.float32)
    memory = {"one": number * 10.0, "two": np.stack([number, -number], axis=-1)}
    return plain.replace(extras={**plain.extras, MEMORY: memory})


@jax.jit
def store(
    ring: ReplayBuffer, rows: Any, pending: Pending | None, declared: buffers.Replay
) -> ReplayBuffer:
    return declared.store(ring, pending, rows)[0]


def filled(declared: buffers.Replay, steps: int, memory: bool = True) -> ReplayBuffer:
    make = remembering if memory else transitions
    ring: Any = declared.create(make(np.zeros((LEARNERS, ENVS))))
    none = None if ring.index.priorities is None else Pending.none(jnp.zeros((LEARNERS, 1, 1)))
    for time in range(steps):
        ring = store(ring, make(numbered(time, ENVS)), none, declared)
    return ring


def beginnings(slots: int, steps: int, usable: int | None = None) -> list[int]:
    """The times at which whole windows begin, in the last `usable` steps."""
    held = min(steps, slots) if usable is None else usable
    return [time for time in range(0, steps, EVERY) if steps - held <= time <= steps - LENGTH]


def number_of(batch: Transition) -> np.ndarray:
    return np.asarray(batch.observation[..., 0]).astype(np.int64)


def assert_windows(batch: Transition, expected: list[int], newest: int | None = None) -> None:
    """Each window is LENGTH steps of one environment, and all that may be drawn are. With `newest`,
    observations are stored once: before this last step, a successor is the next observation.
    """
    batch = jax.tree.map(np.asarray, batch)
    for learner in range(LEARNERS):
        number = number_of(batch)[learner] - 1 - 100_000 * learner  # [U, T, B]
        time, environment = number // ENVS, number % ENVS
        begin = time[:, :1]
        np.testing.assert_array_equal(
            time, np.broadcast_to(begin + np.arange(LENGTH)[:, None], time.shape)
        )
        np.testing.assert_array_equal(environment, np.broadcast_to(environment[:, :1], time.shape))
        pairs = set(zip(begin.ravel().tolist(), environment[:, 0].ravel().tolist(), strict=True))
        assert pairs == {(time, e) for time in expected for e in range(ENVS)}
    rows = transitions(number_of(batch))
    if newest is not None:
        time = (number_of(batch) - 1) % 100_000 // ENVS
        goes_on = ~(batch.terminated | batch.truncated) & (time < newest)
        following = transitions(number_of(batch) + ENVS).observation
        rows = rows.replace(
            next_observation=np.where(goes_on[..., None], following, rows.next_observation)
        )
    for name in ("observation", "action", "reward", "terminated", "truncated", "next_observation"):
        np.testing.assert_array_equal(getattr(batch, name), getattr(rows, name), name)
    first = np.zeros(batch.reward.shape, bool)
    first[:, :, 1:] = (batch.terminated | batch.truncated)[:, :, :-1]
    np.testing.assert_array_equal(batch.extras["first"], first)
    np.testing.assert_array_equal(batch.extras["log_prob"], -number_of(batch).astype(np.float32))
    memory, begin = batch.extras[MEMORY], number_of(batch)[:, :, 0].astype(np.float32)
    np.testing.assert_array_equal(memory["one"], begin * 10.0)
    np.testing.assert_array_equal(memory["two"], np.stack([begin, -begin], axis=-1))


# One window; partly filled; just full; after a round, at odd and even steps; after many. 11 steps
# are rounded to 10.
@pytest.mark.parametrize(
    ("slots", "steps"), [(8, 5), (8, 7), (8, 8), (8, 9), (8, 12), (11, 23), (6, 31)]
)
def test_windows_are_consecutive_steps_with_the_memory_before_them(slots: int, steps: int) -> None:
    declared = declare(slots)
    batch = sample(declared, filled(declared, steps), None, keys())
    assert_windows(batch, beginnings(slots // EVERY * EVERY, steps))
    np.testing.assert_array_equal(batch.extras["weight"], 1.0)
    assert "row" not in batch.extras


@pytest.mark.slow
def test_large_observations_are_stored_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer rows may be drawn where many episodes end, perhaps none."""
    monkeypatch.setattr(successors, "LARGE", 0)
    monkeypatch.setattr(successors, "FEWEST", 4)
    for share, steps in ((2, 14), (2, 31), (100, 14)):
        monkeypatch.setattr(successors, "SHARE", share)
        declared = declare(10)
        ring = filled(declared, steps)
        assert ring.data.next_observation is None
        batch = sample(declared, ring, None, keys())
        usable = np.asarray(ring.successors.usable) // ENVS  # type: ignore[union-attr]
        assert (usable < LENGTH).all() == (share == 100)
        np.testing.assert_array_equal(batch.extras["weight"], float(share == 2))
        if share == 2:
            assert_windows(batch, beginnings(10, steps, int(usable[0])), steps - 1)


def test_windows_are_drawn_evenly() -> None:
    declared = declare(8, batch_size=500)
    batch = sample(declared, filled(declared, 13), None, keys())
    for learner in range(LEARNERS):
        begin = number_of(batch)[learner, :, 0].ravel() - 1 - 100_000 * learner
        weight = np.zeros(13 * ENVS)
        weight[[time * ENVS + e for time in beginnings(8, 13) for e in range(ENVS)]] = 1.0
        reference.assert_drawn(begin, weight)


@pytest.mark.slow
@pytest.mark.parametrize("steps", [7, 8, 13, 30])
def test_priorities_are_those_of_whole_windows(steps: int) -> None:
    declared = declare(8, ALPHA, batch_size=200)
    ring = filled(declared, steps)
    windows = 4 * ENVS
    priority = np.random.default_rng(0).exponential(size=(LEARNERS, windows)).astype(np.float32)
    rows = jnp.broadcast_to(jnp.arange(windows), (LEARNERS, 1, windows))
    pending = Pending(rows, jnp.asarray(priority[:, None]), jnp.asarray(True))
    kept = ring.index.priorities.written(pending, jnp.full(ENVS, -1), ALPHA)  # type: ignore[union-attr]
    ring = ring.replace(index=ring.index.replace(priorities=kept))
    batch = jax.tree.map(np.asarray, sample(declared, ring, None, keys()))
    assert_windows(batch, beginnings(8, steps))
    for learner in range(LEARNERS):
        row, begin = (
            batch.extras["row"][learner],
            number_of(batch)[learner, :, 0] - 1 - 100_000 * learner,
        )
        np.testing.assert_array_equal(row, begin // ENVS // EVERY % 4 * ENVS + begin % ENVS)
        mass = np.zeros(windows)
        whole = [time // EVERY % 4 * ENVS + e for time in beginnings(8, steps) for e in range(ENVS)]
        mass[whole] = (priority[learner, whole] + 1e-6) ** float(ALPHA[learner])
        reference.assert_drawn(row, mass)
        weight = mass[row] ** -float(BETA[learner])
        np.testing.assert_allclose(
            batch.extras["weight"][learner], weight / weight.max(-1, keepdims=True), rtol=1e-4
        )


@pytest.mark.slow
def test_a_new_window_has_the_largest_priority_and_an_old_one_is_written_before_it() -> None:
    declared = declare(8, ALPHA)
    ring = filled(declared, 8)  # the next step begins the window of row 0 anew
    pending = Pending(
        jnp.asarray([[[0, 4]]] * LEARNERS),
        jnp.asarray([[[7.0, 3.0]]] * LEARNERS),
        jnp.asarray(True),
    )
    ring = store(ring, remembering(numbered(8, ENVS)), pending, declared)
    sums = np.asarray(ring.index.priorities.sums)  # type: ignore[union-attr]
    first = sums.shape[1] // 2
    for learner in range(LEARNERS):
        alpha = float(ALPHA[learner])
        np.testing.assert_allclose(sums[learner, first : first + ENVS], 7.0**alpha, rtol=1e-5)
        np.testing.assert_allclose(sums[learner, first + 4], 3.0**alpha, rtol=1e-5)
        np.testing.assert_allclose(sums[learner, first + 5], 1.0, rtol=1e-5)
    ring = store(ring, remembering(numbered(9, ENVS)), Pending.none(pending.row), declared)
    np.testing.assert_array_equal(ring.index.priorities.sums, sums)  # type: ignore[union-attr]


def test_without_a_memory_none_is_stored() -> None:
    declared = declare(8, remembers=False)
    ring = filled(declared, 9, memory=False)
    assert jax.tree.leaves(ring.index) == []
    assert MEMORY not in sample(declared, ring, None, keys()).extras


def test_one_learner_has_its_own_windows() -> None:
    ring = filled(declare(8, ALPHA), 9)
    one: Any = ring.of_learner(1)
    np.testing.assert_array_equal(one.index.memory["one"], np.asarray(ring.index.memory["one"])[1])
    np.testing.assert_array_equal(
        one.index.priorities.sums, np.asarray(ring.index.priorities.sums)[1]
    )  # type: ignore[union-attr]
    np.testing.assert_array_equal(one.data.reward, np.asarray(ring.data.reward)[1])


def test_a_step_is_written_in_place() -> None:
    declared = declare(20_000)
    ring = declared.create(remembering(np.zeros((LEARNERS, ENVS))))
    rows = remembering(numbered(0, ENVS))
    program = jax.jit(lambda ring, rows: declared.store(ring, None, rows)[0], donate_argnums=0)
    assert_in_place(program.lower(ring, rows).compile(), ring)


def test_cut_episodes_begin_anew_inside_of_a_window() -> None:
    declared = declare(8)
    ring = filled(declared, 3).cut_episodes(ENVS)
    for time in range(3, 6):
        ring = store(ring, remembering(numbered(time, ENVS)), None, declared)
    batch = sample(declared, ring, None, keys())
    time = (number_of(batch) - 1) % 100_000 // ENVS
    assert np.asarray(batch.extras["first"])[time == 3].all()


def test_sizes_that_hold_no_window_are_refused() -> None:
    message = r"--config.replay-size is 15, sequences of 5 .* need at least 18. Raise it."
    with pytest.raises(ValueError, match=message):
        declare(5, batch_size=4).check()
    declare(6, batch_size=4).check()
    with pytest.raises(ValueError, match=r"--config.shift is 4, it must be 0"):
        declare(6, batch_size=4, shift=4).check()
    assert declare(8, batch_size=4, warmup_steps=3).steps_before_updates == LENGTH * ENVS
    assert declare(8, batch_size=4, warmup_steps=30).steps_before_updates == 30


# Learners.


class Replaying(Remembering):
    """It compares what was remembered with what a sequence's observations show."""

    def experience(self, config: Any) -> Any:
        return replay(
            config, draw=buffers.Sequences(length=STEPS, every=2, exponent=0.9), remembers=True
        )

    def update(self, state: Any, batch: Any, key: Any, step: Any, config: Any) -> Any:
        state, metrics = super().update(state, batch, key, step, config)
        return state, metrics | buffers.priorities((batch.reward.sum(axis=0) + step)[None], batch)


CHANGES: Any = {
    "num_envs": 3,
    "num_steps": 2,
    "num_updates": 2,
    "warmup_steps": 30,
    "replay_size": 66,
}


def tallied(driver: Any) -> dict[str, np.ndarray]:
    return {
        name: np.asarray(x)
        for name, x in driver.report().metrics.items()
        if not name.startswith("episode/")
    }


@pytest.mark.slow
def test_a_checkpoint_holds_the_windows() -> None:
    reference.assert_restored_exactly(Replaying(), CHANGES)


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["hosted", pytest.param("embedded", marks=pytest.mark.learn)])
def test_drivers_store_the_memory_before_each_window(kind: str) -> None:
    inside, outside = (
        kinds.driven(each, [1, 2], 25, Replaying(), limit=5, **CHANGES)
        for each in ("compiled", kind)
    )
    assert_equal(inside.learners.storage, outside.learners.storage, rtol=1e-5, atol=1e-6)
    for driver in (inside, outside):
        found = tallied(driver)
        assert (found["firsts"] > 0.1).all()
        for name in ("memory", "sum", "first"):  # actions of the warm-up are uniform
            np.testing.assert_array_equal(found[name], 0.0, name)
