"""Optional loggers: TensorBoard, and Weights & Biases."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from rljax.runs.json_files import plain
from rljax.system.packages import install_command
from rljax.trust import safe


class Logger(Protocol):
    """Receives the records of a recorder, beside its files."""

    def metrics(self, record: Mapping[str, Any]) -> None:
        """A chunk's."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A learner's."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """The run's."""

    def truncate(self, step: int) -> None:
        """Discard the records after `step`."""

    def flush(self) -> None:
        """Send records in memory."""

    def close(self) -> None:
        """Close files and connections."""


class TensorBoard(Logger):
    """Event files in a folder for each learner."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._writers: dict[int, Any] = {}
        self._purge_step: int | None = None

    def metrics(self, record: Mapping[str, Any]) -> None:
        for learner, name, value in _scalars(record):
            self._writer(learner).add_scalar(name, value, record["step"])

    def evaluation(self, record: Mapping[str, Any]) -> None:
        for name, value in _evaluation_means(record):
            self._writer(record["learner"]).add_scalar(name, value, record["step"])

    def summary(self, summary: Mapping[str, Any]) -> None:
        self.flush()

    def truncate(self, step: int) -> None:
        self.close()
        self._purge_step = step + 1  # TensorBoard hides older events from this step on

    def flush(self) -> None:
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, learner: int) -> Any:
        if learner not in self._writers:
            from tensorboardX import SummaryWriter

            folder = str(self._folder / f"learner_{learner}")
            self._writers[learner] = SummaryWriter(folder, purge_step=self._purge_step)
        return self._writers[learner]


class WandB(Logger):
    """One Weights & Biases run, in which each metric has one series per learner."""

    def __init__(self, out: Path, project: str) -> None:
        import wandb  # type: ignore[import-not-found]

        safe(out / "wandb").mkdir(parents=True, exist_ok=True)
        identity = safe(out / "wandb" / "run_id")  # a resumed run reports to the same W&B run
        previous = identity.read_text(encoding="utf-8").strip() if identity.exists() else None
        described = safe(out / "config.json")
        config = json.loads(described.read_text(encoding="utf-8")) if described.exists() else None
        try:
            self._run = wandb.init(
                project=project,
                dir=str(out),
                id=previous,
                resume="allow" if previous else None,
                config=config,
                settings=wandb.Settings(console="off"),  # the progress display has the console
            )
        except wandb.Error as error:
            raise ValueError(
                f"Weights & Biases did not start for project '{project}': {error} Log in with: "
                "wandb login. Or keep the run on this machine: export WANDB_MODE=offline"
            ) from error
        identity.write_text(self._run.id + "\n", encoding="utf-8")
        self._run.define_metric("environment_steps", hidden=True)
        self._run.define_metric("*", step_metric="environment_steps")

    def metrics(self, record: Mapping[str, Any]) -> None:
        shared = {name for name, value in record.items() if not isinstance(plain(value), list)}
        named = {
            name if name in shared else f"{name}/learner_{learner}": value
            for learner, name, value in _scalars(record)
        }
        self._run.log({"environment_steps": record["step"], **named})

    def evaluation(self, record: Mapping[str, Any]) -> None:
        learner = record["learner"]
        named = {f"{name}/learner_{learner}": value for name, value in _evaluation_means(record)}
        self._run.log({"environment_steps": record["step"], **named})

    def summary(self, summary: Mapping[str, Any]) -> None:
        self._run.summary.update(plain(summary))

    def close(self) -> None:
        self._run.finish()


def _scalars(record: Mapping[str, Any]) -> Iterator[tuple[int, str, float]]:
    """(learner, name, value) of each number; those of the whole run are learner 0's."""
    for name, value in record.items():
        value = plain(value)
        for learner, entry in enumerate(value if isinstance(value, list) else [value]):
            if name != "step" and isinstance(entry, int | float):
                yield learner, name, entry


def _evaluation_means(record: Mapping[str, Any]) -> Iterator[tuple[str, float]]:
    names = {"returns": "return", "lengths": "length", "success": "success", "scores": "score"}
    fields = {name: record.get(field) for field, name in names.items()}
    for name, entries in (fields | (record.get("signals") or {})).items():
        values = np.asarray(plain(entries) or np.nan, np.float64)
        if np.isfinite(values).all():
            yield f"evaluation/{name}", float(values.mean())


def require_loggers(tensorboard: bool, wandb: str | None) -> None:
    """Raise `ValueError` where the package of a chosen logger cannot be imported."""
    packages = {"tensorboardX": "tensorboard"} if tensorboard else {}
    if wandb is not None:
        packages["wandb"] = "wandb"
    for package, extra in packages.items():
        try:
            __import__(package)
        except ImportError as error:
            raise ValueError(
                f"recording to {extra} needs the package '{package}', which cannot be imported "
                f"({error}). Install it: {install_command(extra)}"
            ) from error
