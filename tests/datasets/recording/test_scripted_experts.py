"""Recording of OGBench's arm data."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets, envs
from rljax.cli import data
from rljax.datasets.recording import arms, experts, scripted_experts
from tests.datasets.files import findings

pytestmark = pytest.mark.filterwarnings("ignore:.*Box (low|high)'s precision:UserWarning")
NAME = "ogbench/cube-single-play-v0"
LENGTH = 40


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two short trajectories of one cube."""
    pytest.importorskip("ogbench")
    folder = tmp_path_factory.mktemp("data")
    scripted_experts.record(
        NAME,
        folder / "ogbench" / "cube-single-play-v0.npz",
        steps=LENGTH + 1,
        length=LENGTH,
        seed=3,
    )
    return folder


def test_the_file_has_the_published_layout(recorded: Path) -> None:
    assert sorted(path.name for path in (recorded / "ogbench").iterdir()) == [
        "cube-single-play-v0.npz",
        "cube-single-play-v0.npz.json",
    ]
    with np.load(recorded / "ogbench" / "cube-single-play-v0.npz") as file:
        found = {key: (file[key].shape, file[key].dtype.name) for key in file.files}
        terminals, actions = file["terminals"], file["actions"]
    rows = 2 * (LENGTH + 1)
    assert found == {
        "observations": ((rows, 28), "float32"),
        "actions": ((rows, 5), "float32"),
        "terminals": ((rows,), "bool"),
        "qpos": ((rows, 21), "float32"),
        "qvel": ((rows, 20), "float32"),
    }
    np.testing.assert_array_equal(np.flatnonzero(terminals), [LENGTH, rows - 1])
    assert np.abs(actions).max() <= 1
    assert actions.std(axis=0).min() > 0.1, "the arm moves in all its directions"


def test_it_is_found_by_its_name_with_its_origin(recorded: Path) -> None:
    dataset = datasets.load(
        "ogbench/cube-single-play-singletask-task2-v0", recorded, download=False
    )
    assert dataset.num == 2 * LENGTH
    assert dataset.provenance["url"] is None
    assert dataset.provenance["recorded"]["seed"] == 3
    assert not findings(dataset, "error")


def test_it_is_found_by_its_path(recorded: Path) -> None:
    path = recorded / "ogbench" / "cube-single-play-v0.npz"
    dataset = datasets.load(str(path))
    assert (dataset.name, dataset.env, dataset.num) == (
        str(path),
        "ogbench:cube-single-v0",
        2 * LENGTH,
    )
    assert datasets.environment(str(path)) == "ogbench:cube-single-v0"


def test_transitions_are_those_of_the_environment_that_scores(recorded: Path) -> None:
    dataset = datasets.load(
        "ogbench/cube-single-play-singletask-task2-v0", recorded, download=False
    )
    with np.load(recorded / "ogbench" / "cube-single-play-v0.npz") as file:
        qpos, qvel = file["qpos"][~file["terminals"]], file["qvel"][~file["terminals"]]
    hosted = envs.make_hosted(dataset.env, 1)
    assert hosted.spec.observation_shape == (dataset.observation_size,)
    assert (hosted.spec.action_size, hosted.spec.max_episode_steps) == (
        5,
        dataset.max_episode_steps,
    )
    np.testing.assert_array_equal(hosted.action_bounds, dataset.action_bounds)
    hosted.reset([0])
    arm = hosted.vector_env.envs[0].unwrapped
    for index in range(1, dataset.num, 7):
        arm.set_state(qpos[index].astype(np.float64), qvel[index].astype(np.float64))
        step = hosted.step(np.asarray(dataset.transitions.action)[[index]])
        expected = np.asarray(dataset.transitions.next_observation)[index]
        # Not equal: the simulator's sites lag by one of its 25 small steps.
        np.testing.assert_allclose(step.next_observation[0], expected, atol=0.05)
        assert np.abs(step.next_observation[0] - expected).mean() < 0.01
    hosted.close()


def test_stored_actions_play_the_trajectory_again(recorded: Path) -> None:
    with np.load(recorded / "ogbench" / "cube-single-play-v0.npz") as file:
        observations, actions = (file[key][LENGTH + 1 :] for key in ("observations", "actions"))
    task = experts.RecordingTask("cube-single", "play", "train", LENGTH, 3)
    environment = arms.Arm(task).environment
    observation, _ = environment.reset(seed=task.seeds(1)[0])
    for expected, action in zip(observations, actions, strict=True):
        np.testing.assert_array_equal(np.asarray(observation, np.float32), expected)
        observation, *_ = environment.step(action)


def test_the_oracle_moves_the_cube() -> None:
    pytest.importorskip("ogbench")
    arrays = arms.Arm(experts.RecordingTask("cube-single", "play", "train", 110, 0)).trajectory(0)
    start, end = arrays["qpos"][0, 14:16], arrays["qpos"][-1, 14:16]
    assert np.linalg.norm(end - start) > 0.05


def test_tasks_are_reached_in_it(tmp_path: Path) -> None:
    pytest.importorskip("ogbench")
    (tmp_path / "ogbench").mkdir()
    scripted_experts.record(
        NAME, tmp_path / "ogbench" / "cube-single-play-v0.npz", steps=60, length=1
    )
    names = [f"ogbench/cube-single-play-singletask-task{task}-v0" for task in range(1, 6)]
    loaded = [datasets.load(name, tmp_path, download=False).transitions for name in names]
    reached = np.array([np.asarray(transitions.terminated).mean() for transitions in loaded])
    assert 0.05 < reached.sum() < 0.4, (
        "a circle of 4 cm in 25 x 60 cm is 3 %, in which five goals lie"
    )
    assert {float(value) for transitions in loaded for value in np.asarray(transitions.reward)} == {
        -1.0,
        0.0,
    }


@pytest.mark.parametrize(
    ("environment", "kind"),
    [("cube-double", "noisy"), ("scene", "play"), ("scene", "noisy"), ("puzzle-3x3", "play")],
)
def test_a_trajectory_depends_on_its_seed_and_number_only(environment: str, kind: str) -> None:
    pytest.importorskip("ogbench")
    task = experts.RecordingTask(environment, kind, "train", 25, 1)
    collector = arms.Arm(task)
    state = np.random.get_state()[1].copy()
    first, second = collector.trajectory(0), collector.trajectory(1)
    np.testing.assert_array_equal(
        np.random.get_state()[1], state, "NumPy's own generator is left as it was"
    )
    again = arms.Arm(task).trajectory(1)
    assert ("button_states" in first) == (environment != "cube-double")
    for key in first:
        np.testing.assert_array_equal(again[key], second[key])
    assert (first["observations"] != second["observations"]).any()


def test_processes_record_the_same(recorded: Path, tmp_path: Path) -> None:
    path = scripted_experts.record(
        NAME, tmp_path / "two.npz", steps=2 * LENGTH, length=LENGTH, seed=3, processes=2
    )
    with (
        np.load(path) as found,
        np.load(recorded / "ogbench" / "cube-single-play-v0.npz") as expected,
    ):
        for key in expected.files:
            np.testing.assert_array_equal(found[key], expected[key])


def test_training_and_validation_share_no_trajectory() -> None:
    train, validation = (
        experts.RecordingTask("scene", "play", split, 10, 0) for split in ("train", "val")
    )
    seeds = [tuple(task.seeds(number)) for task in (train, validation) for number in range(50)]
    assert len(set(seeds)) == 100


def test_an_interrupted_recording_continues(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    written = []

    def write(task: experts.RecordingTask, number: int, piece: Path) -> None:
        if len(written) == 2:
            written.append(None)
            raise KeyboardInterrupt
        written.append(number)
        np.savez(
            piece,
            observations=np.full((3, 2), number, np.float32),
            terminals=np.array([False, False, True]),
        )

    monkeypatch.setattr(scripted_experts, "_write", write)
    monkeypatch.setattr(scripted_experts, "_versions", lambda name: {})
    path, seen = tmp_path / "data.npz", []
    options = {
        "steps": 8,
        "length": 2,
        "progress": lambda done, total: seen.append((done, total)),
    }
    with pytest.raises(KeyboardInterrupt):
        scripted_experts.record(NAME, path, **options)
    assert not path.exists()
    with pytest.raises(
        ValueError,
        match=r"'seed': 0.*, not of .*'seed': 1.* Finish it with those settings, or delete",
    ):
        scripted_experts.record(NAME, path, seed=1, **options)
    scripted_experts.record(NAME, path, **options)
    assert written == [0, 1, None, 2, 3]
    assert seen == [(0, 4), (1, 4), (2, 4), (2, 4), (3, 4), (4, 4)]
    assert sorted(found.name for found in tmp_path.iterdir()) == ["data.npz", "data.npz.json"]
    with np.load(path) as file:
        np.testing.assert_array_equal(file["observations"][::3, 0], range(4))
    with pytest.raises(ValueError, match=r"there is a file .*data\.npz' already"):
        scripted_experts.record(NAME, path, **options)


def test_the_default_number_of_trajectories_is_as_published(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RLJAX_DATA", str(tmp_path))
    monkeypatch.setattr(scripted_experts, "_versions", lambda name: {})
    monkeypatch.setattr(
        scripted_experts, "_joined", lambda pieces: {"number": np.array(len(pieces))}
    )
    monkeypatch.setattr(scripted_experts, "_collect", lambda *arguments: None)
    numbers = {
        "cube-single-play-v0": 1000,
        "puzzle-4x5-noisy-v0": 3000,
        "cube-quadruple-play-v0-val": 500,
        "pointmaze-giant-navigate-v0": 500,
        "pointmaze-large-stitch-v0-val": 500,
    }
    for name, number in numbers.items():
        path = scripted_experts.record(f"ogbench/{name}")
        assert path == tmp_path / "ogbench" / f"{name}.npz"
        with np.load(path) as file:
            assert file["number"] == number


def test_a_scene_out_of_view() -> None:
    def seen(side: float, height: float) -> bool:
        qpos = np.zeros((2, 25))
        qpos[1, 15:17] = side, height
        return not arms._out_of_view(qpos)

    assert seen(0.0, 0.02)
    assert seen(-0.33, 0.07), "in the drawer"
    assert not seen(-0.33, 0.02)
    assert not seen(0.3, 0.07)


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        (
            "ogbench/antmaze-large-navigate-v0",
            {},
            "'ogbench/antmaze-large-navigate-v0' needs trained policies",
        ),
        (
            "ogbench/scene-play-singletask-v0-val",
            {},
            "added when .* is loaded: .* record ogbench/scene-play-v0-val",
        ),
        ("ogbench/cube-singel-play-v0", {}, "ogbench/cube-single-play"),
        (NAME, {"steps": 0}, "--steps is 0"),
        (NAME, {"processes": 0}, "at least 1, 1 and 0 are needed"),
        (NAME, {"path": "data.hdf5"}, "'data.hdf5', its suffix must be .npz"),
    ],
)
def test_impossible_recordings_are_refused(
    name: str, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        scripted_experts.record(name, **options)


@pytest.mark.skipif(
    importlib.util.find_spec("ogbench") is not None, reason="OGBench's package is there"
)
def test_without_the_package(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="is recorded by OGBench's package: pip install ogbench"):
        scripted_experts.record(NAME, tmp_path / "data.npz")
    with pytest.raises(
        ValueError,
        match="'ogbench:scene-v0' needs a package that is not installed: pip install ogbench",
    ):
        envs.make_hosted("ogbench:scene-v0", 1)


def test_the_command_tells_runs_from_names(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    with pytest.raises(ValueError, match="--from, --learner and --best are of runs"):
        data.main(["record", NAME, "--from", "random"])
    with pytest.raises(ValueError, match=r"which file\? rljax data record runs/a FILE"):
        data.main(["record", "runs/a"])
    called = {}

    def record(name: str, path: Path, **options: Any) -> Path:
        called.update(options, name=name)
        np.savez(path, terminals=np.array([False, False, True] * 2))
        return path

    monkeypatch.setattr(scripted_experts, "record", record)
    data.main(
        ["record", NAME, str(tmp_path / "data.npz"), "--steps", "10", "--envs", "2", "--seed", "4"]
    )
    assert called == {"name": NAME, "steps": 10, "seed": 4, "processes": 2}
    assert "data.npz: 4 transitions in 2 trajectories" in capsys.readouterr().out


def test_pictures_are_recorded(tmp_path: Path) -> None:
    """Where a machine can render: of the same states as without pictures."""
    pytest.importorskip("ogbench")
    paths = [tmp_path / "ogbench" / f"{seen}cube-single-play-v0.npz" for seen in ("", "visual-")]
    for path in paths:
        try:
            scripted_experts.record(f"ogbench/{path.stem}", path, steps=3, length=3, seed=3)
        except (ImportError, RuntimeError, AttributeError) as error:
            pytest.skip(f"OGBench cannot render here: {error}")
    with np.load(paths[0]) as states, np.load(paths[1]) as pictures:
        assert (pictures["observations"].shape, pictures["observations"].dtype) == (
            (4, 64, 64, 3),
            np.uint8,
        )
        for key in ("actions", "qpos", "terminals"):
            np.testing.assert_array_equal(states[key], pictures[key])
    dataset = datasets.load("ogbench/visual-cube-single-play-v0", tmp_path, download=False)
    assert len(dataset.transitions.observation.pictures) == 4
    hosted = envs.make_hosted(str(dataset.env), 2)
    assert hosted.spec.observation_shape == (64, 64, 3)
    first = hosted.reset([0, 1])
    assert first.dtype == np.uint8
    assert (first[0] != first[1]).any()
    hosted.close()
