"""The search of a sweep, as plot, watch and report show it."""

from __future__ import annotations

from io import StringIO
from pathlib import Path

import numpy as np
import pytest

from rljax.analysis import learning_curves, report, watch
from rljax.analysis.report import searches
from rljax.runs.records import write_json
from tests.helpers import run_folders


@pytest.fixture
def sweep(tmp_path: Path) -> Path:
    """A search of hyperband in its second generation, before the test."""
    folder = tmp_path / "sweep"
    rates = {0: 1e-3, 1: 1e-4, 2: 1e-5, 3: 3e-4}
    for generation, numbers in enumerate(((0, 1, 2), (3,))):
        place = folder / f"generation-{generation:03d}"
        run_folders.write(place / "rung-0" / "launch-000")
        asked = [{"trial": n, "params": {"actor_lr": rates[n]}} for n in numbers]
        write_json(place / "trials.json", asked)
    values = [{100: 50.0, 200: 40.0}, {100: -3e9}, {100: -np.inf}]
    told = [{"trial": n, "values": each} for n, each in enumerate(values)]
    write_json(folder / "generation-000" / "told.json", told)
    write_json(folder / "sweep.json", {})
    return folder


def test_trials_have_their_values(sweep: Path) -> None:
    trials = searches.read(sweep)
    assert [trial.number for trial in trials] == [0, 1, 2, 3]
    assert trials[2].values == {100: None}
    assert searches.text(trials) == "3 of 4 trials ended; best: trial 0, 40, actor-lr=0.001"


def test_watch_says_how_far_a_search_is(sweep: Path) -> None:
    stream = StringIO()
    watch.follow([sweep], once=True, output=stream)
    assert "3 of 4 trials ended; best: trial 0" in stream.getvalue()
    assert "launch-000" in stream.getvalue()


def test_a_report_has_a_table_of_trials(sweep: Path, tmp_path: Path) -> None:
    report.write([sweep], tmp_path / "report.html")
    rows = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in (tmp_path / "report" / "tables.md").read_text().splitlines()
        if line.startswith("|")
    ]
    assert rows[0] == ["trial", "actor_lr", "100 steps", "200 steps"]
    assert rows[2:] == [
        ["0", "0.001", "50", "40"],
        ["1", "0.0001", "beyond a limit", ""],
        ["2", "1e-05", "diverged", ""],
        ["3", "0.0003", "not ended", "not ended"],
    ]


def test_plot_draws_a_search_alone(sweep: Path) -> None:
    assert learning_curves.plot([sweep]) == sweep / "curve.png"
    assert (sweep / "curve.png").read_bytes().startswith(b"\x89PNG")
    with pytest.raises(ValueError, match="is a sweep, whose search is drawn alone"):
        learning_curves.plot([sweep], metric="actor/kl")


def test_a_search_without_values_is_not_drawn(sweep: Path) -> None:
    (sweep / "generation-000" / "told.json").unlink()
    with pytest.raises(ValueError, match="has no trial with a value"):
        learning_curves.plot([sweep])


def test_damaged_trials_are_refused(sweep: Path) -> None:
    (sweep / "generation-001" / "trials.json").write_text("[3]")
    with pytest.raises(ValueError, match="does not hold the trials of its generation"):
        searches.read(sweep)
