"""Which agent is better over several tasks?

`scores` are by agent an array [runs, tasks], or [runs] by task where tasks have different numbers
of runs. One run is one learner. Scores must be normalised.

Intervals are percentile bootstraps of runs within each task; `bootstrap` are options of
`estimators.bootstrap`. Tasks count the same.

All functions raise `ValueError` for no scores, another shape, agents with different tasks, and a
score that is not finite.

Source: Agarwal et al., arXiv:2108.13264, sections 4.1 to 4.3.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax.runs.statistics import estimators

Scores = ArrayLike | Mapping[str, ArrayLike]  # [runs, tasks], or [runs] by task
TaskScores = Sequence[np.ndarray]  # one agent's scores [..., runs] in each task
Measure = Callable[[TaskScores], Any]  # -> [...]


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A number or an array, with its interval and numbers of runs and tasks."""

    value: Any  # [...]
    low: Any  # [...]; NaN where there is no interval
    high: Any  # [...]
    runs: tuple[int, int]  # the smallest and the largest number of runs in a task
    tasks: int


def iqm(tasks: TaskScores) -> Any:
    """Interquartile mean of all runs; runs of a task with fewer count more."""
    values = np.concatenate(tasks, axis=-1)
    sizes = [task.shape[-1] for task in tasks]
    if len(set(sizes)) == 1:
        return estimators.iqm(values, axis=-1)
    common = math.lcm(*sizes)
    return estimators.iqm(
        values, axis=-1, counts=np.repeat([common // size for size in sizes], sizes)
    )


def mean(tasks: TaskScores) -> Any:
    """Mean of the tasks' means."""
    return np.mean([estimators.mean(task, axis=-1) for task in tasks], axis=0)


def median(tasks: TaskScores) -> Any:
    """Median of the tasks' means."""
    return np.median([estimators.mean(task, axis=-1) for task in tasks], axis=0)


def optimality_gap(tasks: TaskScores) -> Any:
    """The mean distance of runs below 1; 0 for a run above it. Less is better."""
    return 1.0 - mean([np.minimum(task, 1.0) for task in tasks])


MEASURES: dict[str, Measure] = {
    "iqm": iqm,
    "median": median,
    "mean": mean,
    "optimality_gap": optimality_gap,
}


def aggregate(
    scores: Mapping[str, Scores],
    measures: Mapping[str, Measure] = MEASURES,
    **bootstrap: Any,
) -> dict[str, dict[str, Estimate]]:
    """Each agent's score over all tasks by each of `measures`, functions of one agent's tasks.

    There is no interval where a task has fewer than `estimators.FEWEST` runs.
    """
    return {
        agent: {
            name: _estimate([tasks], measure, **bootstrap) for name, measure in measures.items()
        }
        for agent, tasks in _check(scores, 1).items()
    }


def mean_interval(values: ArrayLike) -> list[float]:
    """The mean of one task's runs [runs] with its 95 % bootstrap interval: mean, low, high; with
    fewer than `estimators.FEWEST` runs the mean alone.
    """
    return _interval(mean, values)


def mean_difference(x: ArrayLike, y: ArrayLike) -> list[float]:
    """The mean of runs x minus that of runs y, with its 95 % bootstrap interval: difference, low,
    high. x and y [runs] are of one task and are resampled separately. It is the difference alone
    where one has fewer than `estimators.FEWEST` runs.
    """
    return _interval(lambda x, y: mean(x) - mean(y), x, y)


def _interval(measure: Callable[..., Any], *groups: ArrayLike) -> list[float]:
    checked = [_check({"all": {"task": values}}, 1)["all"] for values in groups]
    estimate = _estimate(checked, measure)
    bounds = (estimate.low, estimate.high) if np.isfinite(estimate.low) else ()
    return [float(x) for x in (estimate.value, *bounds)]


def sample_efficiency(scores: Mapping[str, Scores], **bootstrap: Any) -> dict[str, Estimate]:
    """Each agent's IQM over all tasks at each of S steps, an `Estimate` of arrays [S].

    `scores` are [runs, tasks, S], or [runs, S] by task. Runs are drawn with all their steps.
    """
    return {
        agent: _estimate([[task.T for task in tasks]], iqm, **bootstrap)
        for agent, tasks in _check(scores, 2).items()
    }


def profiles(
    scores: Mapping[str, Scores],
    thresholds: ArrayLike,
    **bootstrap: Any,
) -> dict[str, Estimate]:
    """Each agent's share of runs over all tasks that score above each of `thresholds` [T], an
    `Estimate` of arrays [T] with pointwise intervals.
    """
    limits = np.asarray(thresholds, np.float64)
    if limits.ndim != 1 or not limits.size:
        raise ValueError(f"thresholds have shape {limits.shape}, a profile needs one or more: [T].")
    return {
        agent: _estimate([[1.0 * (task > limits[:, None]) for task in tasks]], mean, **bootstrap)
        for agent, tasks in _check(scores, 1).items()
    }


def improvement(
    scores: Mapping[str, Scores],
    pairs: Iterable[tuple[str, str]] | None = None,
    **bootstrap: Any,
) -> dict[tuple[str, str], Estimate]:
    """The probability that a run of X scores above one of Y, as the mean over tasks, by (X, Y).

    Equal scores count half. `pairs` are by default all; an unknown agent raises `ValueError`.
    """
    checked = _check(scores, 1)
    compared = list(itertools.permutations(checked, 2) if pairs is None else pairs)
    unknown = [agent for pair in compared for agent in pair if agent not in checked]
    if unknown:
        raise ValueError(
            f"there are no scores of agent '{unknown[0]}'; there are scores of {_listed(checked)}."
        )
    estimates = {}
    for x, y in compared:
        size = max(one.size * other.size for one, other in zip(checked[x], checked[y], strict=True))
        estimates[x, y] = _estimate([checked[x], checked[y]], _probability, size, **bootstrap)
    return estimates


def _probability(x: TaskScores, y: TaskScores) -> Any:
    pairs = [(one[..., :, None], other[..., None, :]) for one, other in zip(x, y, strict=True)]
    return np.mean(
        [((one > other) + 0.5 * (one == other)).mean(axis=(-2, -1)) for one, other in pairs], axis=0
    )


def _estimate(
    agents: Sequence[TaskScores],
    measure: Callable[..., Any],
    size: int | None = None,
    **bootstrap: Any,
) -> Estimate:
    """The measure of agents' tasks [..., runs], with its interval; a resample has `size` values."""

    def resample(generator: np.random.Generator, number: int) -> np.ndarray:
        return measure(
            *(
                [task[..., _draw_runs(generator, number, task.shape[-1])] for task in tasks]
                for tasks in agents
            )
        )

    size = sum(task.size for tasks in agents for task in tasks) if size is None else size
    low, high = estimators.bootstrap(resample, size, **bootstrap)
    runs = [task.shape[-1] for tasks in agents for task in tasks]
    if min(runs) < estimators.FEWEST:
        low, high = np.full_like(low, np.nan), np.full_like(high, np.nan)
    return Estimate(measure(*agents)[()], low[()], high[()], (min(runs), max(runs)), len(agents[0]))


def _draw_runs(generator: np.random.Generator, number: int, runs: int) -> np.ndarray:
    return generator.integers(runs, size=(number, runs))


def _check(scores: Mapping[str, Scores], ndim: int) -> dict[str, list[np.ndarray]]:
    """Each agent's scores by task, in the same order: [runs], or [runs, S] if `ndim` is 2."""
    if not scores:
        raise ValueError("there are no agents to compare: scores is empty.")
    shape = "[runs]" if ndim == 1 else "[runs, steps]"
    by_task: dict[str, dict[Any, np.ndarray]] = {}
    for agent, agent_scores in scores.items():
        if isinstance(agent_scores, Mapping):
            tasks = {task: np.asarray(values, np.float64) for task, values in agent_scores.items()}
        else:
            array = np.asarray(agent_scores, np.float64)
            if array.ndim != ndim + 1:
                expected = shape.replace("runs", "runs, tasks")
                raise ValueError(
                    f"the scores of '{agent}' have shape {array.shape}, they must be {expected}."
                )
            tasks = {task: array[:, task] for task in range(array.shape[1])}
        if not tasks:
            raise ValueError(f"the scores of '{agent}' are of no task.")
        for task, values in tasks.items():
            if values.ndim != ndim or not values.size:
                raise ValueError(
                    f"the scores of '{agent}' in task '{task}' have shape {values.shape}, "
                    f"they must be {shape}."
                )
            if not np.isfinite(values).all():
                raise ValueError(
                    f"a score of '{agent}' in task '{task}' is not finite. Leave that agent out, "
                    "or give diverged runs the score of their last good policy."
                )
        by_task[agent] = tasks
    first, reference = next(iter(by_task.items()))
    for agent, tasks in by_task.items():
        if only := tasks.keys() ^ reference.keys():
            raise ValueError(
                f"agents '{first}' and '{agent}' have scores of different tasks: {_listed(only)} "
                "of one alone. Compare agents over the tasks that all of them have."
            )
    return {agent: [tasks[task] for task in reference] for agent, tasks in by_task.items()}


def _listed(names: Iterable[Any]) -> str:
    return ", ".join(f"'{name}'" for name in sorted(map(str, names)))
