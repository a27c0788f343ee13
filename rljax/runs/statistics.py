"""How good are the policies of one run?

Statistics of its evaluations, and their bootstrap intervals.

Which of several agents is better over tasks: `rljax.analysis.comparison`.

The unit of every statement about an agent is the learner (one seed), not the episode. All episodes
of one learner use the same weights, so that they do not show how another seed would perform. Each
learner therefore counts once, with the mean of its episodes, and a single learner has no interval
over learners.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[..., Any]  # (values, axis=None) -> array without that axis
Record = Mapping[str, Any]  # one evaluation of one learner: a line of evaluations.jsonl
Records = Mapping[Hashable, Mapping[int, Record]]  # by learner and step

_VALUES_AT_ONCE = 1_000_000  # resampled values that are in memory at the same time


def mean(values: ArrayLike, axis: int | None = None) -> Any:
    """Mean along `axis`, or of all values where it is None.

    Raises `ValueError` where there are no values.
    """
    values = _nonempty(values, axis)
    with np.errstate(invalid="ignore"):
        return values.mean(axis=axis)


def iqm(values: ArrayLike, axis: int | None = None, counts: ArrayLike | None = None) -> Any:
    """Interquartile mean along `axis`, or of all values where it is None.

    It is the mean of N values without the N // 4 lowest and the N // 4 highest. For fewer than 4
    values it is the mean of all. One value that is NaN makes the result NaN. `counts` [N] are whole
    numbers that say how often each value along the axis counts; by default each counts once.
    Raises `ValueError` where there are no values.

    Source: Agarwal et al., Deep Reinforcement Learning at the Edge of the Statistical Precipice,
    arXiv:2108.13264, section 4.3, trimmed as their library and
    `scipy.stats.trim_mean(values, 0.25)` do.
    """
    values = _nonempty(values, axis)
    values = values.ravel() if axis is None else np.moveaxis(values, axis, -1)
    with np.errstate(invalid="ignore"):
        if counts is None:
            ordered = np.sort(values, axis=-1)
            cut = ordered.shape[-1] // 4
            middle = ordered[..., cut : ordered.shape[-1] - cut].mean(axis=-1)
        else:
            order = np.argsort(values, axis=-1)
            ordered, cumulative = (
                np.take_along_axis(values, order, -1),
                np.cumsum(np.asarray(counts)[order], axis=-1),
            )
            total = cumulative[..., -1:]
            cut = total // 4
            weights = np.diff(np.clip(cumulative, cut, total - cut), axis=-1, prepend=cut)
            middle = (weights * ordered).sum(axis=-1) / weights.sum(axis=-1)
    return np.where(np.isnan(ordered[..., -1]), np.nan, middle)[()]  # sorting puts NaN last


def frequency_averaged(returns: Sequence[float], holds: Sequence[int]) -> float:
    """The frequency-averaged return: the mean of `returns` over the lengths `holds`, which ascend.

    It is the area under the returns, by trapezoids, divided by the range of lengths. Divided by the
    largest known return in the environment, it is the frequency-averaged score of Patel and
    Siegelmann, arXiv:2410.08979.
    """
    lengths = np.asarray(holds, np.float64)
    if len(lengths) == 1:
        return float(returns[0])
    widths, heights = np.diff(lengths), np.asarray(returns, np.float64)
    return float((widths * (heights[:-1] + heights[1:]) / 2.0).sum() / widths.sum())


def interval(
    values: ArrayLike,
    statistic: Statistic = iqm,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[float, float]:
    """Percentile bootstrap interval of a statistic; the same arguments give the same interval.

    Args:
        values: [N] values to resample, or [learners, episodes]. In the second case whole learners
            are resampled, each as the mean of its episodes, and the interval is over learners.
        statistic: `mean`, `iqm`, or any function of (values, axis).
        level: share of the resampled statistics that lies inside the interval, in (0, 1).
        resamples: number of samples drawn with replacement.
        seed: of the random generator.

    Returns:
        (low, high). Both are NaN for a single value (or learner), and where a value is not finite.
        With fewer than about 10 learners a percentile interval is narrower than its level promises.

    Raises:
        ValueError: no values, more than two axes, a level outside (0, 1), or no resamples.
    """
    values = _nonempty(values, None)
    if values.ndim not in (1, 2):
        raise ValueError(
            f"values has shape {values.shape}, an interval needs [N] or [learners, episodes]."
        )
    units = mean(values, axis=1) if values.ndim == 2 else values
    low, high = _intervals(units, statistic, level, resamples, seed)
    return float(low), float(high)


def bootstrap(
    resample: Callable[[np.random.Generator, int], np.ndarray],
    size: int,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The bounds (low, high), each [...], between which the share `level` of the resampled
    statistics lies.

    `resample(generator, number)` draws `number` samples and returns their statistics [..., number].
    `size` is the number of values in one sample: it decides how many samples are drawn at once.

    Raises `ValueError` for a level outside (0, 1), or no resamples.
    """
    if not 0 < level < 1:
        raise ValueError(f"level is {level:g}, it must lie between 0 and 1, for example 0.95.")
    if resamples < 1:
        raise ValueError(f"resamples is {resamples}, it must be at least 1; 2000 is usual.")
    generator = np.random.Generator(np.random.PCG64(seed))
    number = max(1, _VALUES_AT_ONCE // size)
    parts = [
        resample(generator, min(number, resamples - start)) for start in range(0, resamples, number)
    ]
    low, high = np.quantile(
        np.concatenate(parts, axis=-1), [(1 - level) / 2, (1 + level) / 2], axis=-1
    )
    return low, high


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
        np.sort([float(mean(_floats(r[field]))) for r in records.values()])
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
    samples = [_floats(record["returns"]) for record in records.values()]
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
    axes = [_floats(steps) for steps, _ in learners]
    values = [_floats(returns) for _, returns in learners]
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
    return steps, statistic(samples, axis=1), *_intervals(samples, statistic, level)


def _intervals(
    units: np.ndarray,
    statistic: Statistic,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """Intervals [...] over the last axis of `units` [..., N].

    Each resample draws the same units for all of them.
    """
    number = units.shape[-1]
    known = np.isfinite(units).all(axis=-1) & (number > 1)
    finite = np.where(known[..., None], units, 0)

    def resample(generator: np.random.Generator, rows: int) -> np.ndarray:
        return statistic(finite[..., generator.integers(number, size=(rows, number))], axis=-1)

    low, high = bootstrap(resample, units.size, level, resamples, seed)
    return np.where(known, low, np.nan), np.where(known, high, np.nan)


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
                **_mean_iqm_interval(_floats(record["returns"])),
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
    return _finite_or_none(np.mean([mean(_floats(record[field])) for record in records]))


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
    return float(mean(_floats(record["returns"])))


def _floats(values: ArrayLike) -> np.ndarray:
    # None, which stands for a number that is not finite in JSON, becomes NaN
    return np.asarray(values, np.float64)


def _finite_or_none(value: Any) -> float | None:
    return float(value) if np.isfinite(value) else None


def _nonempty(values: ArrayLike, axis: int | None) -> np.ndarray:
    values = _floats(values)
    if values.size == 0 or values.ndim == 0:
        raise ValueError(
            f"values has shape {values.shape}, a statistic needs one value or more along "
            f"axis {axis}."
        )
    return values


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
