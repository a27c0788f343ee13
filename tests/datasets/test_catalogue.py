"""Names: where each goes, what is suggested for an unknown one, and where files are looked for."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax import datasets
from tests.datasets.files import arrays, hdf5, npz

pytestmark = pytest.mark.usefixtures("empty_home")


@pytest.fixture
def empty_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    for name in ("RLJAX_DATA", "D4RL_DATASET_DIR", "MINARI_DATASETS_PATH"):
        monkeypatch.delenv(name, raising=False)


def test_names_by_family() -> None:
    known = datasets.names()
    assert list(known) == ["d4rl", "minari", "ogbench", "neorl2"]
    for family, names in known.items():
        assert len(set(names)) == len(names) > 10
        assert all(name.startswith(f"{family}/") for name in names)
    everything = {name for names in known.values() for name in names}
    assert {
        "d4rl/hopper-medium-v2",
        "minari/mujoco/hopper/medium-v0",
        "ogbench/cube-single-play-v0",
        "ogbench/cube-single-play-singletask-task2-v0",
        "ogbench/antmaze-large-navigate-singletask-v0",
        "neorl2/Pipeline-v0",
    } <= everything


@pytest.mark.parametrize(
    ("name", "nearest"),
    [
        ("d4rl/hoper-medium-v2", "d4rl/hopper-medium-v2"),
        ("d4rl/hopper-medium", "d4rl/hopper-medium-v2"),
        ("minari/mujoco/hoper/medium-v0", "minari/mujoco/hopper/medium-v0"),
        ("ogbench/cube-singel-play-v0", "ogbench/cube-single-play-v0"),
        ("ogbench/cube-single-play-singletask-task6-v0", "ogbench/cube-single-play-singletask-task"),
        ("neorl2/pipeline", "neorl2/Pipeline-v0"),
    ],
)
def test_unknown_names_suggest_the_nearest(name: str, nearest: str) -> None:
    with pytest.raises(ValueError, match=rf"no dataset '{name}' in .*Nearest: .*'{nearest}.*rljax data list"):
        datasets.load(name, download=False)


@pytest.mark.parametrize("name", ["d4rl", "hopper-medium-v2", "data/nothing.txt", "atari/breakout"])
def test_what_is_no_name_says_what_names_look_like(name: str) -> None:
    with pytest.raises(ValueError, match=rf"'{name}' names no dataset: names begin with d4rl/, minari/"):
        datasets.load(name)


def test_a_folder_says_what_is_in_it(tmp_path: Path) -> None:
    (tmp_path / "a.npz").touch()
    with pytest.raises(ValueError, match=r"names no dataset.* Files in '.*': a.npz"):
        datasets.load(str(tmp_path))


def test_a_path_that_is_not_there() -> None:
    with pytest.raises(ValueError, match=r"there is no file './nothing.npz', neither here nor in the folder"):
        datasets.load("./nothing.npz")


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("d4rl/hopper-medium-v2", "http://.*/gym_mujoco_v2/hopper_medium-v2.hdf5 as .*d4rl/hopper_medium-v2.hdf5"),
        ("ogbench/scene-play-singletask-v0", "https://.*/ogbench/scene-play-v0.npz as .*ogbench/scene-play-v0.npz"),
        ("ogbench/scene-play-v0-val", "https://.*/ogbench/scene-play-v0-val.npz as "),
        ("neorl2/DMSD-v0-val", "http://.*/neorl2/DMSD/DMSD-val.npz as .*neorl2/DMSD-val.npz"),
        ("minari/mujoco/ant/expert-v0", "mujoco/resolve/main/ant/expert-v0/data/metadata.json as .*minari/mujoco/ant"),
    ],
)
def test_an_absent_file_says_what_to_put_where(name: str, file: str) -> None:
    with pytest.raises(ValueError, match=rf"not to be downloaded. Put it there by hand: .*{file}"):
        datasets.load(name, download=False)


@pytest.mark.parametrize("place", ["RLJAX_DATA", "D4RL_DATASET_DIR", "home", "folder", "flat"])
def test_files_are_found_where_families_keep_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str) -> None:
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


def test_paths_are_looked_for_in_the_folder_of_datasets_too(tmp_path: Path) -> None:
    npz(tmp_path / "mine.npz", arrays([5], "t"))
    assert datasets.load("./mine.npz", tmp_path).num == 5


def test_bounds_of_a_named_dataset_are_known() -> None:
    with pytest.raises(ValueError, match=r"action_bounds is for files given by their path"):
        datasets.load("d4rl/hopper-medium-v2", action_bounds=(-1, 1))
