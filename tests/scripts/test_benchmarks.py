"""The benchmarks: what is measured once, and whether their loops run. Their numbers are not tested."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from scripts.benchmarks import accelerator as accelerator_script
from scripts.benchmarks import measuring


@pytest.fixture
def accelerator(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Callable[..., dict[str, Any]]:
    """Runs scripts/benchmarks/accelerator.py with these arguments, and returns what it wrote."""
    output = tmp_path / "figures.json"

    def run(*arguments: str) -> dict[str, Any]:
        monkeypatch.setattr(sys, "argv", ["accelerator.py", "--tiny", "--output", str(output), *arguments])
        accelerator_script.main()
        return json.loads(output.read_text())

    return run


def test_a_measurement_that_fails_is_the_only_one_that_is_repeated(accelerator, monkeypatch, capsys):
    measured, broken = [], True

    def measure(_: str, worker: str, *arguments: str, script: str) -> dict[str, Any]:
        measured.append((worker, *map(json.loads, arguments)))
        if worker == "updates" and broken:
            raise SystemExit("no memory")
        return {"curve": [[1.0, 2.0], [3.0, 10.0 if worker == "ours" else 20.0]]}

    monkeypatch.setattr(measuring, "measure", measure)
    with pytest.raises(SystemExit, match="failed: iql updates x 1"):
        accelerator("--only", "iql updates x 1", "fast ours", "fast brax")
    assert [worker for worker, *_ in measured] == ["updates", "ours", "brax"]
    assert "return 9 reached after 3.0 s by ours and 3.0 s by Brax's trainer" in capsys.readouterr().out
    broken = False
    figures = accelerator("--only", "iql updates x 1", "fast ours", "fast brax")
    assert measured[3:] == [("updates", "iql", 20, 1, "")]
    assert {"iql updates x 1", "ppo brax/fast ours", "ppo brax/fast brax", "devices"} <= figures.keys()


@pytest.mark.learn
def test_loops_and_updates_are_measured(accelerator):
    figures = accelerator("--only", "sac Pendulum-v1 x 2", "iql updates x 1")
    loop, updates = figures["sac Pendulum-v1 x 2"], figures["iql updates x 1"]
    assert loop["steps_per_second"] > 0
    assert updates["hours_of_a_million"] == pytest.approx(1e6 / updates["updates_per_second"] / 3600)
