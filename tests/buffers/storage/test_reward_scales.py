"""Scales of rewards against a loop in float64, with episodes that end."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition

STEPS, LEARNERS, ENVS = 12, 2, 3
DISCOUNTS = np.array([0.9, 0.5], np.float32)


def experience() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Rewards, ends by the environment and by a time limit, [T, P, E] each."""
    generator = np.random.default_rng(0)
    reward = generator.normal(1.0, 2.0, (STEPS, LEARNERS, ENVS)).astype(np.float32)
    ends = generator.random((2, STEPS, LEARNERS, ENVS)) < 0.15
    return reward, ends[0], ends[1]


def by_hand(carries: bool, limit: float | None) -> np.ndarray:
    """The scale of each learner [P]: sums from an episode's first reward on, or as the code of
    FlashSAC and XQC has it, which drops the past where `done` is set.
    """
    reward, terminated, truncated = experience()
    scales = []
    for p in range(LEARNERS):
        sums, all_sums = np.zeros(ENVS), []
        for t in range(STEPS):
            done = terminated[t, p] | truncated[t, p]
            if carries:
                sums = DISCOUNTS[p] * (1 - done) * sums + reward[t, p]
                all_sums.append(sums)
            else:
                sums = DISCOUNTS[p] * sums + reward[t, p]
                all_sums.append(sums)
                sums = np.where(done, 0.0, sums)
        scale = np.sqrt(np.var(all_sums) + 1e-8)
        if limit is not None:
            scale = max(scale, np.abs(all_sums).max() / limit)
        scales.append(scale)
    return np.array(scales)


@pytest.mark.parametrize("carries", [False, True])
@pytest.mark.parametrize("limit", [None, 0.5])
def test_rewards_are_divided_by_the_scale_of_all_returns_so_far(
    carries: bool, limit: float | None
) -> None:
    scale = buffers.RewardScale(
        discount=DISCOUNTS,  # type: ignore[arg-type]
        return_limit=None if limit is None else np.full(2, limit),  # type: ignore[arg-type]
        carry_rewards=carries,
    )
    replay = buffers.Replay(
        replay_size=30, batch_size=4, num_envs=ENVS, num_updates=2, rewards=scale
    )
    reward, terminated, truncated = map(jnp.asarray, experience())
    zeros = jnp.zeros((LEARNERS, ENVS, 1))
    steps = [
        Transition(zeros, zeros, reward[t], terminated[t], truncated[t], zeros)
        for t in range(STEPS)
    ]
    storage, store = replay.create(steps[0]), jax.jit(replay.store)
    for step in steps:
        storage, _ = store(storage, None, step)
    keys = jax.random.split(jax.random.key(0), LEARNERS)
    drawn = replay.sample(storage, None, keys).reward
    plain = buffers.Replay(replay_size=30, batch_size=4, num_envs=ENVS, num_updates=2)
    rewards = plain.sample(storage.replace(returns=None), None, keys).reward
    expected = rewards / by_hand(carries, limit)[:, None, None]
    np.testing.assert_allclose(drawn, expected, rtol=1e-5)


def test_lost_episodes_begin_anew() -> None:
    replay = buffers.Replay(
        replay_size=6,
        batch_size=4,
        num_envs=ENVS,
        rewards=buffers.RewardScale(discount=0.9),
    )
    zeros, ones = jnp.zeros((LEARNERS, ENVS, 1)), jnp.ones((LEARNERS, ENVS))
    step = Transition(zeros, zeros, ones, ones < 0, ones < 0, zeros)
    storage, _ = replay.store(replay.create(step), None, step)
    np.testing.assert_array_equal(storage.returns.running, 1.0)
    cut = storage.cut_episodes(ENVS)
    np.testing.assert_array_equal(cut.returns.running, 0.0)
    np.testing.assert_array_equal(cut.returns.largest, storage.returns.largest)
