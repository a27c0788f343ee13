"""Uniform draws: every stored transition equally often, nothing else ever, at a cost that knows no capacity."""

from __future__ import annotations

import types
from collections.abc import Iterator
from typing import Any

import jax
import numpy as np
import pytest

from rljax.buffers import samplers
from rljax.buffers.storage import Replay
from tests.buffers.test_storage import LEARNERS, nbytes, numbered, ring, transitions


def draw(replay: Replay, key: jax.Array, num_updates: int, batch_size: int) -> Any:
    """Uniform batches."""
    config = types.SimpleNamespace(num_updates=num_updates, batch_size=batch_size)
    return samplers.uniform(replay, key, config)


uniform = jax.jit(draw, static_argnums=(2, 3))


def filled(replay_size: int, num_envs: int, steps: int) -> Replay:
    """A ring after `steps` steps."""
    replay, add = ring(replay_size, num_envs), jax.jit(Replay.add)
    for time in range(steps):
        replay = add(replay, transitions(numbered(time, num_envs)))
    return replay


def keys(seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), LEARNERS)


@pytest.mark.parametrize("steps", [1, 5, 10, 25])  # one step, half full, full, after two wraps and a half
def test_each_stored_transition_is_drawn_equally_often(steps: int) -> None:
    replay = filled(30, 3, steps)
    drawn = np.asarray(uniform(replay, keys(), 50, 200).action)  # [P, batches, B] numbers
    stored = min(3 * steps, 30)
    for learner in range(LEARNERS):
        latest = [int(x) for time in range(steps) for x in numbered(time, 3)[learner]][-stored:]
        values, counts = np.unique(drawn[learner], return_counts=True)
        assert values.tolist() == sorted(latest), "all that is stored, and no row that is not or no longer"
        expected = drawn[learner].size / stored
        chi_square = float((np.square(counts - expected) / expected).sum())  # mean k, variance 2 k
        freedom = stored - 1
        assert chi_square < freedom + 5 * np.sqrt(2 * freedom)
        assert chi_square > freedom - 5 * np.sqrt(2 * freedom), "draws, not a rotation"


def test_fields_of_a_transition_stay_together() -> None:
    batch = uniform(filled(30, 3, 25), keys(), 4, 16)
    assert batch.reward.shape == (LEARNERS, 4, 16)
    assert batch.observation.shape == (LEARNERS, 4, 16, 2)
    expected = transitions(np.asarray(batch.action))
    jax.tree.map(np.testing.assert_array_equal, batch, expected)


def test_batches_learners_and_keys_differ() -> None:
    replay = filled(3000, 3, 900)
    drawn = np.asarray(uniform(replay, keys(), 3, 64).action)
    rows = drawn % 100_000  # the same in both learners where the same rows are drawn
    assert len({tuple(row) for row in rows.reshape(-1, 64)}) == 3 * LEARNERS
    again = np.asarray(uniform(replay, keys(), 3, 64).action)
    np.testing.assert_array_equal(drawn, again)
    other = np.asarray(uniform(replay, keys(1), 3, 64).action)
    assert (drawn != other).mean() > 0.9


def test_learner_draws_the_same_alone_and_in_a_population() -> None:
    replay = filled(30, 3, 25)
    together = uniform(replay, keys(), 2, 8)
    for learner in range(LEARNERS):
        one = slice(learner, learner + 1)
        alone = uniform(replay.replace(data=jax.tree.map(lambda x, one=one: x[one], replay.data)), keys()[one], 2, 8)
        jax.tree.map(lambda x, y, one=one: np.testing.assert_array_equal(x[one], y), together, alone)


def sizes(jaxpr: Any) -> Iterator[int]:
    """Elements of everything that a program computes, inner programs included."""
    for equation in jaxpr.eqns:
        yield from (int(np.prod(variable.aval.shape)) for variable in equation.outvars)
        for value in equation.params.values():
            for inner in value if isinstance(value, tuple | list) else (value,):
                inner = getattr(inner, "jaxpr", inner)
                if hasattr(inner, "eqns"):
                    yield from sizes(inner)


def test_nothing_that_is_computed_grows_with_the_capacity() -> None:
    small, large = ring(10_000, 1), ring(160_000, 1)
    programs = [jax.make_jaxpr(lambda r, k: draw(r, k, 4, 32))(replay, keys()) for replay in (small, large)]
    first, second = (list(sizes(program.jaxpr)) for program in programs)
    assert first == second
    assert max(first) <= LEARNERS * 4 * 32 * 2 * 2, "batches and little beside them"


def test_drawing_needs_no_memory_for_the_ring() -> None:
    temporary = []
    for rows in (10_000, 160_000):
        replay = ring(rows, 1)
        memory: Any = uniform.lower(replay, keys(), 4, 32).compile().memory_analysis()
        temporary.append(memory.temp_size_in_bytes)
        assert memory.temp_size_in_bytes < 0.1 * nbytes(replay.data)
    assert temporary[0] == temporary[1]
