"""Combination locks against their rules in NumPy, and their optimum."""

from __future__ import annotations

import itertools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks import combination_lock
from rljax.envs.tasks.combination_lock import DECOY, CombinationLock, LockState

LOCK = CombinationLock("rljax/CombinationLock-6-discrete", 6, discrete=True)
NUMBERS = CombinationLock("rljax/CombinationLock-6", 6)
NUMBER = 3_000


@jax.jit
def stepped(place: Any, time: Any, action: Any) -> Any:
    keys = jax.random.split(jax.random.key(0), len(place))
    return jax.vmap(LOCK.step)(keys, LockState(place, time), action)


def test_the_right_action_leads_on_and_any_other_one_to_the_bad_state() -> None:
    generator = np.random.default_rng(0)
    place, time = generator.integers(3, size=NUMBER), generator.integers(6, size=NUMBER)
    right = LOCK.combination[np.minimum(place, 1), time]
    action = np.where(generator.random(NUMBER) < 0.5, right, generator.integers(10, size=NUMBER))
    _, after, reward, terminated, truncated, info = stepped(place, time, action)
    good, last = place < 2, time == 5
    opens = good & (action == right)
    np.testing.assert_array_equal(np.asarray(after.place) == 2, ~opens)
    assert 0.45 < np.asarray(after.place)[opens].mean() < 0.55
    np.testing.assert_array_equal(after.time, time + 1)
    np.testing.assert_array_equal(terminated, last)
    np.testing.assert_array_equal(info["success"], opens & last)
    assert not truncated.any()
    reward = np.asarray(reward)
    np.testing.assert_array_equal(reward[opens], last[opens].astype(np.float32))
    assert (reward[~good] == 0).all()
    decoys = reward[good & ~opens]
    assert set(decoys.tolist()) == {0.0, float(np.float32(DECOY))}
    assert 0.4 < (decoys > 0).mean() < 0.6


def test_the_right_actions_differ_in_both_good_states() -> None:
    assert (LOCK.combination[0] != LOCK.combination[1]).all()
    np.testing.assert_array_equal(LOCK.combination, NUMBERS.combination)
    assert LOCK.combination.max() < 10


@pytest.mark.slow
@pytest.mark.parametrize("horizon", [1, 4, 5, 12, 13, 100])
def test_observations_hold_place_and_time_under_noise(horizon: int) -> None:
    lock = CombinationLock("lock", horizon)
    (size,) = lock.spec.observation_shape
    assert size == 2 ** int(np.ceil(np.log2(horizon + 4)))
    np.testing.assert_array_equal(lock.rotation @ lock.rotation.T, size * np.eye(size))
    place, time = (np.ravel(x) for x in np.meshgrid(range(3), range(horizon + 1)))
    keys = jax.random.split(jax.random.key(0), len(place))
    seen = jax.vmap(lock._observe)(keys, LockState(jnp.asarray(place), jnp.asarray(time)))
    for found, expected in zip(lock.decoded(seen), (place, time), strict=True):
        np.testing.assert_array_equal(found, expected)
    noise = np.asarray(seen) @ lock.rotation / size
    noise[np.arange(len(place)), place] -= 1
    noise[np.arange(len(place)), 3 + time] -= 1
    assert 0.07 < noise[:, : horizon + 3].std() < 0.14
    np.testing.assert_allclose(noise[:, horizon + 3 :], 0, atol=1e-5)


@pytest.mark.parametrize("lock", [LOCK, NUMBERS], ids=["discrete", "numbers"])
def test_values_are_those_of_the_best_plan(lock: CombinationLock) -> None:
    """Of all plans of when to be right, and when to take the decoy."""
    sure = 1.0 if lock.spec.discrete else np.exp(10.0) / (np.exp(10.0) + 9.0)
    for discount, first in itertools.product((1.0, 0.9), (0, 2, 5)):
        best = 0.0
        for plan in itertools.product((sure, 0.0), repeat=6 - first):
            alive, total = 1.0, 0.0
            for t, chance in enumerate(plan):
                total += alive * (1 - chance) * DECOY / 2 * discount**t
                alive *= chance
            best = max(best, total + alive * discount ** (len(plan) - 1))
        assert lock.value(first, discount=discount) == pytest.approx(best, rel=1e-9)
    np.testing.assert_array_equal(lock.value([3, 6], [2, 0]), 0.0)
    assert lock.optimum == lock.value(0) <= 1.0


@pytest.mark.slow
def test_those_who_know_reach_the_optimum() -> None:
    """Actions of numbers are drawn from their softmax: one in 2,446 is not the largest."""
    shown = jax.jit(NUMBERS.demonstrations, static_argnums=1)
    rows = shown(jax.random.key(0), 4_000, 0.0)
    assert rows.reward.sum() / 4_000 == pytest.approx(NUMBERS.optimum, abs=3e-3)
    assert set(np.unique(rows.action).tolist()) == {-1.0, 1.0}
    np.testing.assert_array_equal(
        np.asarray(rows.terminated).reshape(-1, 6), [[False] * 5 + [True]] * 4_000
    )
    rows = shown(jax.random.key(0), 4_000, 1 / 6)
    assert 0.2 < (rows.reward == 1).sum() / 4_000 < 0.6
    uniform = ~(np.abs(np.asarray(rows.action)) == 1).all(axis=-1)
    assert uniform.mean() == pytest.approx(1 / 6, abs=0.01)
    following = np.asarray(rows.next_observation).reshape(4_000, 6, -1)[:, :-1]
    np.testing.assert_array_equal(
        following, np.asarray(rows.observation).reshape(4_000, 6, -1)[:, 1:]
    )


def test_it_is_found_by_name() -> None:
    made = envs.make("rljax/CombinationLock-7-discrete").spec
    assert (made.observation_shape, made.action_size, made.discrete) == ((16,), 10, True)
    assert not envs.make("rljax/CombinationLock-7").spec.discrete
    assert "rljax/CombinationLock-10" in combination_lock.names()
    for name, message in (
        ("rljax/CombinationLock-0", r"horizon of 0: it must be 1 to 500"),
        ("rljax/CombinationLock-501-discrete", r"horizon of 501"),
        (
            "rljax/CombinationLock-ten",
            r"the form is rljax/CombinationLock-H .* For example: rljax/CombinationLock-10",
        ),
    ):
        with pytest.raises(ValueError, match=message):
            envs.make(name)
