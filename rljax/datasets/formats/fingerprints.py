"""The identity of a file: its name, length and checksum."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import Any


def fingerprint(path: Path) -> dict[str, Any]:
    """Name, length in bytes and SHA-256 of a file."""
    return {"file": path.name, "bytes": path.stat().st_size, "sha256": digest(path, "sha256")}


def digest(path: Path, algorithm: str) -> str:
    """A file's checksum in hexadecimal digits, by an algorithm of `hashlib`."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, algorithm).hexdigest()
