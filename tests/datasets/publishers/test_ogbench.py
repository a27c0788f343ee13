"""OGBench's rows, successors and tasks, by its rules and its package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from rljax.datasets.publishers import ogbench
from rljax.learning import registry
from tests.datasets.files import findings, npz, without

STATES = {"cube-single": 21, "cube-double": 28, "scene": 25, "puzzle-3x3": 23, "antmaze-medium": 15}
LENGTH = 20


def raw(environment: str, task: int, trajectories: int = 4, seed: int = 0) -> dict[str, np.ndarray]:
    """About half of the states are at the goal of `task`, or partly."""
    rng = np.random.default_rng(seed)
    info = ogbench.tasks()[environment]
    goal = info["tasks"][task - 1]
    rows = trajectories * LENGTH
    terminals = np.zeros(rows, np.float32)
    terminals[LENGTH - 1 :: LENGTH] = 1
    qpos = rng.normal(size=(rows, STATES.get(environment, 50))).astype(np.float32)
    scale = np.where(rng.random(rows) < 0.7, 0.015, 0.04)
    if "position" in goal:
        start = 15 if environment.startswith("antsoccer") else 0
        noise = rng.normal(size=(rows, 2)) * info["tolerance"] * scale[:, None] * 40
        qpos[:, start : start + 2] = np.array(goal["position"]) + noise
    for index, position in enumerate(goal.get("cubes", ())):
        qpos[:, 14 + 7 * index : 17 + 7 * index] = (
            position + rng.normal(size=(rows, 3)) * scale[:, None]
        )
    if "drawer" in goal:
        qpos[:, 23] = goal["drawer"] + rng.normal(size=rows) * scale
        qpos[:, 24] = goal["window"] + rng.normal(size=rows) * scale
    values = {
        "observations": rng.normal(size=(rows, 6)).astype(np.float32),
        "actions": rng.uniform(-1, 1, (rows, 5)).astype(np.float32),
        "terminals": terminals,
        "qpos": qpos,
        "qvel": qpos,
    }
    if "buttons" in goal:
        wrong = rng.random((rows, len(goal["buttons"]))) < 0.1
        values["button_states"] = np.array(goal["buttons"]) ^ wrong
    return values


def write(folder: Path, file: str, values: dict[str, Any]) -> Path:
    (folder / "ogbench").mkdir(exist_ok=True)
    path = folder / "ogbench" / file
    npz(path, values)
    return path


@pytest.mark.parametrize("agent", ["iql", "bc"])
def test_presets_have_the_activation_of_the_networks_that_were_published(agent: str) -> None:
    theirs = registry.load_agent("fql").Config().activation
    name = "ogbench/cube-single-play-singletask-v0"
    assert (
        registry.preset(agent, registry.load_agent(agent), None, name).activation
        == theirs
        == "gelu_tanh"
    )


def test_rows_of_a_file_without_a_task(tmp_path: Path) -> None:
    values = raw("cube-single", 2)
    write(tmp_path, "cube-single-play-v0.npz", values)
    dataset = datasets.load("ogbench/cube-single-play-v0", tmp_path, download=False)
    kept = values["terminals"] == 0
    transitions = dataset.transitions
    np.testing.assert_array_equal(transitions.observation, values["observations"][kept])
    np.testing.assert_array_equal(
        transitions.next_observation, values["observations"][np.flatnonzero(kept) + 1]
    )
    np.testing.assert_array_equal(transitions.action, values["actions"][kept])
    assert not np.asarray(transitions.terminated).any(), (
        "ends of trajectories are no ends of the environment"
    )
    assert dataset.lengths().tolist() == [LENGTH - 1] * 4
    assert (dataset.env, dataset.max_episode_steps) == ("ogbench:cube-single-v0", 200)
    assert {*findings(dataset)} == {
        "constant_rewards",
        "no_terminals",
    }


def test_a_task_by_hand(tmp_path: Path) -> None:
    values = raw("cube-double", 1)
    cubes = values["qpos"][:, [[14, 15, 16], [21, 22, 23]]].astype(np.float64)
    goal = np.array([[0.425, 0.0, 0.02], [0.425, 0.1, 0.02]])
    placed = np.sqrt(((cubes - goal) ** 2).sum(-1)) <= 0.04
    kept = values["terminals"] == 0
    write(tmp_path, "cube-double-play-v0.npz", values)
    dataset = datasets.load(
        "ogbench/cube-double-play-singletask-task1-v0", tmp_path, download=False
    )
    np.testing.assert_array_equal(dataset.transitions.reward, (placed.sum(1) - 2)[kept])
    np.testing.assert_array_equal(dataset.transitions.terminated, placed.all(1)[kept])
    assert {-2, -1, 0} == set(np.asarray(dataset.transitions.reward))
    assert dataset.env == "ogbench:cube-double-singletask-task1-v0"
    following = values["observations"][np.flatnonzero(kept) + 1]
    np.testing.assert_array_equal(dataset.transitions.next_observation, following)
    assert not findings(dataset, "error")


def test_the_default_task_and_the_validation_split(tmp_path: Path) -> None:
    values = raw("cube-single", 2)
    for file in ("cube-single-play-v0.npz", "cube-single-play-v0-val.npz"):
        write(tmp_path, file, values)
    named = [f"ogbench/cube-single-play-singletask{task}-v0" for task in ("", "-task2", "-task1")]
    default, second, first = (datasets.load(name, tmp_path, download=False) for name in named)
    np.testing.assert_array_equal(default.transitions.reward, second.transitions.reward)
    assert (np.asarray(default.transitions.reward) != np.asarray(first.transitions.reward)).any()
    assert default.env == "ogbench:cube-single-singletask-v0"
    assert (default.provenance["task"], first.provenance["task"]) == (2, 1)
    validation = datasets.load(f"{named[0]}-val", tmp_path, download=False)
    assert validation.provenance["split"] == "val"


@pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision:UserWarning")
@pytest.mark.parametrize(
    "environment", ["cube-single", "cube-double", "scene", "puzzle-3x3", "antmaze-medium"]
)
def test_tasks_equal_the_package(tmp_path: Path, environment: str) -> None:
    package, relabel = pytest.importorskip("ogbench"), pytest.importorskip("ogbench.relabel_utils")
    gymnasium = pytest.importorskip("gymnasium")

    kind = ogbench.KINDS[environment.partition("-")[0]][0]
    for task in range(1, 6):
        values = raw(environment, task, seed=task)
        path = write(tmp_path, f"{environment}-{kind}-v0.npz", values)
        expected = package.load_dataset(str(path), add_info=True)
        name = f"{environment}-singletask-task{task}-v0"
        made = gymnasium.make(name)
        relabel.relabel_dataset(name, made, expected)
        dataset = datasets.load(
            f"ogbench/{environment}-{kind}-singletask-task{task}-v0", tmp_path, download=False
        )
        transitions = dataset.transitions
        np.testing.assert_array_equal(transitions.observation, expected["observations"])
        np.testing.assert_array_equal(transitions.next_observation, expected["next_observations"])
        np.testing.assert_array_equal(transitions.action, expected["actions"])
        np.testing.assert_array_equal(transitions.reward, expected["rewards"])
        np.testing.assert_array_equal(transitions.terminated, expected["masks"] == 0)
        ends = (expected["terminals"] == 1) | (expected["masks"] == 0)
        np.testing.assert_array_equal(dataset.last, ends)
        assert dataset.max_episode_steps == made.spec.max_episode_steps


def test_names() -> None:
    names = ogbench.names()
    assert len(names) == 7 * (49 + 35)
    parts = ogbench.parse("ogbench/antsoccer-arena-navigate-singletask-v0")
    assert (parts.environment, parts.kind, parts.task, parts.number) == (
        "antsoccer-arena",
        "navigate",
        0,
        4,
    )
    assert ogbench.parse("ogbench/puzzle-4x5-noisy-v0-val").file == "puzzle-4x5-noisy-v0-val.npz"
    for name in names:
        assert ogbench.parse(name).environment in ogbench.tasks()


@pytest.mark.parametrize(
    "name", ["ogbench/powderworld-easy-play-v0", "ogbench/visual-pointmaze-medium-navigate-v0"]
)
def test_pictures_of_others_are_refused(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"'{name}' is of Powderworld|no dataset '{name}' in OGBench"
    ):
        datasets.load(name, download=False)


@pytest.mark.parametrize("task", ["", "-singletask-task2"])
def test_pictures_are_stored_once(tmp_path: Path, task: str) -> None:
    """All but the pictures is that of the states' file."""
    states = raw("cube-single", 2)
    pictures = np.random.default_rng(1).integers(
        0, 256, (len(states["actions"]), 64, 64, 3), np.uint8
    )
    write(tmp_path, "cube-single-play-v0.npz", states)
    write(tmp_path, "visual-cube-single-play-v0.npz", states | {"observations": pictures})
    name = f"cube-single-play{task}-v0"
    expected = datasets.load(f"ogbench/{name}", tmp_path, download=False)
    dataset = datasets.load(f"ogbench/visual-{name}", tmp_path, download=False)
    for field in ("action", "reward", "terminated", "truncated"):
        np.testing.assert_array_equal(
            getattr(dataset.transitions, field), getattr(expected.transitions, field)
        )
    rows = np.flatnonzero(np.arange(len(pictures)) % LENGTH != LENGTH - 1)
    np.testing.assert_array_equal(np.asarray(dataset.transitions.observation), pictures[rows])
    np.testing.assert_array_equal(
        np.asarray(dataset.transitions.next_observation), pictures[rows + 1]
    )
    assert dataset.nbytes < 1.1 * pictures.nbytes
    assert dataset.env == f"ogbench:visual-cube-single{task}-v0"
    assert dataset.spec.observation_shape == (64, 64, 3)


@pytest.mark.parametrize(
    ("key", "task"), [("terminals", ""), ("qpos", "-singletask"), ("button_states", "-singletask")]
)
def test_missing_arrays_are_named(tmp_path: Path, key: str, task: str) -> None:
    write(tmp_path, "scene-play-v0.npz", without(raw("scene", 2), key))
    with pytest.raises(
        ValueError, match=rf"'scene-play-v0.npz' has no '{key}'; it has: .*record it with the sim"
    ):
        datasets.load(f"ogbench/scene-play{task}-v0", tmp_path, download=False)
