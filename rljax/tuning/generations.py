"""The trials of a search's generation, as its folder lists them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from rljax.trust import RefusedFileError, safe

T = TypeVar("T")


def listed(path: Path, read: Callable[[dict[str, Any]], T]) -> list[T]:
    """What `read` makes of each entry of a file of trials.

    Raises `ValueError` for a damaged file.
    """
    try:
        return [read(entry) for entry in json.loads(safe(path).read_text(encoding="utf-8"))]
    except RefusedFileError:
        raise
    except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
        raise ValueError(
            f"'{path}' does not hold the trials of its generation ({type(error).__name__}: "
            f"{error}). Restore it from a copy of the sweep."
        ) from None
