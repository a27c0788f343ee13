"""Strict JSON, checked when read.

Readers raise `ValueError` for unreadable and other files.
"""

from __future__ import annotations

import contextlib
import errno
import json
import math
import os
import re
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from rljax.trust import RefusedFileError, safe


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically.

    After an `OSError` the old content stays.
    """
    path = Path(path)
    text = dumps(value, indent=2) + "\n"
    # os.replace is atomic within a file system only
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException as error:
        with contextlib.suppress(OSError):
            temporary.unlink()
        if isinstance(error, OSError) and error.filename == str(temporary):
            error.filename = str(path.parent)  # which cannot be written
        raise
    with contextlib.suppress(OSError):  # some file systems do not sync folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def dumps(value: Any, indent: int | None = None) -> str:
    """Strict JSON of numbers, text, lists, mappings, paths and arrays.

    Numbers that are not finite become null. Raises `TypeError` for other types.
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """`value` in types that JSON has."""
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {str(name): plain(entry) for name, entry in value.items()}
    if isinstance(value, list | tuple):
        return [plain(entry) for entry in value]
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "__array__"):
        array = np.asarray(value)
        if array.dtype.kind == "V":  # bfloat16 and similar types
            array = array.astype(np.float64)
        if array.dtype.kind in "biufU":
            return plain(array.tolist())
    raise TypeError(
        f"a value of kind '{type(value).__name__}' cannot be recorded, JSON has numbers, text "
        "and lists."
    )


class Kind(NamedTuple):
    """What a value in a JSON file must be."""

    name: str  # for messages: "a whole number"
    fits: Callable[[Any], bool]

    def __or__(self, other: Kind) -> Kind:
        return Kind(f"{self.name} or {other.name}", lambda x: self.fits(x) or other.fits(x))


def list_of(kind: Kind, least: int = 0) -> Kind:
    """A list with at least `least` entries of one kind."""

    def fits(value: Any) -> bool:
        return isinstance(value, list) and len(value) >= least and all(map(kind.fits, value))

    return Kind(f"a list, each entry {kind.name}" + (", that is not empty" if least else ""), fits)


def object_of(optional: Mapping[str, Kind] | None = None, **kinds: Kind) -> Kind:
    """An object with at least these entries, and `optional` ones."""

    def fits(value: Any) -> bool:
        return problem(value, {**(optional or {}), **kinds}, kinds) is None

    inside = ", ".join(f"'{name}' ({kind.name})" for name, kind in kinds.items())
    return Kind(f"an object with {inside}" if kinds else "an object", fits)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 2**63


def _has_names(value: Any) -> bool:  # names are shown to users
    return isinstance(value, dict) and all(map(str.isprintable, value))


NULL = Kind("null", lambda x: x is None)
FLAG = Kind("true or false", lambda x: isinstance(x, bool))
WHOLE = Kind("a whole number", lambda x: isinstance(x, int) and _is_number(x))
NUMBER = Kind("a number", _is_number)
NUMBERS = list_of(NUMBER | NULL, least=1)
TEXT = Kind("text", lambda x: isinstance(x, str))
NAME = Kind(
    "text without control characters", lambda x: isinstance(x, str) and x != "" and x.isprintable()
)
OBJECT = object_of()
SETTINGS = Kind("an object of settings", _has_names)
TEXTS = Kind("an object of texts", lambda x: _has_names(x) and all(map(TEXT.fits, x.values())))
LISTS = Kind(
    "an object of lists of numbers",
    lambda x: _has_names(x) and all(map(NUMBERS.fits, x.values())),
)


def read_json(path: Path) -> dict[str, Any]:
    """The JSON object in a file."""
    try:
        value = json.loads(safe(Path(path)).read_text(encoding="utf-8"))
    except OSError as error:
        raise ValueError(f"{path.name} cannot be read ({explain(error)})") from None
    except RefusedFileError:
        raise
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path.name} cannot be read (it is not JSON: {error})") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} is not a JSON object")
    return value


def problem(value: Any, kinds: Mapping[str, Kind], needed: Iterable[str] = ()) -> str | None:
    """What is wrong with an object's entries, if anything."""
    if not isinstance(value, dict):
        return "is not a JSON object"
    missing = [name for name in needed if name not in value]
    if missing:
        return f"lacks {', '.join(map(repr, missing))}"
    for name, kind in kinds.items():
        if name in value and not kind.fits(value[name]):
            return f"has a '{name}' that is not {kind.name}"
    return None


def read_fitting(
    path: Path, kinds: Mapping[str, Kind], needed: Iterable[str] = ()
) -> dict[str, Any]:
    """The JSON object in a file, with entries of these kinds."""
    value = read_json(path)
    wrong = problem(value, kinds, needed)
    if wrong is not None:
        raise ValueError(f"{path.name} {wrong}")
    return value


_FILE = "there is a file where a folder should be: move it away"
_REFUSALS = {
    errno.ENOSPC: "no space is left on the disk: free some",
    errno.EDQUOT: "your quota of disk space is used up: free some",
    errno.EFBIG: (
        "a file would become larger than allowed: raise the limit, which `ulimit -f` shows, or "
        "choose a disk that holds larger files"
    ),
    errno.EMFILE: "this process has too many open files: raise the limit, which `ulimit -n` shows",
    errno.ENFILE: "the machine has too many open files: close other programs",
    errno.EACCES: "you have no permission",
    errno.EPERM: "you have no permission",
    errno.EROFS: "the disk can only be read",
    errno.EISDIR: "there is a folder where a file should be: move it away",
    errno.ENOTDIR: _FILE,
    errno.EEXIST: _FILE,
    errno.ENOENT: "there is no such file or folder: was it moved or deleted?",
    errno.ENAMETOOLONG: "a name is too long",
    errno.EIO: "the disk does not answer as it should",
    errno.ESTALE: "the network disk has lost the file",
}


def explain(error: BaseException) -> str:
    """What an error of the operating system means, and what helps.

    Its cause may be deep in the chain, or in a package's text.
    """
    at: BaseException | None = error
    while at is not None:
        number, name, said = None, None, None
        if isinstance(at, OSError) and at.errno is not None:
            number, name, said = at.errno, at.filename, at.strerror
        elif (match := re.search(r"(?:OS error |os_error_code=')(\d+)", str(at))) is not None:
            number = int(match[1])
        if number is not None:
            said = said or os.strerror(number)
            where = "" if name is None or isinstance(name, int) else f"'{os.fsdecode(name)}': "
            return where + (f"{_REFUSALS[number]} ({said})" if number in _REFUSALS else said)
        at = at.__cause__ or at.__context__
    lines = str(error).strip().splitlines()
    return f"{type(error).__name__}: {lines[0][:200]}" if lines else type(error).__name__
