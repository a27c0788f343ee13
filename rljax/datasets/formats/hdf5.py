"""HDF5 files, without anything that lies outside of them.

Refused are external links, external storage, virtual datasets, and filters for which the library
would load a plugin.
"""

from __future__ import annotations

import contextlib
import importlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets.formats import text
from rljax.trust import RefusedFileError

KIND = "HDF5 file"
# Gzip, shuffle, fletcher32, szip, nbit, scaleoffset; LZF, which h5py brings.
FILTERS = {1, 2, 3, 4, 5, 6, 32000}
MOST_LINKS = 16  # soft links behind one name


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Group]:
    """The root group of the HDF5 file `path`. Raises `RefusedFileError`."""
    import h5py

    with contextlib.ExitStack() as stack:
        with text.guarded(path, KIND):
            file = stack.enter_context(h5py.File(path, "r"))
            root = Group(path, "", file.id)
        yield root


class Group(Mapping[str, Any]):
    """A group of an HDF5 file: its `Group`s and `Array`s by name or path."""

    def __init__(
        self, path: Path, place: str, identifier: Any, read: set[str] | None = None
    ) -> None:
        """`read`: the places of arrays that have been read, which all groups of a file share."""
        import h5py

        self.path, self.place, self._group = path, place, h5py.Group(identifier)
        self._read = set() if read is None else read

    def __getitem__(self, key: str) -> Group | Array:
        with text.guarded(self.path, KIND):
            member = self._find(key, MOST_LINKS)
        if member is None:
            raise KeyError(key)
        if isinstance(member, Array):
            self._read |= {f"{self.place}/{key}".strip("/"), member.place}
        return member

    def __contains__(self, key: object) -> bool:
        with text.guarded(self.path, KIND):
            return self._find(str(key), MOST_LINKS) is not None

    def __iter__(self) -> Iterator[str]:
        with text.guarded(self.path, KIND):
            names = list(self._group)
        # h5py gives bytes where a name is no text.
        return (x.decode("utf-8", "surrogateescape") if isinstance(x, bytes) else x for x in names)

    def __len__(self) -> int:
        with text.guarded(self.path, KIND):
            return len(self._group)

    def unread(self) -> list[str]:
        """The places of arrays, and of whole groups, that have not been read."""
        parts = [place.split("/") for place in self._read]
        above = {"/".join(names[:end]) for names in parts for end in range(1, len(names))}
        return list(self._unread(above))

    def _unread(self, above: set[str]) -> Iterator[str]:
        for name in self:
            place = f"{self.place}/{name}".lstrip("/")
            group = self[name] if place in above else None
            if isinstance(group, Group) and group.place == place:  # and no link
                yield from group._unread(above)
            elif place not in self._read:
                yield place

    def text(self, key: str) -> str | None:
        """The text under `key`; None for anything else."""
        value = self.get(key)
        return value.text() if isinstance(value, Array) else None

    def _find(self, key: str, links: int) -> Group | Array | None:
        here: Group | Array | None = self
        if key.startswith("/"):
            here = Group(self.path, "", self._group.file.id, self._read)
        for name in key.split("/"):
            if not isinstance(here, Group):
                return None
            if name not in ("", "."):
                here = here._member(name, links)
        return here

    def _member(self, name: str, links: int) -> Group | Array | None:
        h5py: Any = importlib.import_module("h5py")
        place, word = f"{self.place}/{name}".lstrip("/"), name.encode("utf-8", "surrogateescape")
        group = self._group.id
        if not group.links.exists(word):
            return None
        kind = group.links.get_info(word).type
        if kind == h5py.h5l.TYPE_SOFT and links:
            target = group.links.get_val(word).decode("utf-8", "surrogateescape")
            return self._find(target, links - 1)
        if kind != h5py.h5l.TYPE_HARD:
            soft = kind == h5py.h5l.TYPE_SOFT
            what = "a chain of links" if soft else "a link to another file"
            raise _outside(self.path, place, what)
        opened = h5py.h5o.open(group, word)
        if isinstance(opened, h5py.h5g.GroupID):
            return Group(self.path, place, opened, self._read)
        return Array(self.path, place, opened) if isinstance(opened, h5py.h5d.DatasetID) else None


class Array:
    """An array in an HDF5 file."""

    def __init__(self, path: Path, place: str, identifier: Any) -> None:
        """Raises `RefusedFileError`."""
        h5py: Any = importlib.import_module("h5py")
        self.path, self.place = path, place
        layout = identifier.get_create_plist()
        if layout.get_layout() == h5py.h5d.VIRTUAL:
            raise _outside(path, place, "a virtual dataset, whose numbers lie in other files")
        if layout.get_external_count():
            raise _outside(path, place, "stored in other files")
        filters = {layout.get_filter(index)[0] for index in range(layout.get_nfilters())}
        if filters - FILTERS:
            raise RefusedFileError(
                f"'{path.name}': '{text.shortened(place)}' is compressed by filter "
                f"{min(filters - FILTERS)}, which is a plugin, and plugins are not loaded. "
                "Compress it with gzip: h5repack -f GZIP=1 FILE NEW"
            )
        self._array = h5py.Dataset(identifier)
        self.shape: tuple[int, ...] = self._array.shape or ()
        self.dtype: np.dtype[Any] = self._array.dtype
        self.ndim = len(self.shape)
        self._chunk: tuple[int, ...] = self._array.chunks or ()

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, index: Any) -> Any:
        self._require_memory(self.dtype)
        with text.guarded(self.path, KIND):
            return self._array[index]

    def read(self, dtype: Any) -> np.ndarray:
        """The whole array, converted to `dtype` while it is read."""
        self._require_memory(np.dtype(dtype))
        result = np.empty(self.shape, dtype)
        with text.guarded(self.path, KIND):
            self._array.read_direct(result)
        return result

    def text(self) -> str | None:
        """The text that this is; None for numbers and for several texts."""
        if self.shape or self.dtype.kind not in "OSU":
            return None
        if self.dtype.itemsize > text.LONGEST:
            raise RefusedFileError(
                f"'{self.path.name}': '{self.place}' is a text that is too long to be read."
            )
        value = self[()]
        value = value.decode("utf-8", "replace") if isinstance(value, bytes) else value
        return value if isinstance(value, str) else None

    def _require_memory(self, dtype: np.dtype[Any]) -> None:
        whole = text.nbytes_of(self.shape, max(dtype.itemsize, self.dtype.itemsize))
        block = text.nbytes_of(self._chunk, self.dtype.itemsize) if self._chunk else 0
        text.require_memory(self.path.name, self.place, max(whole, block))


def _outside(path: Path, place: str, what: str) -> RefusedFileError:
    return RefusedFileError(
        f"'{path.name}': '{text.shortened(place)}' is {what}. A data set must hold all of its "
        "numbers itself: copy them into one file, for example with h5repack or h5py."
    )
