"""The records of a run: append-only files, and optionally TensorBoard or Weights & Biases beside them.

The files are the reference. Each line is one JSON object and is passed to the operating system before the call returns,
so that a killed run loses no finished line. JSON is strict: a number that is not finite is null. TensorBoard and
Weights & Biases are views that may lag behind.
"""

from __future__ import annotations

import contextlib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Literal

from rljax.runs.json_files import dumps, write_json
from rljax.runs.loggers import Logger, TensorBoard, WandB, require

FILES = {"metrics": "metrics.jsonl", "evaluations": "evaluations.jsonl", "turns": "turns.jsonl"}  # turns: changes
RARE = {"turns"}  # files that are created with their first line


class Recorder:
    """Appends to the files of one run, and to the optional loggers.

    For an existing run an incomplete last line is removed, and new lines are appended. `truncate` takes the files back
    to a checkpoint. A write that fails (on a full disk) raises `OSError` and does not damage the lines before it.
    """

    def __init__(self, out: Path, tensorboard: bool = False, wandb: str | None = None) -> None:
        """Open the files of the run in `out`. The folder is created where it does not exist.

        Args:
            out: the run's folder. If it has a config.json, this describes the run to Weights & Biases.
            tensorboard: also write event files, one folder per learner, under `out`/tensorboard.
            wandb: a Weights & Biases project to report to; `WANDB_MODE=offline` keeps everything under `out`/wandb.

        Raises:
            ValueError: the package of a logger is not installed, or Weights & Biases does not start.
        """
        out = Path(out)
        self._out = out
        if tensorboard:
            require("tensorboardX", "tensorboard")
        if wandb is not None:
            require("wandb", "wandb")
        out.mkdir(parents=True, exist_ok=True)
        self._loggers: list[Logger] = []
        if tensorboard:
            self._loggers.append(TensorBoard(out / "tensorboard"))
        if wandb is not None:
            self._loggers.append(WandB(out, wandb))
        here = {name: out / file for name, file in FILES.items()}
        self._files = {name: _Lines(path) for name, path in here.items() if name not in RARE or path.exists()}

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Append one chunk's metrics: `step`, numbers, and lists with one value per learner."""
        self._files["metrics"].append(record)
        for logger in self._loggers:
            logger.metrics(record)

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Append one learner's evaluation: `step, learner, seed, returns, lengths, wall_seconds`."""
        self._files["evaluations"].append(record)
        for logger in self._loggers:
            logger.evaluation(record)

    def change(self, record: Mapping[str, Any]) -> None:
        """Append a change of settings: `step`, `parents`, and `values` by name, with one entry per learner."""
        if "turns" not in self._files:
            self._files["turns"] = _Lines(self._out / FILES["turns"])
        self._files["turns"].append(record)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, atomically."""
        write_json(self._out / "summary.json", summary)
        for logger in self._loggers:
            logger.summary(summary)

    def truncate(self, step: int) -> None:
        """Delete all lines from the first one beyond `step` on, and an incomplete last line.

        Lines of `step` itself stay. Write a chunk's lines (and call `sync`) before the checkpoint of its step. Then the
        files of a resumed run equal those of a run that was never interrupted. Weights & Biases cannot delete values:
        there the resumed run reports the same values at the same steps again.
        """
        for file in self._files.values():
            file.truncate(step)
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

    def truncate(self, step: int) -> None:
        """Nothing."""

    def sync(self) -> None:
        """Nothing."""

    def close(self) -> None:
        """Nothing."""


def read(out: Path, name: Literal["metrics", "evaluations", "turns"]) -> list[dict[str, Any]]:
    """The records of a run so far, in order; null becomes None. The list is empty where the file does not exist yet.

    An incomplete last line (of a run that was killed, or is writing) is left out.

    Raises:
        ValueError: an unknown name, or a damaged line before the last one.
    """
    if name not in FILES:
        raise ValueError(f"a run records no '{name}', it records {', '.join(FILES)}.")
    path = Path(out) / FILES[name]
    return [record for _, record in _lines(path)] if path.exists() else []


class Tail:
    """Follows a growing file of lines. Each `look` reads only the bytes that are new since the last one."""

    def __init__(self, path: Path, backlog: int = 1 << 20) -> None:
        """The first `look` reads at most the last `backlog` bytes."""
        self._path, self._backlog, self._end = path, backlog, 0

    def look(self) -> list[bytes]:
        """The complete lines since the last `look`; an empty list where the file does not exist yet.

        A file becomes shorter where its run is resumed from a checkpoint. It is then read as if for the first time.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._end:
                    self._end = 0
                start = self._end or max(0, size - self._backlog)
                cut = start > self._end  # `start` may lie in the middle of a line
                file.seek(start)
                text = file.read(size - start)
        except FileNotFoundError:
            return []
        whole = text.rfind(b"\n") + 1
        if whole:
            self._end = start + whole
        return text[:whole].splitlines()[cut:]


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json. Raises `ValueError` where there is no such file, or where it is not that of a run."""
    path = Path(folder) / "config.json"
    if not path.exists():
        inside = [found for depth in (1, 2, 3) for found in sorted(Path(folder).glob("*/" * depth + "config.json"))]
        hint = "The folder that rljax train names as its output is one."
        if inside:
            hint = f"Runs in it: {', '.join(repr(str(found.parent)) for found in inside[:3])}."
        raise ValueError(f"'{folder}' is not a run: it has no config.json. {hint}")
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise ValueError(f"'{folder}' is not a run: its config.json cannot be read ({error}).") from None
    if not isinstance(described, dict):
        raise ValueError(f"'{folder}' is not a run: its config.json is not a JSON object.")
    return described


def find(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among `paths` and below them at any depth, each once. Folders inside runs are not searched.

    Raises `ValueError` for a path that is not a folder.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"'{path}' is not a folder of runs: there is no such folder. rljax train makes runs/.")
        for folder, inside, files in os.walk(path):
            inside[:] = sorted(name for name in inside if not name.startswith("."))  # hidden: incomplete
            if "config.json" in files or set(FILES.values()) & set(files):
                inside.clear()
                found.setdefault(Path(folder).resolve(), Path(folder))
    return list(found.values())


class _Lines:
    """One append-only file of JSON lines."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file = path.open("ab", buffering=0)
        self.truncate(None)

    def append(self, record: Mapping[str, Any]) -> None:
        rest = memoryview((dumps(record) + "\n").encode())
        start = os.fstat(self._file.fileno()).st_size
        try:
            while rest:  # a disk that fills up first accepts a part and then refuses the rest
                rest = rest[self._file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise

    def truncate(self, step: int | None) -> None:
        """Keep the complete lines before the first one beyond `step`; all complete lines where `step` is None."""
        end = 0
        for line_end, record in _lines(self._path):
            if step is not None and record["step"] > step:
                break
            end = line_end
        size = os.fstat(self._file.fileno()).st_size
        if end > size:  # the last line is complete except for its line break
            self._file.write(b"\n")
        elif end < size:
            os.ftruncate(self._file.fileno(), end)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """For each complete line: the position in bytes after its line break, and its record."""
    lines = path.read_bytes().split(b"\n")
    if lines[-1] == b"":
        lines.pop()
    end = 0
    for number, line in enumerate(lines, 1):
        end += len(line) + 1
        try:
            record = json.loads(line)
        except ValueError:
            record = None
        if isinstance(record, dict):
            yield end, record
        elif number < len(lines):
            raise ValueError(
                f"'{path}' is damaged: line {number} is not a JSON object. "
                f"Delete that line, and keep a copy of the file: sed -i.damaged {number}d '{path}'"
            )
