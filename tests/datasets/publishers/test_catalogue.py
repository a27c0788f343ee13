"""Names of data sets, and the folders that are searched."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from rljax import datasets
from rljax.datasets.formats import dataset_files
from tests.datasets.files import arrays, hdf5, npz

pytestmark = pytest.mark.usefixtures("empty_home")


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("RLJAX_DATA", "D4RL_DATASET_DIR", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_names_by_family() -> None:
    known = datasets.names()
    examples = {
        "d4rl": ["hopper-medium-v2"],
        "minari": ["mujoco/hopper/medium-v0"],
        "ogbench": [
            "cube-single-play-v0",
            "cube-single-play-singletask-task2-v0",
            "antmaze-large-navigate-singletask-v0",
        ],
        "neorl2": ["Pipeline-v0"],
    }
    assert list(known) == list(examples)
    for family, names in known.items():
        assert len(set(names)) == len(names) > 10
        assert all(name.startswith(f"{family}/") for name in names)
        assert {f"{family}/{name}" for name in examples[family]} <= {*names}


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("d4rl/hopper-medium", "d4rl/hopper-medium-v2"),
        ("minari/mujoco/hoper/medium-v0", "minari/mujoco/hopper/medium-v0"),
        ("ogbench/cube-singel-play-v0", "ogbench/cube-single-play-v0"),
        (
            "ogbench/cube-single-play-singletask-task6-v0",
            "ogbench/cube-single-play-singletask-task",
        ),
        ("neorl2/pipeline", "neorl2/Pipeline-v0"),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(
        ValueError, match=rf"no dataset '{name}' in .*Nearest: .*'{nearest}.*rljax data list"
    ):
        datasets.load(name, download=False)


@pytest.mark.parametrize("name", ["d4rl", "hopper-medium-v2", "data/nothing.txt", "atari/breakout"])
def test_the_message_for_other_words_shows_the_form_of_names(name: str) -> None:
    with pytest.raises(
        ValueError, match=rf"'{name}' names no dataset: names begin with d4rl/, minari/"
    ):
        datasets.load(name)


def test_a_folder_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.npz").touch()
    with pytest.raises(ValueError, match=r"names no dataset.* Files in '.*': a.npz"):
        datasets.load(str(tmp_path))


def test_a_missing_path_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"there is no file './nothing.npz', neither here nor in the folder"
    ):
        datasets.load("./nothing.npz")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        (
            "d4rl/hopper-medium-v2",
            "http://.*/gym_mujoco_v2/hopper_medium-v2.hdf5 as .*d4rl/hopper_medium-v2.hdf5",
        ),
        (
            "ogbench/scene-play-singletask-v0",
            "https://.*/ogbench/scene-play-v0.npz as .*ogbench/scene-play-v0.npz",
        ),
        ("ogbench/scene-play-v0-val", "https://.*/ogbench/scene-play-v0-val.npz as "),
        ("neorl2/DMSD-v0-val", "http://.*/neorl2/DMSD/DMSD-val.npz as .*neorl2/DMSD-val.npz"),
        (
            "minari/mujoco/ant/expert-v0",
            "mujoco/resolve/main/ant/expert-v0/data/metadata.json as .*minari/mujoco/ant",
        ),
    ],
)
def test_an_absent_file_says_what_to_put_where(name: str, file: str) -> None:
    with pytest.raises(ValueError, match=rf"not to be downloaded. Put it there by hand: .*{file}"):
        datasets.load(name, download=False)


@pytest.mark.parametrize("place", ["RLJAX_DATA", "D4RL_DATASET_DIR", "home", "folder", "flat"])
def test_files_are_found_where_families_keep_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    folders = {
        "RLJAX_DATA": tmp_path / "data" / "d4rl",
        "D4RL_DATASET_DIR": tmp_path / "data",
        "home": tmp_path / "home" / ".d4rl" / "datasets",
        "folder": tmp_path / "data" / "d4rl",
        "flat": tmp_path / "data",
    }
    folders[place].mkdir(parents=True)
    hdf5(folders[place] / "hopper_medium-v2.hdf5", arrays([5, 4, 6], "tot"))
    if place.isupper():
        monkeypatch.setenv(place, str(tmp_path / "data"))
    folder = tmp_path / "data" if place in ("folder", "flat") else None
    dataset = datasets.load("d4rl/hopper-medium-v2", folder, download=False)
    assert (dataset.name, dataset.env, dataset.num) == ("d4rl/hopper-medium-v2", "Hopper-v5", 13)
    assert dataset.provenance["files"][0]["file"] == "hopper_medium-v2.hdf5"
    assert str(tmp_path) not in str(dataset.provenance)


def test_paths_are_also_searched_in_the_folder_of_datasets(tmp_path: Path) -> None:
    npz(tmp_path / "mine.npz", arrays([5], "t"))
    assert datasets.load("./mine.npz", tmp_path).num == 5


@pytest.mark.parametrize(
    ("data", "identity"),
    [
        ("d4rl/hopper-medium-v2", "d4rl/hopper-medium-v2"),
        ("minari/mujoco/hopper/medium-v0", "minari/mujoco/hopper/medium-v0"),
        (
            "ogbench/cube-single-play-singletask-task2-v0",
            "ogbench/cube-single-play-singletask-task2-v0",
        ),
        ("neorl2/Pipeline-v0-val", "neorl2/Pipeline-v0-val"),
        ("/nowhere/pen-human-v1.hdf5", "d4rl/pen-human-v1"),
        ("/nowhere/hopper_medium-v2.hdf5", "d4rl/hopper-medium-v2"),
        ("./d4rl/mine.hdf5", None),
        ("d4rl/mine.hdf5", None),
        ("d4rl", None),
        ("atari/breakout", None),
    ],
)
def test_identities_of_names(data: str, identity: str | None) -> None:
    assert datasets.identity(data) == identity


def test_identities_of_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    path = hdf5(tmp_path / "pen-human-v1.hdf5", arrays([5, 4, 6], "tot"))
    known, own = (
        dataclasses.replace(datasets.load(str(path)), name=name)
        for name in ("d4rl/pen-human-v1", "own")
    )
    for name in ("copy.npz", "copy.hdf5", "hopper_medium-v2.hdf5"):
        datasets.write(known, tmp_path / name)
    for name in ("d4rl/own.npz", "door-human-v1.hdf5"):
        datasets.write(dataclasses.replace(own, name=name), tmp_path / name)
    npz(tmp_path / "foreign.npz", arrays([5], "t"))
    npz(tmp_path / "recorded.npz", arrays([5], "t"))
    (tmp_path / "recorded.npz.json").write_text('{"recorded": {"id": "cube-single-play-v0"}}')
    monkeypatch.setattr(dataset_files, "_rows", None)  # nothing but the metadata is read
    assert datasets.identity(str(path)) == "d4rl/pen-human-v1"
    for name in ("copy.npz", "copy.hdf5", "hopper_medium-v2.hdf5"):
        assert datasets.identity(name) == "d4rl/pen-human-v1", (
            "of what, not under which name it was copied"
        )
    for name in ("d4rl/own.npz", "door-human-v1.hdf5", "foreign.npz"):
        assert datasets.identity(name) is None
    assert datasets.identity("recorded.npz") == "ogbench/cube-single-play-v0"


def test_files_in_the_folder_of_datasets_are_known_too(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = datasets.load(str(hdf5(tmp_path / "pen-human-v1.hdf5", arrays([5, 4], "to"))))
    datasets.write(dataclasses.replace(dataset, name="d4rl/pen-human-v1"), tmp_path / "copy.npz")
    monkeypatch.setenv("RLJAX_DATA", str(tmp_path))
    assert datasets.load("copy.npz").env == datasets.environment("copy.npz") == dataset.env
    assert datasets.identity("copy.npz") == "d4rl/pen-human-v1"


def test_bounds_of_a_named_dataset_are_known() -> None:
    with pytest.raises(ValueError, match=r"action_bounds is for files given by their path"):
        datasets.load("d4rl/hopper-medium-v2", action_bounds=(-1, 1))
