"""MiniGrid through Gymnasium: the picture and the direction, without the mission's text."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest

from rljax import envs
from rljax.agent import Part

pytest.importorskip("minigrid")
NAME = "minigrid:MiniGrid-Empty-5x5-v0"
RIGHT, FORWARD = 1, 2


def test_the_text_is_left_out_with_a_note() -> None:
    with pytest.warns(
        UserWarning, match=r"image \[7, 7, 3\], vector \[4\]\. They do not see the text.*'mission'"
    ):
        environments = envs.make_hosted(NAME, 1)
    assert environments.spec.parts == (Part("image", (7, 7, 3), "uint8"), Part("vector", (4,)))
    assert (environments.spec.discrete, environments.spec.action_size) == (True, 7)
    environments.close()


@pytest.mark.filterwarnings("ignore:.*observes a Dict")
def test_steps_are_those_of_the_package() -> None:
    environments, own = envs.make_hosted(NAME, 2), gymnasium.make("MiniGrid-Empty-5x5-v0")
    seen, (expected, _) = environments.reset([3, 4]), own.reset(seed=3)
    for action in (FORWARD, FORWARD, RIGHT, FORWARD, FORWARD):  # the shortest way to the goal
        np.testing.assert_array_equal(seen["image"][0], expected["image"])
        np.testing.assert_array_equal(seen["vector"][0], np.eye(4)[expected["direction"]])
        step = environments.step(np.array([action, RIGHT]))
        expected, reward, terminated, truncated, _ = own.step(action)
        np.testing.assert_array_equal(step.next_observation["image"][0], expected["image"])
        assert step.reward[0] == pytest.approx(reward)
        assert (step.terminated[0], step.truncated[0]) == (terminated, truncated)
        seen = step.observation
    assert step.terminated.tolist() == [True, False]
    assert step.episode_return[0] == pytest.approx(1 - 0.9 * 5 / 100)
    np.testing.assert_array_equal(seen["image"][0], environments.reset([3, 4])["image"][0])
    environments.close()
