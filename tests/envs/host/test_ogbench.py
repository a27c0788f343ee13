"""OGBench scores by the success of an episode's last step."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from rljax import envs
from rljax.envs.host import ogbench
from rljax.envs.host.hosted import Hosted
from rljax.envs.host.serial import Serial

gymnasium = pytest.importorskip("gymnasium")
pytest.importorskip("ogbench")
pytestmark = pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision:UserWarning")
CUBE = "cube-single-singletask-task2-v0"

# A process of its own: MuJoCo reads how to draw as it is imported.
PROGRAM = """
import sys
from rljax import envs
hosted = envs.make_hosted(f"ogbench:{sys.argv[1]}", 1, render_mode="rgb_array")
hosted.reset([0])
picture = hosted.render()
assert (picture.shape, hosted.frames_per_second) == ((200, 200, 3), 20)
assert picture.std() > 5
"""


def played(hosted: Hosted, seeds: list[int], steps: int) -> list[tuple[np.ndarray, ...]]:
    """What environments 0 and 1 return; all others get other actions."""
    rng = np.random.default_rng(0)
    rows = [(hosted.reset(seeds)[:2],)]
    for index in range(steps):
        action = rng.uniform(-1, 1, (2, 5)).astype(np.float32)
        action[:, 2] -= float(index % 40 > 20)
        others = -action[np.zeros(hosted.num_envs - 2, np.int64)]
        step = hosted.step(np.concatenate([action, others]))
        rows.append(
            (step.observation[:2], step.next_observation[:2], step.reward[:2], step.truncated[:2])
        )
    return rows


@pytest.mark.parametrize("name", [CUBE, "scene-singletask-v0", "puzzle-3x3-singletask-v0"])
def test_copies_step_as_environments_made_one_by_one(name: str) -> None:
    steps = 210 if name == CUBE else 60
    copied = envs.make_hosted(f"ogbench:{name}", 4)
    alone = Hosted(Serial([gymnasium.make(name) for _ in range(2)], name), name)
    found, expected = played(copied, [5, 6, 7, 8], steps), played(alone, [5, 6], steps)
    for one, other in zip(found, expected, strict=True):
        for a, b in zip(one, other, strict=True):
            np.testing.assert_array_equal(a, b)
    assert not np.array_equal(found[0][0][0], found[0][0][1])
    copied.close()
    alone.close()


def test_copies_draw_numbers_of_their_own() -> None:
    hosted = envs.make_hosted(f"ogbench:{CUBE}", 3)
    assert len({row.tobytes() for row in hosted.reset()}) == 3
    models = {id(environment.unwrapped.model) for environment in hosted.vector_env.envs}
    assert len(models) == 1
    hosted.close()
    hosted = envs.make_hosted("ogbench:scene-singletask-v0", 2)
    assert len({id(environment.unwrapped.model) for environment in hosted.vector_env.envs}) == 2, (
        "it locks its drawer"
    )
    hosted.close()


def test_success_is_that_of_the_last_step() -> None:
    hosted = envs.make_hosted(f"ogbench:{CUBE}", 2)
    assert (hosted.spec.observation_shape, hosted.spec.max_episode_steps) == ((28,), 200)
    np.testing.assert_array_equal(hosted.action_bounds, [[-1] * 5, [1] * 5])
    hosted.reset([0, 1])
    mujoco = pytest.importorskip("mujoco")
    arm = hosted.vector_env.envs[1].unwrapped
    still = np.zeros((2, 5), np.float32)
    assert hosted.step(still).reward.tolist() == [-1, -1]
    arm.data.qpos[14:16] = arm.cur_task_info["goal_xyzs"][0][:2]
    mujoco.mj_forward(arm.model, arm.data)
    first, second = hosted.step(still), hosted.step(still)
    assert (first.reward.tolist(), first.terminated.tolist()) == ([-1, 0], [False, False]), (
        "the reward is that of s"
    )
    assert (second.reward.tolist(), second.terminated.tolist()) == ([-1, 0], [False, True])
    assert np.isnan(hosted.success[0])
    assert hosted.success[1] == 1
    for _ in range(197):
        last = hosted.step(still)
    assert last.truncated.tolist() == [True, False]
    assert hosted.success.tolist() == [0, 1]
    hosted.close()


def test_tasks_with_goals_take_turns_and_end_with_success() -> None:
    hosted = envs.make_hosted("goals/ogbench:cube-single-v0", 6)
    assert (hosted.spec.observation_shape, hosted.spec.max_episode_steps, hosted.num_tasks) == (
        (56,),
        200,
        5,
    )
    first = hosted.reset(range(6))
    arms = [environment.unwrapped for environment in hosted.vector_env.envs]
    assert [arm.cur_task_id for arm in arms] == [1, 2, 3, 4, 5, 1]
    for index, arm in enumerate(arms):
        np.testing.assert_allclose(first[index, 28:], arm._cur_goal_ob, rtol=1e-6)
    mujoco = pytest.importorskip("mujoco")
    arm = arms[1]
    arm.data.qpos[14:16] = arm.cur_task_info["goal_xyzs"][0][:2]
    mujoco.mj_forward(arm.model, arm.data)
    step = hosted.step(np.zeros((6, 5), np.float32))
    assert step.terminated.tolist() == [False, True, False, False, False, False]
    assert (step.reward[1], hosted.success[1]) == (1, 1)
    np.testing.assert_array_equal(step.next_observation[:, 28:], first[:, 28:])
    assert arm.cur_task_id == 3, "the next task"
    hosted.close()


@pytest.mark.parametrize("name", ["cube-single-v0", "scene-v0", "puzzle-3x3-v0"])
def test_goals_follow_from_seeds(name: str) -> None:
    both = [envs.make_hosted(f"goals/ogbench:{name}", 2) for _ in range(2)]
    first, second = (hosted.reset([3, 4]) for hosted in both)
    np.testing.assert_array_equal(first, second)
    goals = both[0].reset([5, 4])[:, first.shape[1] // 2 :]
    assert not np.array_equal(goals[0], first[0, first.shape[1] // 2 :])
    np.testing.assert_array_equal(goals[1], first[1, first.shape[1] // 2 :])
    for hosted in both:
        hosted.close()


def test_it_is_drawn_without_a_display() -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, CUBE], capture_output=True, text=True, check=False
    )
    if "could not be rendered" in done.stderr:
        pytest.skip("no renderer")
    assert done.returncode == 0, done.stderr


def test_other_environments_are_not_taken_for_arms() -> None:
    maze = gymnasium.make("pointmaze-medium-singletask-v0")
    assert not ogbench.is_arm(maze)
    maze.close()
