"""What criteria would have chosen: by hand, against scipy, and from folders of runs."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rljax import cli
from rljax.analysis import selection
from rljax.runs.records import Recorder
from tests.helpers.run_folders import write

PATHS = [Path(name) for name in "abcd"]


def test_a_choice_by_hand() -> None:
    returns = dict(zip(PATHS, (10.0, 30.0, 20.0, 50.0), strict=True))
    found = selection.choose("x", {PATHS[0]: 1.0, PATHS[1]: 2.0, PATHS[2]: 3.0}, returns)
    assert (found.candidates, found.run, found.value) == (3, PATHS[2], 3.0)
    assert (found.final_return, found.best_return) == (20.0, 30.0)
    assert found.regret == pytest.approx(0.5), "d is not known to the criterion"
    assert found.correlation == pytest.approx(0.5)
    diverged = selection.choose("x", {PATHS[0]: float("nan"), PATHS[1]: -2.0}, returns)
    assert diverged.run == PATHS[1]
    equal = selection.choose("x", {PATHS[0]: 1.0, PATHS[1]: 1.0}, dict.fromkeys(PATHS, 2.0))
    assert equal.run == PATHS[0]
    assert np.isnan([equal.regret, equal.correlation]).all()


def runs(folder: Path, levels: dict[str, float], judged: dict[str, float]) -> Path:
    """Candidates with those returns, whose own critics see the opposite, and their judges."""
    for name, level in levels.items():
        out = write(folder / name, level=level)
        with Recorder(out) as recorder:
            recorder.metrics({"step": 1, "critic/q": [-level, 0.0, 0.0]})
    for name, value in judged.items():
        out = write(folder / f"judge-{name}", agent="fqe", base=str(folder / name))
        with Recorder(out) as recorder:
            recorder.metrics({"step": 1, "value/initial": [0.0, 0.0, 0.0]})
            recorder.metrics({"step": 2, "value/initial": [value, 0.0, 0.0]})
    return folder


def test_runs_are_judged_by_their_judges_and_by_their_own_critics(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = runs(tmp_path, {"a": 100.0, "b": 200.0, "c": 300.0}, {"a": 1.0, "b": 3.0, "c": 2.0})
    judged, own = selection.select([folder])[0]
    assert (judged.criterion, judged.run.name) == ("value/initial", "b")
    assert (own.criterion, own.run.name) == ("critic/q", "a")
    found = [judged.regret, judged.correlation, own.regret, own.correlation]
    assert found == pytest.approx([0.5, 0.5, 1.0, -1.0])
    cli.main(["select", str(folder)])
    shown = capsys.readouterr().out
    assert "| value/initial | 3 | b | 200.0 | 300.0 | 0.50 | 0.50 |" in shown
    assert shown.index("| c | 300.0 | 2 |") < shown.index("| a | 100.0 | 1 |")


def test_runs_without_an_environment_are_chosen_by_their_judges(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"a": 1.0, "b": 3.0}.items():
        write(tmp_path / name, environment="none", steps=(), data="x.npz")
        out = write(tmp_path / f"judge-{name}", "fqe", "none", steps=(), base=str(tmp_path / name))
        with Recorder(out) as recorder:
            recorder.metrics({"step": 2, "value/initial": [value]})
    cli.main(["select", str(tmp_path)])
    shown = capsys.readouterr().out
    assert "| value/initial | 2 | b |  |  |  |  |" in shown
    assert shown.index("| b |  | 3 |") < shown.index("| a |  | 1 |")
    write(tmp_path / "c")
    with pytest.raises(ValueError, match=r"^1 runs to choose from, and 2 that judge one of them"):
        selection.select([tmp_path])  # those with returns count alone


def test_runs_that_nobody_judges_are_refused(tmp_path: Path) -> None:
    write(tmp_path / "a")
    with pytest.raises(
        ValueError,
        match=r"^1 runs to choose from, and 0 that judge one of them: a choice needs two runs",
    ):
        selection.select([tmp_path])
