"""The adapter of Brax."""

import types
import warnings
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import struct

from rljax import envs
from rljax.agent import EnvSpec, Part
from rljax.envs.simulators import brax as adapter

brax_envs = pytest.importorskip("brax.envs")
brax_base = pytest.importorskip("brax.base")


def test_the_time_limit_truncates_and_does_not_terminate():
    environment = envs.make("brax/fast")
    keys = jax.random.split(jax.random.key(0), 2)

    @jax.jit
    def run():
        def body(state, time):
            step, state = environment.step(keys, state, jnp.ones((2, 1)))
            return state, step

        first, state = environment.reset(keys)
        return first, jax.lax.scan(body, state, jnp.arange(1003))[1]

    first, step = run()
    assert step.observation.dtype == step.reward.dtype == jnp.float32
    assert not step.terminated.any()
    np.testing.assert_array_equal(np.flatnonzero(step.truncated[:, 0]), [999])
    assert step.episode_length[999, 0] == 1000
    # Far from the beginning; then the beginning, and the first step again.
    assert step.next_observation[999, 0, 0] > 100
    np.testing.assert_array_equal(step.observation[999], first)
    np.testing.assert_array_equal(step.next_observation[1000], step.next_observation[0])


def test_failures_of_the_package_are_reported():
    environment = adapter.Brax.__new__(adapter.Brax)
    environment.simulator, environment.spec = StandIn(), EnvSpec("brax/stand-in", (2,), 1)
    expected = (
        r"'brax/stand-in' failed inside its own package, with AttributeError: .* Choose "
        r"another environment"
    )
    with pytest.raises(ValueError, match=expected):
        environment.reset(jax.random.key(0))  # it has none


class StandIn:
    """It is done after its first step, and writes into its arguments."""

    def step(self, state, action):
        state.metrics.update(speed=2.0)
        return state.replace(done=jnp.ones(()), reward=1)


def step_stand_in():
    from brax.envs.base import State

    environment = adapter.Brax.__new__(adapter.Brax)
    environment.simulator, environment.spec = StandIn(), EnvSpec("brax/stand-in", (2,), 1)
    state = State(None, jnp.zeros(2), jnp.zeros(()), jnp.zeros(()))
    return state, environment.step(jax.random.key(0), state, jnp.zeros(1))


def test_done_is_termination():
    _, (_, _, reward, terminated, truncated, info) = step_stand_in()
    assert terminated
    assert not truncated
    assert reward.dtype == jnp.float32
    assert info == {"speed": 2.0}


def test_the_callers_state_is_left_alone():
    state, _ = step_stand_in()
    assert state.metrics == {}


@pytest.mark.slow
def test_making_one_is_quiet(tmp_path, monkeypatch, capfd):
    monkeypatch.chdir(tmp_path)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        adapter.make("brax/halfcheetah")
    assert capfd.readouterr() == ("", "")
    assert list(tmp_path.iterdir()) == []


def test_unknown_name_suggests_the_nearest():
    with pytest.raises(
        ValueError,
        match=r"no environment 'brax/hoper' in Brax. Nearest: 'brax/hopper'.* rljax list",
    ):
        envs.make("brax/hoper")


class Shown:
    """A point moves; "state" shows it with noise, "privileged_state" without."""

    action_size = 1

    @struct.dataclass
    class State:
        obs: Any
        place: Any
        reward: Any
        done: Any
        info: Any
        metrics: Any

    def reset(self, key):
        return self._at(jax.random.uniform(key), key)

    def step(self, state, action):
        return self._at(state.place + 0.1 * action[0], jax.random.key(0))

    def _at(self, place, key):
        noisy = jnp.array([place, 1.0]) + 0.1 * jax.random.normal(key, (2,))
        obs = {"state": noisy, "privileged_state": place[None]}
        return self.State(obs, place, -jnp.abs(place), jnp.zeros(()), {}, {})


def test_what_is_for_critics_alone_is_shown_on_request(monkeypatch):
    monkeypatch.setattr(adapter, "names", lambda: ["brax/shown", "brax/fast"])
    package = types.SimpleNamespace(
        get_environment=lambda name: Shown() if name == "shown" else brax_envs.get_environment(name)
    )
    monkeypatch.setattr(adapter, "_brax", lambda: package)
    plain, whole = (envs._made.__wrapped__(f"{prefix}brax/shown") for prefix in ("", "privileged/"))
    assert plain.spec.observation_shape == (2,)
    assert whole.spec.parts == (Part("privileged_state", (1,)), Part("state", (2,)))
    keys = jax.random.split(jax.random.key(0), 3)
    (seen, _), (both, state) = (each.reset(keys) for each in (plain, whole))
    np.testing.assert_array_equal(seen, both["state"])
    step, _ = whole.step(keys, state, jnp.ones((3, 1)))
    moved = step.next_observation["privileged_state"] - both["privileged_state"]
    np.testing.assert_allclose(moved, 0.1, rtol=1e-5)
    with pytest.raises(ValueError, match="'brax/fast' shows nothing that is for critics alone"):
        envs._made.__wrapped__("privileged/brax/fast")


def test_environments_on_the_host_show_all():
    with pytest.raises(ValueError, match="'Hopper-v5' is on the host, and shows all"):
        envs.make_hosted("privileged/Hopper-v5", 1)


# Robots with goals.


@pytest.mark.learn  # compiles for a minute
@pytest.mark.parametrize("robot", ["ant", "reacher"])
def test_robots_show_places_and_goals(robot: str) -> None:
    """Places and goals are those of the simulated bodies, in a few random steps."""
    environment: Any = envs.make(f"goals/brax/{robot}").environment
    assert environment.spec.observation_shape == ({"ant": 31, "reacher": 10}[robot],)

    @jax.jit
    def run(key: Any) -> Any:
        def step(state: Any, key: Any) -> Any:
            action = jax.random.uniform(key, environment.spec.action_shape, minval=-1.0)
            observation, state, reward, *_, info = environment.step(key, state, action)
            return state, (observation, reward, info["success"], state.pipeline_state)

        first, state = environment.reset(key)
        return first, jax.lax.scan(step, state, jax.random.split(key, 20))[1]

    first, (observation, reward, success, poses) = run(jax.random.key(3))
    achieved, desired = environment.achieved(observation), environment.desired(observation)
    if robot == "ant":
        place, near = poses.x.pos[:, 0, :2], 0.5
        joints = np.concatenate([poses.q, poses.qd], axis=1)
        np.testing.assert_allclose(observation[:, :29], joints, rtol=1e-6)
        assert np.linalg.norm(first[29:]) == pytest.approx(10.0, rel=1e-5)
        goal = np.broadcast_to(first[29:], (20, 2))
    else:
        tip = brax_base.Transform.create(pos=jnp.array([0.11, 0.0, 0.0]))
        place = np.asarray(jax.vmap(lambda x: x.take(1).do(tip).pos[:2])(poses.x))
        near, goal = 0.05, poses.x.pos[:, 2, :2]
        np.testing.assert_allclose(observation[:, :2], np.cos(poses.q[:, :2]), atol=1e-5)
        np.testing.assert_allclose(observation[:, 2:4], np.sin(poses.q[:, :2]), atol=1e-5)
        assert np.linalg.norm(goal, axis=1).max() <= 0.2 + 1e-4
    np.testing.assert_allclose(achieved, place, atol=1e-5)
    np.testing.assert_allclose(desired, goal, atol=1e-5)
    np.testing.assert_array_equal(reward, np.linalg.norm(place - goal, axis=1) < near)
    np.testing.assert_array_equal(success, reward > 0)
    other = environment.relabelled(observation, achieved)
    np.testing.assert_array_equal(environment.desired(other), achieved)
    assert environment.goal_reward(environment.achieved(other), achieved).all()


def test_other_robots_have_no_goals() -> None:
    message = r"^'brax/fast' has no tasks with goals, as ogbench:cube-single-v0 and brax/ant have\."
    with pytest.raises(ValueError, match=message):
        envs.make("goals/brax/fast")
