"""Notes on the command line: the text alone, once."""

from __future__ import annotations

import subprocess
import sys
import warnings
from pathlib import Path

import pytest

from rljax import trust


def test_the_command_line_shows_the_text_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("default")
        warnings.showwarning = trust.show_warning
        for _ in range(2):
            trust.note("agents see a vector.")
        warnings.warn("it is damaged.", stacklevel=1)
    assert capsys.readouterr().err == "note: agents see a vector.\nwarning: it is damaged.\n"


@pytest.mark.slow
def test_a_command_notes_how_agents_see_an_environment_once(tmp_path: Path) -> None:
    command = ["train", "ppo", "--env", "CliffWalking-v1", "--steps", "100", "--quiet"]
    command += ["--without-updates", "--out"]
    result = subprocess.run(
        [sys.executable, "-m", "rljax", *command, tmp_path / "run"],
        capture_output=True,
        text=True,
        check=True,
    )
    assert result.stderr.count("note: 'CliffWalking-v1' observes a Discrete") == 1
    assert "UserWarning" not in result.stderr
