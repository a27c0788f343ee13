"""A run's folder: one writer, whole records, and it goes on from any moment."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from rljax.learning.loop import Training
from rljax.runs import checkpoints, failures, folders, records, run, saving
from rljax.runs.policies import loading
from rljax.system import lock
from rljax.system.lock import FolderInUse, Lock
from tests.cli import commands
from tests.helpers import small_runs

TASK = ("td3", "rljax/Pendulum")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.trained(*TASK, 200, tmp_path_factory.mktemp("whole") / "run")


@pytest.fixture
def half(tmp_path: Path) -> Path:
    return small_runs.trained(*TASK, 100, tmp_path / "half")


# One process


@pytest.mark.learn
def test_the_second_process_is_refused_and_changes_nothing(half: Path) -> None:
    with Lock(half):
        before = {path: path.read_bytes() for path in half.rglob("*") if path.is_file()}
        with pytest.raises(
            FolderInUse, match=rf"is in use: process {os.getpid()} on '.*' writes there since 20"
        ):
            run.resume(half, 200)
        assert {path: path.read_bytes() for path in half.rglob("*") if path.is_file()} == before
    assert not (half / lock.FILE).exists()


def test_the_lock_is_released_where_a_run_cannot_go_on(half: Path) -> None:
    for _ in range(2):
        with pytest.raises(ValueError, match="is complete at 100 steps"):
            run.resume(half)
    assert not (half / lock.FILE).exists()


@pytest.mark.slow
def test_a_run_whose_lock_was_taken_stops_before_it_writes(
    half: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    chunk = Training.chunk

    def robbed(self: Any) -> Any:
        (half / lock.FILE).unlink(missing_ok=True)
        return chunk(self)

    monkeypatch.setattr(Training, "chunk", robbed)
    with pytest.raises(
        failures.RunError, match=r"lock\.json is gone\. .* is of step 100: rljax resume"
    ):
        run.resume(half, 200)
    assert checkpoints.steps(half / "checkpoints") == [100]


# Any moment


@pytest.mark.learn
def test_a_run_killed_before_its_first_checkpoint_begins_anew(whole: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    words = commands.train(*TASK, "--steps", 200, "--out", out, "--checkpoint-every", 10**6)
    command = [sys.executable, "-m", "rljax", *words]
    process = subprocess.Popen(command, stderr=subprocess.DEVNULL)
    while len(records.read(out, "metrics")) < 2:
        assert process.poll() is None
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.wait()
    if not checkpoints.steps(out / "checkpoints"):  # it was not quicker than this test
        assert (out / lock.FILE).exists()
    run.resume(out)
    small_runs.assert_same(whole, out)
    assert [entry["step"] for entry in records.read_config(out)["resumed"]] == [0]


def test_a_folder_without_config_is_begun_anew(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(FileExistsError):
        folders.make_folder(tmp_path)
    # Killed while it was written.
    (tmp_path / "config.json").rename(tmp_path / ".config.json.7.tmp")
    (tmp_path / lock.FILE).write_text("{}")
    with folders.make_folder(tmp_path):
        assert [path.name for path in tmp_path.iterdir()] == [lock.FILE]


def test_a_run_whose_checkpoints_were_deleted_does_not_begin_anew(half: Path) -> None:
    (half / "checkpoints").rename(half / "elsewhere")
    before = (half / "metrics.jsonl").read_bytes()
    with pytest.raises(checkpoints.CheckpointError, match="no usable checkpoint"):
        run.resume(half, 200)
    (half / "checkpoints").write_text("")
    (half / "summary.json").unlink()
    with pytest.raises(
        checkpoints.CheckpointError, match=r"there is a file where a folder should be: move it away"
    ):
        run.resume(half, 200)
    assert (half / "metrics.jsonl").read_bytes() == before


@pytest.mark.slow
def test_checkpoints_come_by_time_unless_steps_are_set(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(saving, "CHECKPOINT_SECONDS", 0.0)
    # After the first one, saving has taken too much of the time.
    monkeypatch.setattr(saving, "MOST_SAVING", 1e-9)
    out = small_runs.train(*TASK, 150, tmp_path / "run", checkpoint_every=None)
    assert checkpoints.steps(out / "checkpoints") == [50, 150]


# Records


def cut(path: Path) -> None:
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))


def change(path: Path) -> None:
    changed = path.read_text().replace('"step": 50', '"step": 51').replace("200]", "201]")
    path.write_text(changed)


@pytest.mark.parametrize("file", ["metrics.jsonl", "evaluations.jsonl"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [(Path.unlink, "is missing"), (cut, "has lost lines"), (change, "has been changed")],
)
def test_changed_records_are_refused(half: Path, damage: Any, file: str, message: str) -> None:
    damage(half / file)
    before = (half / "config.json").read_bytes()
    with pytest.raises(
        records.RecordsChanged,
        match=rf"step 100: {file} {message}.*Restore .* --accept-changed-records",
    ):
        run.resume(half, 200)
    assert (half / "config.json").read_bytes() == before


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        (
            "config",
            {"actor_lr": 0.5},
            r"config\.actor_lr = 0\.5, the checkpoint was made",
        ),
        ("eval_episodes", 3, r"eval_episodes = 3, the checkpoint was made with 2"),
    ],
)
def test_changed_settings_are_refused(half: Path, name: str, value: Any, message: str) -> None:
    described = records.read_config(half)
    changed = described[name] | value if isinstance(value, dict) else value
    records.write_json(half / "config.json", described | {name: changed})
    with pytest.raises(ValueError, match=message):
        run.resume(half, 200)


def test_damaged_records_are_refused_before_anything_is_written(half: Path) -> None:
    with (half / "metrics.jsonl").open("ab") as file:
        file.write(b"\0\xff\n{")  # behind what the checkpoint knows
    before = (half / "config.json").read_bytes()
    with pytest.raises(ValueError, match=r"metrics\.jsonl' is damaged: line 3 is not a J"):
        run.resume(half, 200)
    assert (half / "config.json").read_bytes() == before


@pytest.mark.slow
def test_changed_records_are_accepted_on_demand_and_it_is_kept(
    half: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    change(half / "metrics.jsonl")
    run.resume(half, 200, accept_changed_records=True)
    said = "the records have changed since the checkpoint: metrics.jsonl has been changed."
    assert said in capsys.readouterr().err
    (entry,) = records.read_config(half)["resumed"]
    assert entry["changed_records"] == ["metrics.jsonl has been changed"]
    assert [line["step"] for line in records.read(half, "metrics")] == [51, 100, 150, 200]


def test_marks_are_those_of_the_whole_file(tmp_path: Path) -> None:
    with records.Recorder(tmp_path) as recorder:
        for step in (1, 2, 3):
            recorder.metrics({"step": step})
        marks = recorder.marks()
        recorder.metrics({"step": 3, "later": True})
        assert records.differences(tmp_path, marks) == []
    with records.Recorder(tmp_path) as recorder:
        recorder.truncate(3, marks)
        assert recorder.marks() == marks
    assert records.read(tmp_path, "metrics") == [{"step": step} for step in (1, 2, 3)]


# Elsewhere


def test_a_working_directory_that_changes_moves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An environment may call `os.chdir`."""
    chunk = Training.chunk
    (tmp_path / "elsewhere").mkdir()

    def move(training: Training) -> Any:
        monkeypatch.chdir(tmp_path / "elsewhere")
        return chunk(training)

    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(Training, "chunk", move)
    assert small_runs.train(*TASK, 100, Path("run")) == Path("run")
    assert not list((tmp_path / "elsewhere").iterdir())
    assert records.read_summary(tmp_path / "run")["complete"]
    assert checkpoints.steps(tmp_path / "run" / "checkpoints") == [100]


# Conditions


@pytest.mark.slow
def test_other_devices_and_versions_are_said(
    half: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    described = records.read_config(half)
    assert described["devices_used"] == [1]
    described["devices_used"], described["versions"]["jax"] = [2], "0.1"
    records.write_json(half / "config.json", described)
    run.resume(half, 150)
    assert "devices used [2] then, [1] now; jax 0.1 then," in capsys.readouterr().err
    (entry,) = records.read_config(half)["resumed"]
    assert entry["different"][0] == "devices used [2] then, [1] now"


# Files that are not what they should be

ODD: list[tuple[dict[str, Any], str]] = [
    (
        {"seeds": None},
        "has a 'seeds' that is not a list, each entry a whole number, that is not empty",
    ),
    ({"seeds": []}, "has a 'seeds'"),
    ({"seeds": "01"}, "has a 'seeds'"),
    ({"steps": "many"}, "has a 'steps' that is not a whole number"),
    ({"steps": 10**400}, "has a 'steps'"),
    ({"steps": True}, "has a 'steps'"),
    ({"config": [1]}, "has a 'config'"),
    ({"spec": {"name": "a"}}, "has a 'spec' that is not an object with 'name'"),
    ({"env": "a\x1b[2J"}, "has a 'env' that is not text without control characters"),
    ({"agent": "a\nb"}, "has a 'agent'"),
    ({"learners": [{}]}, "has a 'learners'"),
]
COMMANDS = ["resume", "eval", "play", "plot", "report", "extract"]


@pytest.mark.parametrize(("change", "message"), ODD, ids=[str(change)[:30] for change, _ in ODD])
def test_a_config_of_wrong_types_is_named(half: Path, change: dict[str, Any], message: str) -> None:
    records.write_json(half / "config.json", records.read_config(half) | change)
    with pytest.raises(
        ValueError, match=r"half' cannot be read as a run: its config\.json"
    ) as raised:
        records.read_config(half)
    assert message in str(raised.value)


def test_damaged_spaces_are_named_before_a_policy_acts(half: Path) -> None:
    box = {"kind": "Box", "low": [0.0, [], 1.0], "high": 1.0, "shape": [3], "dtype": "float32"}
    described = records.read_config(half) | {"spaces": {"observation": box, "action": box}}
    records.write_json(half / "config.json", described)
    with pytest.raises(ValueError, match=r"half' cannot be read as a run: the spaces in its conf"):
        loading.load(half)


@pytest.mark.parametrize("values", [[], [0.1, 0.2]])
def test_settings_of_other_learners_are_named_with_their_run(half: Path, values: Any) -> None:
    described = records.read_config(half)
    described["config"] |= {"discount": values}
    records.write_json(half / "config.json", described)
    message = rf"half/config\.json': config\.discount has {len(values)} values for 1 learners"
    with pytest.raises(ValueError, match=message):
        run.resume(half)


@pytest.mark.parametrize("text", ["{", "[]", "", '{"agent": "sac"}', "[" * 100_000, "\x00"])
@pytest.mark.parametrize("command", COMMANDS)
def test_every_command_names_a_damaged_run(
    command: str, text: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run/config.json").write_text(text)
    learners = ["--learners", "0"] if command == "extract" else []
    printed = commands.refused([command, tmp_path / "run", *learners], capsys)
    assert "Traceback" not in printed
    assert "run'" in printed or "run:" in printed


def test_a_folder_in_place_of_a_file_of_a_checkpoint_is_damage(half: Path) -> None:
    path = half / f"checkpoints/{100:012d}"
    (path / "run.json").unlink()
    (path / "run.json").mkdir()
    assert "'run.json' cannot be read: " in str(checkpoints.damage(path))
    assert "there is a folder where a file should be" in str(checkpoints.damage(path))
