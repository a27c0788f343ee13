"""`rljax doctor`."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax import cli
from rljax.cli import doctor
from rljax.system.packages import DISTRIBUTION

RENDERING = doctor.rendering


@pytest.fixture(autouse=True)
def few_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rendering takes seconds."""
    monkeypatch.setattr(doctor, "rendering", lambda: iter(()))


def diagnosed(capsys: pytest.CaptureFixture[str]) -> tuple[int, str]:
    with pytest.raises(SystemExit) as end:
        cli.main(["doctor"])
    return int(str(end.value.code)), capsys.readouterr().out


def test_a_sound_machine_can_train(capsys: pytest.CaptureFixture[str]) -> None:
    code, said = diagnosed(capsys)
    assert code == 0
    assert "rljax can train here. 0 wrong" in said
    for what in ("Python", "packages", "devices", "compile cache", "disk", "extras"):
        assert f" {what} " in said


def test_what_is_wrong_is_said_with_its_remedy(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    version = doctor._version
    versions = {"optax": "0.1.0", "flax": None}
    monkeypatch.setattr(doctor, "_version", lambda name: versions.get(name, version(name)))
    monkeypatch.setattr(doctor, "_unwritable", lambda folder: "Permission denied")
    monkeypatch.setattr(doctor.shutil, "which", lambda name: "/usr/bin/nvidia-smi")
    monkeypatch.setenv("JAX_PLATFORMS", "cpu")
    code, said = diagnosed(capsys)
    assert code == 1
    assert "rljax cannot train here. 3 wrong, 2 to note." in said
    assert "0.1.0, and rljax needs >=0.2.6" in said
    assert "pip install 'flax>=0.12.7'" in said
    assert "cannot be written: Permission denied" in said
    assert "unset JAX_PLATFORMS (it is cpu)" in said


def test_a_part_that_breaks_is_named(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def training() -> None:
        raise ImportError("libcuda.so is missing")

    monkeypatch.setattr(doctor, "training", training)
    code, said = diagnosed(capsys)
    assert code == 1
    assert "WRONG  training         ImportError: libcuda.so is missing" in said


def test_a_folder_is_made_and_tried(tmp_path: Path) -> None:
    assert doctor._unwritable(tmp_path / "new") is None
    (tmp_path / "file").touch()
    assert doctor._unwritable(tmp_path / "file") == "File exists"


def test_extras_of_extras_are_missed() -> None:
    from packaging.requirements import Requirement

    assert list(doctor._missing(Requirement(f"{DISTRIBUTION}[no-such-extra]"))) == []
    assert list(doctor._missing(Requirement("no-such-package"))) == ["no-such-package"]


@pytest.mark.slow
def test_renderers_are_tried() -> None:
    (line,) = RENDERING()
    assert line.what == "rendering"
    assert line.state == "good" or line.remedy
