"""What comes from files does nothing to the terminal."""

from __future__ import annotations

import json
from io import StringIO
from pathlib import Path
from typing import Any

import pytest

from rljax.analysis import report, watch
from rljax.learning.settings import Settings
from rljax.runs.display import console
from rljax.trust import printable
from tests.cli import commands
from tests.helpers import run_folders

EVIL = "a\x1b[2Jb\x9b1mc\x1b]0;title\x07d\ne\rf\u202eg\x7f"


@pytest.mark.parametrize("view", [console.View, console.Terminal])
def test_views_show_no_control_characters(view: Any, capsys: pytest.CaptureFixture[str]) -> None:
    shown = view()
    shown.start(Path(EVIL), 10, Settings(EVIL, EVIL), 0)
    shown.say(EVIL)
    shown.warn(EVIL)
    shown.stop()
    printed = capsys.readouterr().err
    assert not {"\x1b]", "\x1b[2J", "\x9b", "\x07", "\u202e"} & {
        part for part in (EVIL,) if part in printed
    }
    assert "\x1b]0;" not in printed
    assert "\u202e" not in printed
    assert r"a\x1b[2Jb\x9b1mc" in printed.replace("\n", "")


@pytest.fixture
def evil(tmp_path: Path) -> Path:
    """A run whose folder and settings have control characters, and a damaged one."""
    out = run_folders.write(
        tmp_path / "a\x1b[2Jb\ne", command=f"rljax train {EVIL}", config={"kind": EVIL}
    )
    run_folders.write(tmp_path / "other", config={"kind": "plain"})
    damaged = run_folders.write(tmp_path / "c\x1b[2Jd")
    (damaged / "config.json").write_text(json.dumps({"agent": EVIL}))
    assert (out / "config.json").exists()
    return tmp_path


def test_tables_of_runs_show_no_control_characters(evil: Path) -> None:
    stream = StringIO()
    watch.follow([evil], once=True, output=stream)
    text = stream.getvalue()
    assert printable(text, keep="\n") == text
    assert r"a\x1b[2Jb\ne" in text


def test_reports_show_no_control_characters(evil: Path) -> None:
    page = report.write([evil], evil / "report.html")
    for path in (page, evil / "report/tables.md"):
        text = path.read_text()
        assert printable(text, keep="\n") == text, path
    assert r"title\x07d\ne" in (evil / "report/tables.md").read_text()


def test_errors_show_no_control_characters(evil: Path, capsys: pytest.CaptureFixture[str]) -> None:
    printed = commands.refused(["resume", evil / "c\x1b[2Jd"], capsys)
    assert printable(printed, keep="\n") == printed
    assert "cannot be read as a run" in printed


@pytest.mark.parametrize(("cost", "where"), [(31.0, "above"), (20.0, "within")])
def test_the_last_line_has_success_and_the_cost_beside_its_limit(cost: float, where: str) -> None:
    final = {"step": 100, "mean": 7.0, "success": 0.25, "signals": {"cost": cost}, "learners": [{}]}
    summary = {"final": final, "cost_limit": 25.0, "diverged": [], "steps_per_second": None}
    summary |= {"wall_seconds": 1, "compile_seconds": 1, "peak_memory_bytes": 1}
    line = console.summary_lines(summary)[0]
    assert line == (
        f"final return 7.0, success 25%, cost {cost} ({where} its limit of 25) at 100 steps"
    )
