"""Notes: what a user should know and need not change, without a line of rljax's source."""

from __future__ import annotations

import re
import sys
import warnings
from typing import Any

from rljax.trust.text import LINES, printable


class Note(UserWarning):
    """A note, which Python's filters of warnings can hide."""


_TOLD: dict[Any, Any] = {}  # Python shows each text once


def note(text: str) -> None:
    """Tell the user `text`, once in a process."""
    warnings.warn_explicit(text, Note, "rljax", 1, registry=_TOLD)


def show_warning(
    message: Warning | str, category: type[Warning], *others: Any, **named: Any
) -> None:
    """`warnings.showwarning` of the command line: the text alone."""
    kind = "note" if issubclass(category, Note) else "warning"
    text = re.sub(r"\x1b\[[0-9;]*m", "", str(message))  # colours of Gymnasium
    print(f"{kind}: {printable(text, keep=LINES)}", file=sys.stderr)
