"""Which environment a Minari dataset is judged in."""

from __future__ import annotations

import json
import sys
from typing import Any

import pytest

from rljax import datasets
from rljax.datasets.publishers import minari_environments as environments

MAZE = [[1, 1, 1, 1], [1, "r", "g", 1], [1, 1, 1, 1]]
ANT = "gymnasium_robotics.envs.maze.ant_maze_v4:AntMazeEnv"
KITCHEN = "gymnasium_robotics.envs.franka_kitchen:KitchenEnv"
HOPPER = "gymnasium.envs.mujoco.hopper_v5:HopperEnv"
WRAPPER = {"name": "SpeedLimit", "entry_point": "somewhere:SpeedLimit", "kwargs": None}


def spec(identity: str, entry: str = HOPPER, **others: Any) -> dict[str, Any]:
    return {"id": identity, "entry_point": entry, **others}


@pytest.mark.parametrize(
    ("given", "name"),
    [
        ({}, None),
        (spec("Hopper-v5"), "Hopper-v5"),
        (spec("Hopper-v5", kwargs={"render_mode": "human"}), "Hopper-v5"),
        (
            spec("Hopper-v5", kwargs={"reset_noise_scale": 0.1}),
            'Hopper-v5?{"reset_noise_scale": 0.1}',
        ),
        (spec("FrozenLake-v1", kwargs={"map_name": "4x4"}), "FrozenLake-v1"),
        (spec("FrozenLake-v1", kwargs={"map_name": "8x8"}), 'FrozenLake-v1?{"map_name": "8x8"}'),
        (spec("AdroitHandPen-v1", "gymnasium_robotics.a:B"), "gymnasium_robotics:AdroitHandPen-v1"),
        (
            spec("AntMaze_UMaze-v4", ANT, kwargs={"maze_map": MAZE, "continuing_task": True}),
            "gymnasium_robotics:AntMaze_UMaze-v4?"
            + json.dumps({"maze_map": MAZE, "continuing_task": True}),
        ),
        (
            spec("FrankaKitchen-v1", KITCHEN, kwargs={"tasks_to_complete": ["kettle"]}),
            'gymnasium_robotics:FrankaKitchen-v1?{"tasks_to_complete": ["kettle"]}',
        ),
        (
            spec("Hopper-v5", additional_wrappers=[WRAPPER | {"name": "FlattenObservation"}]),
            "Hopper-v5",
        ),
    ],
)
def test_name_has_package_and_arguments(given: dict[str, Any], name: str | None) -> None:
    assert environments.named(given) == name


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            spec("Evil-v0", "evil:Env"),
            r"'Evil-v0' \(evil:Env\) is not registered .* --env MODULE:NAME",
        ),
        (spec("evil:Hopper-v5"), r"'evil:Hopper-v5' .* is not registered"),
        (
            spec("Hopper-v5", additional_wrappers=[WRAPPER]),
            r"'Hopper-v5' has the wrappers SpeedLimit",
        ),
        (spec("Hopper-v5", additional_wrappers=3), r"'additional_wrappers' must be a JSON array"),
        (spec("Hopper-v5", kwargs=[1]), r"'kwargs' must be a JSON object"),
        *(
            (
                spec("Hopper-v5", kwargs={"xml_file": path}),
                r"'Hopper-v5' has the argument 'xml_file' = .*--env 'NAME",
            )
            for path in (
                "/etc/passwd",
                "../x",
                "~root",
                "x.xml",
                ["a/b"],
                {"a": {"b": "C:x"}},
                {"a/b": 1},
                float("nan"),
            )
        ),
        ({"id": 3}, r"'id' must be a text"),
    ],
)
def test_what_cannot_be_made_is_refused(given: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        environments.named(given)
    assert "evil" not in sys.modules


@pytest.mark.parametrize(
    ("recording", "evaluation", "expected"),
    [
        (
            spec("PointMaze_UMaze-v3", max_episode_steps=1e6),
            spec("PointMaze_UMaze-v3", max_episode_steps=300),
            300,
        ),
        (spec("PointMaze_UMaze-v3", max_episode_steps=1e6), {}, None),  # its package knows
        (spec("Hopper-v5", max_episode_steps=1e6), {}, 1000),
        (spec("Hopper-v5", max_episode_steps=1e6), spec("Hopper-v5", max_episode_steps=None), 1000),
        (spec("Hopper-v5", max_episode_steps=1e6), spec("Pendulum-v1"), 200),
        ({}, {}, None),
    ],
)
def test_limit_is_that_of_evaluation(recording: Any, evaluation: Any, expected: int | None) -> None:
    assert environments.limit(recording, evaluation, None) == expected


@pytest.mark.parametrize("number", [0, -1, 1.5, 1e12, "300", True, float("nan"), float("inf")])
def test_limit_that_is_none_is_refused(number: Any) -> None:
    with pytest.raises(ValueError, match="must be a whole number from 1 on"):
        environments.steps({"max_episode_steps": number})


def test_data_of_the_hands_keep_the_limits_of_d4rl() -> None:
    hand = environments.hand("D4RL/pen/human-v2")
    assert hand is not None
    assert (hand.id, hand.reference) == ("pen-human-v1", (96.262799, 3076.8331017826877))
    assert environments.limit(spec("AdroitHandPen-v1", max_episode_steps=200), {}, hand) == 100
    for name in (
        "D4RL/antmaze/umaze-v1",
        "D4RL/kitchen/mixed-v2",
        "mujoco/hopper/expert-v0",
        "pen/human-v2",
    ):
        assert environments.hand(name) is None


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("minari/D4RL/antmaze/umaze-v1", "d4rl/antmaze-umaze-v2"),
        ("minari/D4RL/antmaze/umaze-diverse-v1", "d4rl/antmaze-umaze-diverse-v2"),
        ("minari/D4RL/pen/human-v2", "d4rl/pen-human-v1"),
        ("minari/D4RL/relocate/cloned-v2", "d4rl/relocate-cloned-v1"),
        ("minari/D4RL/kitchen/complete-v2", "d4rl/kitchen-complete-v0"),
        ("minari/D4RL/pointmaze/umaze-dense-v2", "d4rl/maze2d-umaze-dense-v1"),
        ("minari/D4RL/pointmaze/umaze-v2", "d4rl/maze2d-umaze-v1"),
        ("minari/mujoco/hopper/medium-v0", None),
        ("minari/mine-v0", None),
        ("d4rl/hopper-medium-v2", None),
    ],
)
def test_original_of_a_republished_set(name: str, expected: str | None) -> None:
    assert environments.original(name) == expected
    assert datasets.aliases(name) == ((name,) if expected is None else (expected, name))


def test_every_set_in_the_namespace_of_d4rl_has_an_original() -> None:
    names = [name for name in datasets.names()["minari"] if name.startswith("minari/D4RL/")]
    assert len(names) == 29
    known = datasets.names()["d4rl"]
    assert all(environments.original(name) in known for name in names)
