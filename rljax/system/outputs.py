"""Whether a file or folder can be made, asked before the work whose result it holds."""

from __future__ import annotations

import errno
import os
import tempfile
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
