"""One agent for each kind of experience stands for all in quick tests of what agents share."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

REPRESENTATIVES = ("dqn", "iql", "ppo", "sac", "stream_ac")


def quick(names: Iterable[str], these: Iterable[str] = REPRESENTATIVES) -> list[Any]:
    """A test is slow with all `names` but `these`."""
    return [pytest.param(name, marks=() if name in these else pytest.mark.slow) for name in names]
