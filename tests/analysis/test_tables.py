"""Tables: which learners share a row, and which runs a table."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rljax.analysis import folders, tables
from tests.helpers import run_folders


def only(path, at=None):
    (table,) = tables.arrange(folders.read_all([path])[0], at)
    return table


def test_a_population_is_split_by_what_its_learners_differ_in(tmp_path):
    # Two seeds of each of two rates; `hidden` is a list of as many entries.
    rates = {"actor_lr": [1e-3, 1e-3, 3e-4, 3e-4]}
    run_folders.write(
        tmp_path / "grid", seeds=(0, 1, 0, 1), config={"hidden": [64, 64, 64, 64]}, own=rates
    )
    table = only(tmp_path)
    assert {row.label: list(row.values("returns")) for row in table.rows} == {
        "sac actor-lr=0.001": [1000.0, 1010.0],
        "sac actor-lr=0.0003": [1020.0, 1030.0],
    }


def test_tasks_of_data_sets(tmp_path):
    run_folders.write(
        tmp_path / "a", "iql", data="d4rl/hopper-medium-v2", evaluation={"scores": [50.0, 60.0]}
    )
    run_folders.write(tmp_path / "b", "iql", data="sets/mine.hdf5")
    run_folders.write(tmp_path / "c", "iql", "Ant-v5", data="other/mine.hdf5")
    arranged = {table.task: table for table in tables.arrange(folders.read_all([tmp_path])[0])}
    assert list(arranged) == [
        "d4rl/hopper-medium-v2",
        "other/mine.hdf5 in Ant-v5",
        "sets/mine.hdf5 in Hopper-v5",
    ]
    assert arranged["d4rl/hopper-medium-v2"].metric == "scores"
    np.testing.assert_array_equal(
        arranged["d4rl/hopper-medium-v2"].rows[0].values("scores"), [55.0] * 3
    )


# Which evaluation counts


def test_a_row_has_the_numbers_of_its_last_evaluation(tmp_path):
    run_folders.write(tmp_path / "a")
    (row,) = only(tmp_path).rows
    assert (row.step, row.complete, row.diverged) == (30_000, True, 0)
    np.testing.assert_allclose(row.values("returns"), [1000, 1010, 1020])


def test_incomplete_learners_do_not_count(tmp_path):
    run_folders.write(tmp_path / "a")
    run_folders.write(tmp_path / "b", seeds=(5, 6), steps=(10_000, 20_000))
    (row,) = only(tmp_path).rows
    assert (len(row.learners), len(row.counted), row.step, row.complete) == (5, 3, 30_000, True)


def test_a_row_without_complete_learners_is_marked(tmp_path):
    run_folders.write(tmp_path / "a", steps=(10_000, 20_000))
    run_folders.write(tmp_path / "b", seeds=(5,), steps=(10_000,))
    (row,) = only(tmp_path).rows
    # Where all of them have been.
    assert (len(row.counted), row.step, row.complete) == (4, 10_000, False)


def test_at_a_step_each_counts_with_its_last_evaluation_until_then(tmp_path):
    run_folders.write(tmp_path / "a")
    run_folders.write(tmp_path / "b", "ppo", steps=(8192, 16_384, 24_576, 32_768))
    run_folders.write(tmp_path / "c", "td3", steps=(20_000, 40_000), budget=40_000)
    found = {row.label: (row.step, row.complete) for row in only(tmp_path, at=20_000).rows}
    assert found == {"sac": (20_000, True), "ppo": (16_384, True), "td3": (20_000, True)}


def test_a_run_that_stopped_long_before_a_step_is_incomplete(tmp_path):
    run_folders.write(tmp_path / "a")
    run_folders.write(tmp_path / "b", "td3", steps=(10_000,))
    found = {row.label: row.complete for row in only(tmp_path, at=25_000).rows}
    assert found == {"sac": True, "td3": False}


def test_diverged_learners_are_counted(tmp_path):
    path = run_folders.write(tmp_path / "a", seeds=(0, 1, 2, 3))
    lines = [json.loads(line) for line in (path / "evaluations.jsonl").read_text().splitlines()]
    for line in lines:
        line["diverged"] = line["learner"] == 1 and line["step"] >= 20_000
        if (line["learner"], line["step"]) == (2, 30_000):
            line["returns"] = [None, 1.0, 1.0, 1.0]
    (path / "evaluations.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    assert [row.diverged for row in only(tmp_path).rows] == [2]
    assert [row.diverged for row in only(tmp_path, at=10_000).rows] == [0]
    (row,) = only(tmp_path).rows
    assert tables.estimates(row, "returns") is None  # one of its values is not a number


def test_estimates_of_a_row_by_hand(tmp_path):
    run_folders.write(tmp_path / "a", seeds=(0, 1, 2, 3, 4))
    (row,) = only(tmp_path).rows
    found = tables.estimates(row, "returns")
    assert found is not None
    assert {name: e.value for name, e in found.items()} == pytest.approx(
        {"iqm": 1020, "median": 1020, "mean": 1020}
    )
    assert all(e.low < e.value < e.high and e.runs == (5, 5) for e in found.values())


# What cannot be compared


def test_different_budgets_are_an_error_that_says_what_to_do(tmp_path):
    run_folders.write(tmp_path / "short", steps=(10_000,), budget=10_000)
    run_folders.write(tmp_path / "long")
    run_folders.write(tmp_path / "elsewhere", environment="Ant-v5", budget=50_000)  # another table
    runs, _ = folders.read_all([tmp_path])
    with pytest.raises(
        ValueError,
        match=r"runs of 'Hopper-v5' have different budgets: 10000 steps in '.*short'; 30000 steps "
        r"in '.*long'\. To compare all at the same step: rljax report \.\.\. --at 10000\. Or "
        r"report them separately\.",
    ):
        tables.arrange(runs)
    assert tables.arrange(runs, at=10_000)
    with pytest.raises(
        ValueError,
        match=r"--at is 20000, and not all runs of 'Hopper-v5' .*short' for 10000.* --at 100",
    ):
        tables.arrange(runs, at=20_000)


def test_different_numbers_of_episodes_are_an_error(tmp_path):
    run_folders.write(tmp_path / "few", episodes=5)
    run_folders.write(tmp_path / "many", episodes=10)
    runs, _ = folders.read_all([tmp_path])
    with pytest.raises(
        ValueError,
        match=r"runs of 'Hopper-v5' were evaluated in different ways: 5 episodes .* in '.*few'; "
        r"10 .*: name",
    ):
        tables.arrange(runs, at=10_000)


def test_signals_that_all_learners_have(tmp_path):
    run_folders.write(
        tmp_path / "a", evaluation={"signals": {"cost": [1.0, 3.0], "wear": [0.0, 0.0]}}
    )
    run_folders.write(tmp_path / "b", "ppo", evaluation={"signals": {"cost": [7.0, 7.0]}})
    table = only(tmp_path)
    assert table.signals == ["cost"]
    ppo, sac = sorted(table.rows, key=lambda row: row.agent)
    np.testing.assert_array_equal(ppo.sums("cost"), [7.0] * 3)
    estimate = tables.of_signal(sac, "cost")
    assert estimate is not None
    assert estimate.value == 2.0
    run_folders.write(tmp_path / "c", "td3")
    assert only(tmp_path).signals == []
