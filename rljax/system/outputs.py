"""Files as results: whether they can be made, asked before the work; and that they are whole."""

from __future__ import annotations

import contextlib
import errno
import os
import secrets
import tempfile
from collections.abc import Iterator
from pathlib import Path


def require_makeable(path: str | Path, folder: bool = False) -> None:
    """Raise `OSError` where no file, or with `folder` no folder, can be made at `path`.

    Nothing is left there. What exists at `path` may be another matter: a file must be writable, a
    folder is not looked into.
    """
    path = Path(path)
    if path.exists():
        if path.is_dir() and not folder:
            raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
        if not os.access(path, os.W_OK):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), str(path))
        return
    place = path.parent
    while not place.exists():
        place = place.parent
    try:
        with tempfile.TemporaryFile(dir=place):
            pass
    except OSError as error:
        raise OSError(error.errno, os.strerror(error.errno or 0), str(place)) from None


@contextlib.contextmanager
def atomic(path: Path) -> Iterator[Path]:
    """A temporary file, which replaces `path` unless an error was raised."""
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}.{os.getpid()}.{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        os.replace(temporary, path)
    finally:
        temporary.unlink(missing_ok=True)
