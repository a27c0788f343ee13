"""Which files of a folder may be opened."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rljax import trust
from rljax.system import hardware


def test_devices_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("zero", "pipe"):
        with pytest.raises(trust.RefusedFileError, match="is a device or a pipe, not a file"):
            trust.regular(tmp_path / name)
    with pytest.raises(trust.RefusedFileError, match="pipe' is a device or a pipe"):
        trust.safe(tmp_path / "pipe")


def test_links_are_not_a_runs_own(tmp_path: Path) -> None:
    (tmp_path / "run/inside").mkdir(parents=True)
    (tmp_path / "run/file").write_text("")
    for name, target in {
        "link": "file",
        "inside/nothing": "nowhere",
        "inside/folder": "inside",
    }.items():
        (tmp_path / "run" / name).symlink_to(tmp_path / "run" / target)
        with pytest.raises(trust.RefusedFileError, match=f"{name}' is a link.*put a copy there"):
            trust.safe(tmp_path / "run" / name)
    assert trust.safe(tmp_path / "run/file") == tmp_path / "run/file"
    assert trust.safe(tmp_path / "run/new") == tmp_path / "run/new"
    names = [str(path.relative_to(tmp_path / "run")) for path in trust.links(tmp_path / "run")]
    assert names == ["inside/folder", "inside/nothing", "link"]
    (tmp_path / "whole").symlink_to(tmp_path / "run")
    assert list(trust.links(tmp_path / "whole")) == [tmp_path / "whole"]


def test_files_beyond_the_memory_are_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with (tmp_path / "file").open("wb") as file:
        file.truncate(30_000_000)
    assert trust.safe(tmp_path / "file") == tmp_path / "file"
    monkeypatch.setattr(hardware, "available_memory", lambda: 50_000_000)
    with pytest.raises(
        trust.RefusedFileError, match=r"file' has 0\.0 GB, and reading takes 2 times as much memory"
    ):
        trust.safe(tmp_path / "file")
    assert trust.safe(tmp_path / "file", copies=1) == tmp_path / "file"
    os.truncate(tmp_path / "file", 10_000_000)  # so small that it fits always
    assert trust.safe(tmp_path / "file") == tmp_path / "file"
