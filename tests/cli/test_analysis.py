"""`rljax plot` on a small run."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax import cli
from tests.helpers import small_runs


@pytest.mark.slow
def test_plot_writes_the_curve(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trained = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    cli.main(["plot", str(trained)])
    assert capsys.readouterr().out.strip() == str(trained / "curve.png")
    assert (trained / "curve.png").stat().st_size > 5_000
