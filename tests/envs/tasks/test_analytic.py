"""The known values of the analytic tasks; the pendulum is Gymnasium's."""

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.tasks import analytic
from tests.envs.test_conformance import assert_conforms, rolled

NAMES = list(analytic.ENVIRONMENTS)
PROBES = [name for name in NAMES if name not in ("rljax/Pendulum", "rljax/RandomWalk")]
GRIDS = [
    "rljax/LightsOut-2x2",
    "rljax/LightsOut-4x4-dense-test",
    "rljax/BoxPick-4x4",
    "rljax/BoxPick-6x6-quarter-test",
]
DISCOUNT = 0.9


@pytest.mark.parametrize("name", [*NAMES, *GRIDS])
def test_conformance(name):
    assert_conforms(envs.make(name).spec, rolled(name, (3, 7), 10))


def test_only_endless_tasks_have_a_limit():
    limits = {name: envs.make(name).spec.max_episode_steps for name in NAMES}
    limited = {name: limit for name, limit in limits.items() if limit is not None}
    assert limited == {"rljax/Endless": 5, "rljax/Endless-discrete": 5, "rljax/Pendulum": 200}


def first_observations(environment):
    keys = jax.random.split(jax.random.key(0), 16)
    return np.unique(jax.vmap(lambda key: environment.reset(key, None)[0])(keys), axis=0)


@pytest.mark.parametrize("name", PROBES)
def test_values_satisfy_the_bellman_equation(name):
    environment = envs.make(name).environment
    for seed in range(2):  # the second begins with another sign
        observation, state = environment.reset(jax.random.key(seed), None)
        for _ in range(5):
            action = environment.optimal_action(observation)
            assert action.shape == environment.spec.action_shape
            assert action.dtype == environment.spec.action_dtype
            after, state, reward, terminated, _, _ = environment.step(
                jax.random.key(0), state, action, None
            )
            target = reward + DISCOUNT * (1 - terminated) * environment.value(after, DISCOUNT)
            np.testing.assert_allclose(environment.value(observation, DISCOUNT), target, atol=1e-5)
            if terminated:
                break
            observation = after


def test_values_of_the_random_walk_are_the_mean_of_its_neighbours():
    walk = envs.make("rljax/RandomWalk").environment
    for state in range(5):
        sides = []
        for action in (0, 1):
            following, _, reward, terminated, truncated, _ = walk.step(
                None, jnp.asarray(state), jnp.asarray(action)
            )
            assert bool(terminated) == ((state, action) in ((0, 0), (4, 1)))
            assert not truncated
            assert float(reward) == ((state, action) == (4, 1))
            sides.append(float(reward + (0.0 if terminated else walk.value(following))))
        np.testing.assert_allclose(walk.value(jax.nn.one_hot(state, 5)), np.mean(sides), rtol=1e-6)


@pytest.mark.parametrize("name", ["Action", "Both", "Follow", "Memory"])
def test_no_sequence_of_actions_beats_the_value(name):
    environment = envs.make(f"rljax/{name}-discrete").environment
    choices = range(len(analytic.GRID))
    sequences = jnp.array(list(itertools.product(choices, repeat=environment.steps)))

    def discounted(key, sequence):
        _, state = environment.reset(key, None)
        total, weight = 0.0, 1.0
        for action in sequence:
            _, state, reward, terminated, _, _ = environment.step(key, state, action, None)
            total, weight = total + weight * reward, weight * DISCOUNT * (1 - terminated)
        return total

    keys = jax.random.split(jax.random.key(0), 8)
    of_all = jax.vmap(discounted, in_axes=(None, 0))
    returns = jax.jit(jax.vmap(of_all, in_axes=(0, None)))(keys, sequences)
    first = jax.vmap(lambda key: environment.reset(key, None)[0])(keys)
    np.testing.assert_allclose(returns.max(axis=1), environment.value(first, DISCOUNT), atol=1e-5)


@pytest.mark.parametrize("name", ["rljax/Observation", "rljax/Both", "rljax/Follow"])
def test_observations_are_both_signs(name):
    np.testing.assert_array_equal(first_observations(envs.make(name).environment), [[-1.0], [1.0]])


def test_discrete_twin_is_the_continuous_one_on_the_grid():
    for name in PROBES:
        if name.endswith("-discrete"):
            continue
        plain, twin = envs.make(name).environment, envs.make(f"{name}-discrete").environment
        key = jax.random.key(1)
        for index, choice in enumerate(analytic.GRID):
            a = plain.step(key, plain.reset(key, None)[1], jnp.array([choice]), None)
            b = twin.step(key, twin.reset(key, None)[1], jnp.array(index), None)
            jax.tree.map(np.testing.assert_array_equal, a, b)


def test_pendulum_moves_as_gymnasiums():
    theirs = gymnasium.make("Pendulum-v1").unwrapped
    theirs.reset(seed=0)
    ours = envs.make("rljax/Pendulum").environment
    key = jax.random.key(5)
    observation, state = ours.reset(key, None)
    step = jax.jit(ours.step)
    torques = np.linspace(-2, 2, 50, dtype=np.float32)
    for torque in np.random.default_rng(0).permutation(torques):
        theirs.state = np.array([state.angle, state.velocity], np.float64)
        np.testing.assert_allclose(theirs._get_obs(), observation, atol=1e-5)
        expected, reward, *_ = theirs.step(np.array([torque]))
        observation, state, ours_reward, terminated, truncated, _ = step(
            key, state, jnp.array([torque / 2]), None
        )
        np.testing.assert_allclose(observation, expected, atol=1e-5)
        np.testing.assert_allclose(ours_reward, reward, atol=1e-4)
        assert not terminated
        assert not truncated


def test_pendulum_wraps_the_angle_and_limits_the_velocity_as_gymnasiums():
    theirs = gymnasium.make("Pendulum-v1").unwrapped
    theirs.reset(seed=0)
    ours = envs.make("rljax/Pendulum").environment
    for angle, velocity in [(7.0, 7.99), (-4.0, -7.99), (3.2, 0.0), (-9.5, 3.0)]:
        theirs.state = np.array([angle, velocity])
        expected, reward, *_ = theirs.step(np.array([2.0]))
        state = analytic.PendulumState(jnp.float32(angle), jnp.float32(velocity))
        observation, _, ours_reward, *_ = ours.step(
            jax.random.key(0), state, jnp.array([1.0]), None
        )
        np.testing.assert_allclose(observation, expected, atol=1e-5)
        np.testing.assert_allclose(ours_reward, reward, atol=1e-4)


@pytest.mark.slow
def test_pendulum_begins_anywhere():
    pendulum = envs.make("rljax/Pendulum").environment
    keys = jax.random.split(jax.random.key(0), 2000)
    _, state = jax.jit(jax.vmap(lambda key: pendulum.reset(key, None)))(keys)
    for drawn, high in ((state.angle, np.pi), (state.velocity, 1.0)):
        assert abs(float(drawn.mean())) < 0.1 * high
        np.testing.assert_allclose([drawn.min(), drawn.max()], [-high, high], atol=0.02 * high)
