"""The adapter of gymnax, for both 0.0.9 and 1.0."""

import types

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from rljax import envs
from rljax.envs.simulators import gymnax as adapter
from tests.envs.test_conformance import assert_conforms, rolled

gymnax = pytest.importorskip("gymnax")


@pytest.mark.slow_after(2)
@pytest.mark.parametrize(
    ("name", "shape", "size", "discrete", "limit"),
    [
        ("gymnax/FourRooms-misc", (4,), 4, True, 500),  # observes integers
        ("gymnax/Catch-bsuite", (10, 5), 3, True, 1000),
        ("gymnax/PointRobot-misc", (6,), 2, False, 100),
    ],
)
def test_spec_and_dtypes(name, shape, size, discrete, limit):
    spec = envs.make(name).spec
    assert (spec.name, spec.observation_shape, spec.action_size) == (name, shape, size)
    assert (spec.discrete, spec.max_episode_steps) == (discrete, limit)
    assert_conforms(spec, rolled(name, (3, 7), 5))


def test_without_auto_reset_the_two_ends_are_told_apart():
    environment = adapter.make("gymnax/MountainCar-v0")
    _, state = environment.reset(jax.random.key(0), environment.params)
    state = state.replace(time=199)
    *_, terminated, truncated, _ = environment.step(
        jax.random.key(0), state, jnp.int32(1), environment.params
    )
    assert truncated
    assert not terminated
    state = state.replace(time=3, position=jnp.float32(0.49), velocity=jnp.float32(0.07))
    *_, terminated, truncated, _ = environment.step(
        jax.random.key(0), state, jnp.int32(2), environment.params
    )
    assert terminated
    assert not truncated


@pytest.mark.parametrize(("action", "torque"), [(-1.0, -2.0), (0.25, 0.5), (1.0, 2.0)])
def test_actions_are_rescaled_to_the_bounds(action, torque):
    environment = adapter.make("gymnax/Pendulum-v1")
    key, params = jax.random.key(0), environment.params
    _, state = environment.reset(key, params)
    observation, _, reward, *_ = environment.step(key, state, jnp.array([action]), params)
    expected, _, expected_reward, *_ = environment.gymnax.step_env(
        key, state, jnp.array([torque]), params
    )
    np.testing.assert_allclose(observation, expected, atol=1e-6)
    np.testing.assert_allclose(reward, expected_reward, atol=1e-6)


def box(**attributes):
    return types.SimpleNamespace(**attributes)


class Odd:
    observation, actions, observations = jnp.zeros(2), box(n=2), box(shape=(2,))

    def reset_env(self, key, params):
        return self.observation, None

    def action_space(self, params):
        return self.actions

    def observation_space(self, params):
        return self.observations


def make_odd(monkeypatch, **attributes):
    odd = type("Odd", (Odd,), attributes)()
    package = box(make=lambda name: (odd, box(max_steps_in_episode=10)), registered_envs=["Odd-v0"])
    monkeypatch.setattr(adapter, "_gymnax", lambda: package)
    return adapter.make("gymnax/Odd-v0")


def test_discrete_observations_become_one_hot(monkeypatch):
    environment = make_odd(monkeypatch, observation=jnp.int32(1), observations=box(n=3))
    assert environment.spec.observation_shape == (3,)
    np.testing.assert_array_equal(environment.reset(jax.random.key(0), None)[0], [0, 1, 0])


def test_unbounded_actions_are_refused(monkeypatch):
    with pytest.raises(
        ValueError, match=r"actions of 'gymnax/Odd-v0' have no bounds \(low -inf, high 1.0\)"
    ):
        make_odd(monkeypatch, actions=box(low=-np.inf, high=1.0, shape=(1,)))


@pytest.mark.parametrize("parts", ["a", "ab"])
def test_structured_observations_are_refused(monkeypatch, parts):
    with pytest.raises(
        ValueError, match="'gymnax/Odd-v0' observes a structure, agents need one array"
    ):
        make_odd(monkeypatch, observation={part: jnp.zeros(1) for part in parts})


def test_failures_of_the_package_are_reported(monkeypatch):
    def fail(self, key, params):
        raise OSError("no network")

    expected = (
        r"'gymnax/Odd-v0' failed inside its own package, with OSError: no network\. Choose "
        r"another environment"
    )
    with pytest.raises(ValueError, match=expected):
        make_odd(monkeypatch, reset_env=fail)


def test_unknown_name_suggests_the_nearest():
    expected = r"no environment 'gymnax/CartPole-v2' in gymnax. Nearest: 'gymnax/CartPole-v1'"
    with pytest.raises(ValueError, match=expected):
        envs.make("gymnax/CartPole-v2")
