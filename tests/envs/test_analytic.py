"""Our own environments: conformance to the protocol, their known values, and the pendulum against Gymnasium's."""

import itertools

import gymnasium
import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs import analytic

NAMES = analytic.names()
PROBES = [name for name in NAMES if name != "rljax/Pendulum"]
DISCOUNT = 0.9


def actions(environment, number, key=None):
    """`number` random actions, and both bounds."""
    spec = environment.spec
    key = jax.random.key(7) if key is None else key
    if spec.discrete:
        drawn = jax.random.randint(key, (number,), 0, spec.action_size)
        return jnp.concatenate([drawn, jnp.array([0, spec.action_size - 1])]).astype(jnp.int32)
    drawn = jax.random.uniform(key, (number, spec.action_size), minval=-1, maxval=1)
    bounds = jnp.array([[-1.0], [1.0]]) * jnp.ones((2, spec.action_size))
    return jnp.concatenate([drawn, bounds])


def check_environment(environment) -> None:
    """What every environment inside the program keeps to."""
    spec, params = environment.spec, environment.params
    reset, step = jax.jit(environment.reset), jax.jit(environment.step)
    key_reset, key_step = jax.random.split(jax.random.key(3))
    observation, state = reset(key_reset, params)
    chosen = actions(environment, 10)
    assert chosen.dtype == spec.action_dtype
    assert chosen.shape[1:] == spec.action_shape
    for action in chosen:
        result = step(key_step, state, action, params)
        jax.tree.map(np.testing.assert_array_equal, result, step(key_step, state, action, params))
        observation, after, reward, terminated, truncated, _ = result
        assert observation.shape == spec.observation_shape
        assert observation.dtype == jnp.float32
        assert reward.shape == terminated.shape == truncated.shape == ()
        assert (reward.dtype, terminated.dtype, truncated.dtype) == (jnp.float32, jnp.bool_, jnp.bool_)
        assert np.isfinite(observation).all()
        assert np.isfinite(reward)
        assert not truncated  # their time limit is kept by AutoReset
        assert jax.tree.map(lambda x: (x.shape, x.dtype), after) == jax.tree.map(lambda x: (x.shape, x.dtype), state)
        if terminated:
            observation, after = reset(key_reset, params)
        state = after
    again, _ = reset(key_reset, params)
    np.testing.assert_array_equal(again, environment.reset(key_reset, params)[0])


@pytest.mark.parametrize("name", NAMES)
def test_conformance(name):
    environment = envs.make(name)
    assert environment.spec.name == name
    check_environment(environment.environment)


@pytest.mark.parametrize("name", NAMES)
def test_truncated_at_the_limit_only(name):
    environment = envs.make(name)
    limit, number = environment.spec.max_episode_steps, 3
    keys = jax.random.split(jax.random.key(0), number)

    def body(state, key):
        action = jnp.zeros((number, *environment.spec.action_shape), environment.spec.action_dtype)
        step, state = environment.step(jax.random.split(key, number), state, action)
        return state, step

    _, step = jax.lax.scan(body, environment.reset(keys)[1], jax.random.split(jax.random.key(1), 205))
    if limit is None:
        assert not step.truncated.any()
        assert step.terminated.any()
    else:
        np.testing.assert_array_equal(step.truncated, step.episode_length == limit)
        assert step.truncated.any()
        assert not step.terminated.any()


def first_observations(environment):
    keys = jax.random.split(jax.random.key(0), 16)
    return np.unique(jax.vmap(lambda key: environment.reset(key, None)[0])(keys), axis=0)


@pytest.mark.parametrize("name", PROBES)
def test_values_satisfy_the_bellman_equation(name):
    environment = envs.make(name).environment
    for seed in range(4):
        observation, state = environment.reset(jax.random.key(seed), None)
        for _ in range(5):
            action = environment.optimal_action(observation)
            assert action.shape == environment.spec.action_shape
            assert action.dtype == environment.spec.action_dtype
            after, state, reward, terminated, _, _ = environment.step(jax.random.key(0), state, action, None)
            target = reward + DISCOUNT * (1 - terminated) * environment.value(after, DISCOUNT)
            np.testing.assert_allclose(environment.value(observation, DISCOUNT), target, atol=1e-5)
            if terminated:
                break
            observation = after


@pytest.mark.parametrize("name", [name for name in PROBES if name.endswith("-discrete")])
def test_no_sequence_of_actions_beats_the_value(name):
    environment = envs.make(name).environment
    if environment.endless:
        pytest.skip("no action changes its reward: the Bellman equation is the test")
    sequences = jnp.array(list(itertools.product(range(len(analytic.GRID)), repeat=min(environment.steps, 3))))
    sequences = jnp.pad(sequences, ((0, 0), (0, environment.steps - sequences.shape[1])))

    def discounted(key, sequence):
        _, state = environment.reset(key, None)
        total, weight = 0.0, 1.0
        for action in sequence:
            _, state, reward, terminated, _, _ = environment.step(key, state, action, None)
            total, weight = total + weight * reward, weight * DISCOUNT * (1 - terminated)
        return total

    keys = jax.random.split(jax.random.key(0), 8)
    returns = jax.vmap(jax.vmap(discounted, in_axes=(None, 0)), in_axes=(0, None))(keys, sequences)
    first = jax.vmap(lambda key: environment.reset(key, None)[0])(keys)
    np.testing.assert_allclose(returns.max(axis=1), environment.value(first, DISCOUNT), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "observation", "value"),
    [  # by hand, discount 0.9
        ("rljax/Constant", [0.0], 1.0),
        ("rljax/Delay", [0.0], 0.9),
        ("rljax/Delay", [1.0], 1.0),
        ("rljax/Endless", [0.0], 10.0),
        ("rljax/Finite", [0.0], 1 + 0.9 + 0.81 + 0.729 + 0.6561),
        ("rljax/Finite", [0.8], 1.0),
        ("rljax/Observation", [-1.0], -1.0),
        ("rljax/Action", [0.0], 0.0),
        ("rljax/Both", [-1.0], 1.0),
        ("rljax/Follow", [1.0], 0.0),
        ("rljax/Memory", [0.0, 0.0], 0.9),
        ("rljax/Memory", [1.0, 1.0], 0.75),
    ],
)
def test_values_by_hand(name, observation, value):
    np.testing.assert_allclose(envs.make(name).environment.value(np.array(observation), 0.9), value, rtol=1e-5)


@pytest.mark.parametrize(
    ("name", "observation", "continuous", "discrete"),
    [
        ("rljax/Action", [0.0], 0.5, 3),
        ("rljax/Both", [-1.0], -1.0, 0),
        ("rljax/Both", [1.0], 1.0, 4),
        ("rljax/Follow", [-1.0], -0.5, 1),
        ("rljax/Follow", [1.0], 0.5, 3),
        ("rljax/Memory", [0.0, 0.0], 0.5, 3),
    ],
)
def test_optimal_actions_by_hand(name, observation, continuous, discrete):
    observation = np.array([observation, observation])  # batched
    np.testing.assert_allclose(envs.make(name).environment.optimal_action(observation), [[continuous]] * 2)
    np.testing.assert_array_equal(envs.make(f"{name}-discrete").environment.optimal_action(observation), [discrete] * 2)


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
        observation, state, ours_reward, terminated, truncated, _ = step(key, state, jnp.array([torque / 2]), None)
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
        observation, _, ours_reward, *_ = ours.step(jax.random.key(0), state, jnp.array([1.0]), None)
        np.testing.assert_allclose(observation, expected, atol=1e-5)
        np.testing.assert_allclose(ours_reward, reward, atol=1e-4)


def test_pendulum_begins_anywhere():
    keys = jax.random.split(jax.random.key(0), 2000)
    _, state = jax.vmap(lambda key: envs.make("rljax/Pendulum").environment.reset(key, None))(keys)
    for drawn, high in ((state.angle, np.pi), (state.velocity, 1.0)):
        assert abs(float(drawn.mean())) < 0.1 * high
        np.testing.assert_allclose([drawn.min(), drawn.max()], [-high, high], atol=0.02 * high)
