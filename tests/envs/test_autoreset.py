"""Auto-reset: ends, true successors, totals, and independence of the batch."""

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax.agent import EnvSpec, Step
from rljax.envs.autoreset import CHUNK, AutoReset


@struct.dataclass
class CounterState:
    count: Any
    start: jax.Array


class Counter:
    """From a random start in [0, 1), for 3 steps, with careless dtypes."""

    params = 3  # steps to the end

    def __init__(self, limit=None, on_reset=None):
        self.spec = EnvSpec("counter", (2,), 1, max_episode_steps=limit)
        self.on_reset = on_reset

    def reset(self, key, params):
        if self.on_reset is not None:
            jax.debug.callback(self.on_reset)
        start = jax.random.uniform(key)
        return jnp.stack([start, start]), CounterState(count=0, start=start)

    def step(self, key, state, action, params) -> Any:
        state = state.replace(count=state.count + 1.0)  # a float where `reset` gave a Python int
        observation = jnp.stack([state.start, state.start + state.count]).astype(jnp.float16)
        return observation, state, 2, state.count >= params, False, {"unused": 0}


def roll(environment: AutoReset, keys, steps: int, policy=None) -> tuple[jax.Array, Step]:
    """First observations [N, O...], and Steps [T, N, ...]."""

    def body(carry, time):
        observation, state = carry
        key = jax.vmap(jax.random.fold_in, in_axes=(0, None))(keys, time)
        spec = environment.spec
        action = (
            policy(observation)
            if policy
            else jnp.zeros((len(keys), *spec.action_shape), spec.action_dtype)
        )
        step, state = environment.step(key, state, action)
        return (step.observation, state), step

    observation, state = environment.reset(keys)
    return observation, jax.lax.scan(body, (observation, state), jnp.arange(1, steps + 1))[1]


def keys_of(number: int, first: int = 0):
    return jax.vmap(jax.random.key)(jnp.arange(first, first + number, dtype=jnp.uint32))


def test_true_final_observation_and_next_episode():
    _, step = jax.jit(lambda: roll(AutoReset(Counter()), keys_of(2), 7))()
    start, count = (
        step.observation[..., 0],
        step.next_observation[..., 1] - step.next_observation[..., 0],
    )
    np.testing.assert_allclose(count, np.repeat([[1, 2, 3, 1, 2, 3, 1]], 2, axis=0).T, atol=2e-3)
    ended = np.asarray(step.terminated)
    np.testing.assert_array_equal(ended[:, 0], [False, False, True, False, False, True, False])
    np.testing.assert_array_equal(step.observation[~ended], step.next_observation[~ended])
    np.testing.assert_array_equal(step.observation[ended][:, 0], step.observation[ended][:, 1])
    assert len(np.unique(np.asarray(start)[[0, 2, 5]])) == 6


@pytest.mark.slow_after(1)
@pytest.mark.parametrize(
    ("limit", "terminated", "truncated"),
    [
        (None, [2, 5], []),
        (2, [], [1, 3, 5]),
        (3, [2, 5], [2, 5]),  # both at once: `terminated` decides about bootstrapping
        (4, [2, 5], []),
    ],
)
def test_the_limit_truncates_and_never_terminates(limit, terminated, truncated):
    _, step = jax.jit(lambda: roll(AutoReset(Counter(limit)), keys_of(2), 6))()
    assert np.flatnonzero(step.terminated[:, 1]).tolist() == terminated
    assert np.flatnonzero(step.truncated[:, 1]).tolist() == truncated


@pytest.mark.slow
def test_an_environments_own_truncation_is_kept():
    class Truncating(Counter):
        def step(self, key, state, action, params) -> Any:
            *rest, ended, _, info = super().step(key, state, action, params)
            return *rest, False, ended, info

    _, step = jax.jit(lambda: roll(AutoReset(Truncating()), keys_of(1), 3))()
    np.testing.assert_array_equal(step.truncated[:, 0], [False, False, True])
    assert not step.terminated.any()


@pytest.mark.slow
def test_a_step_and_the_reset_after_it_have_keys_of_their_own():
    class Noisy(Counter):
        params = 1

        def step(self, key, state, action, params) -> Any:
            _, *rest = super().step(key, state, action, params)
            return jnp.full(2, jax.random.uniform(key)), *rest

    environment, keys = AutoReset(Noisy()), keys_of(3)
    step, _ = environment.step(keys, environment.reset(keys_of(3, first=9))[1], jnp.zeros((3, 1)))
    assert step.terminated.all()
    expected = jax.vmap(lambda key: jax.vmap(jax.random.uniform)(jax.random.split(key)))(keys)
    np.testing.assert_array_equal(step.next_observation[:, 0], expected[:, 0])
    np.testing.assert_array_equal(step.observation[:, 0], expected[:, 1])


def test_stepping_compiles_once():
    environment = AutoReset(Counter())
    step = jax.jit(environment.step)
    keys = keys_of(2)
    _, state = environment.reset(keys)
    for _ in range(4):
        _, state = step(keys, state, jnp.zeros((2, 1)))
    assert step._cache_size() == 1


@pytest.mark.slow
def test_more_episodes_end_than_are_reset_at_a_time():
    number = 2 * CHUNK + 3
    environment = AutoReset(Counter())
    _, step = jax.jit(lambda: roll(environment, keys_of(number), 4))()
    assert step.terminated[2].all()
    np.testing.assert_array_equal(step.episode_length[3], np.ones(number))
    starts = np.asarray(step.observation[2, :, 0])
    assert len(np.unique(starts)) > 0.99 * number
    _, alone = jax.jit(lambda: roll(environment, keys_of(1, first=number - 1), 4))()
    np.testing.assert_array_equal(alone.observation[:, 0], step.observation[:, -1])


def test_resets_run_only_where_an_episode_ended():
    resets = []
    environment = AutoReset(Counter(on_reset=lambda: resets.append(1)))
    step = jax.jit(environment.step)
    keys = keys_of(4)
    _, state = environment.reset(keys)
    counts = []
    for _ in range(6):
        jax.effects_barrier()
        resets.clear()
        _, state = step(keys, state, jnp.zeros((4, 1)))
        jax.block_until_ready(state)
        jax.effects_barrier()
        counts.append(len(resets))
    assert counts == [0, 0, 1, 0, 0, 1]
