"""The agents that stand for all of them in the quick tests of what agents share:
one for each kind of experience.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest

REPRESENTATIVES = ("dqn", "iql", "ppo", "sac", "stream_ac")


def quick(names: Iterable[str], these: Iterable[str] = REPRESENTATIVES) -> list[Any]:
    """Parameters: a test is slow with all `names` but `these`."""
    return [pytest.param(name, marks=() if name in these else pytest.mark.slow) for name in names]
