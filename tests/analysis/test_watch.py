"""Running runs in the terminal."""

from __future__ import annotations

import io
import json
import os
import re
import time

import pytest

from rljax import cli
from rljax.analysis import watch
from rljax.runs.records import FILES, Recorder
from rljax.runs.statistics import estimators
from tests.helpers import run_folders


def seen(path, seconds=0.0):
    """A run as it looks so many seconds after its last line."""
    run = watch.WatchedRun.open(path)
    latest = max(file.stat().st_mtime for file in path.iterdir())
    run.look(latest + seconds)
    return run


def unfinished(path, **options):
    """A run at two thirds of its budget that has not ended."""
    run_folders.write(path, steps=(10_000, 20_000), **options)
    (path / "summary.json").unlink()
    return path


def row(text, name):
    return next(line.split() for line in text.splitlines() if name in line.split())


# What is said


def test_a_running_run(tmp_path):
    run = seen(unfinished(tmp_path / "a", seeds=(0, 1, 2, 3, 4)), 10)
    assert (run.state, run.step, run.total) == ("running", 20_000, 30_000)
    assert (run.speed, run.diverged) == (500.0, 0)
    # The five returns lie between 667 and 693.
    match = re.fullmatch(r"680 \[(6\d\d) to (6\d\d)\]", run.latest)
    assert match
    assert 667 <= int(match[1]) < 680 < int(match[2]) <= 693
    assert run.left == pytest.approx(100)  # 10,000 steps in 100 s so far, and as many to go


def test_fewer_than_five_learners_have_no_interval(tmp_path):
    assert seen(unfinished(tmp_path / "a", seeds=(0,))).latest == "667"
    assert seen(unfinished(tmp_path / "b", seeds=(0, 1, 2, 3))).latest == "677"


def test_states(tmp_path):
    assert seen(run_folders.write(tmp_path / "done")).state == "complete"
    assert seen(run_folders.write(tmp_path / "stopped", steps=(10_000,))).state == "stopped"
    path = unfinished(tmp_path / "silent")
    states = [seen(path, seconds).state for seconds in (100, 900, 1100)]
    assert states == ["running", "running", "stalled"]
    new = run_folders.write(tmp_path / "new", steps=())
    assert [seen(new, seconds).state for seconds in (300, 700)] == ["starting", "stalled"]
    lost = seen(unfinished(tmp_path / "lost", evaluation={"diverged": True}))
    assert (lost.state, lost.diverged) == ("diverged", 3)
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken/config.json").write_text("{")
    assert seen(tmp_path / "broken").state == "unreadable"


def test_a_run_that_goes_on_is_no_longer_stopped(tmp_path):
    path = run_folders.write(tmp_path / "a", steps=(10_000,))
    with Recorder(path) as recorder:
        recorder.metrics({"step": 11_000, "wall_seconds": 110.0, "steps_per_second": 50.0})
    later = (path / "summary.json").stat().st_mtime + 5
    os.utime(path / FILES["metrics"], (later, later))
    assert seen(path, 1).state == "running"


def test_some_learners_have_diverged(tmp_path):
    path = unfinished(tmp_path / "a")
    with Recorder(path) as recorder:
        for learner in range(3):
            line = {"step": 25_000, "learner": learner, "seed": learner, "returns": [1.0]}
            recorder.evaluation(line | {"diverged": learner == 1})
    run = seen(path)
    assert (run.state, run.diverged) == ("running", 1)
    assert "running, 1 of 3 diverged" in printed([path])


def test_a_run_whose_learners_have_all_diverged(tmp_path):
    path = run_folders.write(tmp_path / "a", seeds=(0, 1), steps=(10_000,))
    with Recorder(path) as recorder:
        lost = [
            {"learner": learner, "step": 11_000, "cause": "a metric is not finite"}
            for learner in range(2)
        ]
        recorder.summary({"complete": False, "diverged": lost})
        assert seen(path).state == "diverged"
        recorder.summary({"complete": False, "diverged": lost[:1]})
        assert seen(path).state == "stopped"


# What is read


def test_only_what_is_new_is_read(tmp_path, monkeypatch):
    path = unfinished(tmp_path / "a")
    run = watch.WatchedRun.open(path)
    run.look(time.time())
    parsed = []
    load = json.loads
    monkeypatch.setattr(json, "loads", lambda line: parsed.append(line) or load(line))
    run.look(time.time())
    assert parsed == []
    with Recorder(path) as recorder:
        parsed.clear()
        recorder.metrics({"step": 21_000, "wall_seconds": 210.0, "steps_per_second": 50.0})
        recorder.evaluation({"step": 21_000, "learner": 0, "seed": 0, "returns": [5.0]})
        run.look(time.time())
    assert len(parsed) == 2
    assert (run.step, run.speed, run.latest) == (21_000, 50.0, "5.00")


def test_an_evaluation_is_put_together_from_its_lines(tmp_path):
    path = unfinished(tmp_path / "a", seeds=range(5))
    run = watch.WatchedRun.open(path)
    with Recorder(path) as recorder:
        for learner, value in enumerate((10.0, 20.0, 30.0, 40.0, 50.0)):
            recorder.evaluation(
                {"step": 25_000, "learner": learner, "seed": learner, "returns": [value]}
            )
            run.look(time.time())
    low, high = estimators.interval([10.0, 20.0, 30.0, 40.0, 50.0])
    assert run.latest == f"30.0 [{low:.1f} to {high:.1f}]"


def test_damaged_lines_are_passed_over(tmp_path):
    path = unfinished(tmp_path / "a", seeds=(0,))
    with (path / FILES["metrics"]).open("a") as file:
        file.write('{"step": 29\n[1]\n{"step": 22000, "wall_seconds": 220.0}\n{"step": 23')
    assert seen(path).step == 22_000


# The terminal


def printed(paths, **options):
    output = io.StringIO()
    watch.follow(paths, output=output, **options)
    return output.getvalue()


def test_one_line_for_each_run_and_running_ones_first(tmp_path):
    run_folders.write(tmp_path / "runs/done", "td3", "Ant-v5", seeds=(0,))
    unfinished(tmp_path / "runs/now", agent="./my/own.py", data="sets/mine.hdf5")
    text = printed([tmp_path / "runs"])
    lines = text.splitlines()
    assert lines[0].split()[:4] == ["agent", "task", "run", "step"]
    names = [line.split()[:3] for line in lines[1:]]
    assert names == [["own", "mine", "now"], ["td3", "Ant-v5", "done"]]
    assert {"20k/30k", "300", "running"} <= set(row(text, "own"))
    assert {"30k/30k", "complete"} <= set(row(text, "td3"))
    assert max(map(len, lines)) <= watch.DEFAULT_WIDTH


@pytest.mark.parametrize("width", [160, 100, 80])
def test_a_narrow_terminal_shows_what_matters(tmp_path, monkeypatch, width):
    unfinished(tmp_path / "20261122-061806", data="d4rl/halfcheetah-medium-expert-v2")
    monkeypatch.setattr(watch, "DEFAULT_WIDTH", width)
    head, line = printed([tmp_path]).splitlines()
    assert max(len(head), len(line)) <= width
    assert {"20k/30k", "running"} <= set(line.split())
    assert "673 of 3" in line
    assert ("20261122-061806" in line) == (width == 160)


def test_it_continues_until_all_runs_are_complete(tmp_path, monkeypatch):
    path = unfinished(tmp_path / "a")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)
    waited = []

    def sleep(seconds):
        waited.append(seconds)
        with Recorder(path) as recorder:
            recorder.metrics(
                {"step": 20_000 + 5_000 * len(waited), "wall_seconds": 1.0, "steps_per_second": 1.0}
            )

    monkeypatch.setattr(time, "sleep", sleep)
    watch.follow([path], every=0.5, output=terminal)
    assert waited == [0.5, 0.5]
    assert "30k/30k" in terminal.getvalue()


def test_ctrl_c_leaves_quietly(tmp_path, monkeypatch):
    path = unfinished(tmp_path / "a")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True, raising=False)

    def interrupted(seconds):
        raise KeyboardInterrupt

    monkeypatch.setattr(time, "sleep", interrupted)
    watch.follow([path], output=terminal)


def test_command(tmp_path, capsys):
    run_folders.write(tmp_path / "a")
    cli.main(["watch", str(tmp_path), "--once"])
    assert "complete" in row(capsys.readouterr().out, "sac")


def test_errors(tmp_path):
    with pytest.raises(
        ValueError, match=r"there is no run in '.*' yet\. One begins with: rljax train sac"
    ):
        watch.follow([tmp_path])
    with pytest.raises(ValueError, match="--every is 0, it must be above 0 seconds"):
        watch.follow([tmp_path], every=0)
