"""The command line as a user meets it: help, errors and exit codes."""

from __future__ import annotations

import time

import pytest

from rljax import cli
from tests import small_runs

COMMANDS = ["train", "sweep", "resume", "extract", "eval", "play", "plot", "report", "watch", "list", "data", "new"]


def test_help_is_instant() -> None:
    small_runs.command("--help")  # the first one may have to read Python's files from the disk
    began = time.perf_counter()
    done = small_runs.command("--help")
    assert time.perf_counter() - began < 0.7
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["trian", "sac"])
    assert exit.value.code == 2
    assert capsys.readouterr().err == "error: no command 'trian'. Nearest: 'train'. All of them: rljax --help\n"


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("--steps is wrong."), 2, "error: --steps is wrong.\n"),
        (OSError("the disk is full."), 2, "error: the disk is full.\n"),
        (KeyboardInterrupt(), 130, "error: stopped at once; the last checkpoint is safe.\n"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(
    error: BaseException, code: int, message: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def fail(*args: object) -> None:
        raise error

    monkeypatch.setattr("rljax.analysis.learning_curves.plot", fail)
    with pytest.raises(SystemExit) as exit:
        cli.main(["plot", "run"])
    assert exit.value.code == code
    assert capsys.readouterr().err == message


def test_errors_of_the_program_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("rljax.analysis.learning_curves.plot", lambda *args: {}["missing"])
    with pytest.raises(KeyError):
        cli.main(["plot", "run"])


def test_an_agent_file_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr("rljax.runs.run.train", lambda **what: called.extend([what["agent"], what["env"]]))
    monkeypatch.setattr("sys.argv", ["agents/sac.py", "--env", "rljax/Pendulum"])
    cli.train_file("agents/sac.py")
    assert called == ["agents/sac.py", "rljax/Pendulum"]
