"""NeoRL-2's files, against the claims of its paper and package."""

from __future__ import annotations

import shutil
from pathlib import Path

import numpy as np
import pytest

from rljax import datasets
from rljax.datasets.formats.fingerprints import digest
from rljax.datasets.publishers import neorl2
from tests.datasets.files import findings, shared

FILES = {
    "SafetyHalfCheetah-train.npz": "neorl2_SafetyHalfCheetah-high-100000-train.npz",
    "SafetyHalfCheetah-val.npz": "neorl2_SafetyHalfCheetah-high-20000-val.npz",
    "RocketRecovery-val.npz": "neorl2_RocketRecovery-high-20000-val.npz",
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("data")
    (home / "neorl2").mkdir()
    for name, source in FILES.items():
        shutil.copyfile(shared("offline", source), home / "neorl2" / name)
    return home


def test_safety_half_cheetah_is_as_published(folder: Path) -> None:
    dataset = datasets.load("neorl2/SafetyHalfCheetah-v0", folder, download=False)
    assert (dataset.num, dataset.observation_size, dataset.action_size) == (18000, 18, 6)
    # NeoRL-2, benchmark/task_reward.csv
    assert dataset.returns().mean() == pytest.approx(1769.3, abs=0.05)
    # Its README, "data".
    assert dataset.score(dataset.returns().mean()) == pytest.approx(73.56, abs=0.01)
    assert set(dataset.lengths()) == {1000} == {dataset.max_episode_steps}
    assert not np.asarray(dataset.transitions.terminated).any()
    assert not findings(dataset, "error")


def test_validation_split(folder: Path) -> None:
    dataset = datasets.load("neorl2/SafetyHalfCheetah-val", folder, download=False)
    assert (dataset.num, dataset.provenance["split"]) == (2000, "val")


def test_rocket_recovery_keeps_the_trajectories_that_the_package_keeps(folder: Path) -> None:
    dataset = datasets.load("neorl2/RocketRecovery-v0-val", folder, download=False)
    with np.load(folder / "neorl2" / "RocketRecovery-val.npz") as file:
        end = np.flatnonzero(file["done"].astype(bool) | file["truncated"].astype(bool))[24] + 1
        np.testing.assert_array_equal(dataset.transitions.observation, file["obs"][:end])
        np.testing.assert_array_equal(dataset.transitions.next_observation, file["next_obs"][:end])
        np.testing.assert_array_equal(
            dataset.transitions.terminated, file["done"][:end].astype(bool)
        )
    assert len(dataset.returns()) == 25
    assert not findings(dataset, "error")


@pytest.mark.parametrize(("split", "kept"), [("train", 20), ("val", 5)])
def test_fusion_keeps_the_trajectories_that_the_package_keeps(
    tmp_path: Path, split: str, kept: int
) -> None:
    rows, width = 22 * 3, 15
    values = np.arange(rows * width, dtype=np.float32).reshape(rows, width)
    ends = (np.arange(rows) % 3 == 2).astype(np.float32)
    arrays = {"obs": values, "next_obs": values + 1, "reward": values[:, 0], "truncated": ends}
    np.savez(
        tmp_path / "f.npz",
        done=np.zeros(rows, np.float32),
        action=np.zeros((rows, 6), np.float32),
        **arrays,
    )
    dataset = neorl2.read(tmp_path / "f.npz", "neorl2/Fusion-v0", "Fusion", split)
    assert dataset.lengths().tolist() == [3] * kept
    np.testing.assert_array_equal(dataset.transitions.observation, values[: 3 * kept])
    assert dataset.provenance["rows_in_file"] == rows
    assert f"the first {kept} trajectories" in dataset.provenance["rules"][-1]


def test_checksums_are_of_the_published_files(folder: Path) -> None:
    for name in FILES:
        task, _, split = name.removesuffix(".npz").partition("-")
        expected = neorl2.TASKS[task][3 if split == "val" else 2]
        assert digest(folder / "neorl2" / name, "md5") == expected
