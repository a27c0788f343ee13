"""A user's own Python files, and classes in them.

Only functions import what is heavy.
"""

from __future__ import annotations

import functools
import importlib.util
import re
import sys
import traceback
from pathlib import Path
from typing import Any

PREFIX = "python/"
_NAME = re.compile(rf".+\.py:\w+|{PREFIX}\w+(-\d+)?")
# What stands in the way of a second import: parts of a package, and scripts that train at once.
_RELATIVE_IMPORT = re.compile(r"^\s*(from \.|import \.)", re.MULTILINE)
_GUARD = re.compile(r"^if __name__ == ", re.MULTILINE)

_KNOWN: dict[str, type] = {}  # classes that Python handed over, by name


class FileClass(str):
    """The name of a user's class: FILE.py:CLASS, or python/CLASS for one of this process alone."""

    __slots__ = ()


def is_class_name(text: Any) -> bool:
    """Whether a value is the name of a user's class."""
    return isinstance(text, str) and _NAME.fullmatch(text) is not None


def file_of(name: str) -> str | None:
    """The file in the name of a class; None for a class of one process alone."""
    return None if name.startswith(PREFIX) else name.rpartition(":")[0]


def file_of_function(name: Any) -> str | None:
    """The file in the name FILE.py:FUNCTION; None for other names."""
    return file_of(name) if is_class_name(name) else None


def name_of(cls: type) -> FileClass:
    """The name of a class, by which this process knows it from now on.

    It has its file where that can be imported again.
    """
    path = importable_file(cls)
    if path is not None:
        name = f"{path}:{cls.__qualname__}"
    else:
        name, number = f"{PREFIX}{cls.__name__}", 1
        while _KNOWN.get(name, cls) is not cls:
            number += 1
            name = f"{PREFIX}{cls.__name__}-{number}"
    return register(cls, name)


def register(cls: type, name: str) -> FileClass:
    """Make a class known to this process under a name."""
    _KNOWN[name] = cls
    return FileClass(name)


def known(name: str) -> type | None:
    """The class that Python handed over under this name, if any."""
    return _KNOWN.get(name)


def importable_file(thing: Any) -> str | None:
    """The file from which a class or a function can be imported again, if there is one."""
    name, module_name = getattr(thing, "__qualname__", ""), getattr(thing, "__module__", None)
    module = sys.modules.get(str(module_name))
    path = getattr(module, "__file__", None) or ""
    if not path.endswith(".py") or getattr(module, name, None) is not thing:
        return None
    source = Path(path).read_text()
    runs_alone = module_name != "__main__" or _GUARD.search(source)
    return path if runs_alone and not _RELATIVE_IMPORT.search(source) else None


def imported(path: Path) -> Any:
    """The module of a file, imported again only if the file has changed.

    Raises what importing it raises.
    """
    return _module(path.resolve(), path.stat().st_mtime_ns)


# A second import would make new classes, which saved environments do not belong to.
@functools.lru_cache(maxsize=16)
def _module(path: Path, changed: int) -> Any:
    del changed
    # Pickles of environments name the module so.
    spec = importlib.util.spec_from_file_location(f"rljax_user_environment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ImportError(f"'{path}' cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # for dataclasses
    spec.loader.exec_module(module)
    return module


def syntax(error: SyntaxError) -> str:
    """The error with its file, line number and line."""
    where = "" if error.lineno is None else f" in line {error.lineno} of '{error.filename}'"
    line = (error.text or "").strip()
    return f"{type(error).__name__}{where}: {error.msg}." + (f"\n  {line}" if line else "")


def cause(error: BaseException, path: Path) -> str:
    """The error of running the file at `path`, with its line there."""
    if isinstance(error, SyntaxError):
        return syntax(error)
    kind = type(error).__name__
    frames = traceback.extract_tb(error.__traceback__)
    lines = [frame.lineno for frame in frames if Path(frame.filename).resolve() == path.resolve()]
    where = f" in line {lines[-1]}" if lines else ""
    return f"{kind}{where}: {str(error).strip() or kind}."
