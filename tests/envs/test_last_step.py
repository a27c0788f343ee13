"""The last action and reward in observations."""

from __future__ import annotations

from pathlib import Path

import jax
import numpy as np
import pytest

import rljax
from rljax import envs
from rljax.agent import EnvSpec, Part
from rljax.envs import last_step
from tests.helpers import small_runs


def test_actions_of_all_kinds_are_shown() -> None:
    """Numbers within their bounds, and a 1 at each choice."""
    both = EnvSpec("Both", (2,), 7, choices=(3, 2))
    several = EnvSpec("Several", (2,), 5, discrete=True, choices=(3, 2))
    nothing = np.zeros((1, 2), np.float32)
    for spec, action, reward, expected in (
        (both, [0.5, -3.0, 2.0, 0.0], 4.0, [0, 0, 0.5, -1, 0, 0, 1, 1, 0, 4]),
        (several, [1, 1], -1.0, [0, 0, 0, 1, 0, 0, 1, -1]),
    ):
        action = np.array([action], spec.action_dtype)
        shown = last_step.with_last_step(nothing, action, np.array([reward]), spec, np)
        np.testing.assert_array_equal(shown, [expected])
        assert shown.dtype == np.float32


def test_what_is_no_vector_becomes_a_dictionary() -> None:
    picture = EnvSpec("Picture", (4, 4, 3), 2, discrete=True, observation_dtype="uint8", stack=3)
    spec = last_step.spec_with_last_step(picture)
    beside = (Part("last_action", (2,), "float32"), Part("last_reward", (1,), "float32"))
    assert spec.parts == (*beside, Part("observation", (4, 4, 3), "uint8"))
    assert (spec.observation_shape, spec.stack, spec.name) == ((), 1, "with-last-step/Picture")
    shown = last_step.with_last_step(
        np.ones((2, 4, 4, 3), np.uint8), np.array([0, 1]), np.array([1.0, 2.0]), picture, np
    )
    assert {name: (x.shape[1:], x.dtype.name) for name, x in shown.items()} == {
        part.name: (part.shape, part.dtype) for part in spec.parts
    }
    np.testing.assert_array_equal(shown["last_action"], np.eye(2))
    again = last_step.spec_with_last_step(
        EnvSpec("Again", (), 2, parts=(Part("action_mask", (2,), "bool"),))
    )
    assert [part.name for part in again.parts] == ["action_mask", "last_action", "last_reward"]


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("Hopper-v5", "with-last-step/Hopper-v5"),
        ("with-last-step/Hopper-v5", "with-last-step/Hopper-v5"),
        ("signals-x_velocity/async/Hopper-v5", "signals-x_velocity/with-last-step/async/Hopper-v5"),
        ("none", "none"),
    ],
)
def test_agents_ask_for_it(name: str, shown: str) -> None:
    assert envs.observed(name, ("last_step",)) == shown


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["rljax/Pendulum", "rljax/LightsOut-3x3"])
def test_inside_the_program(name: str) -> None:
    whole, more = envs.make(name), envs.make(f"with-last-step/{name}")
    assert more.spec.name == f"with-last-step/{name}"
    keys = jax.random.split(jax.random.key(0), 3)
    (plain, plain_state), (seen, state) = jax.jit(whole.reset)(keys), jax.jit(more.reset)(keys)
    size = whole.spec.observation_shape[0]
    np.testing.assert_array_equal(seen[:, :size], plain)
    np.testing.assert_array_equal(seen[:, size:], 0)
    actions = (
        np.random.default_rng(0).uniform(-1, 1, (3, *whole.spec.action_shape)).astype(np.float32)
    )
    if whole.spec.discrete:
        actions = np.arange(3, dtype=np.int32)
    one, _ = jax.jit(whole.step)(keys, plain_state, actions)
    other, _ = jax.jit(more.step)(keys, state, actions)
    shown = np.eye(whole.spec.action_size)[actions] if whole.spec.discrete else actions
    expected = np.concatenate(
        [one.next_observation, shown, np.asarray(one.reward)[:, None]], axis=1
    )
    np.testing.assert_array_equal(other.next_observation, expected.astype(np.float32))
    np.testing.assert_array_equal(other.reward, one.reward)


def test_on_the_host_until_episodes_have_begun_anew() -> None:
    name = 'with-last-step/without-velocities/Pendulum-v1?{"max_episode_steps": 3}'
    hosted, plain = (envs.make_hosted(x, 2) for x in (name, name.removeprefix("with-last-step/")))
    assert hosted.spec.observation_shape == (4,)
    np.testing.assert_array_equal(hosted.reset([1, 2])[:, 2:], 0)
    plain.reset([1, 2])
    for time in range(1, 5):
        action = np.array([[0.25 * time], [-2.0]], np.float32)
        saved = hosted.save()
        step, other = hosted.step(action), plain.step(action)
        shown = np.stack([np.clip(action[:, 0], -1, 1), other.reward], axis=1)
        np.testing.assert_array_equal(
            step.next_observation, np.concatenate([other.next_observation, shown], axis=1)
        )
        np.testing.assert_array_equal(np.asarray(step.observation)[:, :2], other.observation)
        np.testing.assert_array_equal(
            np.asarray(step.observation)[:, 2:], 0 if time == 3 else shown
        )
        assert saved is not None
        after = np.asarray(step.observation)
        hosted.restore(saved)
        np.testing.assert_array_equal(hosted.step(action).observation, after)
    timed = envs.make_hosted(f"timed/{name}", 1)
    np.testing.assert_array_equal(timed.reset([0])[0, 2:], [0, 0, -0.5])
    for made in (hosted, plain, timed):
        made.close()


@pytest.mark.learn
@pytest.mark.parametrize("env", ["rljax/LightsOut-3x3", "CartPole-v1"])
def test_a_policy_with_a_memory_sees_it(env: str, tmp_path: Path) -> None:
    out = small_runs.train("r2d2", f"with-last-step/{env}", 200, tmp_path / "run")
    policy = rljax.load(out)
    seen = np.zeros(policy.spec.observation_shape, np.float32)
    assert policy(seen, step=0).shape == ()
