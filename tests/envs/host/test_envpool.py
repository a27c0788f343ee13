"""Atari games by EnvPool: pictures in stacks whose older frames are those of the steps before."""

from __future__ import annotations

import numpy as np
import pytest

from rljax import envs

pytest.importorskip("envpool", reason="envpool is not installed: make test-extras")
pytestmark = pytest.mark.filterwarnings("ignore:.* channels first:UserWarning")


def test_games_show_stacks_of_pictures() -> None:
    games = envs.make_hosted("envpool/Breakout-v5", 3)
    assert games.spec.observation_shape == (84, 84, 4)
    assert games.spec.observation_dtype == "uint8"
    assert (games.spec.discrete, games.spec.action_size, games.spec.stack) == (True, 4, 4)
    observation = games.reset([0, 1, 2])
    np.testing.assert_array_equal(observation, np.repeat(observation[..., :1], 4, axis=-1))
    generator, ends = np.random.default_rng(0), 0
    for _ in range(600):
        step = games.step(generator.integers(4, size=3, dtype=np.int32))
        np.testing.assert_array_equal(step.next_observation[..., :3], observation[..., 1:])
        ended = step.terminated | step.truncated
        np.testing.assert_array_equal(step.observation[~ended], step.next_observation[~ended])
        first = step.observation[ended]
        np.testing.assert_array_equal(first, np.repeat(first[..., :1], 4, axis=-1))
        observation, ends = step.observation, ends + ended.sum()
    games.close()
    assert ends > 3, "the test has seen games begin anew"
