"""Which arguments of a stranger's file may reach `gymnasium.make`.

An argument may be a file to open or a module to import: only numbers, truth values, None, plain
words, and lists and objects of these are allowed.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Mapping
from typing import Any

WORDS = re.compile(
    r"[\w +-]{0,100}"
)  # "bottom burner", "4x4"; no dots, slashes, colons and tildes, as paths have
DEEPEST = 8  # levels of lists and objects


def unsafe_argument_in(name: str) -> str | None:
    """The first argument in an environment's name that a file must not choose, or None."""
    _, mark, text = name.partition("?")
    if not mark:
        return None
    try:
        arguments = json.loads(text)
    except (ValueError, RecursionError):
        arguments = None
    if not isinstance(arguments, dict):
        return "arguments that are not a JSON object"
    return unsafe_argument(arguments)


def unsafe_argument(arguments: Mapping[str, Any]) -> str | None:
    """The first argument that a file must not choose, for a message, or None."""
    for key, value in arguments.items():
        if not key.isidentifier() or not _is_plain(value, DEEPEST):
            text = repr(value)
            return f"the argument {key!r:.80} = {text if len(text) <= 80 else text[:80] + '...'}"
    return None


def _is_plain(value: Any, levels: int) -> bool:
    if isinstance(value, str):
        return WORDS.fullmatch(value) is not None
    if isinstance(value, list | dict):
        inside = [*value, *value.values()] if isinstance(value, dict) else value
        return levels > 0 and all(_is_plain(entry, levels - 1) for entry in inside)
    return value is None or (isinstance(value, bool | int | float) and not math.isnan(value))
