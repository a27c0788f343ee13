"""What runs came to: which learners are pooled, which rows stand in one table, and what may not."""

from __future__ import annotations

import json

import numpy as np
import pytest

from rljax.analysis import tables
from tests import folders


def rows(paths, at=None):
    """By task and label, how many learners count."""
    runs, skipped = tables.load(paths)
    assert not skipped
    return {table.task: {row.label: len(row.chosen) for row in table.rows} for table in tables.arrange(runs, at)}


def only(path, at=None):
    (table,) = tables.arrange(tables.load([path])[0], at)
    return table


def test_runs_are_found_at_any_depth_and_once(tmp_path):
    folders.write(tmp_path / "runs" / "sac" / "Hopper-v5" / "a")
    folders.write(tmp_path / "runs" / "sac" / "Hopper-v5" / "b", seeds=(7,))
    (tmp_path / "runs" / "sac" / "Hopper-v5" / "a" / "checkpoints" / "config.json").mkdir(parents=True)
    paths = [tmp_path / "runs", tmp_path / "runs" / "sac" / "Hopper-v5" / "a"]
    assert rows(paths) == {"Hopper-v5": {"sac": 4}}


def test_rows_are_agents_and_what_differs_in_their_settings(tmp_path):
    folders.write(tmp_path / "a", config={"actor_lr": 1e-3})
    folders.write(tmp_path / "b", config={"actor_lr": 3e-4}, seeds=(3,))
    folders.write(tmp_path / "c", "td3", config={"actor_lr": 1e-3})
    found = rows([tmp_path])
    assert found == {"Hopper-v5": {"sac actor-lr=0.001": 3, "sac actor-lr=0.0003": 1, "td3": 3}}


def test_settings_that_differ_between_tasks_alone_make_no_rows(tmp_path):
    folders.write(tmp_path / "a", environment="Hopper-v5", config={"actor_lr": 1e-3})
    folders.write(tmp_path / "b", environment="Ant-v5", config={"actor_lr": 3e-4})
    assert rows([tmp_path]) == {"Ant-v5": {"sac": 3}, "Hopper-v5": {"sac": 3}}


def test_settings_that_go_together_are_said_once(tmp_path):
    for i, (rate, hidden) in enumerate([(1e-3, [400, 300]), (3e-4, [256, 256])]):
        folders.write(tmp_path / str(i), config={"actor_lr": rate, "hidden": hidden})
    assert rows([tmp_path]) == {"Hopper-v5": {"sac actor-lr=0.001 ...": 3, "sac actor-lr=0.0003 ...": 3}}
    runs, _ = tables.load([tmp_path])
    assert tables.differences([learner for run in runs for learner in run.learners]) == ["actor_lr", "hidden"]


def test_a_setting_that_older_runs_lack_makes_no_rows(tmp_path):
    folders.write(tmp_path / "a", config={"novel": 1.0})
    folders.write(tmp_path / "b", seeds=(5,))
    assert rows([tmp_path]) == {"Hopper-v5": {"sac": 4}}


def test_whole_numbers_are_the_same_as_floats(tmp_path):
    folders.write(tmp_path / "a", config={"reward_scale": 1})
    folders.write(tmp_path / "b", config={"reward_scale": 1.0})
    assert rows([tmp_path]) == {"Hopper-v5": {"sac": 6}}


def test_a_population_is_split_by_what_its_learners_differ_in(tmp_path):
    # Two seeds of each of two learning rates; `hidden` is a list of as many entries and means another thing.
    rates = {"actor_lr": [1e-3, 1e-3, 3e-4, 3e-4]}
    folders.write(tmp_path / "grid", seeds=(0, 1, 0, 1), config={"hidden": [64, 64, 64, 64]}, own=rates)
    table = only(tmp_path)
    assert {row.label: list(row.values("returns")) for row in table.rows} == {
        "sac actor-lr=0.001": [1000.0, 1010.0],
        "sac actor-lr=0.0003": [1020.0, 1030.0],
    }


def test_a_population_of_several_settings_and_one_seed(tmp_path):
    path = folders.write(tmp_path / "grid", seeds=(0, 0), own={"actor_lr": [1e-3, 3e-4]})
    assert rows([tmp_path]) == {"Hopper-v5": {"sac actor-lr=0.001": 1, "sac actor-lr=0.0003": 1}}
    described = json.loads((path / "config.json").read_text())
    (path / "config.json").write_text(json.dumps(described | {"learners": described["learners"][:1]}))
    _, skipped = tables.load([tmp_path])
    assert skipped[0][1] == "its config.json describes 1 learners, and no learner 1."


def test_of_a_sweep_only_the_test_is_reported(tmp_path):
    sweep = tmp_path / "sweep"
    folders.write(sweep / "generation-000" / "rung-0" / "launch-000", seeds=(0,), config={"actor_lr": 1e-3})
    folders.write(sweep / "generation-001" / "rung-0" / "launch-000", seeds=(0,), config={"actor_lr": 3e-3})
    folders.write(sweep / "test" / "launch-000", seeds=(100, 101), config={"actor_lr": 1e-3})
    folders.write(sweep / "test" / ".partial-launch-001", seeds=(102,), config={"actor_lr": 1e-3})
    (sweep / "sweep.json").write_text("{}")
    for path in (tmp_path, sweep):
        found, skipped = tables.load([path])
        assert [run.folder for run in found] == [sweep / "test" / "launch-000"]
        assert skipped[0][0] == sweep
        assert skipped[0][1].startswith("2 runs of its search, whose settings these seeds chose: its test alone counts")
    assert rows([sweep / "generation-001"]) == {"Hopper-v5": {"sac": 1}}


def test_users_own_files_of_one_name_are_kept_apart(tmp_path):
    folders.write(tmp_path / "a", "./one/mine.py")
    folders.write(tmp_path / "b", "./other/mine.py")
    folders.write(tmp_path / "c", "./yours.py")
    assert rows([tmp_path]) == {"Hopper-v5": {"./one/mine.py": 3, "./other/mine.py": 3, "yours": 3}}


def test_tasks_of_data_sets(tmp_path):
    folders.write(tmp_path / "a", "iql", data="d4rl/hopper-medium-v2", evaluation={"scores": [50.0, 60.0]})
    folders.write(tmp_path / "b", "iql", data="sets/mine.hdf5")
    folders.write(tmp_path / "c", "iql", "Ant-v5", data="other/mine.hdf5")
    arranged = {table.task: table for table in tables.arrange(tables.load([tmp_path])[0])}
    assert list(arranged) == ["d4rl/hopper-medium-v2", "other/mine.hdf5 in Ant-v5", "sets/mine.hdf5 in Hopper-v5"]
    assert arranged["d4rl/hopper-medium-v2"].metric == "scores"
    np.testing.assert_array_equal(arranged["d4rl/hopper-medium-v2"].rows[0].values("scores"), [55.0] * 3)


# Which evaluation counts


def test_a_row_is_of_its_last_evaluation(tmp_path):
    folders.write(tmp_path / "a")
    (row,) = only(tmp_path).rows
    assert (row.step, row.complete, row.diverged) == (30_000, True, 0)
    np.testing.assert_allclose(row.values("returns"), [1000, 1010, 1020])


def test_learners_that_have_not_come_so_far_do_not_count(tmp_path):
    folders.write(tmp_path / "a")
    folders.write(tmp_path / "b", seeds=(5, 6), steps=(10_000, 20_000))
    (row,) = only(tmp_path).rows
    assert (len(row.learners), len(row.chosen), row.step, row.complete) == (5, 3, 30_000, True)


def test_a_row_without_complete_learners_is_marked(tmp_path):
    folders.write(tmp_path / "a", steps=(10_000, 20_000))
    folders.write(tmp_path / "b", seeds=(5,), steps=(10_000,))
    (row,) = only(tmp_path).rows
    assert (len(row.chosen), row.step, row.complete) == (4, 10_000, False)  # where all of them have been


def test_at_a_step_each_counts_with_its_last_evaluation_until_then(tmp_path):
    folders.write(tmp_path / "a")
    folders.write(tmp_path / "b", "ppo", steps=(8192, 16_384, 24_576, 32_768))
    folders.write(tmp_path / "c", "td3", steps=(20_000, 40_000), budget=40_000)
    found = {row.label: (row.step, row.complete) for row in only(tmp_path, at=20_000).rows}
    assert found == {"sac": (20_000, True), "ppo": (16_384, True), "td3": (20_000, True)}


def test_a_run_that_stopped_long_before_a_step_is_not_there(tmp_path):
    folders.write(tmp_path / "a")
    folders.write(tmp_path / "b", "td3", steps=(10_000,))
    found = {row.label: row.complete for row in only(tmp_path, at=25_000).rows}
    assert found == {"sac": True, "td3": False}


def test_diverged_learners_are_counted(tmp_path):
    path = folders.write(tmp_path / "a", seeds=(0, 1, 2, 3))
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
    folders.write(tmp_path / "a", seeds=(0, 1, 2, 3, 4))
    (row,) = only(tmp_path).rows
    found = tables.estimates(row, "returns")
    assert found is not None
    assert {name: e.value for name, e in found.items()} == pytest.approx({"iqm": 1020, "median": 1020, "mean": 1020})
    assert all(e.low < e.value < e.high and e.runs == (5, 5) for e in found.values())


# What cannot be compared


def test_different_budgets_are_an_error_that_says_what_to_do(tmp_path):
    folders.write(tmp_path / "short", steps=(10_000,), budget=10_000)
    folders.write(tmp_path / "long")
    folders.write(tmp_path / "elsewhere", environment="Ant-v5", budget=50_000)  # another table
    runs, _ = tables.load([tmp_path])
    with pytest.raises(
        ValueError,
        match=r"runs of 'Hopper-v5' have different budgets: 10000 steps in '.*short'; 30000 steps in '.*long'\. "
        r"To compare all at the same step: rljax report \.\.\. --at 10000\. Or report them apart\.",
    ):
        tables.arrange(runs)
    assert tables.arrange(runs, at=10_000)
    with pytest.raises(
        ValueError, match=r"--at is 20000, and not all runs of 'Hopper-v5' .*short' for 10000.* --at 100"
    ):
        tables.arrange(runs, at=20_000)


def test_different_numbers_of_episodes_are_an_error(tmp_path):
    folders.write(tmp_path / "few", episodes=5)
    folders.write(tmp_path / "many", episodes=10)
    runs, _ = tables.load([tmp_path])
    with pytest.raises(
        ValueError,
        match=r"runs of 'Hopper-v5' were evaluated in different ways: 5 episodes per evaluation in '.*few'; 10 .*apart",
    ):
        tables.arrange(runs, at=10_000)


def test_steps_after_a_data_set_belong_to_the_budget(tmp_path):
    folders.write(tmp_path / "a", "iql", data="d4rl/hopper-medium-v2", then_online=30_000, steps=[30_000, 60_000])
    runs, _ = tables.load([tmp_path])
    assert runs[0].budget == 60_000
    assert only(tmp_path).rows[0].complete


# Corrupt runs


def test_corrupt_and_empty_runs_are_skipped_with_the_reason(tmp_path):
    folders.write(tmp_path / "good")
    folders.write(tmp_path / "young", steps=())
    broken = folders.write(tmp_path / "broken")
    (broken / "config.json").write_text('{"agent": ')
    odd = folders.write(tmp_path / "odd")
    (odd / "config.json").write_text('{"agent": "sac", "environment": "Hopper-v5"}')
    listing = folders.write(tmp_path / "list")
    (listing / "config.json").write_text("[]")
    torn = folders.write(tmp_path / "torn")
    lines = (torn / "evaluations.jsonl").read_text().splitlines()
    (torn / "evaluations.jsonl").write_text("\n".join([lines[0][:20], *lines[1:]]))
    lacking = folders.write(tmp_path / "lacking")
    (lacking / "evaluations.jsonl").write_text('{"step": 10, "returns": [1.0]}\n')
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "evaluations.jsonl").write_text("")
    runs, skipped = tables.load([tmp_path])
    assert [run.folder.name for run in runs] == ["good"]
    reasons = {folder.name: reason for folder, reason in skipped}
    assert "config.json cannot be read" in reasons["broken"]
    assert "it has no config.json" in reasons["bare"]
    assert reasons["odd"] == "its config.json lacks 'steps', 'seeds', 'config'."
    assert "is not a JSON object" in reasons["list"]
    assert "line 1 is not a JSON object" in reasons["torn"]
    assert reasons["lacking"] == "a record lacks 'learner'"
    assert reasons["young"] == "it has no evaluations yet."


# Over several tasks


def suite(paths):
    found, remarks = tables.suites(tables.arrange(tables.load(paths)[0]))
    return found, remarks


def test_returns_are_normalised_by_the_published_ones(tmp_path):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        folders.write(tmp_path / task, environment=task, level=2787.14)
    (found,), remarks = suite([tmp_path])
    assert remarks == []
    scores = found.scores()["sac"]
    assert scores["Hopper-v5"] == pytest.approx([1.0, 1.0 + 10 / 2787.14, 1.0 + 20 / 2787.14])
    assert scores["HalfCheetah-v5"][0] == pytest.approx(2787.14 / 11320.92)
    assert "Hopper-v5 2,787 (Hopper-v4, 10 seeds, dojeon-ai/SimbaV2@14fafb2)" in found.explanation


def test_scores_of_data_sets_are_parts_of_one(tmp_path):
    for task in ("hopper-medium-v2", "hopper-medium-replay-v2"):
        folders.write(tmp_path / task, "iql", data=f"d4rl/{task}", evaluation={"scores": [50.0] * 4})
    (found,), _ = suite([tmp_path])
    assert all(values == pytest.approx([0.5] * 3) for values in found.scores()["iql"].values())


def test_without_references_there_is_no_score_over_tasks_and_it_is_said(tmp_path):
    folders.write(tmp_path / "a", environment="rljax/Pendulum")
    folders.write(tmp_path / "b", environment="Hopper-v5")
    found, remarks = suite([tmp_path])
    assert found == []
    assert remarks[0].startswith("No score over Hopper-v5, rljax/Pendulum together: returns of different tasks cannot")
    assert "to normalise those of rljax/Pendulum no published reference" in remarks[0]


def test_only_rows_that_have_all_tasks_are_compared(tmp_path):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        for agent in ("sac", "td3"):
            folders.write(tmp_path / agent / task, agent, task)
    folders.write(tmp_path / "ppo", "ppo", "Hopper-v5")
    folders.write(tmp_path / "dsact" / "Hopper-v5", "dsact", "Hopper-v5")
    folders.write(tmp_path / "dsact" / "HalfCheetah-v5", "dsact", "HalfCheetah-v5", steps=(10_000,))  # incomplete
    folders.write(tmp_path / "walker", "sac", "Walker2d-v5")
    (found,), _ = suite([tmp_path])
    assert list(found.rows) == ["sac", "td3"]
    assert [table.task for table in found.tables] == ["HalfCheetah-v5", "Hopper-v5"]
    assert found.left_out == ["dsact", "ppo", "Walker2d-v5"]


def test_scores_over_time_are_those_of_the_evaluations(tmp_path):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        folders.write(tmp_path / task, environment=task)
    (found,), _ = suite([tmp_path])
    steps, values = found.over_time()
    assert (steps[0], steps[-1]) == (10_000, 30_000)
    assert values["sac"]["Hopper-v5"].shape == (3, len(steps))
    np.testing.assert_allclose(values["sac"]["Hopper-v5"][0] * 2787.14, 1000 * steps / 30_000)
