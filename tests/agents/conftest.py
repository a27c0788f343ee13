"""In `make test`, an agent whose tests are much like others' is only compared with its equations:
the first case is quick and all else is slow.

Representatives, and tests of what agents share, say themselves what is slow.
"""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.agents.contract.representatives import REPRESENTATIVES

COMPARISON = re.compile(r"test_(updates|a_stream)_equals?_")


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    compared: set[Path] = set()
    for item in items:
        if (
            item.path.parent != Path(__file__).parent
            or item.path.stem.removeprefix("test_") in REPRESENTATIVES
        ):
            continue
        if COMPARISON.match(item.name) and item.path not in compared:
            compared.add(item.path)
        else:
            item.add_marker("slow")
