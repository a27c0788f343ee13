"""Robots with other dynamics: nothing but the factors differs."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rljax import envs
from rljax.envs.host.robots import varied


@pytest.mark.parametrize("robot", varied.ROBOTS)
def test_factors_are_those_of_the_name(robot: str) -> None:
    hosted = envs.make_hosted(f'varied/{robot}-v5?{{"gravity": 2, "friction": 0.3}}', 1)
    plain = gymnasium.make(f"{robot}-v5")
    assert hosted.spec.max_episode_steps == gymnasium.spec(f"{robot}-v5").max_episode_steps
    ours, theirs = hosted.vector_env.envs[0].unwrapped.model, plain.unwrapped.model
    np.testing.assert_array_equal(ours.opt.gravity, 2 * theirs.opt.gravity)
    np.testing.assert_allclose(ours.geom_friction, 0.3 * theirs.geom_friction)
    np.testing.assert_array_equal(ours.body_mass, theirs.body_mass)
    hosted.close()
    plain.close()


def test_without_factors_it_is_gymnasiums_task() -> None:
    both = [envs.make_hosted(name, 1) for name in ("varied/HalfCheetah-v5", "HalfCheetah-v5")]
    np.testing.assert_array_equal(*(hosted.reset([3]) for hosted in both))
    for _ in range(20):
        action = np.full((1, 6), 0.3, np.float32)
        one, other = (hosted.step(action) for hosted in both)
        np.testing.assert_array_equal(one.next_observation, other.next_observation)
        np.testing.assert_array_equal(one.reward, other.reward)
    for hosted in both:
        hosted.close()


def test_a_wrong_factor_is_refused() -> None:
    with pytest.raises(ValueError, match="gravity is -1, it must be a number of at least 0"):
        envs.make_hosted('varied/HalfCheetah-v5?{"gravity": -1}', 1)
