"""Text of messages: what is safe to show in a terminal, and known names that are near."""

from __future__ import annotations

import difflib
from collections.abc import Sequence

LINES = "\n\t"  # control characters that belong to text of several lines


def printable(text: object, keep: str = "", most: int | None = None) -> str:
    """Text that does nothing to a terminal: control characters become escapes, such as \x1b.

    This includes line breaks, unless in `keep`, and characters that reverse the text's direction.
    Longer text is cut to `most` characters and "...".
    """
    whole = str(text)
    shown = "".join(
        character
        if character.isprintable() or character in keep
        else character.encode("unicode_escape").decode("ascii")
        for character in whole[:most]
    )
    return shown + "..." * (most is not None and len(whole) > most)


def show(text: object) -> None:
    """Print text that is safe but for its line breaks."""
    print(printable(text, keep=LINES))


def nearest(name: str, names: Sequence[str], most: int = 3) -> str:
    """ " Nearest: 'a', 'b'.", or "" if no name is near."""
    spellings = {known.lower(): repr(known) for known in names}
    matches = difflib.get_close_matches(name.lower(), spellings, n=most, cutoff=0.5)
    return f" Nearest: {', '.join(spellings[match] for match in matches)}." if matches else ""
