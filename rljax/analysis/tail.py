"""The newest lines of a growing file."""

from __future__ import annotations

import os
from pathlib import Path

from rljax.trust import safe


class Tail:
    """Follows a growing file of lines."""

    def __init__(self, path: Path, backlog: int = 1 << 20) -> None:
        """The first `look` reads at most the last `backlog` bytes."""
        self._path, self._backlog, self._end = path, backlog, 0

    def look(self) -> list[bytes]:
        """The complete lines since the last `look`; none where the file does not exist yet.

        A file that became shorter is read anew.
        """
        try:
            with safe(self._path, copies=0).open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._end:
                    self._end = 0
                start = self._end or max(0, size - self._backlog)
                cut = start > self._end  # `start` may lie in the middle of a line
                file.seek(start)
                text = file.read(size - start)
        except FileNotFoundError:
            return []
        whole = text.rfind(b"\n") + 1
        if whole:
            self._end = start + whole
        return text[:whole].splitlines()[cut:]
