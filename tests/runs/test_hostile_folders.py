"""Hostile and damaged folders of runs: one error, and nothing else is run or opened."""

from __future__ import annotations

import json
import shutil
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from rljax.agent import EnvSpec
from rljax.learning import agent_state, registry
from rljax.runs import checkpoints, records
from rljax.runs.policies import loading
from tests.helpers import run_folders

SPEC = run_folders.SPEC | {"observation_shape": [3], "action_size": 1}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    module: Any = registry.load_agent("bc")
    config = module.Config(hidden=(4,))
    spec = EnvSpec("Hopper-v5", (3,), 1, max_episode_steps=1000)
    inputs = module.experience(config).inputs

    def create(key: Any) -> Any:
        return agent_state.create(module, key, spec, config, inputs)

    state = jax.jit(jax.vmap(create))(jax.random.split(jax.random.key(0), 1))
    changes = {"hidden": [4]}
    folder = run_folders.write(
        tmp_path_factory.mktemp("whole") / "run", "bc", "none", seeds=[0], spec=SPEC, config=changes
    )
    records.write_json(folder / "config.json", records.read_config(folder) | {"config": changes})
    checkpoints.save(
        folder / "checkpoints",
        100,
        {"agent": state, "best": state},
        {"run.json": b'{"values": null}'},
    )
    return folder


@pytest.fixture
def folder(whole: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(whole, tmp_path / "run"))


def refused(folder: Path) -> str:
    """The error of loading the policy; "" if there is none."""
    try:
        with warnings.catch_warnings():
            # "checkpoint ... is damaged: falling back to the one before it"
            warnings.simplefilter("ignore")
            loading.load(folder)
    except (ValueError, TypeError, checkpoints.CheckpointError) as error:
        return str(error) or "an error without words"
    return ""


def described(**changed: Any) -> Callable[[Path], Any]:
    """A config.json with other entries; None removes one."""

    def change(folder: Path) -> None:
        found = records.read_config(folder) | changed
        text = json.dumps({name: value for name, value in found.items() if value is not None})
        (folder / "config.json").write_text(text)

    return change


def noted(text: str) -> Callable[[Path], Any]:
    """Other notes of a checkpoint, with a manifest that fits."""

    def change(folder: Path) -> None:
        inside = checkpoints.newest(folder / "checkpoints")
        (inside / "run.json").write_text(text)
        refit(folder)

    return change


def linked(name: str) -> Callable[[Path], Any]:
    """A file or folder of the run that is a link to the same elsewhere."""

    def change(folder: Path) -> None:
        elsewhere = folder.with_name("elsewhere")
        (folder / name).rename(elsewhere)
        (folder / name).symlink_to(elsewhere)

    return change


def endless(folder: Path) -> None:
    """Notes that claim a terabyte and take no space."""
    with (folder / CHECKPOINT / "run.json").open("wb") as file:
        file.truncate(1 << 40)


CHECKPOINT = "checkpoints/000000000100"
FOLDERS: dict[str, Callable[[Path], Any]] = {
    "deep config.json": lambda f: (f / "config.json").write_text("[" * 100_000),
    "empty config.json": lambda f: (f / "config.json").write_text(""),
    "a list as config.json": lambda f: (f / "config.json").write_text("[]"),
    "bytes as config.json": lambda f: (f / "config.json").write_bytes(b"\xff\xfe\x00"),
    "no agent": described(agent=None),
    "a number as agent": described(agent=3),
    "an unknown agent": described(agent="os"),
    "a path as agent": described(agent="../evil"),
    "a file as agent": described(agent="/tmp/evil.py"),
    "a module of rljax as agent": described(agent="presets"),
    "no seeds": described(seeds=None),
    "versions that are no text": described(versions={"jax": {}}),
    "text as seeds": described(seeds="ab"),
    "texts as seeds": described(seeds=["a"]),
    "seeds below 0": described(seeds=[-1]),
    "seeds in a list": described(seeds=[[1]]),
    "no config": described(config=None),
    "a list as config": described(config=[]),
    "an unknown setting": described(config={"evil": 1}),
    "no spec": described(spec=None),
    "a list as spec": described(spec=[]),
    "no shape": described(spec={"name": "a", "action_size": 1, "discrete": False}),
    "text as shape": described(spec=SPEC | {"observation_shape": "a"}),
    "texts as shape": described(spec=SPEC | {"observation_shape": ["a"]}),
    "a huge shape": described(spec=SPEC | {"observation_shape": [10**12]}),
    "another shape": described(spec=SPEC | {"observation_shape": [4]}),
    "a base that is elsewhere": described(base="/nowhere"),
    "a number as base": described(base=3),
    "no notes": noted(""),
    "a list as notes": noted("[]"),
    "deep notes": noted("[" * 100_000),
    "text as values": noted('{"values": "a"}'),
    "config.json elsewhere": linked("config.json"),
    "checkpoints elsewhere": linked("checkpoints"),
    "a checkpoint elsewhere": linked(CHECKPOINT),
    "notes elsewhere": linked(f"{CHECKPOINT}/run.json"),
    "arrays elsewhere": linked(f"{CHECKPOINT}/agent/d"),
    "a manifest elsewhere": linked(f"{CHECKPOINT}/{checkpoints.MANIFEST}"),
    "notes of a terabyte": endless,
}


@pytest.mark.parametrize("kind", FOLDERS)
def test_a_hostile_folder_has_one_error(kind: str, folder: Path) -> None:
    FOLDERS[kind](folder)
    assert refused(folder)


def damage(folder: Path, files: list[Path], number: int) -> None:
    """Load the policy so often, each time with a file that is cut or has another bit."""
    generator = np.random.default_rng(0)
    for seed in range(number):
        path = files[seed % len(files)]
        kept = path.read_bytes()
        changed = bytearray(kept[: len(kept) // 2] if seed % 5 == 0 else kept)
        changed[int(generator.integers(len(changed)))] ^= 1 << int(generator.integers(8))
        path.write_bytes(changed)
        refit(folder)
        refused(folder)
        path.write_bytes(kept)
    refit(folder)
    assert not refused(folder)


def refit(folder: Path) -> None:
    """Make the manifest fit the files, as whoever changes them on purpose does."""
    inside = folder / CHECKPOINT
    names = json.loads((inside / checkpoints.MANIFEST).read_text())
    fitting = {name: checkpoints._fingerprint(inside / name) for name in names}
    (inside / checkpoints.MANIFEST).write_text(json.dumps(fitting))


def test_damage_in_json_has_one_error_or_none(folder: Path) -> None:
    damage(folder, [folder / "config.json", folder / CHECKPOINT / "run.json"], 40)


def test_damage_in_arrays_has_one_error_or_none(folder: Path) -> None:
    inside = folder / CHECKPOINT / "agent"
    damage(
        folder,
        [file for file in sorted(inside.rglob("*")) if file.is_file() and file.stat().st_size],
        10,
    )
