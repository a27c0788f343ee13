"""Run folders: which are found, and which are skipped."""

from __future__ import annotations

import json
import re
import warnings
import zlib
from pathlib import Path

import pytest

from rljax.analysis import folders
from rljax.runs import records
from rljax.runs.records import Recorder
from tests.helpers import run_folders


def test_a_population_of_several_settings_and_one_seed(tmp_path):
    path = run_folders.write(tmp_path / "grid", seeds=(0, 0), own={"actor_lr": [1e-3, 3e-4]})
    ((run,), _) = folders.read_all([tmp_path])
    assert [(learner.seed, learner.settings["actor_lr"]) for learner in run.learners] == [
        (0, 1e-3),
        (0, 3e-4),
    ]
    described = records.read_config(path)
    records.write_json(path / "config.json", described | {"learners": described["learners"][:1]})
    _, skipped = folders.read_all([tmp_path])
    said = "grid' cannot be read as a run: its config.json has 1 learners and 2 seeds."
    assert said in skipped[0][1]


@pytest.mark.parametrize("changes", [{"preset": -1}, {"platform": []}, {"precision": "x"}])
def test_a_run_whose_description_has_other_types_is_skipped(tmp_path, changes):
    path = run_folders.write(tmp_path / "a", seeds=(0,))
    records.write_json(path / "config.json", records.read_config(path) | changes)
    _, ((_, why),) = folders.read_all([tmp_path])
    assert f"its config.json has a '{next(iter(changes))}' that is not" in why


def test_of_a_sweep_only_the_test_is_reported(tmp_path):
    sweep = tmp_path / "sweep"
    for place, seeds, rate in (
        ("generation-000/rung-0/launch-000", (0,), 1e-3),
        ("generation-001/rung-0/launch-000", (0,), 3e-3),
        ("test/launch-000", (100, 101), 1e-3),
        ("test/.partial-launch-001", (102,), 1e-3),
    ):
        run_folders.write(sweep / place, seeds=seeds, config={"actor_lr": rate})
    (sweep / "sweep.json").write_text("{}")
    for path in (tmp_path, sweep):
        found, skipped = folders.read_all([path])
        assert [run.folder for run in found] == [sweep / "test/launch-000"]
        assert skipped[0][0] == sweep
        assert skipped[0][1].startswith(
            "2 runs of its search: the seeds of a search choose the settings"
        )
    found, _ = folders.read_all([sweep / "generation-001"])
    assert len(found) == 1, "whoever names a folder inside the sweep sees its runs"


def test_steps_after_a_data_set_belong_to_the_budget(tmp_path):
    online = {"data": "d4rl/hopper-medium-v2", "then_online": 30_000}
    run_folders.write(tmp_path / "a", "iql", steps=[30_000, 60_000], **online)
    runs, _ = folders.read_all([tmp_path])
    assert runs[0].budget == 60_000
    assert runs[0].learners[0].index_at(None) == 1


def test_corrupt_and_empty_runs_are_skipped_with_the_reason(tmp_path):
    run_folders.write(tmp_path / "good")
    run_folders.write(tmp_path / "young", steps=())
    for name, text in {
        "broken": '{"agent": ',
        "odd": '{"format": 1, "agent": "sac", "environment": "Hopper-v5"}',
        "unnumbered": '{"agent": "sac"}',
        "list": "[]",
    }.items():
        (run_folders.write(tmp_path / name) / "config.json").write_text(text)
    torn = run_folders.write(tmp_path / "torn")
    lines = (torn / "evaluations.jsonl").read_text().splitlines()
    (torn / "evaluations.jsonl").write_text("\n".join([lines[0][:20], *lines[1:]]))
    lacking = run_folders.write(tmp_path / "lacking")
    (lacking / "evaluations.jsonl").write_text('{"step": 10, "returns": [1.0]}\n')
    bare = tmp_path / "bare"
    bare.mkdir()
    (bare / "evaluations.jsonl").write_text("")
    runs, skipped = folders.read_all([tmp_path])
    assert [run.folder.name for run in runs] == ["good"]
    reasons = {folder.name: reason for folder, reason in skipped}
    for name, reason in {
        "broken": "config.json cannot be read",
        "bare": "it has no config.json",
        "odd": "its config.json lacks 'env', 'storage', 'data', ",
        "unnumbered": "its config.json says no format",
        "list": "is not a JSON object",
        "torn": "line 1 is not a JSON object",
        "lacking": "line 1 lacks 'learner', 'seed'",
        "young": "it has no evaluations yet.",
    }.items():
        assert reason in reasons[name]


def test_a_run_without_an_environment_says_so_and_its_estimate(tmp_path: Path) -> None:
    for name, summary in (("judge", {"estimate": {"mean": -1.2345, "learners": []}}), ("b", {})):
        out = run_folders.write(tmp_path / name, "fqe", "none", steps=())
        with Recorder(out) as recorder:
            recorder.summary(summary)
    reasons = {folder.name: reason for folder, reason in folders.read_all([tmp_path])[1]}
    start, end = "it has no evaluations, because it had no environment.", "by `rljax select`."
    assert reasons["judge"].startswith(f"{start} Its estimate of the discounted return: -1.234")
    assert reasons["b"] == f"{start} Runs without one are compared {end}"


def test_an_evaluation_counts_until_the_next_one_is_due(tmp_path):
    (learner, *_) = folders.read(run_folders.write(tmp_path / "a")).learners
    steps = (None, 9_999, 10_000, 29_999, 30_000, 39_999, 40_000)
    assert [learner.index_at(step) for step in steps] == [2, None, 0, 1, 2, 2, None]


def test_records_that_changed_since_the_last_checkpoint_are_warned_of(tmp_path):
    path = run_folders.write(tmp_path / "a", seeds=(0,))
    file, notes = path / "evaluations.jsonl", path / "checkpoints" / f"{100:012d}" / "run.json"
    notes.parent.mkdir(parents=True)
    content = file.read_bytes()
    marks = {"evaluations": [len(content), zlib.crc32(content)]}
    notes.write_text(json.dumps({"records": marks, "values": None}))
    file.write_bytes(content + content.splitlines(keepends=True)[-1])  # a run that goes on
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders.read(path)
    file.write_bytes(content.replace(b'"seed": 0', b'"seed": 5'))
    with pytest.warns(UserWarning, match=r"'.*a' are not those .*evaluations\.jsonl has been chan"):
        folders.read(path)
    notes.write_text("{")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders.read(path)


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"log_every": 0}, r"config\.json says log_every = 0, the checkpoint was made with 50"),
        ({"config": {}}, r"config\.json has no batch_size, the checkpoint was made with 8"),
        ({}, None),
    ],
)
def test_settings_that_are_not_the_checkpoints_are_warned_of(tmp_path, changes, said):
    path = run_folders.write(tmp_path / "a", seeds=(0,))
    described = json.loads((path / "config.json").read_text())
    described |= {"log_every": 50, "config": {"batch_size": 8}} | changes
    (path / "config.json").write_text(json.dumps(described))
    notes = path / "checkpoints" / f"{100:012d}" / "run.json"
    notes.parent.mkdir(parents=True)
    settings = {"structure": {"config.batch_size": 8}, "protocol": {"log_every": 50}}
    notes.write_text(json.dumps({"records": {}, "values": None, **settings}))
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        folders.read(path)
    assert len(caught) == (said is not None)
    assert said is None or re.search(said, str(caught[0].message))


def test_a_missing_summary_of_a_complete_run_is_warned_of(tmp_path):
    path = run_folders.write(tmp_path / "a", seeds=(0,))
    (path / "summary.json").unlink()
    with pytest.warns(UserWarning, match=r"a' has no summary\.json.*`rljax resume .*a` writes it"):
        folders.read(path)
    path = run_folders.write(tmp_path / "b", seeds=(0,), budget=10**6)  # goes on
    (path / "summary.json").unlink(missing_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders.read(path)


@pytest.mark.parametrize("changes", [{"wall_seconds": 0}, {"steps_per_second": None}])
def test_a_changed_summary_is_warned_of(tmp_path, changes):
    path = run_folders.write(tmp_path / "a", seeds=(0,))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        folders.read(path)
    written = json.loads((path / "summary.json").read_text()) | changes
    (path / "summary.json").write_text(json.dumps(written))
    with pytest.warns(UserWarning, match=r"summary\.json of '.*a' is not as the run wrote it"):
        folders.read(path)


def test_a_learner_that_the_run_does_not_have_is_refused(tmp_path):
    path = run_folders.write(tmp_path / "a", seeds=(0,))
    file = path / "evaluations.jsonl"
    for number in (-1, 1):
        file.write_text(file.read_text().replace('"learner": 0', f'"learner": {number}'))
        with pytest.raises(ValueError, match=f"describes 1 learners, and no learner {number}"):
            folders.read(path)
        file.write_text(file.read_text().replace(f'"learner": {number}', '"learner": 0'))
