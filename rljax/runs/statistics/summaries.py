"""Summaries of the evaluations of one run.

Each learner (one seed) counts once, with the mean of its episodes. Fewer than five learners have no
interval.
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

from rljax.runs.statistics.estimators import Statistic, floats, interval, iqm, mean

Record = Mapping[str, Any]  # one evaluation of one learner: a line of evaluations.jsonl
Records = Mapping[Hashable, Mapping[int, Record]]  # by learner and step


def summarise(evaluations: Sequence[Record]) -> dict[str, Any]:
    """The `final` and `best` entries of a run's summary, ready for JSON; None before evaluations.

    `rljax.runs.schema` has the records' fields; lists have a value per episode.

    An entry has `step`, the `mean`, `iqm` and `interval` ([low, high]) of docs/runs.md, `score` and
    `success` (means), perhaps `signals` (means of their sums over episodes by name), and
    `learners`: of each its `learner`, `seed`, `step`, and the same numbers over its episodes. A
    number is None where it does not exist, and from returns that are not finite.

    `final` is the last step at which every learner was evaluated. `best` is the first step with the
    highest mean over learners; each learner has its own.
    """
    table = _by_learner(evaluations)
    shared = sorted(set.intersection(*map(set, table.values()))) if table else []
    if not shared:
        return dict(EMPTY)
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


ESTIMATE = "value/initial"  # the metric of agents that estimate another policy's return
EMPTY = {"final": None, "best": None}
# Name in a summary: field of a record.
FIELDS = {"return": "returns", "score": "scores", "success": "success"}


def last_three(evaluations: Sequence[Record]) -> dict[str, float | None]:
    """The mean return, score and success over the learners' last three evaluations, as in tables of
    OGBench and FQL.

    Values that are not finite are None.
    """
    recent = [list(records.values())[-3:] for records in _by_learner(evaluations).values()]
    return {
        name: _finite_or_none(
            np.mean([np.mean([mean(record[field]) for record in records]) for records in recent])
        )
        for name, field in FIELDS.items()
        if recent and all(record.get(field) for records in recent for record in records)
    }


def expected_best(evaluations: Sequence[Record], field: str = "returns") -> dict[int, float]:
    """The best policy to expect of n evaluated online: {n: expected best}, the mean over learners.

    A learner has K policies, with means x of their `field` ("returns", "scores" or "success") in
    rising order. Over all choices of n, the mean of the best x is sum_i x_i C(i - 1, n - 1) / C(K,
    n); noise makes it optimistic. Empty where a learner lacks the field.

    Source: Kurenkov and Kolesnikov, arXiv:2110.04156.
    """
    table = _by_learner(evaluations)
    if not table or not all(r.get(field) for records in table.values() for r in records.values()):
        return {}
    values = [np.sort([mean(r[field]) for r in records.values()]) for records in table.values()]
    most = min(len(rising) for rising in values)
    numbers = {digit * 10**power for power in range(7) for digit in (1, 2, 5)}
    expected = {}
    for n in sorted(n for n in numbers | {most} if n <= most):
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
    evaluations: Sequence[Record], statistic: Statistic = mean
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """A learning curve with its interval: (steps, statistic, low, high), each [S] float64.

    A single learner's interval is over its episodes.
    """
    table = _by_learner(evaluations)
    if len(table) != 1:
        learners = [
            (list(records), [_mean_return(record) for record in records.values()])
            for records in table.values()
        ]
        return curve_over_learners(learners, statistic)
    (records,) = table.values()
    samples = [floats(record["returns"]) for record in records.values()]
    bounds = np.array([interval(sample, statistic) for sample in samples])
    centre = np.array([statistic(sample) for sample in samples], np.float64)
    return np.array(list(records), np.float64), centre, bounds[:, 0], bounds[:, 1]


def curve_over_learners(
    learners: Sequence[tuple[ArrayLike, ArrayLike]],
    statistic: Statistic = mean,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """The curve (steps, statistic, low, high), each [S], over learners: (steps, values), ascending.

    It has the union of their steps, within the range that all of them cover; values between a
    learner's steps are interpolated linearly. The arrays are empty without such a range. `low` and
    `high` are NaN where those of `estimators.interval` are.
    """
    curves = [(floats(steps), floats(values)) for steps, values in learners]
    if not curves or not all(len(axis) for axis, _ in curves):
        return np.empty(0), np.empty(0), np.empty(0), np.empty(0)
    first = max(axis[0] for axis, _ in curves)
    last = min(axis[-1] for axis, _ in curves)
    steps = np.unique(np.concatenate([axis for axis, _ in curves]))
    steps = steps[(first <= steps) & (steps <= last)]
    if not len(steps):
        return steps, steps, steps, steps
    samples = np.stack([np.interp(steps, *curve) for curve in curves], axis=1)  # [S, learners]
    return steps, statistic(samples, axis=1), *interval(samples, statistic)


def estimate(metrics: Sequence[Record]) -> dict[str, Any] | None:
    """The last `ESTIMATE` of each learner in lines of metrics, and their mean; None without one."""
    last: dict[int, float] = {}
    for line in metrics:
        values = line.get(ESTIMATE)
        if isinstance(values, list):
            last |= {learner: x for learner, x in enumerate(values) if x is not None}
    if not last:
        return None
    learners = [last.get(learner) for learner in range(max(last) + 1)]
    return {"mean": float(mean(list(last.values()))), "learners": learners}


def _by_learner(evaluations: Sequence[Record]) -> Records:
    table: dict[Hashable, dict[int, Record]] = {}
    for record in evaluations:
        table.setdefault(record["learner"], {})[record["step"]] = record
    return {learner: dict(sorted(table[learner].items())) for learner in sorted(table)}  # type: ignore[type-var]


def _summary_entry(table: Records, step: int, steps: Mapping[Hashable, int]) -> dict[str, Any]:
    """A summary's entry over learners at `step`, with each one's at its `steps`."""
    records = [by_step[step] for by_step in table.values()]
    return {
        "step": step,
        **_means([_mean_return(record) for record in records], records),
        "learners": [
            {
                **{name: record[name] for name in ("learner", "seed", "step")},
                **_means(record["returns"], [record]),
            }
            for record in (by_step[steps[learner]] for learner, by_step in table.items())
        ],
    }


def _means(returns: Sequence[float], records: Sequence[Record]) -> dict[str, Any]:
    low, high = (_finite_or_none(bound) for bound in interval(returns))
    return {
        "mean": _finite_or_none(mean(returns)),
        "iqm": _finite_or_none(iqm(returns)),
        "interval": None if low is None or high is None else [low, high],
        "score": _mean_of(records, "scores"),
        "success": _mean_of(records, "success"),
        **_mean_signals(records),
    }


def _mean_of(records: Sequence[Record], field: str) -> float | None:
    """The mean over learners of episodes' means; None if one lacks the field."""
    if not all(record.get(field) for record in records):
        return None
    return _finite_or_none(np.mean([mean(record[field]) for record in records]))


def _mean_signals(records: Sequence[Record]) -> dict[str, dict[str, float | None]]:
    each = [record.get("signals") or {} for record in records]
    means = {name: _mean_of(each, name) for name in each[0] if all(name in sums for sums in each)}
    return {"signals": means} if means else {}


def signals_text(entry: Mapping[str, Any], cost_limit: float | None = None) -> str:
    """The means of signals in an entry of a summary, for users; that of "cost" with its limit."""
    texts = []
    for name, value in entry.get("signals", {}).items():
        texts.append(f", {name} not finite" if value is None else f", {name} {value:,.1f}")
        if name == "cost" and cost_limit is not None and value is not None:
            where = "above" if value > cost_limit else "within"
            texts.append(f" ({where} its limit of {cost_limit:,g})")
    return "".join(texts)


def _highest(values: Mapping[int, float]) -> int:
    return max(values, key=lambda step: -np.inf if np.isnan(values[step]) else values[step])


def _mean_return(record: Record) -> float:
    return float(mean(record["returns"]))


def _finite_or_none(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def results(
    evaluations: Sequence[Record],
    settings: Sequence[tuple[Mapping[str, Any], Sequence[int]]],
    offline: bool,
) -> dict[str, Any]:
    """The evaluations' part of a run's summary: over all learners, or for each of several
    `settings`, pairs of values and their learners.
    """

    def of(learners: Sequence[int]) -> dict[str, Any]:
        lines = [line for line in evaluations if line["learner"] in learners]
        summary = summarise(lines) | {"last_three": last_three(lines)}
        if offline:
            expected = {name: expected_best(lines, field) for name, field in FIELDS.items()}
            summary["expected_best"] = {
                name: {str(n): x for n, x in values.items()}
                for name, values in expected.items()
                if values
            }
        return summary

    if len(settings) == 1:
        return of(settings[0][1])
    each = [
        {"values": dict(values), "learners": learners, **of(learners)}
        for values, learners in settings
    ]
    return EMPTY | {"settings": each}
