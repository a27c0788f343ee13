"""The command line's help, errors and exit codes."""

from __future__ import annotations

import re
import time
from pathlib import Path

import pytest

from rljax import cli
from rljax.cli.main import EXIT_INTERRUPT, EXIT_RUN, EXIT_USER
from rljax.distributed import processes
from rljax.envs.environment import EnvironmentFailed
from rljax.runs import checkpoints, failures
from tests.cli import commands
from tests.helpers import small_runs

COMMANDS = [
    "train",
    "sweep",
    "resume",
    "extract",
    "eval",
    "play",
    "plot",
    "report",
    "select",
    "watch",
    "list",
    "data",
    "new",
]


def test_help_is_instant() -> None:
    small_runs.command("--help")  # the first one may have to read Python's files from the disk
    began = time.perf_counter()
    done = small_runs.command("--help")
    assert time.perf_counter() - began < 0.7
    assert done.returncode == 0
    for command in COMMANDS:
        assert f"\n  {command} " in done.stdout


def test_an_unknown_command_names_the_nearest(capsys: pytest.CaptureFixture[str]) -> None:
    message = "error: no command 'trian'. Nearest: 'train'. All of them: rljax --help\n"
    assert commands.refused(["trian", "sac"], capsys) == message


@pytest.mark.parametrize(
    ("error", "code", "message"),
    [
        (ValueError("--steps is wrong."), 2, "error: --steps is wrong.\n"),
        (OSError("the disk is full."), 2, "error: the disk is full.\n"),
        (EnvironmentFailed("it raised.", "its trace\n"), 2, "error: it raised.\n\nits trace\n"),
        (FloatingPointError("the reward is nan."), 1, "error: the reward is nan.\n"),
        (failures.Diverged("the loss is nan."), 1, "error: the loss is nan.\n"),
        (
            checkpoints.CheckpointError("no checkpoint is whole."),
            1,
            "error: no checkpoint is whole.\n",
        ),
        (processes.ProcessError("the others are gone."), 1, "error: the others are gone.\n"),
        (ValueError("no 'a" + 3_000 * "x" + "' here."), 2, f"error: no 'a{495 * 'x'}... here.\n"),
        (KeyboardInterrupt(), 130, "error: stopped at once; the last checkpoint is safe.\n"),
    ],
)
def test_errors_are_one_message_and_an_exit_code(
    error: BaseException,
    code: int,
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    def fail(*args: object, **options: object) -> None:
        raise error

    monkeypatch.setattr("rljax.analysis.learning_curves.plot", fail)
    with pytest.raises(SystemExit) as exit:
        cli.main(["plot", "run"])
    assert exit.value.code == code
    assert capsys.readouterr().err == message


def test_errors_of_the_program_are_not_hidden(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "rljax.analysis.learning_curves.plot", lambda *args, **options: {}["missing"]
    )
    with pytest.raises(KeyError):
        cli.main(["plot", "run"])


def test_the_page_of_runs_lists_the_exit_codes() -> None:
    page = (Path(__file__).parents[2] / "docs/runs.md").read_text()
    listed = page.partition("## Exit codes")[2].partition("\n## ")[0]
    codes = [0, EXIT_RUN, EXIT_USER, EXIT_INTERRUPT]
    assert (
        re.findall(r"^\| (\d+) \|", listed, re.M) == list(map(str, codes)) == ["0", "1", "2", "130"]
    )


def test_an_agent_file_is_a_program(monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(
        "rljax.runs.run.train", lambda **what: called.extend([what["agent"], what["env"]])
    )
    monkeypatch.setattr("sys.argv", ["agents/sac.py", "--env", "rljax/Pendulum"])
    cli.train_file("agents/sac.py")
    assert called == ["agents/sac.py", "rljax/Pendulum"]


@pytest.mark.parametrize(
    "command",
    [
        "train sac --env Pendulum-v1 --out {}",
        "sweep sac --env Pendulum-v1 --out {}",
        "extract missing --learners 0 --out {}",
        "play missing --output {}.mp4",
        "plot missing --output {}.png",
        "report missing --output {}.html",
        "new {}.py --from sac",
        "data info missing.npz --output {}.png",
        "data convert missing.npz {}.npz",
        "data join {}.npz missing.npz",
        "data corrupt missing.npz {}.npz --what reward",
        "data correct missing.npz missing.npz {}.npz",
        "data record missing {}.npz",
    ],
)
def test_an_output_that_cannot_be_made_is_refused_first(
    command: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Before the command finds that its input is missing."""
    (tmp_path / "file").touch()
    with pytest.raises(SystemExit) as end:
        cli.main(command.format(tmp_path / "file" / "new").split())
    assert end.value.code == EXIT_USER
    assert capsys.readouterr().err == (
        f"error: '{tmp_path / 'file'}': there is a file where a folder should be: move it away "
        "(Not a directory).\n"
    )
