"""Rings of transitions that can be told apart."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agent import Transition
from rljax.buffers.storage.ring import ReplayBuffer

LEARNERS = 2
DISCOUNT = np.array([0.9, 0.5], np.float32)  # of each learner


def keys(seed: int = 0) -> jax.Array:
    return jax.random.split(jax.random.key(seed), LEARNERS)


# Compiled as a whole: each operation would be a program.
create = jax.jit(ReplayBuffer.create, static_argnums=(1, 2))
begin = jax.jit(lambda declared, example: declared.create(example))
sample = jax.jit(lambda declared, buffer, data, keys: declared.sample(buffer, data, keys))


def transitions(numbers: Any) -> Transition:
    """[P, E], told apart in every field by their numbers [P, E]."""
    number = np.asarray(numbers, np.float32)
    parts = {
        "observation": np.stack([number, -number], axis=-1),
        "action": np.asarray(numbers, np.int32),
        "reward": number / 2,
        "terminated": number % 2 == 0,
        "truncated": number % 3 == 0,
        "next_observation": np.stack([number + 1, -number - 1], axis=-1),
        "extras": {"log_prob": -number},
    }
    return Transition(**parts)


def numbered(time: int, num_envs: int) -> np.ndarray:
    """Numbers [P, E] of the transitions of one step, all different."""
    return 1 + time * num_envs + np.arange(num_envs) + 100_000 * np.arange(LEARNERS)[:, None]


def empty(replay_size: int, num_envs: int) -> ReplayBuffer:
    return create(transitions(np.zeros((LEARNERS, num_envs))), replay_size)


def filled(replay_size: int, num_envs: int, steps: int) -> ReplayBuffer:
    replay, add = empty(replay_size, num_envs), jax.jit(ReplayBuffer.add)
    for time in range(steps):
        replay = add(replay, transitions(numbered(time, num_envs)))
    return replay


class Row(NamedTuple):
    """A step of an environment's episode."""

    environment: int
    episode: int
    time: int  # steps before it
    reward: float
    terminated: bool
    truncated: bool


def history(num_envs: int, steps: int, seed: int = 0, length: int = 6) -> list[list[Row]]:
    """Episodes of 1 to `length` steps with ends of both kinds."""
    generator = np.random.default_rng(seed)
    rows: list[list[Row]] = []
    for environment in range(num_envs):
        rows.append([])
        episode, time, last = 0, 0, generator.integers(1, length + 1)
        for _ in range(steps):
            ends = time + 1 == last
            terminated = bool(ends and generator.random() < 0.5)
            truncated = bool(ends and (not terminated or generator.random() < 0.5))
            rows[-1].append(
                Row(environment, episode, time, float(generator.normal()), terminated, truncated)
            )
            time += 1
            if ends:
                episode, time, last = episode + 1, 0, generator.integers(1, length + 1)
    return rows


def named(row: Row, later: int, learner: int) -> list[float]:
    """An observation: learner, environment, episode, step; and a goal of its own."""
    goal = [learner, row.environment, row.episode, -1]
    return [float(learner), row.environment, row.episode, row.time + later, *goal]


def of_episodes(rows: list[list[Row]], slots: int, timed: bool = True) -> ReplayBuffer:
    """A ring of so many steps of each environment; an action is its step's time."""
    number, steps = len(rows), len(rows[0])

    def at(t: int) -> Transition:
        now = [environment[t] for environment in rows]

        def each(function: Any, dtype: Any = np.float32) -> Any:
            return np.asarray(
                [[function(row, learner) for row in now] for learner in range(LEARNERS)], dtype
            )

        return Transition(
            observation=each(lambda row, learner: named(row, 0, learner)),
            action=each(lambda row, _: row.time, np.int32),
            reward=each(lambda row, _: row.reward),
            terminated=each(lambda row, _: row.terminated, bool),
            truncated=each(lambda row, _: row.truncated, bool),
            next_observation=each(lambda row, learner: named(row, 1, learner)),
            extras={"time": each(lambda row, _: row.time + 1, np.int32)} if timed else {},
        )

    replay = create(at(0), slots * number)
    replay = replay.replace(
        data=jax.tree.map(
            lambda x: x if x.dtype == bool else jnp.asarray(np.full(x.shape, 77, x.dtype)),
            replay.data,
        ),
    )
    add = jax.jit(ReplayBuffer.add)
    for t in range(steps):
        replay = add(replay, at(t))
    return replay


def drawn(batch: Transition) -> list[tuple[int, Transition]]:
    flat = jax.tree.map(lambda x: np.asarray(x).reshape(LEARNERS, -1, *x.shape[3:]), batch)
    return [
        (learner, jax.tree.map(lambda x, at=(learner, i): x[at], flat))
        for learner in range(LEARNERS)
        for i in range(flat.reward.shape[1])
    ]


# Not full; full; once, and more than twice round, with the seam in the middle.
RINGS = [(1, 8, 5), (3, 8, 5), (3, 8, 8), (1, 7, 17), (3, 7, 17), (2, 5, 11)]
of_all_kinds = pytest.mark.parametrize(("num_envs", "slots", "steps"), RINGS)


def nbytes(tree: Any) -> int:
    return sum(x.nbytes for x in jax.tree.leaves(tree))


def assert_in_place(compiled: Any, buffer: Any) -> None:
    """A program's memory holds no second copy of `buffer`; its result lies in the argument's
    place.
    """
    memory = compiled.memory_analysis()
    size = nbytes(buffer)
    assert size > 2e6
    assert memory.temp_size_in_bytes < 0.05 * size
    assert memory.alias_size_in_bytes > 0.99 * size
    assert memory.output_size_in_bytes - memory.alias_size_in_bytes < 0.05 * size
