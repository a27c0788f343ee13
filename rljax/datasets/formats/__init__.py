"""Files that a stranger may have written: .npz, HDF5 and JSON."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rljax.datasets.formats import hdf5, npz, text


@contextlib.contextmanager
def opened(path: Path) -> Iterator[Mapping[str, Any]]:
    """The arrays of a .npz or HDF5 file by key, each read when it is requested.

    Its `text(key)` is a text in the file, or None.

    Raises `ValueError`, here or while reading, for files that are damaged, hold Python objects,
    refer to other files, or do not fit in memory.
    """
    path = Path(path)
    if not path.is_file():
        raise ValueError(f"there is no file '{path}'.{text.annexed(path)}")
    text.require_content(path)
    with hdf5.opened(path) if is_hdf5(path) else npz.opened(path) as file:
        yield file


def is_hdf5(path: Path) -> bool:
    """Whether the file's suffix is that of HDF5."""
    return path.suffix.lower() in (".hdf5", ".h5")
