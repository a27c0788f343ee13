"""The records of a run: append-only files of JSON lines, and loggers, which may lag behind.

A killed run loses no line. Numbers that are not finite are null.
"""

from __future__ import annotations

import contextlib
import itertools
import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rljax.runs import json_files
from rljax.runs.events.loggers import Logger, check
from rljax.runs.json_files import dumps, write_json
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
    """Appends to the files of one run, and to loggers.

    A failed write raises `OSError` and leaves the lines before it.
    """

    def __init__(self, out: Path | None, loggers: Sequence[Logger] = ()) -> None:
        """Open the files of the run in the folder `out`, and remove incomplete last lines.

        Nothing is recorded where `out` is None. Raises `ValueError` for loggers that do not start.
        """
        self._out = out
        self._loggers: list[Logger] = []
        self._files: dict[str, _Lines] = {}
        if out is None:
            return
        check(loggers)
        out.mkdir(parents=True, exist_ok=True)
        try:
            for logger in loggers:
                logger.begin(out)
                self._loggers.append(logger)
            for name, file in FILES.items():
                if name not in RARE or (out / file).exists():
                    self._files[name] = _Lines(out / file, name)
        except BaseException:
            self.close()
            raise

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append one chunk's metrics: `step`, numbers, and lists with one value per learner."""
        self._append("metrics", record)
        for logger in self._loggers:
            logger.metrics(record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Append an evaluation: `step, learner, seed, returns, lengths, wall_seconds`."""
        self._append("evaluations", record)
        for logger in self._loggers:
            logger.evaluation(record)

    def change(self, record: Mapping[str, Any]) -> None:
        """Append a change of settings: `step`, and by learner `parents` and `values` by name."""
        self._append("changes", record)

    def _append(self, name: str, record: Mapping[str, Any]) -> None:
        if self._out is not None:
            if name not in self._files:
                self._files[name] = _Lines(self._out / FILES[name], name)
            self._files[name].append(record)

    def film(self, path: Path, step: int) -> None:
        """Hand a film that was written at `step` to the loggers."""
        for logger in self._loggers:
            logger.film(path, step)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json with its checksum, atomically."""
        if self._out is not None:
            write_json(self._out / SUMMARY, {**summary, "checksum": _checksum(summary)})
        for logger in self._loggers:
            logger.summary(summary)

    def marks(self) -> dict[str, list[int]]:
        """The size and the checksum of each file as it is now."""
        return {name: file.mark for name, file in self._files.items()}

    def truncate(self, step: int, marks: Mapping[str, Sequence[int]] | None = None) -> None:
        """Delete all lines from the first one beyond `step` on, and an incomplete last line.

        Files without `differences` from a checkpoint's `marks` get their size from then.
        """
        for name, file in self._files.items():
            file.truncate(step, None if marks is None else marks.get(name, (0, 0))[0])
        for logger in self._loggers:
            logger.truncate(step)

    def sync(self) -> None:
        """Return when all lines are on the disk, safe from a power cut."""
        for file in self._files.values():
            file.sync()
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        """Close files and loggers."""
        for file in self._files.values():
            file.close()
        while self._loggers:
            self._loggers.pop().close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


def read(out: Path, name: Literal["metrics", "evaluations", "changes"]) -> list[dict[str, Any]]:
    """The records of a run so far, in order; none where the file does not exist yet.

    An incomplete last line is left out. Raises `ValueError` for an unknown name or another damaged
    line.
    """
    if name not in FILES:
        raise ValueError(f"a run records no '{name}', it records {', '.join(FILES)}.")
    path = Path(out) / FILES[name]
    return [record for _, record in _lines(path, name)] if path.exists() else []


def parse(line: bytes, name: str) -> dict[str, Any] | None:
    """The record in a line of the file `name`, or None."""
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
    """What has changed in the records up to a run's checkpoint with these `marks`."""
    messages = []
    for name, (size, checksum) in marks.items():
        path = Path(out) / FILES[name]
        exists = path.exists()
        content = safe(path).read_bytes()[:size] if exists else b""
        if size and not exists:
            messages.append(f"{path.name} is missing")
        elif len(content) < size:
            messages.append(
                f"{path.name} has lost lines: it has {len(content):,} of {size:,} bytes"
            )
        elif zlib.crc32(content) != checksum:
            messages.append(f"{path.name} has been changed")
    return messages


class RecordsChanged(ValueError):
    """The records of a run are not those that its checkpoint was saved with."""


def require_unchanged(out: Path, notes: Mapping[str, Any], accept: bool) -> list[str]:
    """The `differences` since a checkpoint, or `RecordsChanged`."""
    messages = differences(out, notes["records"])
    if messages and not accept:
        raise RecordsChanged(
            f"the records of '{out}' are not those of its checkpoint of step {notes['step']}: "
            f"{'; '.join(messages)}. "
            "Restore the files, or go on with them, which config.json will say: "
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
    """Whether summary.json describes the end of the run at `steps`."""
    summary = read_summary(folder)
    return bool(summary.get("complete")) and summary.get("steps", 0) >= steps


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json.

    Raises `ValueError` without any, or for another `FORMAT`.
    """
    path = Path(folder) / "config.json"
    if not path.exists():
        inside = [
            f"'{file.parent}'"
            for depth in (1, 2, 3)
            for file in sorted(Path(folder).glob("*/" * depth + "config.json"))
        ]
        hint = "The folder that rljax train names as its output is one."
        if inside:
            hint = f"Runs in it: {', '.join(inside[:3])}."
        raise ValueError(f"'{folder}' is not a run: it has no config.json. {hint}")
    try:
        described = json_files.read_json(path)
    except ValueError as error:
        raise ValueError(f"'{folder}' is not a run: its {error}.") from None
    return checked(folder, described)


def checked(folder: Path, described: dict[str, Any]) -> dict[str, Any]:
    """The content of a config.json. Raises `ValueError` for other fields, or another `FORMAT`."""
    number, wrong, remedy = described.get("format"), None, "Restore it from a copy."
    is_number = json_files.WHOLE.fits(number)
    if not is_number or number != FORMAT:
        says = f"says format {number}" if is_number else "says no format"
        wrong = f"{says}, this version of rljax reads format {FORMAT}"
        remedy = "Read the run with the version that wrote it, or start a new one."
    wrong = wrong or json_files.problem(described, CONFIG, NEEDED) or _wrong_numbers(described)
    if wrong is not None:
        raise ValueError(f"'{folder}' cannot be read as a run: its config.json {wrong}. {remedy}")
    return described


def _wrong_numbers(described: Mapping[str, Any]) -> str | None:
    learners, seeds, spec = (described[name] for name in ("learners", "seeds", "spec"))
    if len(learners) != len(seeds):
        return f"has {len(learners)} learners and {len(seeds)} seeds"
    shapes = [part["shape"] for part in spec.get("parts", ())]
    numbers = itertools.chain(seeds, spec["observation_shape"], *shapes)
    if all(0 <= number < 2**32 for number in numbers):
        return None
    return "has a seed, or a size of observations, that is not between 0 and 2^32"


def read_summary(folder: Path) -> dict[str, Any]:
    """A run's summary.json, or {} before its end."""
    path = Path(folder) / SUMMARY
    if not path.exists():
        return {}
    try:
        return json_files.read_fitting(path, RESULTS)
    except ValueError as error:
        raise ValueError(
            f"the {error} in '{folder}'. Delete that file: the run writes it again."
        ) from None


def is_intact(summary: Mapping[str, Any]) -> bool:
    """Whether a summary.json has the numbers that the run wrote, as far as it says."""
    others = {name: value for name, value in summary.items() if name != "checksum"}
    return summary.get("checksum", _checksum(others)) == _checksum(others)


def _checksum(summary: Mapping[str, Any]) -> int:
    return zlib.crc32(dumps(summary).encode())


def find(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among `paths` and below, each once; none inside of runs.

    Raises `ValueError` for a path that is no folder.
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
    def __init__(self, path: Path, name: str) -> None:
        self._path, self._name = path, name
        self._file = safe(path).open("ab", buffering=0)
        try:
            self.truncate(math.inf)
        except BaseException:
            self.close()
            raise

    @property
    def mark(self) -> list[int]:
        return [self._size, self._checksum]

    def append(self, record: Mapping[str, Any]) -> None:
        line = (dumps(record) + "\n").encode()
        rest = memoryview(line)
        start = os.fstat(self._file.fileno()).st_size
        try:
            while rest:  # a disk that fills up accepts a part
                rest = rest[self._file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise
        self._size, self._checksum = start + len(line), zlib.crc32(line, self._checksum)

    def truncate(self, step: float, size: int | None = None) -> None:
        """Keep `size` bytes, or else the complete lines before the first one beyond `step`."""
        end = size or 0
        if size is None:
            for line_end, record in _lines(self._path, self._name):
                if record["step"] > step:
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
