"""Open hostile data files and folders of runs by rljax's commands,
and watch what each command does.

  python scripts/faults/hostile_files.py

A case is a file or a folder that tries to run code, to open another file, to fill the memory, to
wait for ever, or to end a command with a traceback. Each of its commands is a process of its own,
as a user would start it, with a home that has signed nothing. A case fails if

- its code runs: it would make a file called `canary`;
- a file in the folder `secrets` is opened, which inotify notices (so this script needs Linux), or
  changed;
- the process takes over 1 GB more memory than one that trains on harmless files;
- it takes over a minute;
- it prints a traceback, or ends without a message and an exit code of rljax.

The results are counts by kind of case, in `--output`.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import pickle
import shutil
import subprocess
import sys
import threading
import time
import zipfile
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from rljax.runs import records
from scripts.faults import shared
from tests.datasets.files import npz
from tests.datasets.formats import test_formats as data_files
from tests.runs import test_hostile_folders as run_folders

MOST_SECONDS = 60.0
MOST_MEMORY = 1 << 30  # bytes beyond a process that reads a harmless file
SECRETS = Path("secrets")  # beside the case's files, as is the canary
TERABYTE = 1 << 40

INFO = ("data info a.npz",)
TRAIN = (
    "data info {}",
    "data check {}",
    "train bc --data {} --steps 10 --out trained",
    "train td3_bc --data {} --steps 10 --then-online 10 --out trained",
)
READ = ("eval run --episodes 1", "report run --output report.html", "watch run --once")
USE = (
    "eval run --episodes 1",
    "resume run --steps 200",
    "extract run --learners 0",
    "data record run recorded.npz --episodes 1",
    "play run --output film.mp4",
    "plot run --output plot.png",
    "report run --output report.html",
    "watch run --once",
)
READ_RECORDS = (USE[0], USE[1], *USE[5:])


class Case(NamedTuple):
    """A hostile file or folder."""

    kind: str
    name: str
    make: Callable[[], Any]  # in the current folder
    commands: tuple[str, ...]


def of_tests() -> Iterator[Case]:
    """What the tests read inside of their process: here, commands read it."""
    for name, make in data_files.ARCHIVES.items():
        yield Case("archives", name, lambda make=make: make(Path("a.npz")), INFO)
    for name, (change, _) in data_files.LINKS.items():
        make = lambda change=change: data_files.with_links(Path("a.hdf5"), change)  # noqa: E731
        yield Case("HDF5", name, make, ("data info a.hdf5",))
    for name, changes in data_files.MINARI.items():
        make = lambda changes=changes: data_files.minari_folder(Path("a"), **changes)  # noqa: E731
        yield Case("Minari", name, make, ("data info a",))
    for name, change in run_folders.FOLDERS.items():
        yield Case("runs", name, lambda change=change: change(Path("run")), READ)


EVIL = """import os
open(os.environ["CANARY"], "w").close()
import gymnasium
class Env(gymnasium.Env): ...
def make(**_): return Env()
"""
CODE = (
    "evil.py:Env",
    "./evil.py:Env",
    "evil:Env-v0",
    "async/evil.py:Env",
    "timed/evil.py:Env",
    "brax/evil.py:Env",
)
CODE += (
    "without-0/evil.py:Env",
    "signals-cost/evil.py:Env",
    "varied/evil.py:Env",
    'Hopper-v5?{"xml_file": "evil.xml"}',
)


def evil() -> None:
    """Files that a stranger may lay beside the data: modules, and a model of MuJoCo."""
    Path("evil.py").write_text(EVIL)
    shutil.copy("evil.py", "run/evil.py")
    SECRETS.mkdir(exist_ok=True)
    (SECRETS / "secret").write_text('{"password": "1234"}')
    (SECRETS / "secret.npz").write_bytes(Path("whole.npz").read_bytes())
    os.symlink(SECRETS / "secret", "evil.xml")


class Canary:
    """A pickle that runs code."""

    def __reduce__(self) -> Any:
        return (os.mkdir, (os.environ["CANARY"],))


def named(name: str) -> None:
    """A data set whose file names an environment."""
    npz(Path("a.npz"), data_files.described(env=name))


def minari(**facts: Any) -> None:
    """A Minari data set with other facts."""
    described: dict[str, Any] = {key: json.dumps(value) for key, value in facts.items()}
    data_files.minari_folder(Path("a"), **described)


def changed(**entries: Any) -> None:
    """The run with other entries in config.json."""
    described = records.read_config(Path("run")) | entries
    Path("run/config.json").write_text(json.dumps(described))


def noted(change: Callable[[Path], Any]) -> None:
    """The run with a changed checkpoint, whose manifest fits."""
    change(Path("run") / run_folders.CHECKPOINT)
    run_folders.refit(Path("run"))


def with_pickle(checkpoint: Path) -> None:
    """A pickle as the state of environments, with a seal of somebody else."""
    notes = json.loads((checkpoint / "run.json").read_text())
    (checkpoint / "environments").write_bytes(pickle.dumps(Canary()))
    (checkpoint / "run.json").write_text(
        json.dumps(notes | {"environments": "saved", "seal": "0" * 64})
    )


def replaced(path: str, make: Callable[[Path], Any]) -> Callable[[], Any]:
    """Put what `make` makes in the place of a file."""

    def replace() -> None:
        place = Path(path)
        shutil.rmtree(place) if place.is_dir() else place.unlink(missing_ok=True)
        make(place)

    return replace


def linked(to: str) -> Callable[[Path], Any]:
    """A link to another file."""
    return lambda place: place.symlink_to(os.path.abspath(to))


def moved(place: Path) -> None:
    """A link in the place of a file or folder, which moves to the secrets."""
    shutil.move(place, SECRETS / place.name)
    place.symlink_to(os.path.abspath(SECRETS / place.name))


def sparse(place: Path) -> None:
    """A file that claims a terabyte and takes no space."""
    with place.open("wb") as file:
        file.truncate(TERABYTE)


def bomb(place: Path) -> None:
    """Eight gigabytes of zeros in eight megabytes."""
    with zipfile.ZipFile(place, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for key, value in data_files.members(rewards=b"").items():
            if key != "rewards":
                archive.writestr(f"{key}.npy", value)
        with archive.open("metadata.npy", "w", force_zip64=True) as member:
            member.write(data_files.header("()", "'<U2000000000'"))
            for _ in range(500):
                member.write(bytes(1 << 24))


def long_line(place: Path) -> None:
    """One line of records that nests without end."""
    place.write_text('{"step": 10, "returns": ' + "[" * 1_000_000 + "\n")


def of_code() -> Iterator[Case]:
    """Files that name code, and places where code could lie."""
    files = tuple(command.format("a.npz") for command in TRAIN)
    folders = tuple(command.format("a") for command in TRAIN)
    for name in CODE:
        yield Case("code named by data", name, lambda name=name: named(name), files)
    specification = {"id": "Evil-v0", "entry_point": "evil:make", "kwargs": {}}
    wrapper = {"name": "Evil", "entry_point": "evil:make", "kwargs": {}}
    hopper = {"id": "Hopper-v5", "entry_point": "gymnasium.envs.mujoco.hopper_v5:HopperEnv"}
    for name, facts in {
        "an environment": {"env_spec": specification},
        "an environment for evaluation": {"env_spec": hopper, "eval_env_spec": specification},
        "a wrapper": {"env_spec": hopper | {"additional_wrappers": [wrapper]}},
        "another entry point": {"env_spec": hopper | {"entry_point": "evil:make"}},
        "a vector's entry point": {"env_spec": hopper | {"vector_entry_point": "evil:make"}},
        "a model": {"env_spec": hopper | {"kwargs": {"xml_file": "evil.xml"}}},
        "a module in its id": {"env_spec": {"id": "evil:Hopper-v5"}},
    }.items():
        yield Case("code named by Minari", name, lambda facts=facts: minari(**facts), folders)
    for name, entries in {
        "an agent": {"agent": "./evil.py"},
        "an agent in the run": {"agent": "run/evil.py"},
        "an agent without its suffix": {"agent": "evil"},
        **{f"environment {name}": {"env": name} for name in CODE},
        "an environment it was evaluated in": {
            "eval_env": "evil.py:Env",
            "environment": "evil.py:Env",
        },
        "a base": {"base": "evil"},
        "seals of others": {"agent": "./evil.py", "seals": {"agent": "0" * 64}},
    }.items():
        yield Case("code named by runs", name, lambda entries=entries: changed(**entries), USE)
    yield Case(
        "code named by runs", "a pickle of environments", lambda: noted(with_pickle), USE[1:4]
    )
    for name, path in {
        "an agent's state": "agent",
        "its notes": "run.json",
        "a manifest": "manifest.json",
    }.items():
        yield Case(
            "code named by runs",
            f"a pickle as {name}",
            replaced(
                f"run/{run_folders.CHECKPOINT}/{path}",
                lambda place: place.write_bytes(pickle.dumps(Canary())),
            ),
            USE[:4],
        )


def of_other_files() -> Iterator[Case]:
    """Links to other files, pipes and devices, and files of claimed sizes."""
    pipes = {"a pipe": os.mkfifo, "a device without end": linked("/dev/zero"), "a terabyte": sparse}
    for name, make in pipes.items():
        for file in ("a.npz", "a.hdf5", "a.npz.json"):
            yield Case(
                "endless data",
                f"{file}: {name}",
                replaced(file, make),
                (INFO[0] if "npz" in file else "data info a.hdf5",),
            )
        for file in ("config.json", "metrics.jsonl", "evaluations.jsonl", "summary.json"):
            yield Case(
                "endless records", f"{file}: {name}", replaced(f"run/{file}", make), READ_RECORDS
            )
        for file in ("run.json", "manifest.json", "environments"):
            yield Case(
                "endless checkpoints",
                f"{file}: {name}",
                replaced(f"run/{run_folders.CHECKPOINT}/{file}", make),
                USE[:4],
            )
    yield Case("endless data", "a bomb", lambda: bomb(Path("a.npz")), INFO)
    yield Case(
        "endless records",
        "a line that nests",
        lambda: long_line(Path("run/evaluations.jsonl")),
        READ_RECORDS,
    )
    for file in ("config.json", "metrics.jsonl", "evaluations.jsonl", "summary.json"):
        yield Case("links", file, replaced(f"run/{file}", linked("secrets/secret")), READ_RECORDS)
    for file in ("run.json", "manifest.json", "agent"):
        yield Case(
            "links",
            file,
            replaced(f"run/{run_folders.CHECKPOINT}/{file}", linked("secrets/secret")),
            USE[:4],
        )
    for file in ("main_data.hdf5", "metadata.json"):
        make = lambda file=file: (minari(), replaced(f"a/data/{file}", linked("secrets/secret"))())  # noqa: E731
        yield Case("links", f"{file} of Minari", make, ("data info a",))
    for name, make in (pipes | {"a link": linked("secrets/secret")}).items():
        yield Case("links", f"lock.json: {name}", replaced("run/lock.json", make), USE[1:2])
    yield Case("links", "all checkpoints", lambda: moved(Path("run/checkpoints")), USE[:4])
    yield Case(
        "links", "a checkpoint", lambda: moved(Path("run") / run_folders.CHECKPOINT), USE[:4]
    )
    yield Case(
        "links",
        "an array",
        lambda: moved(next((Path("run") / run_folders.CHECKPOINT / "agent/d").iterdir())),
        USE[:4],
    )


class Opened:
    """Notices, by inotify, that a file in a folder is opened."""

    OPEN = 0x20

    def __init__(self, folder: Path) -> None:
        self._library = ctypes.CDLL(None, use_errno=True)
        self._descriptor = self._library.inotify_init1(os.O_NONBLOCK)
        if (
            self._descriptor < 0
            or self._library.inotify_add_watch(self._descriptor, bytes(folder), self.OPEN) < 0
        ):
            raise SystemExit(
                f"inotify does not watch '{folder}': {os.strerror(ctypes.get_errno())}"
            )

    def close(self) -> bool:
        """Whether anything was opened since the watch began."""
        try:
            return bool(os.read(self._descriptor, 4096))
        except BlockingIOError:
            return False
        finally:
            os.close(self._descriptor)


def run(command: str, folder: Path, home: Path) -> tuple[int, str, int, float]:
    """A command's exit code (-9 if it took too long), what it printed,
    its memory in bytes and its seconds.
    """
    environment = os.environ | {"HOME": str(home), "COLUMNS": "200"}
    before = time.monotonic()
    process = subprocess.Popen(
        [sys.executable, "-m", "rljax", *command.split()],
        cwd=folder, env=environment,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace",
    )  # fmt: skip
    timer = threading.Timer(MOST_SECONDS, process.kill)
    timer.start()
    assert process.stdout is not None
    with process.stdout as output:
        said = output.read()
    _, status, used = os.wait4(process.pid, 0)
    timer.cancel()
    process.returncode = os.waitstatus_to_exitcode(status)
    return process.returncode, said, used.ru_maxrss * 1024, time.monotonic() - before


def problems(
    case: Case, harmless: Path, folder: Path, home: Path, memory: int
) -> list[dict[str, Any]]:
    """What a case did that it may not do, by command."""
    failures = []
    for command in case.commands:
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(harmless, folder)
        before = Path.cwd()
        os.chdir(folder)
        os.environ["CANARY"] = str(folder / "canary")  # a pickle names it
        try:
            evil()
            case.make()
        finally:
            os.chdir(before)
        watch = Opened(folder / SECRETS)
        code, said, used, seconds = run(command, folder, home)
        wrong = [
            *(["code ran"] if (folder / "canary").exists() else []),
            *(["another file was opened"] if watch.close() else []),
            *([f"{used / 1e9:.1f} GB"] if used > memory + MOST_MEMORY else []),
            *([f"{seconds:.0f} s"] if seconds > MOST_SECONDS else []),
            *(["a traceback"] if "Traceback" in said else []),
            *([f"exit code {code}"] if code not in (0, 1, 2) or not said.strip() else []),
        ]
        if wrong:
            failures.append(
                {
                    "case": f"{case.kind}: {case.name}",
                    "command": command,
                    "wrong": wrong,
                    "said": said[-400:],
                }
            )
    return failures


def main() -> None:
    """Make harmless files, then each case from them, and write what was counted."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--only", default="", help="cases whose kind and name contain this")
    parser.add_argument("--runs", type=Path, default=Path("runs/hostile"))
    parser.add_argument(
        "--output", type=Path, default=Path("results/checks/faults/hostile_files.json")
    )
    options = parser.parse_args()
    folder = options.runs.resolve()
    shutil.rmtree(folder, ignore_errors=True)
    harmless, victim = folder / "harmless", folder / "victim"
    harmless.mkdir(parents=True)
    victim.mkdir()
    npz(harmless / "whole.npz", data_files.WHOLE)
    sizes = (
        "--config.hidden 8 --config.batch-size 8 --eval-episodes 1 --checkpoint-every "
        "100 --log-every 10"
    )
    for command in (
        (
            f"train td3 --env Pendulum-v1 --steps 100 --out run --config.warmup-steps 10 {sizes} "
            "--config.replay-size 100"
        ),
        "data info whole.npz",
    ):
        code, said, memory, _ = run(command, harmless, folder / "maker")
        if code:
            raise SystemExit(f"{command}: {said}")
    cases = [case for make in (of_tests, of_code, of_other_files) for case in make()]
    cases = [case for case in cases if options.only in f"{case.kind}: {case.name}"]
    counts: dict[str, Counter[str]] = {}
    for i, case in enumerate(cases):
        failures = problems(case, harmless, folder / "case", victim, memory)
        counts.setdefault(case.kind, Counter()).update(
            cases=1, commands=len(case.commands), failed=bool(failures)
        )
        for failure in failures:
            print(json.dumps(failure), flush=True)
        if i % 10 == 9 or i + 1 == len(cases):
            print(
                f"{i + 1} of {len(cases)}: "
                f"{sum(count['failed'] for count in counts.values())} failed",
                flush=True,
            )
    shared.finish(options.output, counts, ("cases", "commands", "failed"))


if __name__ == "__main__":
    main()
