"""What tests of scripts share: a script's `main`, called with a command line in this process."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType

import pytest


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the `main` of a script with these arguments."""

    def run(script: ModuleType, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [str(script.__file__), *map(str, arguments)])
        script.main()

    return run
