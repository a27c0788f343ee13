"""Arrays of a file that nothing reads."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from rljax.datasets.formats import schema, text

EXPECTED = ("metadata", "infos")  # never read in full
SHORTEST = 6  # letters of a name
MOST = 1_000  # names in a dataset's provenance


def unread(name: str, file: Any, known: Iterable[Sequence[str]]) -> list[str]:
    """The arrays of `file` that have not been read, at most `MOST`.

    `known` are the names that would be read, those of one field together. Raises `ValueError` for
    an array whose name is one letter from those of a field that the file lacks, or a part of one.
    """
    others = [key for key in file.unread() if key.partition("/")[0] not in EXPECTED]
    missing = [alias for names in known if not any(key in file for key in names) for alias in names]
    for key in others:
        for alias in missing:
            if key.startswith(f"{alias}/"):
                parts = [other.removeprefix(f"{alias}/") for other in others if alias in other]
                raise schema.is_group(name, alias, parts)
            if len(alias) >= SHORTEST and (_differ(key, alias) or _differ(key, f"{alias}.npy")):
                raise ValueError(
                    f"'{name}' has '{text.shortened(key)}' and no '{alias}', which differs by one "
                    "letter. If the file is damaged, download it again. Otherwise rename the array."
                )
    return [text.shortened(key, 60) for key in sorted(others)[:MOST]]


def _differ(name: str, other: str) -> bool:
    same = 0
    while name[same : same + 1] == other[same : same + 1] != "":
        same += 1
    left, right = name[same:], other[same:]
    return left != right and (left[1:] == right[1:] or left[1:] == right or left == right[1:])
