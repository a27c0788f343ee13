"""Suites of tasks: what is compared, and how results are normalised."""

from __future__ import annotations

import numpy as np
import pytest

from rljax.analysis import folders, suites, tables
from tests.helpers import run_folders


def suite(paths):
    found, remarks = suites.find(tables.arrange(folders.read_all(paths)[0]))
    return found, remarks


def test_returns_are_normalised_by_the_published_ones(tmp_path):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        run_folders.write(tmp_path / task, environment=task, level=2787.14)
    (found,), remarks = suite([tmp_path])
    assert remarks == []
    scores = found.scores()["sac"]
    assert scores["Hopper-v5"] == pytest.approx([1.0, 1.0 + 10 / 2787.14, 1.0 + 20 / 2787.14])
    assert scores["HalfCheetah-v5"][0] == pytest.approx(2787.14 / 11320.92)
    assert "Hopper-v5 2,787 (Hopper-v4, 10 seeds, dojeon-ai/SimbaV2@14fafb2)" in found.explanation


def test_scores_of_data_sets_are_divided_by_100(tmp_path):
    for task in ("hopper-medium-v2", "hopper-medium-replay-v2"):
        run_folders.write(
            tmp_path / task, "iql", data=f"d4rl/{task}", evaluation={"scores": [50.0] * 4}
        )
    (found,), _ = suite([tmp_path])
    assert all(values == pytest.approx([0.5] * 3) for values in found.scores()["iql"].values())


def test_without_references_a_remark_says_that_there_is_no_score_over_tasks(tmp_path):
    run_folders.write(tmp_path / "a", environment="rljax/Pendulum")
    run_folders.write(tmp_path / "b", environment="Hopper-v5")
    found, remarks = suite([tmp_path])
    assert found == []
    assert remarks[0].startswith(
        "No score over Hopper-v5, rljax/Pendulum together: returns of different tasks cannot"
    )
    assert "no published reference to normalise those of rljax/Pendulum" in remarks[0]


def test_only_rows_that_have_all_tasks_are_compared(tmp_path):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        for agent in ("sac", "td3"):
            run_folders.write(tmp_path / agent / task, agent, task)
    run_folders.write(tmp_path / "ppo", "ppo", "Hopper-v5")
    run_folders.write(tmp_path / "dsact/Hopper-v5", "dsact", "Hopper-v5")
    # incomplete
    run_folders.write(tmp_path / "dsact/HalfCheetah-v5", "dsact", "HalfCheetah-v5", steps=(10_000,))
    run_folders.write(tmp_path / "walker", "sac", "Walker2d-v5")
    (found,), _ = suite([tmp_path])
    assert list(found.rows) == ["sac", "td3"]
    assert [table.task for table in found.tables] == ["HalfCheetah-v5", "Hopper-v5"]
    assert found.left_out == ["dsact", "ppo", "Walker2d-v5"]


def test_scores_over_time_are_those_of_the_evaluations(tmp_path):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        run_folders.write(tmp_path / task, environment=task)
    (found,), _ = suite([tmp_path])
    steps, values = found.scores_over_time()
    assert (steps[0], steps[-1]) == (10_000, 30_000)
    assert values["sac"]["Hopper-v5"].shape == (3, len(steps))
    np.testing.assert_allclose(values["sac"]["Hopper-v5"][0] * 2787.14, 1000 * steps / 30_000)
