"""Shared parts of faults on purpose: folders that are made anew, and counts that are written."""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

from rljax.system.hardware import provenance


@contextlib.contextmanager
def places() -> Iterator[tuple[Path, Path]]:
    """Names for a folder of sound files and for one with their copies, both not made yet, while
    commands of this process have a home that has signed nothing.
    """
    with tempfile.TemporaryDirectory() as place:
        home = Path(place, "home")
        home.mkdir()
        surroundings = {"HOME": str(home), "COLUMNS": "200", "MPLBACKEND": "agg"}
        with mock.patch.dict(os.environ, surroundings):
            yield Path(place, "harmless"), Path(place, "around")


def renew(harmless: Path, around: Path) -> None:
    """Fresh copies of the sound files, in `around`/here."""
    shutil.rmtree(around, ignore_errors=True)
    shutil.copytree(harmless, around / "here")


def finish(
    output: Path, counts: Mapping[str, Counter[str]], columns: Sequence[str], **settings: Any
) -> None:
    """Write the counts of each kind, print their sums, and exit with 1 if a case has failed."""
    table = {kind: {name: count[name] for name in columns} for kind, count in counts.items()}
    described = {**settings, **provenance(), "kinds": table}
    output.write_text(json.dumps(described, indent=1) + "\n")
    sums = {name: sum(row[name] for row in table.values()) for name in columns}
    print(sums)
    if sums["failed"]:
        raise SystemExit(1)
