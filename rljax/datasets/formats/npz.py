"""Archives of NumPy arrays, without Python objects."""

from __future__ import annotations

import contextlib
import zipfile
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets.formats import text
from rljax.trust import RefusedFileError

KIND = ".npz archive"


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Archive]:
    """The arrays of the .npz file `path`. Raises `RefusedFileError`."""
    with contextlib.ExitStack() as stack:
        with text.guarded(path, KIND):
            stream = stack.enter_context(path.open("rb"))
            if stream.read(6) == np.lib.format.MAGIC_PREFIX:
                raise text.broken(path, KIND, "it holds a single array")
            archive = stack.enter_context(zipfile.ZipFile(stream))
            twice = [name for name, count in Counter(archive.namelist()).items() if count > 1]
            if twice:
                names = ", ".join(map(repr, twice[:3]))
                raise text.broken(path, KIND, f"it holds {names} more than once")
            for info in archive.infolist():
                if info.comment:  # which may have swallowed the entry of the next array
                    raise text.broken(path, KIND, f"{info.filename!r} has a comment")
                archive.open(info).close()  # its name stands in two places, which must agree
        yield Archive(path, archive)


class Archive(Mapping[str, np.ndarray]):
    """The arrays of a .npz file."""

    def __init__(self, path: Path, archive: zipfile.ZipFile) -> None:
        self.path, self._archive = path, archive
        self._members = {
            info.filename.removesuffix(".npy"): info
            for info in archive.infolist()
            if info.filename.endswith(".npy")
        }
        self._others = [name for name in archive.namelist() if not name.endswith(".npy")]
        self._read: set[str] = set()

    def __getitem__(self, key: str) -> np.ndarray:
        shape, dtype = self._header(key)
        text.require_memory(self.path.name, key, text.nbytes_of(shape, dtype.itemsize))
        self._read.add(key)
        with text.guarded(self.path, KIND), self._archive.open(self._members[key]) as member:
            return np.lib.format.read_array(member, allow_pickle=False)

    def __contains__(self, key: object) -> bool:
        return key in self._members

    def __iter__(self) -> Iterator[str]:
        return iter(self._members)

    def __len__(self) -> int:
        return len(self._members)

    def unread(self) -> list[str]:
        """The members that have not been read."""
        return [*(key for key in self._members if key not in self._read), *self._others]

    def text(self, key: str) -> str | None:
        """The text under `key`; None for anything else."""
        if key not in self:
            return None
        shape, dtype = self._header(key)
        if shape != () or dtype.kind not in "US":
            return None
        if dtype.itemsize > 4 * text.LONGEST:
            raise RefusedFileError(
                f"'{self.path.name}': '{key}' is a text of {dtype.itemsize:,} bytes: too long."
            )
        value: Any = self[key][()]
        return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)

    def _header(self, key: str) -> tuple[tuple[int, ...], np.dtype[Any]]:
        info = self._members[key]
        with text.guarded(self.path, KIND), self._archive.open(info) as member:
            version = np.lib.format.read_magic(member)
            if version not in ((1, 0), (2, 0)):
                why = f"'{text.shortened(key)}' has the unknown version {version}"
                raise text.broken(self.path, KIND, why)
            read: Any = getattr(np.lib.format, f"read_array_header_{version[0]}_0")
            shape, _, dtype = read(member)
            start = member.tell()
        if dtype.hasobject:
            raise RefusedFileError(
                f"'{self.path.name}': '{text.shortened(key)}' holds Python objects, and unpickling "
                "runs whatever code a file contains. If you trust its source, load it with numpy "
                "and save plain arrays of numbers: np.savez(path, observations=..., ...)"
            )
        end = start + text.nbytes_of(shape, dtype.itemsize)
        if min(shape, default=0) < 0 or end != info.file_size:
            should = f"'{text.shortened(key)}' should be {dtype}{list(shape)}"
            raise text.broken(self.path, KIND, f"{should} and has another length")
        return shape, dtype
