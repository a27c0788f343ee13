"""Two real processes over loopback, and a run that they train together."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax.distributed import processes
from rljax.runs import records
from tests.cli import commands
from tests.helpers import small_runs

TIMEOUT = 240.0  # seconds for both processes; the machine may be busy
WORDS = commands.train("ppo", "rljax/Pendulum")


@contextlib.contextmanager
def port() -> Iterator[int]:
    """A free port. It stays bound, so that only process 0, which shares it, can listen there."""
    with socket.socket() as held:
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        held.bind(("127.0.0.1", 0))
        yield held.getsockname()[1]


class Two:
    """Two processes with one command, plus arguments `own` of each. Both end with the test."""

    def __init__(
        self, folder: Path, command: Sequence[Any], own: Sequence[Sequence[Any]] = ((), ())
    ) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.files = [folder / f"process-{number}" for number in range(2)]
        self.processes: list[subprocess.Popen[bytes]] = []
        environment = {
            name: x for name, x in os.environ.items() if not name.lower().endswith("_proxy")
        }
        for file, words in zip(self.files, own, strict=True):
            with file.open("wb") as output:
                self.processes.append(
                    subprocess.Popen(
                        [sys.executable, *map(str, [*command, *words])],
                        stdout=output,
                        stderr=subprocess.STDOUT,
                        env=environment,
                        start_new_session=True,
                    )
                )

    def wait(self) -> list[tuple[int, str]]:
        """Return code and output of each process, without the log lines of gloo."""
        until = time.monotonic() + TIMEOUT
        codes = [process.wait(max(0.0, until - time.monotonic())) for process in self.processes]
        outputs = [re.sub(r"(?m)^.*\[Gloo\].*$\n?", "", file.read_text()) for file in self.files]
        return list(zip(codes, outputs, strict=True))

    def __enter__(self) -> Two:
        return self

    def __exit__(self, *_: Any) -> None:
        for process in self.processes:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def joining(number: int) -> list[Any]:
    return ["--coordinator", f"127.0.0.1:{number}", "--num-processes", 2]


@contextlib.contextmanager
def two(folder: Path, *words: Any, own: Sequence[Sequence[Any]] = ((), ())) -> Iterator[Two]:
    with port() as number:
        each = [[*joining(number), "--process-id", i, *words] for i, words in enumerate(own)]
        with Two(folder, ["-m", "rljax", *words], each) as processes:
            yield processes


def trained(folder: Path, *words: Any) -> Path:
    with two(folder / "outputs", *words, "--out", folder / "run") as processes:
        for code, output in processes.wait():
            assert code == 0, output
    return folder / "run"


def wait_for(condition: Callable[[], Any]) -> None:
    until = time.monotonic() + TIMEOUT
    while not condition() and time.monotonic() < until:
        time.sleep(0.05)


def assert_close(one: Path, other: Path) -> None:
    for name in ("metrics", "evaluations"):
        expected, found = records.read(one, name), records.read(other, name)
        assert len(expected) == len(found) > 0
        for line, same in zip(expected, found, strict=True):
            for field in line.keys() - {"wall_seconds", "steps_per_second"}:
                values = np.array(same[field], float), np.array(line[field], float)
                np.testing.assert_allclose(*values, rtol=2e-3, atol=2e-3, err_msg=field)


@pytest.mark.learn
def test_two_processes_give_the_curve_of_one(tmp_path: Path) -> None:
    both = trained(tmp_path, *WORDS, "--steps", 100, "--seeds", 2)
    one = small_runs.train("ppo", "rljax/Pendulum", 100, tmp_path / "one", seeds=2)
    assert_close(one, both)
    summary = records.read_summary(both)
    assert (summary["processes"], summary["devices_used"], summary["complete"]) == (2, 2, True)
    assert records.read_config(both)["processes"] == 2
    first, second = ((tmp_path / f"outputs/process-{i}").read_text() for i in range(2))
    assert str(both) in first
    assert str(both) not in second


@pytest.mark.learn
def test_environments_of_one_learner_are_shared(tmp_path: Path) -> None:
    both = trained(tmp_path, *WORDS, "--steps", 200, "--seed", 1)
    one = small_runs.train("ppo", "rljax/Pendulum", 200, tmp_path / "one", seeds=[1])
    assert_close(one, both)


@pytest.mark.learn
def test_stopped_by_one_process_and_resumed_by_two_or_by_one(tmp_path: Path) -> None:
    with two(
        tmp_path / "outputs", *WORDS, "--steps", 10**6, "--seeds", 2, "--out", tmp_path / "run"
    ) as processes:
        wait_for(lambda: records.read(tmp_path / "run", "metrics"))
        processes.processes[1].terminate()
        (code, output), (other, silent) = processes.wait()
    assert (code, other, silent) == (0, 0, ""), output + silent
    assert "stopped at" in output
    (*_, line) = records.read(tmp_path / "run", "metrics")
    end = line["step"] + 100

    subprocess.run(["cp", "-r", tmp_path / "run", tmp_path / "one"], check=True)
    with two(
        tmp_path / "outputs", "resume", tmp_path / "run", "--steps", end, "--quiet"
    ) as processes:
        assert [code for code, _ in processes.wait()] == [0, 0]
    whole = trained(tmp_path / "whole", *WORDS, "--steps", end, "--seeds", 2)
    small_runs.assert_same(whole, tmp_path / "run")
    resumed = small_runs.command("resume", tmp_path / "one", "--steps", end, "--quiet")
    assert resumed.returncode == 0, resumed.stderr
    assert_close(whole, tmp_path / "one")


@pytest.mark.learn
def test_if_one_process_dies_the_other_ends_and_says_what_to_do(tmp_path: Path) -> None:
    with two(
        tmp_path / "outputs", *WORDS, "--steps", 10**6, "--seeds", 2, "--out", tmp_path / "run"
    ) as processes:
        wait_for(lambda: list(tmp_path.glob("run/checkpoints/0*")))
        processes.processes[1].kill()
        code, output = processes.wait()[0]
    assert code == 1, output
    assert f"rljax resume {tmp_path / 'run'}" in output


@pytest.mark.learn
@pytest.mark.parametrize(
    ("words", "own", "message"),
    [
        pytest.param(
            [*WORDS, "--seeds", 2],
            [["--steps", 100], ["--steps", 200]],
            "not started alike: steps is 100 in process 0, 200 in process 1",
            id="commands",
        ),
        pytest.param(
            [*WORDS, "--seeds", 3, "--config.num-envs", 5],
            ((), ()),
            "3 learners cannot be shared",
            id="odd",
        ),
        pytest.param(
            ["train", "sac", "--env", "Pendulum-v1", "--seeds", 2],
            ((), ()),
            "is stepped on the host",
            id="hosted",
        ),
    ],
)
def test_both_processes_refuse_impossible_runs(
    words: list[Any], own: Sequence[Sequence[Any]], message: str, tmp_path: Path
) -> None:
    with two(tmp_path, *words, "--out", tmp_path / "run", own=own) as processes:
        for code, output in processes.wait():
            assert code == 2, output
            assert message in output
    assert not (tmp_path / "run").exists()


@pytest.mark.learn
def test_both_processes_refuse_a_folder_that_one_cannot_see(tmp_path: Path) -> None:
    program = "import os, sys; os.chdir(sys.argv.pop(1)); from rljax import cli; cli.main()"
    for name in "ab":
        (tmp_path / name).mkdir()
    with port() as number:
        words = [*WORDS, "--seeds", 2, "--out", "run", *joining(number)]
        own = [[tmp_path / name, *words, "--process-id", i] for i, name in enumerate("ab")]
        with Two(tmp_path / "outputs", ["-c", program], own) as processes:
            for code, output in processes.wait():
                assert code == 2, output
                assert "process 0 has made 'run', and this process does not see it" in output
    assert not (tmp_path / "a/run").exists()


@pytest.mark.slow
def test_processes_exchange_values_and_errors(tmp_path: Path) -> None:
    program = textwrap.dedent(
        """
        import sys
        from rljax.distributed import processes

        number = int(sys.argv[2])
        processes.join(sys.argv[1], 2, number, timeout=120)
        assert processes.is_distributed()
        assert processes.process_count() == 2
        assert processes.is_first() == (number == 0)
        assert processes.all_gather({"from": number, "text": "x" * (100 * number)}) == [
            {"from": 0, "text": ""}, {"from": 1, "text": "x" * 100}
        ]
        assert processes.on_first(lambda: number) == 0
        assert processes.on_all(lambda: number) == number
        assert (processes.any_process(number == 1), processes.any_process(False)) == (True, False)
        processes.require_same(lambda: {"steps": 1})

        def raised(function, *arguments):
            try:
                function(*arguments)
            except Exception as error:
                return f"{type(error).__name__}: {error}"

        def fail():
            if number == 1:
                raise FileExistsError("there")
            return number

        assert processes.on_first(fail) == 0, "only the first process calls the function"
        expected = ["ValueError: process 1 cannot go on: there", "FileExistsError: there"][number]
        assert raised(processes.on_all, fail) == expected
        assert raised(processes.on_first, lambda: 1 / 0) == "ZeroDivisionError: division by zero"
        settings = {"steps": number, "env": "x", "data": number}
        error = raised(processes.require_same, lambda: settings)
        assert "steps is 0 in process 0, 1 in process 1; also different: data" in error, error
        print("done")
        """
    )
    with port() as number:
        own = [[f"127.0.0.1:{number}", i] for i in range(2)]
        with Two(tmp_path, ["-c", program], own) as processes:
            assert processes.wait() == [(0, "done\n"), (0, "done\n")]


@pytest.mark.learn
def test_a_missing_coordinator_is_named_after_the_timeout() -> None:
    with port() as number:
        words = [*WORDS, *joining(number), "--process-id", 1, "--join-timeout", 2]
        done = small_runs.command(*words)
    assert done.returncode == 1
    assert done.stderr.startswith(
        f"error: no process 0 at 127.0.0.1:{number}, or not all of 2 processes, after 2 s."
    )


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("localhost", 2, 0), "--coordinator is 'localhost', it must be HOST:PORT"),
        (("localhost:0", 2, 0), "--coordinator is 'localhost:0', it must be HOST:PORT"),
        (("localhost:80",), "needs --num-processes N and --process-id I"),
        (("localhost:80", 0, 0), "--num-processes is 0"),
        (("localhost:80", 2, 2), "--process-id is 2, of 2 processes it is 0 to 1"),
        (("localhost:80", 2, -1), "--process-id is -1"),
        (("auto", 2, 0), "asks the cluster: leave --num-processes and --process-id out"),
        (("localhost:80", 2, 0, 0), "--join-timeout is 0"),
    ],
)
def test_impossible_arguments_of_join_are_refused_at_once(
    arguments: tuple[Any, ...], message: str
) -> None:
    with pytest.raises(ValueError, match=re.escape(message)):
        processes.join(*arguments)


@pytest.mark.learn
@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--process-id", 1], "--num-processes and --process-id need --coordinator"),
        (
            ["--coordinator", "h:80", "--grid", "config.discount=0.9,0.99"],
            "--coordinator joins hosts for one run",
        ),
    ],
)
def test_contradicting_flags_are_refused(words: list[Any], message: str) -> None:
    done = small_runs.command(*WORDS, *words)
    assert done.returncode == 2
    assert message in done.stderr


def test_with_one_process_all_functions_are_plain_calls() -> None:
    assert (processes.is_distributed(), processes.process_count(), processes.is_first()) == (
        False,
        1,
        True,
    )
    assert processes.all_gather("x") == ["x"]
    assert processes.on_first(lambda: 1) == processes.on_all(lambda: 1) == 1
    assert processes.any_process(True)
    with pytest.raises(ZeroDivisionError):
        processes.on_first(lambda: 1 / 0)
    processes.require_same(lambda: pytest.fail("one process has no other to compare with"))
