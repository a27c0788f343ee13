"""Loggers: where the records of a run go beside its files.

TensorBoard, Weights & Biases, MLflow and Trackio; or a class of one's own that derives from
`Logger`.
"""

from __future__ import annotations

import dataclasses
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljax.runs.json_files import plain
from rljax.system.packages import install_command
from rljax.trust import safe

if TYPE_CHECKING:
    from rljax.learning.settings import Settings

# Names of charts in CleanRL and the Open RL Benchmark (arXiv:2402.03046).
CLEANRL = {
    "episode/return": "charts/episodic_return",
    "episode/length": "charts/episodic_length",
    "steps_per_second": "charts/SPS",
    "actor/loss": "losses/actor_loss",
    "actor/entropy": "losses/entropy",
    "actor/kl": "losses/approx_kl",
    "actor/clipped": "losses/clipfrac",
    "critic/loss": "losses/qf_loss",
    "critic/explained_variance": "losses/explained_variance",
}
CHART_NAMES: dict[str, Mapping[str, str]] = {"rljax": {}, "cleanrl": CLEANRL}


class Logger:
    """Receives the records of a run. Each method does nothing unless a class overrides it."""

    package: str | None = None  # that must be installed
    extra: str | None = None  # of rljax that brings it

    def begin(self, folder: Path) -> None:
        """The run in `folder` begins, or goes on. Its config.json is there."""

    def metrics(self, record: Mapping[str, Any]) -> None:
        """A chunk's: `step`, numbers, and lists with one number per learner, or None."""

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """A learner's: `step`, `learner`, `seed`, `returns`, `lengths` and others."""

    def film(self, path: Path, step: int) -> None:
        """A film that was written at `step`."""

    def summary(self, summary: Mapping[str, Any]) -> None:
        """The run's."""

    def truncate(self, step: int) -> None:
        """Discard the records after `step`."""

    def flush(self) -> None:
        """Send records in memory."""

    def close(self) -> None:
        """Close files and connections."""


@dataclasses.dataclass
class TensorBoard(Logger):
    """Event files in a folder for each learner: tensorboard/learner_0."""

    chart_names: str = "rljax"

    package, extra = "tensorboardX", "tensorboard"

    def begin(self, folder: Path) -> None:
        """Open the folder; files come with the first records."""
        self._folder = folder / "tensorboard"
        self._writers: dict[int, Any] = {}
        self._purge_step: int | None = None
        self._names = CHART_NAMES[self.chart_names]

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Write scalars."""
        for learner, name, value in _scalars(record):
            self._writer(learner).add_scalar(self._names.get(name, name), value, record["step"])

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Write means."""
        for name, value in _evaluation_means(record):
            self._writer(record["learner"]).add_scalar(name, value, record["step"])

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Write what is in memory."""
        self.flush()

    def truncate(self, step: int) -> None:
        """Let TensorBoard hide older events from the next step on."""
        self.close()
        self._purge_step = step + 1

    def flush(self) -> None:
        """Write what is in memory."""
        for writer in self._writers.values():
            writer.flush()

    def close(self) -> None:
        """Close the files."""
        while self._writers:
            self._writers.popitem()[1].close()

    def _writer(self, learner: int) -> Any:
        if learner not in self._writers:
            from tensorboardX import SummaryWriter

            folder = str(self._folder / f"learner_{learner}")
            self._writers[learner] = SummaryWriter(folder, purge_step=self._purge_step)
        return self._writers[learner]


@dataclasses.dataclass
class WandB(Logger):
    """A run of Weights & Biases, in which each metric has one series per learner.

    With CleanRL's names there is one run for each learner, as in the Open RL Benchmark: its
    configuration has `exp_name`, `env_id` and `seed`, and steps are `global_step`. A run that goes
    on reports to the same runs.
    """

    project: str  # or ENTITY/PROJECT
    group: str | None = None
    name: str | None = None
    tags: Sequence[str] = ()
    chart_names: str = "rljax"

    package = extra = "wandb"

    def begin(self, folder: Path) -> None:
        """Start its runs. Raises `ValueError` where they do not start."""
        import wandb  # type: ignore[import-not-found]

        safe(folder / "wandb").mkdir(parents=True, exist_ok=True)
        identities = safe(folder / "wandb" / "run_id")
        known = identities.read_text(encoding="utf-8").split() if identities.exists() else []
        described = _described(folder)
        self._has_one_each = self.chart_names == "cleanrl"
        self._step = "global_step" if self._has_one_each else "environment_steps"
        self._runs = []
        for learner in range(len(described["seeds"]) if self._has_one_each else 1):
            previous = known[learner] if learner < len(known) else None
            config, name = described or None, self.name
            if self._has_one_each:
                seed = described["seeds"][learner]
                config = {**_cleanrl_settings(described, learner), **described}
                name = f"{name or config['exp_name']}__{seed}"
            self._runs.append(self._started(wandb, folder, config, name, previous))
        identities.write_text("".join(f"{run.id}\n" for run in self._runs), encoding="utf-8")
        for run in self._runs:
            run.define_metric(self._step, hidden=True)
            run.define_metric("*", step_metric=self._step)

    def _started(
        self, wandb: Any, folder: Path, config: Any, name: str | None, previous: str | None
    ) -> Any:
        entity, _, project = self.project.rpartition("/")
        options: dict[str, Any] = {"entity": entity, "group": self.group, "name": name}
        options |= {"tags": list(self.tags), "reinit": "create_new" if self._has_one_each else None}
        try:
            return wandb.init(
                project=project,
                dir=str(folder),
                id=previous,
                resume="allow" if previous else None,
                config=config,
                settings=wandb.Settings(console="off"),  # the progress display has the console
                **{key: value for key, value in options.items() if value},
            )
        except wandb.Error as error:
            raise ValueError(
                f"Weights & Biases did not start for project '{self.project}': {error} Log in "
                "with: wandb login. Or keep the run on this machine: export WANDB_MODE=offline"
            ) from error

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Send numbers."""
        if self._has_one_each:
            for learner, run in enumerate(self._runs):
                own = {CLEANRL.get(n, n): x for i, n, x in _scalars(record) if i == learner}
                run.log({self._step: record["step"], **own})
        else:
            self._runs[0].log({self._step: record["step"], **_by_learner(record)})

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Send means."""
        if self._has_one_each:
            run, means = self._runs[record["learner"]], dict(_evaluation_means(record))
        else:
            run, means = self._runs[0], _means_by_learner(record)
        run.log({self._step: record["step"], **means})

    def film(self, path: Path, step: int) -> None:
        """Send a film of the first learner."""
        import wandb  # type: ignore[import-not-found]

        self._runs[0].log({self._step: step, "film": wandb.Video(str(path), format="mp4")})

    def summary(self, summary: Mapping[str, Any]) -> None:
        """Send the summary."""
        for run in self._runs:
            run.summary.update(plain(summary))

    def close(self) -> None:
        """End its runs."""
        while self._runs:
            self._runs.pop().finish()


class SeriesLogger(Logger):
    """A logger that keeps one series for each metric and learner."""

    def metrics(self, record: Mapping[str, Any]) -> None:
        """Send numbers."""
        self.send(_by_learner(record), record["step"])

    def evaluation(self, record: Mapping[str, Any]) -> None:
        """Send means."""
        self.send(_means_by_learner(record), record["step"])

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Send numbers by name, of this step."""
        raise NotImplementedError


@dataclasses.dataclass
class MLflow(SeriesLogger):
    """A run of MLflow, where MLFLOW_TRACKING_URI or `uri` says.

    Each metric has one series per learner. A run that goes on reports to the same one.
    """

    experiment: str
    name: str | None = None
    uri: str | None = None

    package = extra = "mlflow"

    def begin(self, folder: Path) -> None:
        """Start its run. Raises `ValueError` where the server does not answer."""
        import mlflow  # type: ignore[import-not-found]

        identity = safe(folder / "mlflow_run_id")
        try:
            self._client = mlflow.MlflowClient(self.uri)
            if identity.exists():
                self._run = identity.read_text(encoding="utf-8").strip()
                self._client.set_terminated(self._run, status="RUNNING")
                return
            known = self._client.get_experiment_by_name(self.experiment)
            number = known and known.experiment_id
            number = number or self._client.create_experiment(self.experiment)
            made = self._client.create_run(number, run_name=self.name or folder.name)
        except mlflow.exceptions.MlflowException as error:
            raise ValueError(
                f"MLflow did not start for experiment '{self.experiment}': {error}. Name its "
                "server: export MLFLOW_TRACKING_URI=http://HOST:PORT"
            ) from error
        self._run = made.info.run_id
        identity.write_text(self._run + "\n", encoding="utf-8")
        for name, value in _flat(_described(folder)):
            self._client.log_param(self._run, name, value)

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Send numbers by name, of this step."""
        from mlflow.entities import Metric  # type: ignore[import-not-found]

        now = int(time.time() * 1000)
        metrics = [Metric(name, value, now, step) for name, value in values.items()]
        self._client.log_batch(self._run, metrics=metrics)

    def film(self, path: Path, step: int) -> None:
        """Keep a film as an artifact."""
        self._client.log_artifact(self._run, str(path), "films")

    def close(self) -> None:
        """End its run."""
        self._client.set_terminated(self._run)


@dataclasses.dataclass
class Trackio(SeriesLogger):
    """A run of Trackio, on this machine or where its own settings say.

    Each metric has one series per learner. A run that goes on reports to the same one.
    """

    project: str
    name: str | None = None
    group: str | None = None

    package = extra = "trackio"

    def begin(self, folder: Path) -> None:
        """Start its run, or go on with that of the same name."""
        import trackio  # type: ignore[import-not-found]

        identity = safe(folder / "trackio_run_name")
        name = self.name or folder.absolute().name
        resumes = identity.exists()
        identity.write_text(name + "\n", encoding="utf-8")
        self._run = trackio.init(
            project=self.project,
            name=name,
            group=self.group,
            config=dict(_flat(_described(folder))),
            resume="allow" if resumes else "never",
            embed=False,
            auto_log_gpu=False,
            auto_log_cpu=False,
        )

    def send(self, values: Mapping[str, float], step: int) -> None:
        """Send numbers by name, of this step."""
        self._run.log(dict(values), step=step)

    def close(self) -> None:
        """End its run."""
        self._run.finish()


READY = (TensorBoard, WandB, MLflow, Trackio)


def chosen(settings: Settings) -> list[Logger]:
    """The loggers that a run's settings name. Raises `ValueError` for unknown names of charts."""
    names = settings.chart_names
    if names not in CHART_NAMES:
        raise ValueError(f"--chart-names is '{names}', it must be one of {', '.join(CHART_NAMES)}.")
    loggers: list[Logger] = [TensorBoard(names)] if settings.tensorboard else []
    if settings.wandb is not None:
        group, name, tags = settings.wandb_group, settings.wandb_name, settings.wandb_tags
        loggers.append(WandB(settings.wandb, group, name, tags, names))
    if settings.mlflow is not None:
        loggers.append(MLflow(settings.mlflow))
    if settings.trackio is not None:
        loggers.append(Trackio(settings.trackio))
    return loggers


def check(loggers: Sequence[Any]) -> None:
    """Raise `TypeError` for what is no logger, and `ValueError` for one whose package cannot be
    imported.
    """
    for logger in loggers:
        if not isinstance(logger, Logger):
            raise TypeError(
                f"a logger is {logger!r}, it must be an object whose class derives from "
                "rljax.loggers.Logger."
            )
        if logger.package is None:
            continue
        try:
            __import__(logger.package)
        except ImportError as error:
            command = f"pip install {logger.package}"
            command = install_command(logger.extra) if logger.extra else command
            raise ValueError(
                f"recording to {logger.extra or logger.package} needs the package "
                f"'{logger.package}', which cannot be imported ({error}). Install it: {command}"
            ) from error


def _described(folder: Path) -> dict[str, Any]:
    path = safe(folder / "config.json")
    return json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}


def _cleanrl_settings(described: Mapping[str, Any], learner: int) -> dict[str, Any]:
    agent = Path(described["agent"]).stem
    return {
        "exp_name": f"{agent}_rljax",
        "env_id": described["environment"],
        "seed": described["seeds"][learner],
        "total_timesteps": described["steps"],
    }


def _flat(described: Mapping[str, Any], prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Names such as config.actor_lr, and values, of settings that are no long lists."""
    for name, value in described.items():
        if isinstance(value, Mapping):
            yield from _flat(value, f"{prefix}{name}.")
        elif value is not None and len(str(value)) < 250:
            yield prefix + name, value


def _by_learner(record: Mapping[str, Any]) -> dict[str, float]:
    """Numbers by name; those of a learner as NAME/learner_0."""
    shared = {name for name, value in record.items() if not isinstance(plain(value), list)}
    return {
        name if name in shared else f"{name}/learner_{learner}": value
        for learner, name, value in _scalars(record)
    }


def _means_by_learner(record: Mapping[str, Any]) -> dict[str, float]:
    """The means of an evaluation, as NAME/learner_0."""
    learner = record["learner"]
    return {f"{name}/learner_{learner}": value for name, value in _evaluation_means(record)}


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
