"""The rooms of `rljax.datasets` build on each other in one direction."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

from rljax import datasets

ROOT = Path(datasets.__file__).parent
# Each imports itself and those before it.
ROOMS = ("dataset", "formats", "tools", "publishers", "recording")


def rooms_imported_by(path: Path) -> set[str]:
    nodes = [
        node for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, ast.ImportFrom)
    ]
    names = [f"{node.module}.{alias.name}" for node in nodes for alias in node.names]
    return {name.split(".")[2] for name in names if name.startswith("rljax.datasets.")}


@pytest.mark.parametrize("room", ROOMS)
def test_a_room_imports_only_those_before_it(room: str) -> None:
    paths = [ROOT / "dataset.py"] if room == "dataset" else sorted((ROOT / room).glob("*.py"))
    for path in paths:
        assert rooms_imported_by(path) <= {*ROOMS[: ROOMS.index(room) + 1]}, path


def test_every_module_lies_in_a_room() -> None:
    assert {
        path.stem for path in ROOT.iterdir() if path.stem not in ("__init__", "__pycache__")
    } == {*ROOMS}
