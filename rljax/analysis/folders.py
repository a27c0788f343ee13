"""Run folders as comparisons read them."""

from __future__ import annotations

import dataclasses
import difflib
import warnings
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rljax.analysis import formatting
from rljax.learning.settings import WEIGHTS
from rljax.runs import checkpoints, json_files, records
from rljax.runs.statistics import estimators

# Settings of a run that distinguish learners as hyperparameters do.
PROTOCOL = ("then_online", "offline_share")
OTHER_RUNS = {"base": "base", "from": "from_run"}  # settings -> keys of config.json
SWEEP_FILE, SWEEP_TEST = "sweep.json", "test"  # in a sweep's folder: description, final test
T = TypeVar("T")


@dataclasses.dataclass
class RunRecord:
    """The files of one run."""

    folder: Path
    config: dict[str, Any]  # config.json
    summary: dict[str, Any]  # summary.json; empty until the run has ended once
    episodes: set[int]  # the numbers of episodes per evaluation
    learners: list[LearnerRecord] = dataclasses.field(default_factory=list)

    @property
    def agent(self) -> str:
        """The agent's name or file."""
        return self.config["agent"]

    @property
    def task(self) -> tuple[str, str | None]:
        """The environment, and the data set or None."""
        return self.config["environment"], self.config.get("data")

    @property
    def budget(self) -> int:
        """The planned number of steps of each learner."""
        return self.config["steps"] + (self.config.get("then_online") or 0)


@dataclasses.dataclass
class LearnerRecord:
    """One learner and its S evaluations, each as the mean over its episodes."""

    run: RunRecord
    seed: int
    settings: dict[str, Any]  # its hyperparameters, and others that tell runs apart
    steps: np.ndarray  # [S] ascending
    returns: np.ndarray  # [S]
    scores: np.ndarray | None  # [S]; None where the data set has no reference scores
    diverged: np.ndarray  # [S] bool
    evaluations: list[dict[str, Any]]  # [S] the records of evaluations.jsonl
    signals: dict[str, np.ndarray]  # [S] sums over episodes, by name

    def index_at(self, step: int | None) -> int | None:
        """The index of the evaluation that counts at `step`, or at the budget's end; None before
        it.
        """
        if step is None:
            return len(self.steps) - 1 if self.steps[-1] >= self.run.budget else None
        index = int(np.searchsorted(self.steps, step, side="right")) - 1
        gap = max(np.diff(self.steps, prepend=0))
        return index if index >= 0 and step - self.steps[index] < gap else None


def read_all(paths: Sequence[Path]) -> tuple[list[RunRecord], list[tuple[Path, str]]]:
    """The runs in and below `paths`, and skipped folders with reasons."""
    runs, skipped, searches = [], [], {}
    for folder in records.find(paths):
        sweep = _sweep_of_search(folder, paths)
        if sweep is not None:
            searches[sweep] = searches.get(sweep, 0) + 1
            continue
        try:
            runs.append(read(folder))
        except ValueError as error:
            skipped.append((folder, str(error)))
        except OSError as error:
            skipped.append((folder, f"{json_files.explain(error)}."))
    for sweep, number in searches.items():
        reason = (
            f"{formatting.count(number, 'run')} of its search: the seeds of a search choose the "
            "settings, so only the sweep's test counts. To see these runs, name folders inside "
            "the sweep."
        )
        skipped.append((sweep, reason))
    return runs, skipped


def _sweep_of_search(folder: Path, paths: Sequence[Path]) -> Path | None:
    """The sweep whose search trained a run, unless one of the `paths` lies inside it."""
    for parent in folder.parents:
        if (parent / SWEEP_FILE).exists() and folder.relative_to(parent).parts[0] != SWEEP_TEST:
            named = any(parent.resolve() in Path(path).resolve().parents for path in paths)
            return None if named else parent
    return None


def read(folder: Path) -> RunRecord:
    """Read the run in `folder`. Warns of records that are not those of its last checkpoint.

    Raises `ValueError` without evaluations or for damaged files, and `OSError`.
    """
    config = records.read_config(folder)
    evaluations = records.read(folder, "evaluations")
    summary = records.read_summary(folder)
    if not evaluations:
        raise ValueError(_why_unevaluated(config, summary))
    if changed := _changed(folder):
        warnings.warn(
            f"the records of '{folder}' are not those of its last checkpoint: {'; '.join(changed)}",
            stacklevel=2,
        )
    run = RunRecord(folder, config, summary, {len(record["returns"]) for record in evaluations})
    if not records.is_intact(summary):
        warnings.warn(
            f"summary.json of '{folder}' is not as the run wrote it: speed and times may be wrong.",
            stacklevel=2,
        )
    if not summary and max(record["step"] for record in evaluations) >= run.budget:
        warnings.warn(
            f"'{folder}' has no summary.json, though its evaluations reach its last step: speed "
            f"and times are not known. `rljax resume {folder}` writes it again.",
            stacklevel=2,
        )
    by_learner: dict[int, dict[int, dict[str, Any]]] = {}
    for record in evaluations:
        by_learner.setdefault(record["learner"], {})[record["step"]] = record
    for number, by_step in sorted(by_learner.items()):
        run.learners.append(_learner(run, number, [by_step[step] for step in sorted(by_step)]))
    return run


def read_unevaluated(folder: Path) -> RunRecord | None:
    """The run in `folder`, without learners, if it had no environment; None for others."""
    try:
        config, summary = records.read_config(folder), records.read_summary(folder)
    except (ValueError, OSError):
        return None
    return RunRecord(folder, config, summary, set()) if config["environment"] == "none" else None


def read_metric(folder: Path, metric: str) -> RunRecord:
    """Read the run in `folder` with a metric of its updates in place of returns, also one without
    evaluations.

    Raises `ValueError` for a metric that it does not have, or damaged files, and `OSError`.
    """
    config, lines = records.read_config(folder), records.read(folder, "metrics")
    run = RunRecord(folder, config, records.read_summary(folder), set())
    for number, learner in enumerate(config["learners"]):
        values = [
            {"step": line["step"], "learner": number, "seed": learner["seed"], "returns": [value]}
            for line in lines
            if (value := _of_learner(line.get(metric), number)) is not None
        ]
        if values:
            run.learners.append(_learner(run, number, values))
    if not run.learners:
        names = sorted({name for line in lines for name, x in line.items() if isinstance(x, list)})
        near = difflib.get_close_matches(metric, names, n=1)
        nearest = f" Nearest: {near[0]}." if near else ""
        has = ", ".join(names) if names else "none yet"
        raise ValueError(
            f"--metric is '{metric}', of which the run in '{folder}' has no number.{nearest} Its "
            f"metrics: {has}."
        )
    return run


def _of_learner(values: Any, learner: int) -> float | None:
    if not isinstance(values, list) or learner >= len(values):
        return None
    value = values[learner]
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number else None


def _changed(folder: Path) -> list[str]:
    """What has changed in the records since the last checkpoint, as far as that says."""
    saved = folder / checkpoints.FOLDER
    try:
        steps = checkpoints.steps(saved)
        notes = checkpoints.notes(saved / f"{steps[-1]:012d}") if steps else {}
        return [
            *records.differences(folder, notes.get("records", {})),
            *_changed_settings(records.read_config(folder), notes),
        ]
    except (checkpoints.CheckpointError, AttributeError, TypeError, ValueError, OSError, KeyError):
        return []  # a damaged checkpoint says nothing


def _changed_settings(described: Mapping[str, Any], notes: Mapping[str, Any]) -> list[str]:
    """The settings in a run's config.json that are not those of a checkpoint's `notes`."""
    saved = {**notes.get("structure", {}), **notes.get("protocol", {})}
    settings = {f"config.{name}": value for name, value in described["config"].items()}
    settings |= {name: described[name] for name in saved if name in described}
    texts = []
    for name, value in saved.items():
        if name in settings and settings[name] != value:
            says = f"says {name.removeprefix('config.')} = {settings[name]}"
        elif name not in settings and name.startswith("config."):
            says = f"has no {name.removeprefix('config.')}"
        else:
            continue
        texts.append(f"config.json {says}, the checkpoint was made with {value}")
    return texts


def _why_unevaluated(config: Mapping[str, Any], summary: Mapping[str, Any]) -> str:
    if config["environment"] != "none":
        return "it has no evaluations yet."
    estimate = (summary.get("estimate") or {}).get("mean")
    known = "" if estimate is None else f" Its estimate of the discounted return: {estimate:,.4g}."
    return (
        f"it has no evaluations, because it had no environment.{known} Runs without one are "
        "compared by `rljax select`."
    )


def _learner(run: RunRecord, number: int, evaluations: list[dict[str, Any]]) -> LearnerRecord:
    has_scores = all(record.get("scores") for record in evaluations)
    signals = [record.get("signals") or {} for record in evaluations]
    return LearnerRecord(
        run,
        evaluations[0]["seed"],
        _settings(run.config, number),
        np.array([record["step"] for record in evaluations]),
        _episode_means(evaluations, "returns"),
        _episode_means(evaluations, "scores") if has_scores else None,
        np.array([bool(record.get("diverged")) for record in evaluations]),
        evaluations,
        {name: _episode_means(signals, name) for name in common(signals)},
    )


def common(mappings: Sequence[Mapping[str, Any]]) -> list[str]:
    """The names that all have, in the order of the first."""
    return [name for name in mappings[0] if all(name in each for each in mappings)]


def _episode_means(evaluations: Iterable[Mapping[str, Any]], field: str) -> np.ndarray:
    return np.array([float(estimators.mean(record[field])) for record in evaluations])


def _settings(config: Mapping[str, Any], number: int) -> dict[str, Any]:
    settings = {name: config[name] for name in PROTOCOL if config.get("data") and name in config}
    if config.get("weights", "uniform") != "uniform":
        names = filter(None, ("weights", WEIGHTS.get(config["weights"])))
        settings |= {name: config.get(name) for name in names}
    settings |= {f"online.{name}": value for name, value in (config.get("online") or {}).items()}
    settings |= {name: config[key] for name, key in OTHER_RUNS.items() if config.get(key)}
    if config["environment"] != config["env"]:  # it learnt elsewhere
        settings["env"] = config["env"]
    learners = config.get("learners", [])
    if learners and not 0 <= number < len(learners):
        raise ValueError(
            f"its config.json describes {len(learners)} learners, and no learner {number}."
        )
    return settings | config["config"] | (learners[number]["settings"] if learners else {})


def group_by(members: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    """Runs or learners by a key, in their order."""
    groups: dict[Any, list[T]] = {}
    for member in members:
        groups.setdefault(key(member), []).append(member)
    return groups
