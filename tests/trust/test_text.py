"""Text from files that is shown in a terminal, and names that are near."""

from __future__ import annotations

import subprocess
import sys

import pytest

from rljax import trust
from rljax.trust import printable

EVIL = "a\x1b[2Jb\x9b1mc\x1b]0;title\x07d\ne\rf\u202eg\x7f"
SAFE = r"a\x1b[2Jb\x9b1mc\x1b]0;title\x07d\ne\rf\u202eg\x7f"


def test_control_characters_become_escapes() -> None:
    assert printable(EVIL) == SAFE
    assert printable("a\n\tb\r", keep=trust.LINES) == "a\n\tb\\r"
    assert printable("Zürich 東京 é [0, 1]") == "Zürich 東京 é [0, 1]"
    assert printable(b"\xff".decode(errors="surrogateescape")) == r"\udcff"


@pytest.mark.parametrize(
    ("most", "shown"), [(None, "abcd\\x1b"), (5, "abcd\\x1b"), (4, "abcd..."), (0, "...")]
)
def test_long_texts_are_cut(most: int | None, shown: str) -> None:
    assert printable("abcd\x1b", most=most) == shown


def test_showing_keeps_the_lines(capsys: pytest.CaptureFixture[str]) -> None:
    trust.show("a\n\tb\x1b")
    assert capsys.readouterr().out == "a\n\tb\\x1b\n"


@pytest.mark.parametrize("module", ["rljax.trust", "rljax.runs.display.console"])
def test_importing_it_imports_nothing_heavy(module: str) -> None:
    code = f"import sys, {module}; print([x for x in ('jax', 'numpy', 'rich') if x in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("Hoper-v5", " Nearest: 'Hopper-v5', 'Hopper-v4'."),
        ("hopper-v4", " Nearest: 'Hopper-v4', 'Hopper-v5'."),
        ("xyz", ""),
        ("", ""),
    ],
)
def test_nearest(name: str, expected: str) -> None:
    assert trust.nearest(name, ["Ant-v5", "Hopper-v4", "Hopper-v5"]) == expected
