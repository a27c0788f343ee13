"""Summaries of the evaluations of one run: the final and the best ones, expected bests, curves.

The unit of every statement about an agent is the learner (one seed), not the episode. All episodes
of one learner use the same weights, so that they do not show how another seed would perform. Each
learner therefore counts once, with the mean of its episodes, and a single learner has no interval
over learners.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax.runs.statistics.estimators import Statistic, floats, interval, intervals, iqm, mean

Record = Mapping[str, Any]  # one evaluation of one learner: a line of evaluations.jsonl
Records = Mapping[Hashable, Mapping[int, Record]]  # by learner and step


def summarise(evaluations: Sequence[Record]) -> dict[str, Any]:
    """The `final` and `best` entries of a run's summary, ready for JSON.

    `evaluations` has one record per learner and evaluation: `step, learner, seed, returns` and,
    where the environment has them, `scores`, `success` and `signals`, lists by name. All lists have
    one value per episode.

    Each entry has `step` (environment steps of each learner), `mean`, `iqm` (of the learners' mean
    returns), `interval` ([low, high], the 95 % bootstrap interval of that IQM over learners),
    `score`, `success` (means) and `learners`. That list has `learner, seed, step` for each learner,
    and the same five numbers over its episodes. A number that does not exist is None: the interval
    of a single learner or episode, a score or success that the environment does not give, and
    anything computed from a return that is not finite. Where the environment gives signals, an
    entry has `signals`, too: by name the mean over learners of the sums over episodes.

    `final` is the last step at which every learner was evaluated. `best` is the step with the
    highest mean over learners; in its list each learner has its own best step. Of equal steps the
    earlier one is taken. A maximum over noisy evaluations is optimistic: compare agents by `final`.
    Both are None before the first evaluation.
    """
    table = _by_learner(evaluations)
    shared = (
        sorted(set.intersection(*(set(records) for records in table.values()))) if table else []
    )
    if not shared:
        return {"final": None, "best": None}
    means = {
        learner: {step: _mean_return(record) for step, record in records.items()}
        for learner, records in table.items()
    }
    best = _highest(
        {step: float(mean([returns[step] for returns in means.values()])) for step in shared}
    )
    best_steps = {learner: _highest(returns) for learner, returns in means.items()}
    last = shared[-1]
    return {
        "final": _summary_entry(table, last, {learner: last for learner in table}),
        "best": _summary_entry(table, best, best_steps),
    }


# Name in a summary: field of a record.
FIELDS = {"return": "returns", "score": "scores", "success": "success"}


def last_three(evaluations: Sequence[Record]) -> dict[str, float | None]:
    """The mean return, score and success over the learners' last three evaluations.

    The tables of OGBench and FQL show this mean. A score or success is left out where a learner
    lacks it. A number is None where a return behind it is not finite.
    """
    table = _by_learner(evaluations)
    recent = [list(records.values())[-3:] for records in table.values()]
    fields = {
        name: field
        for name, field in FIELDS.items()
        if all(record.get(field) for records in recent for record in records)
    }
    return {
        name: _finite_or_none(
            np.mean([np.mean([mean(record[field]) for record in records]) for records in recent])
        )
        for name, field in fields.items()
        if recent
    }


def expected_best(
    evaluations: Sequence[Record], field: str = "returns", numbers: Sequence[int] | None = None
) -> dict[int, float]:
    """The best policy to expect after n policies of a run were evaluated online:
    {n: expected best}, over learners.

    A learner has K evaluated policies, each with the mean x of its `field` ("returns", "scores" or
    "success"). The expected best is the mean, over all choices of n of these policies, of the best
    x among them. With the values in rising order it is sum_i x_i C(i - 1, n - 1) / C(K, n). n = 1
    gives the mean of all policies, n = K their maximum, which takes K online evaluations to find.
    The noise of the evaluations makes it optimistic. `numbers` are the n to report, by default 1,
    2, 5, 10, 20, ... and K.

    The result is empty where a learner lacks the field.

    Source: Kurenkov and Kolesnikov, Showing Your Offline Reinforcement Learning Work: Online
    Evaluation Budget Matters, arXiv:2110.04156.
    """
    table = _by_learner(evaluations)
    if not table or not all(
        record.get(field) for records in table.values() for record in records.values()
    ):
        return {}
    values = [
        np.sort([float(mean(floats(r[field]))) for r in records.values()])
        for records in table.values()
    ]
    most = min(len(rising) for rising in values)
    if numbers is None:
        round_ones = (digit * 10**power for power in range(7) for digit in (1, 2, 5))
        numbers = sorted({n for n in round_ones if n < most} | {most})
    expected = {}
    for n in numbers:
        each = [
            sum(
                math.comb(i, n - 1) / math.comb(len(rising), n) * rising[i]
                for i in range(n - 1, len(rising))
            )
            for rising in values
        ]
        expected[n] = float(np.mean(each))
    return expected


def learning_curve(
    evaluations: Sequence[Record], statistic: Statistic = mean, level: float = 0.95
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A learning curve with its interval: (steps, mean, low, high), each [S] float64.

    Of several learners each counts with its mean return, and the interval is over learners. The
    interval of a single learner is over its episodes. `mean` is the given statistic. `low` and
    `high` are NaN where there is no interval.

    Learners of several runs may be evaluated at different steps (`learner` may be any hashable
    name). The curve then has the union of their steps, within the range that all of them cover. A
    learner's values between its own steps are interpolated linearly. The arrays are empty where
    there is no such range.
    """
    table = _by_learner(evaluations)
    if len(table) != 1:
        learners = [
            (list(records), [_mean_return(record) for record in records.values()])
            for records in table.values()
        ]
        return curve_over_learners(learners, statistic, level)
    (records,) = table.values()
    samples = [floats(record["returns"]) for record in records.values()]
    bounds = np.array([interval(sample, statistic, level) for sample in samples])
    centre = np.array([statistic(sample) for sample in samples], np.float64)
    return np.array(list(records), np.float64), centre, bounds[:, 0], bounds[:, 1]


def curve_over_learners(
    learners: Sequence[tuple[ArrayLike, ArrayLike]],
    statistic: Statistic = mean,
    level: float = 0.95,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The curve of `learning_curve` over learners, each given as (steps, values), both [S],
    the steps ascending.

    `low` and `high` are NaN for a single learner, and where a value is not finite.
    """
    if not learners:
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    axes = [floats(steps) for steps, _ in learners]
    values = [floats(returns) for _, returns in learners]
    first = max(axis[0] for axis in axes)
    last = min(axis[-1] for axis in axes)
    steps = np.unique(np.concatenate(axes))
    steps = steps[(first <= steps) & (steps <= last)]
    if not len(steps):
        return steps, steps, steps, steps
    # [S, learners]
    samples = np.stack(
        [np.interp(steps, *curve) for curve in zip(axes, values, strict=True)], axis=1
    )
    return steps, statistic(samples, axis=1), *intervals(samples, statistic, level)


def _by_learner(evaluations: Sequence[Record]) -> Records:
    """Records by learner and step, both ascending.

    Of two records of the same evaluation the later one is kept.
    """
    table: dict[Hashable, dict[int, Record]] = {}
    for record in evaluations:
        table.setdefault(record["learner"], {})[record["step"]] = record
    return {learner: dict(sorted(table[learner].items())) for learner in sorted(table)}  # type: ignore[type-var]


def _summary_entry(table: Records, step: int, steps: Mapping[Hashable, int]) -> dict[str, Any]:
    """An entry of the summary: over learners at `step`,
    and for each learner at its step of `steps`.
    """
    records = [by_step[step] for by_step in table.values()]
    means = np.array([_mean_return(record) for record in records])
    return {
        "step": step,
        **_mean_iqm_interval(means),
        "score": _mean_of(records, "scores"),
        "success": _mean_of(records, "success"),
        **_mean_signals(records),
        "learners": [
            {
                "learner": record["learner"],
                "seed": record["seed"],
                "step": record["step"],
                **_mean_iqm_interval(floats(record["returns"])),
                "score": _mean_of([record], "scores"),
                "success": _mean_of([record], "success"),
                **_mean_signals([record]),
            }
            for record in (by_step[steps[learner]] for learner, by_step in table.items())
        ],
    }


def _mean_iqm_interval(values: np.ndarray) -> dict[str, Any]:
    low, high = (_finite_or_none(bound) for bound in interval(values))
    bounds = None if low is None or high is None else [low, high]
    return {
        "mean": _finite_or_none(mean(values)),
        "iqm": _finite_or_none(iqm(values)),
        "interval": bounds,
    }


def _mean_of(records: Sequence[Record], field: str) -> float | None:
    """The mean over learners of the mean over episodes; None where a learner lacks the field."""
    if not all(record.get(field) for record in records):
        return None
    return _finite_or_none(np.mean([mean(floats(record[field])) for record in records]))


def _mean_signals(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    """The entry `signals` of a summary, with those that all records have;
    empty where there are none.
    """
    shared = [
        name
        for name in records[0].get("signals") or {}
        if all(name in (r.get("signals") or {}) for r in records)
    ]
    each = [record["signals"] for record in records if shared]
    means = {
        name: _mean_of([{"sums": signals[name]} for signals in each], "sums") for name in shared
    }
    return {"signals": means} if means else {}


def shown(value: float | None) -> str:
    """A mean for users."""
    return "not finite" if value is None else f"{value:,.1f}"


def _highest(values: Mapping[int, float]) -> int:
    """The step of the highest value, the first one of equals.

    NaN counts as lower than all others.
    """
    return max(values, key=lambda step: -np.inf if np.isnan(values[step]) else values[step])


def _mean_return(record: Record) -> float:
    return float(mean(floats(record["returns"])))


def _finite_or_none(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def results(
    evaluations: Sequence[Record],
    settings: Sequence[tuple[Mapping[str, Any], Sequence[int]]],
    offline: bool,
) -> dict[str, Any]:
    """Summarise the evaluations of a run: over all learners, or for each of several `settings`.

    `settings` are pairs of values and the learners that have them. A run from data has the expected
    best, too.
    """

    def of(learners: Sequence[int]) -> dict[str, Any]:
        lines = [line for line in evaluations if line["learner"] in learners]
        summary: dict[str, Any] = summarise(lines) if lines else {"final": None, "best": None}
        summary = summary | {"last_three": last_three(lines)}
        return summary | _after_evaluations(lines) if offline else summary

    if len(settings) == 1:
        return of(settings[0][1])
    each = [
        {"values": dict(values), "learners": learners, **of(learners)}
        for values, learners in settings
    ]
    return {"final": None, "best": None, "settings": each}


def _after_evaluations(evaluations: Sequence[Record]) -> dict[str, Any]:
    """The expected best return and score where n policies are evaluated online and the best of them
    is chosen.
    """
    expected = {name: expected_best(evaluations, field) for name, field in FIELDS.items()}
    return {
        "expected_best": {
            name: {str(n): x for n, x in values.items()}
            for name, values in expected.items()
            if values
        }
    }
