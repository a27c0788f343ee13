"""What all tests and their processes share."""

from __future__ import annotations

import collections
import ctypes
import gc
import os
import shutil
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

# JAX reads these when it is imported. What is set already counts.
_CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rljax", "tests")
os.environ.setdefault("JAX_PLATFORMS", "cpu")
# Whichever test comes first, and on however many cores.
os.environ.setdefault("JAX_NUM_CPU_DEVICES", "1")
os.environ.setdefault("JAX_COMPILATION_CACHE_DIR", str(_CACHE))
os.environ.setdefault("JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS", "0.1")
os.environ.setdefault("MPLBACKEND", "agg")
os.environ.setdefault("WANDB_MODE", "offline")

# Runs write many small files that must reach the disk: in memory nobody waits for it.
_MEMORY = Path("/dev/shm")
if _MEMORY.is_dir() and os.access(_MEMORY, os.W_OK) and shutil.disk_usage(_MEMORY).free > 4e9:
    os.environ.setdefault("PYTEST_DEBUG_TEMPROOT", str(_MEMORY))

# Tracing makes objects by the million and hardly any garbage: this saves a sixth of the time.
gc.set_threshold(200_000, 20, 100)

# Bytes of a process: compiled programs stay until they are forgotten, and compiling anew what files
# share takes time. Half of the machine's memory, but so little that memory maps are left.
_MACHINE = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
MOST_MEMORY = min(
    max(2.5e9, 0.5 * _MACHINE / int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))), 5.5e9
)


@pytest.fixture(autouse=True, scope="module")
def _forget_compiled_programs() -> Iterator[None]:
    """After a file, let go of what was compiled if there is too much of it."""
    yield
    pages = Path("/proc/self/statm")  # the second number is of those in memory
    if (
        pages.exists()
        and int(pages.read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") > MOST_MEMORY
    ):
        import jax

        jax.clear_caches()
        gc.collect()
        # Glibc keeps what is free, unless it is told.
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
        if trim is not None:
            trim(0)


# Seconds after which a test fails, on a machine that may be several times slower than ours.
MOST_SECONDS, MOST_SECONDS_OF_SLOW = 600, 3_600


@pytest.hookimpl(wrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Iterator[None]:
    """Fail a test that does not end: what should be refused may train for hours instead."""
    seconds = MOST_SECONDS_OF_SLOW if item.get_closest_marker("learn") else MOST_SECONDS

    def fail(*_: Any) -> None:
        pytest.fail(f"still running after {seconds} s")

    before = signal.signal(signal.SIGALRM, fail)
    signal.alarm(seconds)
    try:
        return (yield)
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


def pytest_collection_finish() -> None:
    """No search for garbage goes through what is imported again."""
    gc.collect()
    gc.freeze()


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--share", default="0/1", help="K/N: the tests in part K of N, from 0 on")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Mark cases after the first ones as slow where a test says so; leave out other parts."""
    numbers: collections.Counter[str] = collections.Counter()
    for item in items:
        marker = item.get_closest_marker("slow_after")
        if marker is not None:
            function = item.nodeid.partition("[")[0]
            numbers[function] += 1
            if numbers[function] > marker.args[0]:
                item.add_marker("slow")
    part, parts = map(int, config.getoption("--share").split("/"))
    others = [item for item in items if zlib.crc32(item.nodeid.encode()) % parts != part]
    if others:
        config.hook.pytest_deselected(items=others)
        excluded = set(others)
        items[:] = [item for item in items if item not in excluded]
