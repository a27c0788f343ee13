"""The rollout: the last steps in order."""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import buffers
from rljax.agent import Transition
from rljax.buffers.rollout import RolloutBuffer
from tests.helpers.replay_buffers import LEARNERS, assert_in_place, keys, numbered, transitions

ROWS = 50_000


def rollout(num_steps: int = 4, num_envs: int = 3, batch_size: int = 6) -> buffers.Rollout:
    return buffers.Rollout(num_steps=num_steps, num_envs=num_envs, batch_size=batch_size)


def empty(declared: buffers.Rollout) -> RolloutBuffer:
    return declared.create(transitions(np.zeros((LEARNERS, declared.num_envs))))


def test_rollout_holds_the_last_steps_in_order() -> None:
    buffer = empty(rollout())
    assert {x.shape[:3] for x in jax.tree.leaves(buffer.data)} == {(LEARNERS, 4, 3)}
    add = jax.jit(RolloutBuffer.add, donate_argnums=0)
    for time in range(8):
        buffer = add(buffer, transitions(numbered(time, 3)))
    expected = transitions(np.stack([numbered(time, 3) for time in range(4, 8)], axis=1))
    jax.tree.map(np.testing.assert_array_equal, buffer.data, expected)
    assert int(buffer.position) == 0
    batch = rollout().sample(buffer, None, keys())
    assert batch.reward.shape == (LEARNERS, 1, 4, 3)
    jax.tree.map(lambda x, y: np.testing.assert_array_equal(x[:, 0], y), batch, expected)


def test_rollout_is_written_in_place() -> None:
    buffer = empty(rollout(num_steps=ROWS))
    new: Any = transitions(numbered(0, 3))
    assert_in_place(
        jax.jit(RolloutBuffer.add, donate_argnums=0).lower(buffer, new).compile(), buffer.data
    )


def test_rollout_is_ready_when_it_is_full() -> None:
    ready = [rollout().ready(steps) for steps in (0, 11, 12, 24)]
    assert ready == [False, False, True, True]


def test_minibatches_that_do_not_divide_a_rollout_are_refused() -> None:
    rollout().check()
    with pytest.raises(
        ValueError,
        match=r"batch-size is 5, .* 4 x --config.num-envs 3 = 12 transitions. Nearest: 4",
    ):
        rollout(batch_size=5).check()


def test_rows_of_a_data_set_come_beside_a_rollout() -> None:
    """Each learner has its own, by the data's weights where it has any."""
    declared = dataclasses.replace(rollout(), data_size=400)
    declared.check()
    with pytest.raises(
        ValueError, match=r"^agent 'mine' learns from a data set beside new experience\. Name it"
    ):
        declared.require_data(buffers.Supply("mine"))
    with pytest.raises(
        ValueError, match=r"^agent 'mine' learns from what its own policy has just done, and cannot"
    ):
        rollout().require_data(buffers.Supply("mine", data="data.npz"))
    rows: Any = transitions(np.arange(8))
    for data, shares in (
        (rows, [1 / 8] * 8),
        (buffers.with_weights(rows, np.array([0.5, 0.5, 0, 0, 0, 0, 0, 0])), [0.5, 0.5] + [0] * 6),
    ):
        sample = declared.sample(empty(declared), data, keys())
        assert sample.reward.shape == (LEARNERS, 1, 4, 3)
        batch = jax.tree.map(lambda x: x[0, 0], sample)
        whole, beside = buffers.beside(batch)
        assert beside is not None
        assert "data" not in whole.extras
        assert "alias_table" not in beside.extras
        number = [
            int(np.flatnonzero(rows.reward == reward)[0]) for reward in np.asarray(beside.reward)
        ]
        np.testing.assert_array_equal(beside.observation, rows.observation[number])
        np.testing.assert_allclose(np.bincount(number, minlength=8) / 400, shares, atol=0.08)
        other = jax.tree.map(lambda x: x[1, 0], sample).extras["data"]
        assert not np.array_equal(other.reward, beside.reward)
    assert (
        buffers.beside(
            jax.tree.map(lambda x: x[0, 0], rollout().sample(empty(rollout()), None, keys()))
        )[1]
        is None
    )


@pytest.mark.parametrize(("size", "nearest"), [(3, 4), (-2, 2), (401, 400)])
def test_rows_of_a_data_set_that_minibatches_cannot_share_are_refused(
    size: int, nearest: int
) -> None:
    message = (
        rf"data-size is {size}, and a rollout is learnt from in 2 minibatches: .* such "
        rf"as {nearest}\."
    )
    with pytest.raises(ValueError, match=message):
        dataclasses.replace(rollout(), data_size=size).check()


@pytest.mark.parametrize(("kinds", "named"), [(None, False), (None, True), (2, False)])
def test_explained_variance_of_returns(kinds: int | None, named: bool) -> None:
    """A critic that is right up to a constant explains all, one without a clue nothing."""
    generator = np.random.default_rng(0)
    returns = generator.normal(5.0, 2.0, (50, 4))
    noise = generator.normal(0.0, 1.0, returns.shape)
    for value, expected in (
        (returns + 3.0, 1.0),
        (np.full_like(returns, 5.0), 0.0),
        (returns + noise, 1.0 - noise.var() / returns.var()),
        (2 * returns.mean() - returns, -3.0),
    ):
        arrays = [value, returns - value]
        if kinds is not None:  # the others do not count
            arrays = [np.stack([x, generator.normal(size=x.shape)], axis=-1) for x in arrays]
        extras = {"value": arrays[0], "advantage": arrays[1]}
        if named:
            extras |= {"target": returns, "advantage": noise}
        extras = {name: jnp.asarray(x, jnp.float32) for name, x in extras.items()}
        batch: Any = Transition(None, None, returns, None, None, None, extras)  # type: ignore[arg-type]
        metric = buffers.explained_variance(batch)["critic/explained_variance"]
        np.testing.assert_allclose(metric, expected, atol=1e-5)


@pytest.mark.parametrize("kinds", [None, 2])
def test_advantages_are_sums_of_errors_up_to_the_end(kinds: int | None) -> None:
    """Against arXiv:1506.02438, equation 16, written out for each step."""
    steps, shape = 6, (6, 2) if kinds is None else (6, 2, kinds)
    generator = np.random.default_rng(0)
    rewards, values, next_values = generator.normal(size=(3, *shape))
    terminated, truncated = generator.random((2, 6, 2)) < 0.25
    discount, decay = (0.9, 0.7) if kinds is None else (np.array([0.9, 0.5]), np.array([0.7, 0.2]))
    batch: Any = Transition(None, None, None, terminated, truncated, None)  # type: ignore[arg-type]
    advantages = buffers.generalised_advantages(
        batch, rewards, values, next_values, discount, decay
    )
    expected = np.zeros(shape)
    for t in range(steps):
        for e in range(2):
            weight = 1.0 + 0.0 * discount
            for later in range(t, steps):
                follows = 0.0 if terminated[later, e] else next_values[later, e]
                error = rewards[later, e] + discount * follows - values[later, e]
                expected[t, e] += weight * error
                if terminated[later, e] or truncated[later, e]:
                    break
                weight = weight * discount * decay
    np.testing.assert_allclose(advantages, expected, rtol=1e-5)
