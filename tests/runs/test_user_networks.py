"""Runs with a user's own encoder and torso: resumed, loaded, exported, packed, trusted."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import rljax
from rljax.runs import experiments, records
from rljax.trust import Folder, keys
from tests.helpers import small_runs, user_networks
from tests.runs import parts

OBSERVATION = np.linspace(-1, 1, 4, dtype=np.float32)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a user's file."""
    folder = tmp_path_factory.mktemp("own")
    shutil.copy(str(user_networks.__file__), folder / "mine.py")
    return folder


def networks(place: Path, *names: str) -> dict[str, Any]:
    return {name: f"{place}/mine.py:{name.capitalize()}" for name in names}


@pytest.fixture(scope="module")
def folder(place: Path) -> Path:
    config = networks(place, "encoder") | {"num_envs": 1, "num_steps": 8}
    return small_runs.train("dqn", "CartPole-v1", 100, place / "run", config, seeds=2)


@pytest.fixture
def stranger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """Another user, whose key is another."""
    monkeypatch.setenv("HOME", str(tmp_path))
    yield
    keys._key_in.cache_clear()


def test_the_run_has_the_files_hash_and_its_seal(folder: Path) -> None:
    described = records.read_config(folder)
    assert list(described["code"]) == ["mine.py"]
    assert [name.rpartition(":")[2] for name in described["seals"]] == ["Encoder"]


@pytest.mark.slow
def test_a_resumed_run_is_the_same_with_a_torso_and_a_memory(place: Path) -> None:
    def train(steps: int, out: Path) -> Path:
        return small_runs.train("ppo", "CartPole-v1", steps, out, config, seeds=2)

    config = networks(place, "encoder", "torso") | {"memory": "gru", "memory_hidden": (4,)}
    whole, _ = parts.resumed(train, 100, 200, place / "resumed")
    policy = rljax.load(whole, learner=1)
    assert np.isfinite(policy(OBSERVATION, step=0)).all()
    assert rljax.export(whole, "numpy", learner=1).largest_difference < 1e-5


@pytest.mark.parametrize("to", ["numpy", "stablehlo", "onnx"])
def test_a_policy_is_loaded_and_exported(folder: Path, to: Any) -> None:
    if to == "onnx":
        pytest.importorskip("onnx")
    policy = rljax.load(folder, learner=1)
    assert np.isfinite(policy(OBSERVATION)).all()
    assert rljax.export(folder, to, learner=1).largest_difference < 1e-5


@pytest.mark.usefixtures("stranger")
def test_a_stranger_runs_no_file_without_trust(folder: Path, place: Path, tmp_path: Path) -> None:
    packed = rljax.pack(Folder(folder, trusted=True), output=tmp_path / "policy.zip")
    for source in (folder, packed):
        with pytest.raises(ValueError, match=r"names code as its network .*mine\.py:Encoder"):
            rljax.load(source)
        assert np.isfinite(rljax.load(source, trust=True)(OBSERVATION)).all()
    written = json.loads((folder / "config.json").read_text())
    written["config"]["encoder"] = "auto"
    written["online"] = networks(place, "torso")
    copy = shutil.copytree(folder, tmp_path / "copy")
    (copy / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match=r"names code as its network .*mine\.py:Torso"):
        rljax.load(copy)


def test_a_changed_file_is_said(folder: Path, place: Path, capsys: Any) -> None:
    copy = shutil.copytree(folder, place / "goes-on")
    with (place / "mine.py").open("a") as file:
        file.write("# changed\n")
    rljax.resume(copy, 250, quiet=False)
    assert "'mine.py' has changed" in " ".join(capsys.readouterr().err.split())
    assert records.read_config(copy)["resumed"][-1]["different"] == ["'mine.py' has changed"]


def test_classes_that_only_python_knows_are_given_again(folder: Path, tmp_path: Path) -> None:
    class OnlyHere(user_networks.Encoder):
        pass

    with pytest.warns(UserWarning, match="the class of 'encoder' cannot be imported from a file"):
        experiment = experiments.prepare("dqn", "CartPole-v1", 10_000, config={"encoder": OnlyHere})
    assert experiment.config.encoder == "python/OnlyHere"
    copy = shutil.copytree(folder, tmp_path / "copy")
    written = json.loads((copy / "config.json").read_text())
    written["config"]["encoder"] = "python/OnlyHere-2"
    (copy / "config.json").write_text(json.dumps(written))
    with pytest.raises(ValueError, match="this process does not know it: give the class again"):
        rljax.load(copy)
    policy = rljax.load(copy, config={"encoder": OnlyHere})
    assert policy(OBSERVATION) == rljax.load(folder)(OBSERVATION)
    with pytest.raises(ValueError, match="has no class as its 'torso'"):
        rljax.load(copy, config={"torso": OnlyHere})
    with pytest.raises(ValueError, match="'discount' cannot change"):
        rljax.resume(copy, 150, config={"discount": 0.9})
