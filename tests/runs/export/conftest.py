"""The run whose policies are exported."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.helpers import small_runs


@pytest.fixture(scope="session")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("exported") / "run"
    return small_runs.train("sac", "Pendulum-v1", 100, out, seeds=2)
