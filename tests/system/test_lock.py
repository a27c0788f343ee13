"""One process at a time writes in a folder."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rljax.system import lock
from rljax.system.lock import FolderInUse, Lock, LockLost

# It reads, waits and writes, as only one process may.
CONTENDER = """
import importlib.util, sys, time
from pathlib import Path
spec = importlib.util.spec_from_file_location("lock", sys.argv[1])
lock = sys.modules["lock"] = importlib.util.module_from_spec(spec)
spec.loader.exec_module(lock)
folder = Path(sys.argv[2])
try:
    with lock.Lock(folder):
        text = (folder / "log").read_text()
        time.sleep(float(sys.argv[3]))
        (folder / "log").write_text(text + "x")
        print("went on", flush=True)
        sys.stdin.read()
except lock.FolderInUse as error:
    print(error)
"""


def contender(folder: Path, seconds: float = 0.0) -> subprocess.Popen[str]:
    """A process that wants the lock of `folder`, and keeps it until its input ends."""
    command = [sys.executable, "-S", "-c", CONTENDER, lock.__file__, str(folder), str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)


def one_goes_on(folder: Path, number: int) -> None:
    (folder / "log").write_text("")
    started = [contender(folder, 0.05) for _ in range(number)]
    first = [process.stdout.readline() for process in started if process.stdout]
    assert first.count("went on\n") == 1, first
    assert sum(": process " in line and "is in use" in line for line in first) == number - 1, first
    for process in started:
        process.communicate()
    assert (folder / "log").read_text() == "x"
    assert [path.name for path in folder.iterdir()] == ["log"]


@pytest.mark.parametrize(
    "make", [lambda path: path.symlink_to(path.with_name("other")), os.mkfifo], ids=["link", "pipe"]
)
def test_a_lock_opens_no_other_file(make: Callable[[Path], Any], tmp_path: Path) -> None:
    (tmp_path / "other").write_text("mine")
    make(tmp_path / lock.FILE)
    with pytest.raises(
        ValueError, match=r"lock.json' is a link or a pipe, not the file of a lock\. Remove it\."
    ):
        Lock(tmp_path)
    assert (tmp_path / "other").read_text() == "mine"


def test_one_of_several_processes_goes_on(tmp_path: Path) -> None:
    one_goes_on(tmp_path, 4)


@pytest.mark.learn
def test_one_of_two_processes_goes_on_fifty_times(tmp_path: Path) -> None:
    for _ in range(50):
        one_goes_on(tmp_path, 2)


def test_the_second_is_told_who_and_since_when(tmp_path: Path) -> None:
    with Lock(tmp_path):
        before = (tmp_path / lock.FILE).read_bytes()
        pattern = (
            rf"is in use: process {os.getpid()} on '.+' writes there since "
            r"20\d\d-\d\d-\d\d \d\d:\d\d:\d\d\. Stop"
        )
        with pytest.raises(FolderInUse, match=pattern):
            Lock(tmp_path)
        assert (tmp_path / lock.FILE).read_bytes() == before
    with Lock(tmp_path):
        pass
    assert list(tmp_path.iterdir()) == []


def test_the_lock_of_a_killed_process_is_free_at_once(tmp_path: Path) -> None:
    (tmp_path / "log").write_text("")
    process = contender(tmp_path)
    assert process.stdout is not None
    assert process.stdout.readline() == "went on\n"
    process.send_signal(signal.SIGKILL)
    process.communicate()
    assert (tmp_path / lock.FILE).exists()
    with Lock(tmp_path):
        pass


def test_a_copy_of_a_folder_in_use_is_free(tmp_path: Path) -> None:
    (tmp_path / "one").mkdir()
    (tmp_path / "two").mkdir()
    with Lock(tmp_path / "one"):
        (tmp_path / "two" / lock.FILE).write_bytes((tmp_path / "one" / lock.FILE).read_bytes())
        with Lock(tmp_path / "two"):
            pass


def elsewhere(folder: Path, age: float, **changes: Any) -> None:
    """The lock of a process on another host, `age` seconds after its last sign of life."""
    holder = lock.Holder("far", "another boot", 7, "5", "2026-01-01 00:00:00", "token")
    path = folder / lock.FILE
    path.write_text(json.dumps(dataclasses.asdict(dataclasses.replace(holder, **changes))))
    os.utime(path, (time.time() - age,) * 2)


def test_a_process_on_another_host_counts_until_it_is_silent(tmp_path: Path) -> None:
    elsewhere(tmp_path, 30)
    with pytest.raises(
        FolderInUse, match=r"process 7 on 'far' .* was 30 s ago; .* remove '.*lock\.json'"
    ):
        Lock(tmp_path)
    elsewhere(tmp_path, lock.STALE_AFTER + 1)
    with Lock(tmp_path):
        pass


@pytest.mark.learn
def test_a_lost_machine_is_waited_for(tmp_path: Path) -> None:
    elsewhere(tmp_path, lock.STALE_AFTER - 0.3)
    with Lock(tmp_path, wait=5.0):
        pass


def test_without_locks_of_the_file_system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lock, "_flock", lambda descriptor: None)
    monkeypatch.setattr(lock, "SETTLE", 0.0)
    with Lock(tmp_path), pytest.raises(FolderInUse, match=f"process {os.getpid()} "):
        Lock(tmp_path)
    own = lock._this_process()
    elsewhere(
        tmp_path,
        0,
        host=own.host,
        machine=own.machine,
        process=os.getpid(),
        started="another start",
    )
    with Lock(tmp_path):
        pass


@pytest.mark.parametrize("text", ["", "{", "[]", '{"host": 1}', "[" * 100_000])
def test_a_damaged_file_is_no_lock(text: str, tmp_path: Path) -> None:
    (tmp_path / lock.FILE).write_text(text)
    with Lock(tmp_path):
        pass


def test_a_lock_that_was_taken_away_is_noticed(tmp_path: Path) -> None:
    with Lock(tmp_path) as own:
        own.require()
        own.path.unlink()
        with pytest.raises(LockLost, match=r"its lock\.json is gone"):
            own.require()
        with (
            Lock(tmp_path),
            pytest.raises(LockLost, match=r"process \d+ on '.*' has taken it over"),
        ):
            own.require()


FORKING = (
    CONTENDER.partition("try:")[0]
    + """
import os
own, ready, done = lock.Lock(folder), os.pipe(), os.pipe()
if not os.fork():
    os.write(ready[1], b"x")
    os.read(done[0], 1)
    os._exit(0)
os.read(ready[0], 1)
os.close(own._descriptor)  # as the parent's death does
lock.Lock(folder).release()
os.write(done[1], b"x")
os.wait()
"""
)


def test_a_child_does_not_keep_the_lock_of_its_parent(tmp_path: Path) -> None:
    command = [sys.executable, "-S", "-W", "ignore", "-c", FORKING, lock.__file__, str(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, check=False).stderr == ""
