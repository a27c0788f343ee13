"""Where a run's numbers go: append-only files, and TensorBoard or Weights & Biases beside them.

The files are the truth: one JSON object per line, on its way to the disk before the call returns, so that a killed run
loses no finished line. JSON is strict: a number that is not finite is null. TensorBoard and Weights & Biases are views
that may lag behind.
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
RARE = {"turns"}  # made with their first line


class Recorder:
    """Appends to the files of one run, and to the optional loggers.

    Opening an existing run cuts a torn last line off, and appends; `truncate` takes it back to a checkpoint. A write
    that fails (a full disk) raises its `OSError` and leaves the lines before it intact.
    """

    def __init__(self, out: Path, tensorboard: bool = False, wandb: str | None = None) -> None:
        """Open the files of the run in `out`, which is made where it does not exist.

        Args:
            out: the run's folder. Its config.json, if there already, describes the run to Weights & Biases.
            tensorboard: also write event files, one folder per learner, under `out`/tensorboard.
            wandb: a Weights & Biases project to report to; `WANDB_MODE=offline` keeps everything under `out`/wandb.

        Raises:
            ValueError: the package of a logger is not installed, or Weights & Biases would not start.
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
        """Append a change of settings: `step`, `parents`, and `values` by name, each with one entry per learner."""
        if "turns" not in self._files:
            self._files["turns"] = _Lines(self._out / FILES["turns"])
        self._files["turns"].append(record)

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write summary.json, atomically."""
        write_json(self._out / "summary.json", summary)
        for logger in self._loggers:
            logger.summary(summary)

    def truncate(self, step: int) -> None:
        """Drop every line from the first one beyond `step` on, and a torn last line.

        Lines of `step` itself stay: write a chunk's lines (and `sync`) before the checkpoint of its step, and a
        resumed run leaves the files as one that was never interrupted. Weights & Biases cannot forget: there the
        resumed run reports the same values at the same steps again.
        """
        for file in self._files.values():
            file.truncate(step)
        for logger in self._loggers:
            logger.truncate(step)

    def sync(self) -> None:
        """Return when the disk holds everything, so that not even a power cut loses it."""
        for file in self._files.values():
            file.sync()
        for logger in self._loggers:
            logger.flush()

    def close(self) -> None:
        """Close files and loggers; a second call does nothing."""
        for file in self._files.values():
            file.close()
        while self._loggers:
            self._loggers.pop().close()

    def __enter__(self) -> Recorder:
        return self

    def __exit__(self, *unused: object) -> None:
        self.close()


class Nowhere:
    """In place of a `Recorder` in a process that does not write: keeps nothing."""

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
    """The records of a run so far, in order; null is None. Empty where the file does not exist yet.

    A torn last line (a run that was killed, or is writing) is left out.

    Raises:
        ValueError: another name, or a damaged line before the last.
    """
    if name not in FILES:
        raise ValueError(f"a run records no '{name}', it records {', '.join(FILES)}.")
    path = Path(out) / FILES[name]
    return [record for _, record in _lines(path)] if path.exists() else []


class Tail:
    """The end of a growing file of lines: each look reads what has come since the last one, and nothing else."""

    def __init__(self, path: Path, backlog: int = 1 << 20) -> None:
        """The first look reads the last `backlog` bytes at most."""
        self._path, self._backlog, self._end = path, backlog, 0

    def look(self) -> list[bytes]:
        """The whole lines since the last look; none where there is no such file yet.

        A file that has become shorter, since its run was resumed from a checkpoint, is read as if for the first time.
        """
        try:
            with self._path.open("rb") as file:
                size = file.seek(0, os.SEEK_END)
                if size < self._end:
                    self._end = 0
                start = self._end or max(0, size - self._backlog)
                cut = start > self._end  # in the middle of a line
                file.seek(start)
                text = file.read(size - start)
        except FileNotFoundError:
            return []
        whole = text.rfind(b"\n") + 1
        if whole:
            self._end = start + whole
        return text[:whole].splitlines()[cut:]


def read_config(folder: Path) -> dict[str, Any]:
    """A run's config.json. Raises `ValueError` where there is none, or another file than a run's."""
    path = Path(folder) / "config.json"
    if not path.exists():
        inside = [found for depth in (1, 2, 3) for found in sorted(Path(folder).glob("*/" * depth + "config.json"))]
        hint = "The folder that rljax train names as its output is one."
        if inside:
            hint = f"Runs in it: {', '.join(repr(str(found.parent)) for found in inside[:3])}."
        raise ValueError(f"'{folder}' is not a run: it has no config.json. {hint}")
    try:
        described = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ValueError(f"'{folder}' is not a run: its config.json cannot be read ({error}).") from None
    if not isinstance(described, dict):
        raise ValueError(f"'{folder}' is not a run: its config.json is not a JSON object.")
    return described


def find(paths: Sequence[Path]) -> list[Path]:
    """The folders of runs among `paths` and below them, at any depth, each once; runs themselves are not searched.

    Raises `ValueError` for a path that is no folder.
    """
    found: dict[Path, Path] = {}
    for path in map(Path, paths):
        if not path.is_dir():
            raise ValueError(f"'{path}' is not a folder of runs: there is no such folder. rljax train makes runs/.")
        for folder, inside, files in os.walk(path):
            inside[:] = sorted(name for name in inside if not name.startswith("."))  # those are half-written
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
            while rest:  # a disk that fills up takes a part first and refuses the rest
                rest = rest[self._file.write(rest) :]
        except BaseException:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file.fileno(), start)
            raise

    def truncate(self, step: int | None) -> None:
        """Keep the whole lines before the first one beyond `step`; all whole lines where it is None."""
        end = 0
        for line_end, record in _lines(self._path):
            if step is not None and record["step"] > step:
                break
            end = line_end
        size = os.fstat(self._file.fileno()).st_size
        if end > size:  # whole, but for its line break
            self._file.write(b"\n")
        elif end < size:
            os.ftruncate(self._file.fileno(), end)

    def sync(self) -> None:
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self._file.close()


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    """Each whole line's end, in bytes after its line break, and its record."""
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
