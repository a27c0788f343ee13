"""The records of a run: append-only files, and optionally TensorBoard or Weights & Biases beside
them.

The files are the reference. Each line is one JSON object and is passed to the operating system
before the call returns, so that a killed run loses no finished line. JSON is strict: a number that
is not finite is null. TensorBoard and Weights & Biases are views that may lag behind.
"""

from __future__ import annotations

import contextlib
import json
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rljax.runs import json_files
from rljax.runs.json_files import dumps, write_json
from rljax.runs.loggers import Logger, TensorBoard, WandB, require_loggers
from rljax.runs.schema import CONFIG, FORMAT, LINES, NEEDED, NEEDED_IN_LINES, RESULTS
from rljax.trust import safe

FILES = {
    "metrics": "metrics.jsonl",
    "evaluations": "evaluations.jsonl",
    "changes": "changes.jsonl",  # of settings, by a schedule
}
RARE = {"changes"}  # files that are created with their first line
SUMMARY = "summary.json"


class Recorder:
    """Appends to the files of one run, and to the optional loggers.

    For an existing run an incomplete last line is removed, and new lines are appended. `truncate`
    takes the files back to a checkpoint. A write that fails (on a full disk) raises `OSError` and
    does not damage the lines before it.
    """

    def __init__(self, out: Path, tensorboard: bool = False, wandb: str | None = None) -> None:
        """Open the files of the run in `out`. The folder is created where it does not exist.

        Args:
            out: the run's folder. If it has a config.json, this describes the run to Weights &
                Biases.
            tensorboard: also write event files, one folder per learner, under `out`/tensorboard.
            wandb: a Weights & Biases project to report to; `WANDB_MODE=offline` keeps everything
                under `out`/wandb.

        Raises:
            ValueError: the package of a logger is not installed, or Weights & Biases does not
                start.
        """
        out = Path(out)
        self._out = out
        require_loggers(tensorboard, wandb)
        out.mkdir(parents=True, exist_ok=True)
        self._loggers: list[Logger] = []
        if tensorboard:
            self._loggers.append(TensorBoard(out / "tensorboard"))
        if wandb is not None:
            self._loggers.append(WandB(out, wandb))
        here = {name: out / file for name, file in FILES.items()}
        self._files = {
            name: _Lines(path, name)
            for name, path in here.items()
            if name not in RARE or path.exists()
        }

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append one chunk's metrics: `step`, numbers, and lists with one value per learner."""
        self._files["metrics"].append(record)
        for logger in self._loggers:
            logger.metrics(record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Append one learner's evaluation: `step, learner, seed, returns, lengths,
        wall_seconds`.
        """
        self._files["evaluations"].append(record)
        for logger in self._loggers:
            logger.evaluation(record)

    def change(self, record: Mapping[str, Any]) -> None:
        """Append a change of settings: `step`, `parents`, and `values` by name,
        with one entry per learner.
        """
        if "changes" not in self._files:
            self._files["changes"] = _Lines(self._out / FILES["changes"], "changes")
        self._files["changes"].append(record)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, atomically."""
        write_json(self._out / SUMMARY, summary)
        for logger in self._loggers:
            logger.summary(summary)

    def marks(self) -> dict[str, list[int]]:
        """The size and the checksum of each file as it is now.

        They are kept up to date with every line.
        """
        return {name: file.mark for name, file in self._files.items()}

    def truncate(self, step: int, marks: Mapping[str, Sequence[int]] | None = None) -> None:
        """Delete all lines from the first one beyond `step` on, and an incomplete last line.

        With the `marks` of a checkpoint, each file gets its size from then. This is for files
        without `differences`. Without marks, lines of `step` itself stay.

        Write a chunk's lines (and call `sync`) before the checkpoint of its step. Then the files of
        a resumed run equal those of a run that was never interrupted. Weights & Biases cannot
        delete values: there the resumed run reports the same values at the same steps again.
        """
        for name, file in self._files.items():
            file.truncate(step, None if marks is None else marks.get(name, (0, 0))[0])
        for logger in self._loggers:
            logger.truncate(step)

    def sync(self) -> None:
        """Return when all lines are on the disk, so that even a power cut does not lose them."""
        for file in self._files.values():
            file.sync()
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        """Close files and loggers. A second call does nothing."""
        for file in self._files.values():
            file.close()
        while self._loggers:
            self._loggers.pop().close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class Nowhere:
    """Replaces a `Recorder` in a process that does not write. It records nothing."""

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Nothing."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Nothing."""

    def change(self, record: Mapping[str, Any]) -> None:
        """Nothing."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Nothing."""

    def marks(self) -> dict[str, list[int]]:
        """None: this process has no files."""
        return {}

    def truncate(self, step: int, marks: Mapping[str, Sequence[int]] | None = None) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def read(out: Path, name: Literal["metrics", "evaluations", "changes"]) -> list[dict[str, Any]]:
    """The records of a run so far, in order; null becomes None.

    The list is empty where the file does not exist yet.

    An incomplete last line (of a run that was killed, or is writing) is left out.

    Raises:
        ValueError: an unknown name, or a damaged line before the last one.
    """
    if name not in FILES:
        raise ValueError(f"a run records no '{name}', it records {', '.join(FILES)}.")
    path = Path(out) / FILES[name]
    return [record for _, record in _lines(path, name)] if path.exists() else []


def parse(line: bytes, name: str) -> dict[str, Any] | None:
    """The record in a line of the file `name`; None where it is damaged."""
    record, problem = _parsed(line, name)
    return record if problem is None else None


def _parsed(line: bytes, name: str) -> tuple[Any, str | None]:
    """The record in a line, and what is wrong with it."""
    try:
        record = json.loads(line)
    except (ValueError, RecursionError):
        return None, "is not a JSON object"
    return record, json_files.problem(record, LINES[name], NEEDED_IN_LINES[name])


def differences(out: Path, marks: Mapping[str, Sequence[int]]) -> list[str]:
    """What has changed in the records of a run since its checkpoint with these `marks`.

    Lines after the checkpoint do not count.
    """
    messages = []
    for name, (size, checksum) in marks.items():
        path = Path(out) / FILES[name]
        content = safe(path).read_bytes()[:size] if path.exists() else b""
        if size and not path.exists():
            messages.append(f"{FILES[name]} is missing")
        elif len(content) < size:
            lost = f"it has {len(content):,} of {size:,} bytes"
            messages.append(f"{FILES[name]} has lost lines: {lost}")
        elif zlib.crc32(content) != checksum:
            messages.append(f"{FILES[name]} has been changed")
    return messages


class RecordsChanged(ValueError):
    """The records of a run are not those that its checkpoint was saved with."""


def require_unchanged(out: Path, notes: Mapping[str, Any], accept: bool) -> list[str]:
    """The `differences` since the checkpoint with these notes.

    Raises `RecordsChanged` unless they are accepted.
    """
    messages = differences(out, notes["records"])
    if messages and not accept:
        raise RecordsChanged(
            f"the records of '{out}' are not those of its checkpoint of step {notes['step']}: "
            f"{'; '.join(messages)}. "
            "Restore the files. Or go on with them as they are, which config.json will say: "
            f"rljax resume {out} --accept-changed-records"
        )
    return messages


def discard(out: Path) -> None:
    """Delete the records of a run that begins anew."""
    for file in FILES.values():
        (Path(out) / file).unlink(missing_ok=True)


def is_evaluated(folder: Path, step: int) -> bool:
    """Whether the records hold an evaluation at `step`."""
    return any(line["step"] == step for line in read(folder, "evaluations"))


def is_summarised(folder: Path, steps: int) -> bool:
    """Whether summary.json describes the end of the run at `steps`.

    A run that was killed before its end lacks it.
    """
    summary = read_summary(folder)
    return bool(summary.get("complete")) and summary.get("steps", 0) >= steps


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json.

    Raises `ValueError` where there is no such file, where it is not that of a run, and where the
    run has another format than `FORMAT`.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        patterns = ["*/" * depth + "config.json" for depth in (1, 2, 3)]
        inside = [file for pattern in patterns for file in sorted(Path(folder).glob(pattern))]
        hint = "The folder that rljax train names as its output is one."
        if inside:
            hint = f"Runs in it: {', '.join(repr(str(file.parent)) for file in inside[:3])}."
        raise ValueError(f"'{folder}' is not a run: it has no config.json. {hint}")
    try:
        described = json_files.read_json(path)
    except ValueError as error:
        raise ValueError(f"'{folder}' is not a run: its {error}.") from None
    _require_format(described.get("format"), folder)
    wrong = json_files.problem(described, CONFIG, NEEDED)
    spec = {} if wrong else described["spec"]
    shapes = [part["shape"] for part in spec.get("parts", ())] + [spec.get("observation_shape", ())]
    if not wrong and not all(
        0 <= number < 2**32 for numbers in (described["seeds"], *shapes) for number in numbers
    ):
        wrong = "has a seed, or a size of observations, that is not between 0 and 2^32"
    if wrong is not None:
        raise ValueError(
            f"'{folder}' cannot be read as a run: its config.json {wrong}. Restore it from a copy."
        )
    learners, seeds = len(described["learners"]), len(described["seeds"])
    if learners != seeds:
        raise ValueError(
            f"'{folder}' cannot be read as a run: its config.json has {learners} learners "
            f"and {seeds} seeds."
        )
    return described


def _require_format(number: Any, folder: Path) -> None:
    """Raise `ValueError` unless `number`, the format that a run's config.json says, is `FORMAT`."""
    is_number = json_files.WHOLE.fits(number)
    if is_number and number == FORMAT:
        return
    says = f"says format {number}" if is_number else "says no format"
    raise ValueError(
        f"'{folder}' cannot be read as a run: its config.json {says}, this version of rljax reads "
        f"format {FORMAT}. Read the run with the version that wrote it, or start a new one."
    )


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json; empty where the run has not ended yet.

    Raises `ValueError` where it is damaged.
    """
    path = Path(folder) / SUMMARY
    if not path.exists():
        return {}
    try:
        return json_files.read_fitting(path, RESULTS)
    except ValueError as error:
        raise ValueError(
            f"the {error} in '{folder}'. Delete that file: it is written again where the run "
            "goes on or ends."
        ) from None


def find(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among `paths` and below them at any depth, each once.

    Folders inside runs are not searched.

    Raises `ValueError` for a path that is not a folder.
    """
    runs: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(
                f"'{path}' is not a folder of runs: there is no such folder. rljax train "
                "makes runs/."
            )
        for folder, inside, files in os.walk(path):
            # hidden: incomplete
            inside[:] = sorted(name for name in inside if not name.startswith("."))
            if "config.json" in files or set(FILES.values()) & set(files):
                inside.clear()
                runs.setdefault(Path(folder).resolve(), Path(folder))
    return list(runs.values())


class _Lines:
    """One append-only file of JSON lines, with a running checksum."""

    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._file = safe(path).open("ab", buffering=0)
        self._checksum = 0
        self.truncate(None)

    @property
    def mark(self) -> list[int]:
        """The size and the checksum of the file."""
        return [self._size, self._checksum]

    def append(self, record: Mapping[str, Any]) -> None:
        line = (dumps(record) + "\n").encode()
        rest = memoryview(line)
        start = os.fstat(self._file.fileno()).st_size
        try:
            while rest:  # a disk that fills up first accepts a part and then refuses the rest
                rest = rest[self._file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise
        self._size, self._checksum = start + len(line), zlib.crc32(line, self._checksum)

    def truncate(self, step: int | None, size: int | None = None) -> None:
        """Keep the first `size` bytes, or else the complete lines before the first one beyond
        `step`.

        Without both, all complete lines stay.
        """
        end = size or 0
        if size is None:
            for line_end, record in _lines(self._path, self._name):
                if step is not None and record["step"] > step:
                    break
                end = line_end
        present = os.fstat(self._file.fileno()).st_size
        if end > present:  # the last line is complete except for its line break
            self._file.write(b"\n")
        elif end < present:
            os.ftruncate(self._file.fileno(), end)
        self._size, self._checksum = end, zlib.crc32(self._path.read_bytes())

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _lines(path: Path, name: str) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each complete line: the position in bytes after its line break, and its record."""
    lines = safe(path).read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    end = 0
    for number, line in enumerate(lines, 1):
        end += len(line) + 1
        record, problem = _parsed(line, name)
        if problem is None:
            yield end, record
        elif number < len(lines) or isinstance(record, dict):
            # A last line that is torn is no object.
            raise ValueError(
                f"'{path}' is damaged: line {number} {problem}. "
                f"Delete that line, and keep a copy of the file: sed -i.damaged {number}d '{path}'"
            )
