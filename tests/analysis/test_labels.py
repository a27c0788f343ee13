"""Names of rows and tasks: short, and different."""

from __future__ import annotations

from rljax.analysis import folders, labels, tables
from tests.helpers import run_folders


def rows(paths):
    """Learners in each row, by task and label."""
    runs, _ = folders.read_all(paths)
    return {
        table.task: {row.label: len(row.learners) for row in table.rows}
        for table in tables.arrange(runs)
    }


def test_rows_are_named_by_agent_and_differing_settings(tmp_path):
    run_folders.write(tmp_path / "a", config={"actor_lr": 1e-3})
    run_folders.write(tmp_path / "b", config={"actor_lr": 3e-4}, seeds=(3,))
    run_folders.write(tmp_path / "c", "td3", config={"actor_lr": 1e-3})
    found = rows([tmp_path])
    assert found == {"Hopper-v5": {"sac actor-lr=0.001": 3, "sac actor-lr=0.0003": 1, "td3": 3}}


def test_settings_that_differ_only_between_tasks_make_no_rows(tmp_path):
    run_folders.write(tmp_path / "a", environment="Hopper-v5", config={"actor_lr": 1e-3})
    run_folders.write(tmp_path / "b", environment="Ant-v5", config={"actor_lr": 3e-4})
    assert rows([tmp_path]) == {"Ant-v5": {"sac": 3}, "Hopper-v5": {"sac": 3}}


def test_only_one_of_settings_that_differ_together_is_named(tmp_path):
    for i, (rate, hidden) in enumerate([(1e-3, [400, 300]), (3e-4, [256, 256])]):
        run_folders.write(tmp_path / str(i), config={"actor_lr": rate, "hidden": hidden})
    assert rows([tmp_path]) == {
        "Hopper-v5": {"sac actor-lr=0.001 ...": 3, "sac actor-lr=0.0003 ...": 3}
    }
    runs, _ = folders.read_all([tmp_path])
    assert labels.differing_settings([learner for run in runs for learner in run.learners]) == [
        "actor_lr",
        "hidden",
    ]


def test_a_setting_that_older_runs_lack_makes_no_rows(tmp_path):
    run_folders.write(tmp_path / "a", config={"novel": 1.0})
    run_folders.write(tmp_path / "b", seeds=(5,))
    assert rows([tmp_path]) == {"Hopper-v5": {"sac": 4}}


def test_whole_numbers_are_the_same_as_floats(tmp_path):
    run_folders.write(tmp_path / "a", config={"reward_scale": 1})
    run_folders.write(tmp_path / "b", config={"reward_scale": 1.0})
    assert rows([tmp_path]) == {"Hopper-v5": {"sac": 6}}


def test_users_own_files_of_one_name_are_kept_apart(tmp_path):
    run_folders.write(tmp_path / "a", "./one/mine.py")
    run_folders.write(tmp_path / "b", "./other/mine.py")
    run_folders.write(tmp_path / "c", "./yours.py")
    assert rows([tmp_path]) == {"Hopper-v5": {"./one/mine.py": 3, "./other/mine.py": 3, "yours": 3}}


def test_learners_of_one_run_with_different_settings(tmp_path):
    run_folders.write(tmp_path / "grid", seeds=(0, 0), own={"actor_lr": [1e-3, 3e-4]})
    assert rows([tmp_path]) == {"Hopper-v5": {"sac actor-lr=0.001": 1, "sac actor-lr=0.0003": 1}}


def test_tasks_of_files_have_short_names_where_these_are_unique():
    tasks = [
        ("Hopper-v5", None),
        ("Hopper-v5", "sets/mine.hdf5"),
        ("Ant-v5", "one/own.npz"),
        ("Ant-v5", "two/own.npz"),
    ]
    assert list(labels.task_names(tasks).values()) == [
        "Hopper-v5",
        "mine",
        "one/own.npz in Ant-v5",
        "two/own.npz in Ant-v5",
    ]
    assert labels.task_name("Hopper-v5", "d4rl/hopper-medium-v2") == "d4rl/hopper-medium-v2"
