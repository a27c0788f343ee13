"""Which files of somebody's folder may be opened."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

SMALL = 1 << 24  # bytes that always fit in memory


class RefusedFileError(ValueError):
    """A file is not read; the message says why."""


def regular(path: Path) -> Path:
    """`path`; raises `RefusedFileError` for a device or a pipe."""
    if path.exists() and not path.is_file() and not path.is_dir():
        raise RefusedFileError(
            f"'{path}' is a device or a pipe, not a file. Restore it from a copy of the folder."
        )
    return path


def safe(path: Path, copies: int = 2) -> Path:
    """`path`; raises `RefusedFileError` for a link, device or pipe, and where free memory does not
    hold `copies` of the file.
    """
    if path.is_symlink():
        raise RefusedFileError(
            f"'{path}' is a link. A run reads and writes only files in its own folder: "
            "put a copy there."
        )
    from rljax.system import hardware  # imports JAX

    size = path.stat().st_size if regular(path).is_file() else 0
    free = hardware.available_memory() if size > SMALL else None
    if free is not None and copies * size > free:
        raise RefusedFileError(
            f"'{path}' has {size / 1e9:,.1f} GB, and reading takes {copies} times as much memory; "
            f"{free / 1e9:,.1f} GB are free. Restore it from a copy of the folder, or read it on a "
            "machine with more memory."
        )
    return path


def links(folder: Path) -> Iterator[Path]:
    """All links in and below a folder; the folder alone if it is one."""
    if folder.is_symlink():
        yield folder
    else:
        yield from (path for path in sorted(folder.rglob("*")) if path.is_symlink())
