"""Command lines that several tests write, and what refused ones print."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from rljax import cli
from tests.helpers import small_runs


def train(agent: str, env: str, *more: Any, but: str | None = None) -> list[str]:
    """A quiet run of seconds."""
    flags = small_runs.flags(agent, but)
    return ["train", agent, "--env", env, "--quiet", *flags, *map(str, more)]


def refused(words: Sequence[Any], capsys: pytest.CaptureFixture[str]) -> str:
    """What is printed."""
    with pytest.raises(SystemExit) as exit:
        cli.main([str(word) for word in words])
    assert exit.value.code == 2
    return capsys.readouterr().err
