"""The records of one run as arrays.

Axes: `S` lines of metrics, `E` evaluations, `P` learners. Missing numbers are NaN.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.agent import EnvSpec
from rljax.runs import records

RECENT = 0.25  # the share of a run's lines that says how it stands at its end
# Standard errors that a difference of returns must exceed.
CLEAR = 2.0
LARGEST = 1e300  # of numbers in records


@dataclasses.dataclass(frozen=True)
class History:
    """What a run has recorded so far."""

    folder: Path
    config: dict[str, Any]  # config.json
    summary: dict[str, Any]  # summary.json; empty before the run's end
    spec: EnvSpec
    steps: np.ndarray  # [S]
    updates: np.ndarray  # [S]
    metrics: dict[str, np.ndarray]  # [S, P] by name
    evaluation_steps: np.ndarray  # [E]
    returns: np.ndarray  # [E, P] means over episodes
    errors: np.ndarray  # [E, P] standard errors of these means
    evaluations: Sequence[Mapping[int, Mapping[str, Any]]]  # [E] records by learner
    random: np.ndarray  # returns of single episodes of a random policy; empty where unknown

    @classmethod
    def read(cls, folder: Path) -> History:
        """The history of the run in `folder`.

        Raises `ValueError` for a folder that is no run, damaged records, and a run without any
        line of metrics yet.
        """
        config = records.read_config(folder)
        lines = records.read(folder, "metrics")
        if not lines:
            raise ValueError(
                f"the run in '{folder}' has no line of metrics yet: there is nothing to diagnose. "
                "The first one comes after --log-every steps."
            )
        number = len(config["learners"])
        by_step: dict[int, dict[int, dict[str, Any]]] = {}
        for record in records.read(folder, "evaluations"):
            if 0 <= record["learner"] < number:
                by_step.setdefault(record["step"], {})[record["learner"]] = record
        moments = sorted(by_step)
        evaluations = [by_step[step] for step in moments]
        means = np.full((len(moments), number), np.nan)
        errors = np.full_like(means, np.nan)
        chance: list[float] = []
        for row, by_learner in enumerate(evaluations):
            for learner, record in by_learner.items():
                means[row, learner], errors[row, learner] = mean_and_error(record["returns"])
                chance += record.get("random") or []
        names = dict.fromkeys(name for line in lines for name in line if "/" in name)
        return cls(
            folder=folder,
            config=config,
            summary=records.read_summary(folder),
            spec=EnvSpec.read(config["spec"]),
            steps=np.array([line["step"] for line in lines]),
            updates=np.array([_number(line.get("update")) for line in lines]),
            metrics={name: _column(lines, name, number) for name in names},
            evaluation_steps=np.array(moments, np.int64),
            returns=means,
            errors=errors,
            evaluations=evaluations,
            random=np.array([_number(x) for x in chance]),
        )

    @property
    def learners(self) -> int:
        """P."""
        return len(self.config["learners"])

    @property
    def budget(self) -> int:
        """The planned steps of each learner."""
        return self.config["steps"] + (self.config.get("then_online") or 0)

    @property
    def from_data(self) -> bool:
        """Whether a data set was learnt from."""
        return self.config.get("data") is not None

    def name(self, learner: int) -> str:
        """A learner in words."""
        return f"learner {learner} (seed {self.config['learners'][learner]['seed']})"

    def setting(self, name: str, learner: int) -> float | None:
        """A learner's number for a setting of `rljax.agent.COMMON`, where its agent has it."""
        own = self.config["learners"][learner]["settings"]
        value = own.get(name, self.config["config"].get(name))
        if isinstance(value, list):
            value = value[learner] if learner < len(value) else None
        value = float(value) if isinstance(value, bool) else value
        return float(value) if isinstance(value, int | float) else None

    # Metrics

    def level(self, name: str, share: float = RECENT) -> np.ndarray:
        """The median of a metric over the last `share` of its lines, [P]; NaN where unknown."""
        column = self.metrics.get(name, np.full((1, self.learners), np.nan))
        return quiet(np.nanmedian, column[-max(1, round(share * len(column))) :], axis=0)

    # Evaluations

    def numbers(self, name: str) -> np.ndarray:
        """A number of the evaluations' records, [E, P]."""
        column = np.full(self.returns.shape, np.nan)
        for row, by_learner in enumerate(self.evaluations):
            for learner, record in by_learner.items():
                column[row, learner] = _number(record.get(name))
        return column

    def signal(self, name: str) -> tuple[np.ndarray, np.ndarray]:
        """The mean sum of a signal over the last episodes, and its standard error, [P] each."""
        mean, error = np.full((2, self.learners), np.nan)
        for learner, record in self.evaluations[-1].items() if self.evaluations else ():
            sums = (record.get("signals") or {}).get(name)
            if sums:
                mean[learner], error[learner] = mean_and_error(sums)
        return mean, error

    @property
    def longest_episode(self) -> int:
        """The steps of the longest evaluated episode; 0 where it is unknown."""
        lengths = [
            length
            for by_learner in self.evaluations
            for record in by_learner.values()
            for length in record.get("lengths") or ()
            if length is not None
        ]
        return int(max(lengths, default=0))

    def beats_chance(self, learner: int) -> bool | None:
        """Whether a learner's last return is clearly better than a random policy's, or where that
        is unknown, than its own first one; None where it cannot be told.
        """
        known = np.flatnonzero(np.isfinite(self.returns[:, learner]))
        if not len(known):
            return None
        mean, error = self.returns[known[-1], learner], self.errors[known[-1], learner]
        if len(self.random):
            level, noise = mean_and_error(self.random)
        elif len(known) > 1:
            level, noise = self.returns[known[0], learner], self.errors[known[0], learner]
        else:
            return None
        return bool(mean - level > CLEAR * math.hypot(error, noise))

    def thrives(self, learner: int) -> bool:
        """Whether a learner is better than chance, and not far below its own best return."""
        if not self.beats_chance(learner):
            return False
        returns = self.returns[:, learner]
        best, last = np.nanmax(returns), returns[np.isfinite(returns)][-1]
        low = min(mean_and_error(self.random)[0] if len(self.random) else best, np.nanmin(returns))
        return bool(last - low >= 0.5 * (best - low))


def failing(history: History) -> np.ndarray:
    """The learners [P] whose returns are bad, or unknown."""
    return np.array([not history.thrives(learner) for learner in range(history.learners)])


def mean_and_error(values: Sequence[Any] | np.ndarray) -> tuple[float, float]:
    """The mean of values, and its standard error; 0 for a single value."""
    array = np.array([_number(x) for x in values])
    error = array.std(ddof=1) / math.sqrt(len(array)) if len(array) > 1 else 0.0
    return float(array.mean()), float(error)


def quiet(function: Any, *arguments: Any, **options: Any) -> Any:
    """A function of NumPy, without its warnings of empty slices and of NaN."""
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore", RuntimeWarning)
        return function(*arguments, **options)


def _column(lines: Sequence[Mapping[str, Any]], name: str, learners: int) -> np.ndarray:
    column = np.full((len(lines), learners), np.nan)
    for row, line in enumerate(lines):
        values = line.get(name)
        if isinstance(values, list) and len(values) == learners:
            column[row] = [_number(x) for x in values]
    return column


def _number(value: Any) -> float:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if is_number and abs(value) < LARGEST else math.nan
