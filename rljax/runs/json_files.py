"""Strict JSON for the files of runs: arrays become lists, numbers that are not finite become null."""

from __future__ import annotations

import contextlib
import json
import math
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np


def write_json(path: Path, value: Any) -> None:
    """Write strict JSON atomically: `path` always holds the complete old or the complete new content.

    Raises:
        OSError: the disk is full, or the folder cannot be written. The old content stays.
    """
    path = Path(path)
    text = dumps(value, indent=2) + "\n"
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")  # os.replace is atomic within a file system only
    try:
        with temporary.open("w", encoding="utf-8") as file:
            file.write(text)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    with contextlib.suppress(OSError):  # some file systems do not sync folders
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)


def dumps(value: Any, indent: int | None = None) -> str:
    """Strict JSON of numbers, text, lists, mappings, paths and arrays. Numbers that are not finite become null.

    Raises:
        TypeError: a value of any other type.
    """
    return json.dumps(plain(value), indent=indent, allow_nan=False)


def plain(value: Any) -> Any:
    """Convert `value` to types that JSON has."""
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
        if array.dtype.kind in "biufV":  # V: bfloat16 and similar types
            return plain((array.astype(np.float64) if array.dtype.kind == "V" else array).tolist())
    raise TypeError(f"a value of kind '{type(value).__name__}' cannot be recorded, JSON has numbers, text and lists.")
