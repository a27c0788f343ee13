import errno
import json
import sys
import time
import types
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.runs import records
from rljax.runs.events import loggers
from rljax.runs.records import Recorder, read, write_json
from rljax.runs.schema import FORMAT
from tests.helpers import run_folders as run_folders


def chunk(step):
    return {
        "step": step,
        "update": step,
        "wall_seconds": 0.5,
        "critic/loss": [step / 3, float("nan")],
    }


def evaluation(step, learner=0):
    return {
        "step": step,
        "learner": learner,
        "seed": learner,
        "returns": [1.0, step / 7],
        "lengths": [3, 4],
    }


def write(recorder, steps):
    for step in steps:
        recorder.metrics(chunk(step))
        recorder.evaluation(evaluation(step, 0))
        recorder.evaluation(evaluation(step, 1))


def contents(out):
    return {name: (out / records.FILES[name]).read_bytes() for name in ("metrics", "evaluations")}


# Files


def test_what_is_recorded_is_read_and_on_disk_at_once(tmp_path):
    recorder = Recorder(tmp_path / "new/run")
    recorder.metrics(chunk(3))
    recorder.evaluation(evaluation(7))
    assert read(tmp_path / "new/run", "metrics") == [chunk(3) | {"critic/loss": [1.0, None]}]
    assert read(tmp_path / "new/run", "evaluations") == [evaluation(7)]
    recorder.sync()
    recorder.close()
    recorder.close()


def test_json_is_strict(tmp_path):
    values = {"a": float("nan"), "b": [np.inf, -np.inf, 1.5], "c": {"d": np.float32("nan")}}
    with Recorder(tmp_path) as recorder:
        recorder.metrics({"step": 0, **values})
    line = (tmp_path / "metrics.jsonl").read_text()

    def refuse(name):
        raise AssertionError(name)

    assert json.loads(line, parse_constant=refuse) == {
        "step": 0,
        "a": None,
        "b": [None, None, 1.5],
        "c": {"d": None},
    }


def test_arrays_and_scalars_of_numpy_and_jax(tmp_path):
    values = {
        "step": (np.int64(1), 1),
        "numpy": (np.array([[1.0, np.nan]], np.float32), [[1.0, None]]),
        "jax": (jnp.arange(2), [0, 1]),
        "half": (jnp.array([0.5, jnp.inf], jnp.bfloat16), [0.5, None]),
        "flag": (np.bool_(True), True),
        "path": (Path("a/b"), "a/b"),
        "none": (None, None),
    }
    with Recorder(tmp_path) as recorder:
        recorder.metrics({name: value for name, (value, _) in values.items()})
    (line,) = read(tmp_path, "metrics")
    assert line == {name: plain for name, (_, plain) in values.items()}


def test_other_kinds_are_refused_and_leave_no_line(tmp_path):
    with Recorder(tmp_path) as recorder:
        with pytest.raises(
            TypeError, match="a value of kind 'object' cannot be recorded, JSON has numbers, text"
        ):
            recorder.metrics({"step": 0, "what": object()})
        recorder.metrics({"step": 1})
    assert read(tmp_path, "metrics") == [{"step": 1}]


def test_line_separators_inside_text_do_not_split_a_line(tmp_path):
    text = "one\ntwo\u2028three\x85four"
    with Recorder(tmp_path) as recorder:
        recorder.metrics({"step": 0, "text": text})
        recorder.metrics({"step": 1})
    assert [line.get("text") for line in read(tmp_path, "metrics")] == [text, None]


def test_reading_before_anything_is_written(tmp_path):
    assert read(tmp_path, "metrics") == []
    with pytest.raises(
        ValueError, match="a run records no 'losses', it records metrics, evaluations, changes"
    ):
        read(tmp_path, "losses")  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "torn", [b'{"step": 2, "crit', b"\x00\x00\x00", b'{"step": 2, "a": [1, 2', b"2", b'{"a\n']
)
def test_a_torn_last_line_is_left_out_and_cut_off_on_reopening(tmp_path, torn):
    with Recorder(tmp_path) as recorder:
        recorder.metrics({"step": 1})
    path = tmp_path / "metrics.jsonl"
    path.write_bytes(path.read_bytes() + torn)
    assert read(tmp_path, "metrics") == [{"step": 1}]
    with Recorder(tmp_path) as recorder:
        recorder.metrics({"step": 2})
    assert path.read_bytes() == b'{"step": 1}\n{"step": 2}\n'


def test_a_whole_last_line_without_its_break_is_kept(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"step": 2}')
    with Recorder(tmp_path) as recorder:
        recorder.metrics({"step": 3})
    assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n{"step": 2}\n{"step": 3}\n'


def test_a_damaged_line_in_the_middle_is_named(tmp_path):
    (tmp_path / "metrics.jsonl").write_bytes(b'{"step": 1}\n{"ste\n{"step": 3}\n')
    with pytest.raises(
        ValueError,
        match=r"metrics\.jsonl' is damaged: line 2 is not a JSON object\. Delete that line",
    ):
        read(tmp_path, "metrics")


# Folders of runs


def test_runs_are_found_at_any_depth_once_and_not_searched(tmp_path):
    for name in ("b/c", "a", "a/checkpoints/1"):
        write_json_in(tmp_path / "runs" / name, {"agent": "sac"})
    (tmp_path / "runs/d").mkdir()
    with Recorder(tmp_path / "runs/bare"):  # no config.json: still a run, if a damaged one
        pass
    runs = tmp_path / "runs"
    assert records.find([runs, runs / "a"]) == [runs / "a", runs / "b/c", runs / "bare"]
    with pytest.raises(
        ValueError, match="nowhere' is not a folder of runs: there is no such folder"
    ):
        records.find([tmp_path / "nowhere"])


def test_config_of_a_run(tmp_path):
    out = run_folders.write(tmp_path / "run", steps=())
    assert records.read_config(out)["agent"] == "sac"
    for text, says in (('{"agent": ', "cannot be read"), ("[]", "is not a JSON object")):
        (out / "config.json").write_text(text)
        with pytest.raises(ValueError, match=rf"run' is not a run: its config\.json {says}"):
            records.read_config(out)


@pytest.mark.parametrize(
    ("number", "says"),
    [
        (None, "says no format"),
        (0, "says format 0"),
        (FORMAT + 1, f"says format {FORMAT + 1}"),
        ("1", "says no format"),
        (True, "says no format"),
    ],
)
def test_a_run_of_another_format_is_refused(tmp_path, number, says):
    out = run_folders.write(tmp_path / "run", steps=(), format=number)
    message = (
        rf"run' cannot be read as a run: its config\.json {says}, .* reads format {FORMAT}\. "
        r"Read the run with"
    )
    with pytest.raises(ValueError, match=message):
        records.read_config(out)


def write_json_in(folder, value):
    folder.mkdir(parents=True)
    write_json(folder / "config.json", value)


# Resuming


def test_truncated_and_gone_on_is_as_never_interrupted(tmp_path):
    with Recorder(tmp_path / "whole") as recorder:
        write(recorder, range(0, 60, 10))
    with Recorder(tmp_path / "killed") as recorder:
        write(recorder, range(0, 50, 10))
    for file in ("metrics.jsonl", "evaluations.jsonl"):
        path = tmp_path / "killed" / file
        path.write_bytes(path.read_bytes() + b'{"step": 50, "lear')
    with Recorder(tmp_path / "killed") as recorder:
        recorder.truncate(20)  # the checkpoint's step: its own lines stay
        lines = read(tmp_path / "killed", "evaluations")
        assert [line["step"] for line in lines] == [0, 0, 10, 10, 20, 20]
        write(recorder, range(30, 60, 10))
    assert contents(tmp_path / "killed") == contents(tmp_path / "whole")


def test_truncating_twice_to_nothing_and_beyond_the_end(tmp_path):
    with Recorder(tmp_path) as recorder:
        write(recorder, [10, 20])
        before = contents(tmp_path)
        recorder.truncate(20)
        recorder.truncate(1000)
        assert contents(tmp_path) == before
        recorder.truncate(9)
        recorder.truncate(9)
        assert contents(tmp_path) == {"metrics": b"", "evaluations": b""}


# Full disks


def test_a_full_disk_raises_and_leaves_earlier_lines_whole(tmp_path):
    # A limit on file sizes refuses as a full disk does: after a part.
    resource = pytest.importorskip("resource")
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    with Recorder(tmp_path) as recorder:
        recorder.metrics({"step": 1})
        resource.setrlimit(resource.RLIMIT_FSIZE, (20, limits[1]))
        try:
            with pytest.raises(OSError, match="File too large"):
                recorder.metrics({"step": 2, "text": "x" * 100})
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        assert (tmp_path / "metrics.jsonl").read_bytes() == b'{"step": 1}\n'
        recorder.metrics({"step": 3})
    assert read(tmp_path, "metrics") == [{"step": 1}, {"step": 3}]


def test_a_full_disk_keeps_its_error_number(tmp_path):
    with Recorder(tmp_path) as recorder:
        recorder.evaluation(evaluation(1))
        lines = recorder._files["evaluations"]
        real = lines._file

        class Full:
            fileno = real.fileno
            close = real.close

            def write(self, data):
                if len(data) < 10:
                    raise OSError(errno.ENOSPC, "No space left on device")
                return real.write(data[:5])

        lines._file = Full()  # type: ignore[assignment]
        with pytest.raises(OSError, match="No space left on device") as raised:
            recorder.evaluation(evaluation(2))
    assert raised.value.errno == errno.ENOSPC
    assert read(tmp_path, "evaluations") == [evaluation(1)]


def test_write_json_replaces_or_leaves(tmp_path, monkeypatch):
    path = tmp_path / "summary.json"
    write_json(path, {"mean": np.float32(1.5), "best": float("nan")})
    assert json.loads(path.read_text()) == {"mean": 1.5, "best": None}

    def full(descriptor):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(records.os, "fsync", full)
        with pytest.raises(OSError, match="No space left"):
            write_json(path, {"mean": 2.0})
    with pytest.raises(TypeError, match="cannot be recorded"):
        write_json(path, {"mean": object()})
    assert json.loads(path.read_text()) == {"mean": 1.5, "best": None}
    assert [entry.name for entry in tmp_path.iterdir()] == ["summary.json"]


# Sinks


@pytest.mark.parametrize(
    ("package", "extra", "logger"),
    [
        ("tensorboardX", "tensorboard", loggers.TensorBoard()),
        ("wandb", "wandb", loggers.WandB("project")),
        ("mlflow", "mlflow", loggers.MLflow("experiment")),
        ("trackio", "trackio", loggers.Trackio("project")),
    ],
)
def test_a_logger_that_is_not_installed_names_its_extra(
    tmp_path, monkeypatch, package, extra, logger
):
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(
        ValueError, match=rf"needs the package '{package}'.* pip install 'rljax-suite\[{extra}\]'"
    ):
        Recorder(tmp_path / "run", [logger])
    assert not (tmp_path / "run").exists()


def test_tensorboard_has_one_folder_per_learner(tmp_path):
    pytest.importorskip("tensorboardX")
    with Recorder(tmp_path, [loggers.TensorBoard()]) as recorder:
        recorder.metrics({"step": 10, "wall_seconds": 0.5, "critic/loss": [1.0, 2.0]})
        recorder.evaluation(evaluation(10, learner=1))
        expected = {("critic/loss", 10): 1.0, ("wall_seconds", 10): 0.5}
        deadline = time.monotonic() + 30.0
        while scalars(tmp_path, 0) != expected and time.monotonic() < deadline:
            recorder.sync()  # which writes what tensorboardX's own thread has taken up by then
        assert scalars(tmp_path, 0) == expected
        recorder.metrics({"step": 20, "critic/loss": [None, float("nan")]})
    assert scalars(tmp_path, 0) == {("critic/loss", 10): 1.0, ("wall_seconds", 10): 0.5}
    evaluated = {
        ("evaluation/return", 10): np.float32((1 + 10 / 7) / 2),
        ("evaluation/length", 10): 3.5,
    }
    assert scalars(tmp_path, 1) == {("critic/loss", 10): 2.0} | evaluated


def test_tensorboard_hides_what_truncation_dropped(tmp_path):
    pytest.importorskip("tensorboardX")
    with Recorder(tmp_path, [loggers.TensorBoard()]) as recorder:
        write(recorder, [10, 20])
        recorder.truncate(10)
        write(recorder, [20])
        recorder.sync()
    starts = [
        event.step for event in events(tmp_path, 0) if event.WhichOneof("what") == "session_log"
    ]
    assert starts == [11]


class FakeRun:
    id, finished = "abc", False

    def __init__(self, arguments):
        self.arguments, self.logged, self.axes, self.summary = arguments, [], [], {}

    def define_metric(self, name, **arguments):
        self.axes.append((name, arguments))

    def log(self, values):
        self.logged.append(values)

    def finish(self):
        self.finished = True


@pytest.fixture
def wandb(monkeypatch):
    module: Any = types.ModuleType("wandb")
    module.runs = []

    class Error(Exception):
        pass

    def init(**arguments):
        if arguments["project"] == "offended":
            raise Error("no API key.")
        module.runs.append(FakeRun(arguments))
        return module.runs[-1]

    module.Error, module.init = Error, init
    module.Settings = lambda **arguments: arguments
    monkeypatch.setitem(sys.modules, "wandb", module)
    return module


def test_wandb_reports_by_environment_steps_and_learner(tmp_path, wandb):
    write_json(tmp_path / "config.json", {"agent": "sac"})
    with Recorder(tmp_path, [loggers.WandB("mine")]) as recorder:
        recorder.metrics({"step": 10, "wall_seconds": 0.5, "critic/loss": [1.0, None]})
        recorder.evaluation(
            {"step": 10, "learner": 1, "returns": [1.0, 3.0], "success": [0.0, 1.0]}
        )
        recorder.summary({"final": {"mean": float("nan")}})
    (run,) = wandb.runs
    assert (run.arguments["project"], run.arguments["dir"]) == ("mine", str(tmp_path))
    assert (run.arguments["config"], run.arguments["id"]) == ({"agent": "sac"}, None)
    assert ("*", {"step_metric": "environment_steps"}) in run.axes
    assert run.logged == [
        {"environment_steps": 10, "wall_seconds": 0.5, "critic/loss/learner_0": 1.0},
        {
            "environment_steps": 10,
            "evaluation/return/learner_1": 2.0,
            "evaluation/success/learner_1": 0.5,
        },
    ]
    assert run.summary == {"final": {"mean": None}}
    assert run.finished


def test_wandb_goes_on_with_the_same_run(tmp_path, wandb):
    for _ in range(2):
        with Recorder(tmp_path, [loggers.WandB("mine")]) as recorder:
            recorder.truncate(0)
    how = [(run.arguments["id"], run.arguments["resume"]) for run in wandb.runs]
    assert how == [(None, None), ("abc", "allow")]


def test_wandb_has_a_run_for_each_learner_with_the_names_of_cleanrl(tmp_path, wandb):
    described = {"agent": "sac", "environment": "Hopper-v5", "seeds": [3, 4], "steps": 100}
    write_json(tmp_path / "config.json", described)
    logger = loggers.WandB("us/open", tags=["v1"], chart_names="cleanrl")
    with Recorder(tmp_path, [logger]) as recorder:
        recorder.metrics({"step": 10, "episode/return": [1.0, 2.0], "critic/loss": [0.5, None]})
        recorder.evaluation({"step": 10, "learner": 1, "returns": [1.0, 3.0]})
    first, second = wandb.runs
    assert first.arguments["entity"] == "us"
    assert first.arguments["project"] == "open"
    config = second.arguments["config"]
    names = ("exp_name", "env_id", "seed")
    assert [config[name] for name in names] == ["sac_rljax", "Hopper-v5", 4]
    assert second.arguments["name"] == "sac_rljax__4"
    expected = {"global_step": 10, "charts/episodic_return": 1.0, "losses/qf_loss": 0.5}
    assert first.logged == [expected]
    assert second.logged == [
        {"global_step": 10, "charts/episodic_return": 2.0},
        {"global_step": 10, "evaluation/return": 2.0},
    ]


def test_wandb_that_does_not_start(tmp_path, wandb):
    with pytest.raises(
        ValueError, match=r"did not start for project 'offended': no API key\..*WANDB_MODE=offline"
    ):
        Recorder(tmp_path, [loggers.WandB("offended")])


@pytest.mark.slow
def test_wandb_offline_is_read_back_by_its_own_reader(tmp_path, monkeypatch):
    datastore = pytest.importorskip("wandb.sdk.internal.datastore")  # not in 0.31 and later
    import wandb
    from wandb.proto import wandb_internal_pb2

    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_SILENT", "true")
    write_json(tmp_path / "config.json", {"agent": "sac"})
    logger = loggers.WandB("mine", group="first", name="a run", tags=["v1"])
    with Recorder(tmp_path, [logger]) as recorder:
        recorder.metrics({"step": 10, "critic/loss": [1.0, None]})
        recorder.evaluation({"step": 10, "learner": 1, "returns": [1.0, 3.0]})
        recorder.summary({"final": {"mean": 2.5}})
    wandb.teardown()

    (path,) = (tmp_path / "wandb").glob("offline-run-*/run-*.wandb")
    reader = datastore.DataStore()
    reader.open_for_scan(str(path))
    messages = iter(reader.scan_data, None)
    found = [wandb_internal_pb2.Record.FromString(message) for message in messages]
    reader.close()

    def plain(items):
        return {x.key or ".".join(x.nested_key): json.loads(x.value_json) for x in items}

    (run,) = (x.run for x in found if x.WhichOneof("record_type") == "run")
    assert (run.project, run.run_group, run.display_name) == ("mine", "first", "a run")
    assert list(run.tags) == ["v1"]
    assert plain(run.config.update)["agent"] == "sac"
    assert run.run_id == (tmp_path / "wandb" / "run_id").read_text().strip()
    history = [plain(x.history.item) for x in found if x.HasField("history")]
    lines = [{k: v for k, v in line.items() if not k.startswith("_")} for line in history]
    assert lines == [
        {"environment_steps": 10, "critic/loss/learner_0": 1.0},
        {"environment_steps": 10, "evaluation/return/learner_1": 2.0},
    ]
    summaries = [plain(x.summary.update) for x in found if x.HasField("summary")]
    assert {"mean": 2.5} in [line.get("final") for line in summaries]


def events(out, learner):
    """Each record: length [8], its checksum [4], event, its checksum [4]."""
    event_pb2 = pytest.importorskip("tensorboardX.proto.event_pb2")
    found = []
    for path in sorted((out / f"tensorboard/learner_{learner}").iterdir()):
        data = path.read_bytes()
        while data:
            length = int.from_bytes(data[:8], "little")
            found.append(event_pb2.Event.FromString(data[12 : 12 + length]))
            data = data[16 + length :]
    return found


def scalars(out, learner):
    return {
        (value.tag, event.step): value.simple_value
        for event in events(out, learner)
        for value in event.summary.value
    }


def test_checkpoints_that_come_by_time_are_described(tmp_path: Path) -> None:
    folder = run_folders.write(tmp_path / "run", "sac", "Hopper-v5")
    described = records.read_config(folder) | {"checkpoint_every": None}
    write_json(folder / "config.json", described)
    assert records.read_config(folder) == described
    write_json(folder / "config.json", described | {"checkpoint_every": "often"})
    with pytest.raises(
        ValueError, match=r"its config.json has a 'checkpoint_every' that is not a number or null"
    ):
        records.read_config(folder)
