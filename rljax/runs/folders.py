"""The folder of a run: its default name, its making, its lock."""

from __future__ import annotations

import contextlib
import time
from pathlib import Path

from rljax import datasets, envs
from rljax.distributed import processes
from rljax.learning import registry
from rljax.learning.settings import Settings
from rljax.runs import records
from rljax.system.lock import FILE as LOCK_FILE
from rljax.system.lock import Lock

_HALF_WRITTEN = ".config.json.*.tmp"


def default_folder(settings: Settings) -> Path:
    """A new folder runs/<agent>/<environment or data set>/<time>."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    task = envs.short(settings.env) if settings.data is None else datasets.short(settings.data)
    parent = Path("runs", registry.agent_name(settings.agent), task)
    folder, number = parent / stamp, 1
    while folder.exists():
        folder, number = parent / f"{stamp}-{number}", number + 1
    return folder


def make_folder(folder: Path) -> Lock:
    """Make and lock a new or empty folder.

    Raises `FileExistsError` for any other folder or file.
    """
    with contextlib.suppress(FileExistsError):
        folder.mkdir(parents=True)
    _require_unused(folder)
    lock = Lock(folder)
    try:
        _require_unused(folder)
        for left_over in folder.glob(_HALF_WRITTEN):
            left_over.unlink()
    except BaseException:
        lock.release()
        raise
    return lock


def lock_run(folder: Path, wait: float) -> Lock | None:
    """The first process's lock on a run; all raise its errors."""
    taken: list[Lock] = []

    def take() -> None:
        records.read_config(folder)  # others are not locked
        taken.append(Lock(folder, wait))

    processes.on_first(take)
    return taken[0] if taken else None


def _require_unused(folder: Path) -> None:
    if not folder.is_dir() or any(
        path.name != LOCK_FILE and not path.match(_HALF_WRITTEN) for path in folder.iterdir()
    ):
        raise FileExistsError(
            f"'{folder}' exists. Choose another --out, or continue that run: rljax resume {folder}"
        )


def require_visible(folder: Path) -> None:
    """Raise `ValueError` where this process does not see the first one's folder."""
    for _ in range(10):  # on network disks a new folder appears with a delay
        if (folder / "config.json").exists():
            return
        time.sleep(0.5)
    raise ValueError(
        f"process 0 has made '{folder}', and this process does not see it. Give --out a folder on "
        "a disk that all hosts share."
    )
