"""Files of a run that are devices, pipes or links."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rljax.runs import json_files, records


def test_devices_and_pipes_are_not_read(tmp_path: Path) -> None:
    (tmp_path / "zero").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "pipe")
    for name in ("zero", "pipe"):
        with pytest.raises(ValueError, match="is a device or a pipe, not a file"):
            json_files.read_json(tmp_path / name)
    (tmp_path / "metrics.jsonl").symlink_to("/dev/zero")
    with pytest.raises(ValueError, match="is a device or a pipe, not a file"):
        list(records.read(tmp_path, "metrics"))


def test_links_are_not_written(tmp_path: Path) -> None:
    (tmp_path / "other").write_text("")
    (tmp_path / "link").symlink_to(tmp_path / "other")
    with pytest.raises(ValueError, match="is a link"):
        json_files.own(tmp_path / "link")
    assert json_files.own(tmp_path / "other") == tmp_path / "other"
