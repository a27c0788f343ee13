"""Text from a file, and errors of damaged files."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from rljax.system import hardware
from rljax.trust import SMALL, RefusedFileError, printable

LONGEST = 1 << 24  # bytes of a JSON text in a data set
MOST_SHOWN = 20  # names in a message
POINTERS = {
    b"version https://git-lfs.github.com/spec/": "a pointer of Git LFS, not the data: git lfs pull",
    b"/annex/objects/": "a pointer of git-annex, not the data: git annex get FILE",
}
PAGES = (b"<!doctype html", b"<html", b"<?xml")
AGAIN = "An interrupted download looks like this: delete the file and load it again."


@contextlib.contextmanager
def guarded(path: Path, kind: str) -> Iterator[None]:
    """Turn errors of damaged bytes into `RefusedFileError`."""
    try:
        yield
    except RefusedFileError:
        raise
    except Exception as error:
        raise broken(path, kind, shortened(str(error) or type(error).__name__)) from error


def broken(path: Path, kind: str, reason: str) -> RefusedFileError:
    """The error for a damaged file."""
    return RefusedFileError(
        f"'{path.name}' ({path.stat().st_size:,} bytes) is not a whole {kind}: {reason}. {AGAIN}"
    )


def require_memory(name: str, key: str, nbytes: int) -> None:
    """Raise `RefusedFileError` if `nbytes` of `key` of a file would fill the memory."""
    if nbytes <= SMALL:
        return
    free = hardware.available_memory()
    if free is not None and 2 * nbytes > free:
        raise RefusedFileError(
            f"'{name}': '{shortened(key)}' is {nbytes / 1e9:,.1f} GB by the file's own account, "
            f"and reading takes twice as much memory; {free / 1e9:,.1f} GB are free. If the file "
            "is damaged, download it again. If not, split it, or use a machine with more memory."
        )


def nbytes_of(shape: Iterable[int], itemsize: int) -> int:
    """Bytes of an array, as an integer of any size."""
    return math.prod(int(size) for size in shape) * itemsize


def parse_json(text: str | bytes, name: str) -> Any:
    """The value of a JSON text from the file called `name`.

    Raises `ValueError`, also for repeated keys, and `RefusedFileError` if it is too long or too
    deep.
    """
    if len(text) > LONGEST:
        raise RefusedFileError(
            f"'{name}': its JSON has {len(text):,} characters, at most {LONGEST:,} are read."
        )
    try:
        return json.loads(text, object_pairs_hook=_object)
    except RecursionError:
        raise RefusedFileError(f"'{name}': its JSON is nested too deeply to be read.") from None


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) < len(pairs):  # readers differ in which one counts
        raise ValueError("an object has a key more than once")
    return entries


def read_json(path: Path, name: str | None = None) -> Any:
    """The value in the JSON file `path`, called `name` in messages.

    Raises `RefusedFileError` if there is none.
    """
    name, size = name or path.name, path.stat().st_size
    if size > LONGEST:
        raise RefusedFileError(f"'{name}' has {size:,} bytes, at most {LONGEST:,} are read.")
    require_content(path)
    try:
        return parse_json(path.read_text(encoding="utf-8"), name)
    except RefusedFileError:
        raise
    except ValueError as error:
        raise RefusedFileError(
            f"'{name}' is not JSON: {shortened(str(error))}. Download it again."
        ) from error


def require_content(path: Path) -> None:
    """Raise `RefusedFileError` for a file that stands for the data: a pointer or a web page."""
    with path.open("rb") as file:
        start = file.read(512)
    for mark, meaning in POINTERS.items():
        if start.startswith(mark):
            raise RefusedFileError(f"'{path.name}' is {meaning.replace('FILE', path.name)}")
    if start.lstrip().lower().startswith(PAGES):
        raise RefusedFileError(
            f"'{path.name}' is a web page, not the data. Open its address in a browser, and "
            "download the file itself (on GitHub: 'Download raw file')."
        )


def annexed(path: Path) -> str:
    """A remedy for a missing file that is a link into git-annex, or ""."""
    if path.is_symlink() and ".git/annex/" in path.readlink().as_posix():
        return f" It is a link of git-annex to data that are not here: git annex get {path.name}"
    return ""


def shortened(text: str, most: int = 300) -> str:
    """At most `most` characters, safe for a terminal."""
    return printable(text, most=most)


def listed(keys: Iterable[str]) -> str:
    """Sorted names for a message, or "nothing"."""
    names = sorted(keys)
    shown = ", ".join(shortened(name, 60) for name in names[:MOST_SHOWN])
    return (shown or "nothing") + f", ... ({len(names):,} in all)" * (len(names) > MOST_SHOWN)
