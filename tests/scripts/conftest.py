"""What tests of scripts share: a script's `main` called in this process,
and trainings that learn nothing.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from rljax import datasets
from rljax.runs import experiments, run
from tests.helpers import run_folders
from tests.helpers.counting import recorded


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Runs the `main` of a script with these arguments."""

    def run(script: ModuleType, *arguments: object) -> None:
        monkeypatch.setattr(sys, "argv", [str(script.__file__), *map(str, arguments)])
        script.main()

    return run


@pytest.fixture
def untrained(monkeypatch):
    """`run.train` prepares a run, and writes the files of one that has learnt, without learning."""

    def train(
        agent: str,
        env: str | None = None,
        steps: int = 0,
        *,
        out: Path,
        quiet: bool,
        **settings: Any,
    ) -> Path:
        experiment = experiments.prepare(agent, env, steps, **settings)
        described = experiments.described(experiment)
        every, total = settings["eval_every"], steps + (settings.get("then_online") or 0)
        episodes: dict[str, Any] = {
            "scores": [1.0] * 4,
            "success": [1.0] * 4,
            "signals": {"cost": [2.0] * 4},
        }
        evaluated = list(range(every, total + 1, every)) or [total]
        others = {
            name: x for name, x in described.items() if name not in ("seeds", "steps", "config")
        }
        run_folders.write(
            out,
            seeds=experiment.settings.seeds,
            steps=evaluated,
            budget=evaluated[-1],
            config=described["config"],
            evaluation=episodes,
            **({"dataset": None} | others),
        )
        summary = json.loads((out / "summary.json").read_text())
        weights = (
            None
            if settings.get("weights") in (None, "uniform")
            else {"effective_trajectories": 3.0}
        )
        summary |= {"steps": total, "weights": weights, "final": {"score": 1.0, "success": None}}
        summary.pop("checksum")
        (out / "summary.json").write_text(json.dumps(summary))
        return out

    monkeypatch.setattr(run, "train", train)


@pytest.fixture
def data(tmp_path):
    """A data set of 40 rows with reference returns."""
    rows = recorded("Pendulum-v1").transitions
    path = tmp_path / "recorded.hdf5"
    datasets.write(
        datasets.OfflineDataset("recorded", rows, "Pendulum-v1", (-1000.0, 0.0), None, {}), path
    )
    return path
