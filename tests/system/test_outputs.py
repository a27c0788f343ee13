"""An output that cannot be made is refused before the work, and the question leaves nothing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rljax.system.outputs import require_makeable


@pytest.mark.parametrize("name", ["new.npz", "a/b/new.npz", "here"])
def test_what_can_be_made_is_not_made(name: str, tmp_path: Path) -> None:
    (tmp_path / "here").write_text("whole")
    require_makeable(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["here"]
    assert (tmp_path / "here").read_text() == "whole"


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("file/new.npz", NotADirectoryError),
        ("file/a/b/new.npz", NotADirectoryError),
        ("folder", IsADirectoryError),
        (300 * "x", OSError),
    ],
)
def test_what_cannot_be_made(name: str, error: type[OSError], tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(error, match=str(tmp_path)):
        require_makeable(tmp_path / name)
    require_makeable(tmp_path / "folder", folder=True)


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_a_folder_without_permission(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(PermissionError, match=str(tmp_path)):
        require_makeable(tmp_path / "a" / "new.npz")
