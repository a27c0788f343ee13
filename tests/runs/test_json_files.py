"""Files of a run that are devices, pipes or links."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljax.runs import json_files, records


@pytest.mark.parametrize(
    "make", [os.mkfifo, lambda path: path.symlink_to(path.with_name("other"))], ids=["pipe", "link"]
)
def test_pipes_and_links_are_not_read(make: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "other").write_text("{}")
    make(tmp_path / "metrics.jsonl")
    for read in (json_files.read_json, lambda path: list(records.read(path.parent, "metrics"))):
        with pytest.raises(ValueError, match=r"metrics.jsonl' is a "):
            read(tmp_path / "metrics.jsonl")


def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OSError, match="Not a directory") as raised:
        json_files.write_json(tmp_path / "file/config.json", {})
    assert raised.value.filename == str(tmp_path / "file")
