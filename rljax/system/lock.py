"""A lock on a folder: one process at a time writes there.

The operating system's lock on a file (`flock`) decides, and ends with its process. For other hosts
and file systems, the file names the process and its last sign of life.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import fcntl
import json
import os
import platform
import stat
import threading
import time
import uuid
import weakref
from pathlib import Path

FILE = "lock.json"
LONGEST = 1 << 16  # bytes of it that are read
HEARTBEAT = 10.0  # seconds between signs of life
STALE_AFTER = 120.0  # seconds without one after which another host's process counts as dead
SETTLE = 1.0  # seconds until a file system without locks shows who wrote last
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.ENOTSUP, errno.EOPNOTSUPP, errno.EINVAL)


class FolderInUse(ValueError):
    """Another process writes in the folder."""


class LockLost(Exception):
    """The lock's file is gone, or another process has taken over."""


@dataclasses.dataclass(frozen=True)
class Holder:
    """The process that a lock file names."""

    host: str
    machine: str  # identifies a machine's boot, also for all containers on it
    process: int
    started: str  # on the machine's own clock: numbers of processes are used again
    since: str  # when it took the lock
    token: str  # of this lock alone


class Lock:
    """The right to write in `folder`, from construction until `release`.

    Raises:
        FolderInUse: the process in the message has the lock. Nothing has changed.
        ValueError: a link or a pipe is in the place of the lock's file.
        OSError: the folder does not exist, or cannot be written.
    """

    def __init__(self, folder: Path, wait: float = 0.0) -> None:
        """Waits up to `wait` seconds if a process on another host may be dead."""
        self.folder, self.path = Path(folder), Path(folder).absolute() / FILE
        self._this = _this_process()
        self._descriptor = self._acquire(time.monotonic() + wait)
        self._released = threading.Event()
        threading.Thread(target=self._show_life, daemon=True).start()
        # A forked child would keep the lock after its parent's death.
        method = weakref.WeakMethod(self._close)
        os.register_at_fork(after_in_child=lambda: (close := method()) and close())

    def require(self) -> None:
        """Raise `LockLost` unless the lock is still this process's."""
        holder = _read(self.path)
        if holder is None or holder.token != self._this.token:
            taken = f"{_named(holder)} has taken it over"
            cause = "its lock.json is gone" if holder is None else taken
            raise LockLost(f"'{self.folder}' is no longer this process's: {cause}.")

    def release(self) -> None:
        """Give the lock back."""
        if self._released.is_set() or os.getpid() != self._this.process:
            return
        self._released.set()
        with contextlib.suppress(OSError, LockLost):
            self.require()
            self.path.unlink()
        self._close()

    def __enter__(self) -> Lock:
        return self

    def __exit__(self, *unused: object) -> None:
        self.release()

    def _acquire(self, deadline: float) -> int:
        while True:
            descriptor = self._open()
            try:
                if self._take(descriptor):
                    return descriptor
            except BaseException as error:
                os.close(descriptor)
                if not isinstance(error, _HeldElsewhere) or time.monotonic() >= deadline:
                    raise
                time.sleep(min(HEARTBEAT / 2, max(0.1, deadline - time.monotonic())))
            else:
                os.close(descriptor)

    def _open(self) -> int:
        """Open the lock's file, but no link or pipe."""
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK
        try:
            descriptor = os.open(self.path, flags, 0o666)
        except OSError as error:
            if error.errno != errno.ELOOP:
                raise
        else:
            if stat.S_ISREG(os.fstat(descriptor).st_mode):
                return descriptor
            os.close(descriptor)
        raise ValueError(f"'{self.path}' is a link or a pipe, not the file of a lock. Remove it.")

    def _take(self, descriptor: int) -> bool:
        """Whether the lock is ours: not where its file was removed meanwhile."""
        locked = _flock(descriptor)
        if locked is False:
            raise FolderInUse(self._refusal(_read_patiently(self.path)))
        try:
            if not os.path.samestat(os.fstat(descriptor), os.stat(self.path)):
                return False
        except FileNotFoundError:
            return False
        holder = _read(self.path)
        if holder is not None and _is_alive(holder, self.path, locked):
            raise _HeldElsewhere(self._refusal(holder))
        os.ftruncate(descriptor, 0)
        os.pwrite(descriptor, json.dumps(dataclasses.asdict(self._this)).encode(), 0)
        if not locked:
            time.sleep(SETTLE)
            holder = _read(self.path)
            if holder is None or holder.token != self._this.token:
                raise FolderInUse(self._refusal(holder))
        return True

    def _refusal(self, holder: Holder | None) -> str:
        since = "" if holder is None else f" since {holder.since}"
        text = (
            f"'{self.folder}' is in use: {_named(holder)} writes there{since}. Stop that process, "
            "or wait for its end."
        )
        if holder is not None and holder.machine != self._this.machine:
            text += (
                f" Its last sign of life was {_age(self.path):.0f} s ago; after {STALE_AFTER:.0f} "
                f"s it counts as dead. If it is certainly gone, remove '{self.path}'."
            )
        return text

    def _show_life(self) -> None:
        while not self._released.wait(HEARTBEAT):
            with contextlib.suppress(OSError):
                os.utime(self._descriptor)

    def _close(self) -> None:
        with contextlib.suppress(OSError):
            os.close(self._descriptor)


class _HeldElsewhere(FolderInUse):
    """By its file, a process of another host has the lock."""


def _flock(descriptor: int) -> bool | None:
    """Whether this process has the lock; None on file systems without locks."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError as error:
        if error.errno in _NO_LOCKS:
            return None
        raise
    return True


def _is_alive(holder: Holder, path: Path, locked: bool | None) -> bool:
    """Whether the process in a lock file runs, as far as can be known."""
    this = _this_process()
    if holder.machine == this.machine and locked:
        return False  # the operating system would have refused its lock
    if holder.machine == this.machine and holder.host == this.host:
        return _start_of(holder.process) == holder.started
    return _age(path) < STALE_AFTER


def _age(path: Path) -> float:
    """Seconds since the last sign of life; infinite where the file is gone."""
    try:
        return max(0.0, time.time() - path.stat().st_mtime)
    except FileNotFoundError:
        return float("inf")


def _this_process() -> Holder:
    number = os.getpid()
    since = time.strftime("%Y-%m-%d %H:%M:%S")
    return Holder(platform.node(), _machine(), number, _start_of(number), since, uuid.uuid4().hex)


def _machine() -> str:
    try:
        return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
    except OSError:
        return platform.node()


def _start_of(process: int) -> str:
    """When a process started, in the machine's ticks, or "?"; "" where it does not run."""
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[19]
    except (OSError, IndexError):
        pass
    try:
        os.kill(process, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        pass
    return "?"


def _read(path: Path) -> Holder | None:
    """The process that the lock file names, if any."""
    try:
        with path.open("rb") as file:
            content = json.loads(file.read(LONGEST))
        texts = {field.name: str(content[field.name]) for field in dataclasses.fields(Holder)}
        return Holder(**(texts | {"process": int(texts["process"])}))  # type: ignore[arg-type]
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None


def _read_patiently(path: Path) -> Holder | None:
    """The same, a moment later without a name."""
    for _ in range(20):
        if (holder := _read(path)) is not None:
            return holder
        time.sleep(0.05)
    return None


def _named(holder: Holder | None) -> str:
    return "another process" if holder is None else f"process {holder.process} on '{holder.host}'"
