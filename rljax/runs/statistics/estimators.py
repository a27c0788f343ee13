"""Estimators of the values of one run, and their bootstrap intervals.

Which of several agents is better over tasks: `rljax.analysis.comparison`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[..., Any]  # (values, axis=None) -> array without that axis

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
            ordered = np.take_along_axis(values, order, -1)
            cumulative = np.cumsum(np.asarray(counts)[order], axis=-1)
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
    low, high = intervals(units, statistic, level, resamples, seed)
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


def intervals(
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


def floats(values: ArrayLike) -> np.ndarray:
    """The values as float64; None, which stands in JSON for a number that is not finite, is NaN."""
    return np.asarray(values, np.float64)


def _nonempty(values: ArrayLike, axis: int | None) -> np.ndarray:
    values = floats(values)
    if values.size == 0 or values.ndim == 0:
        raise ValueError(
            f"values has shape {values.shape}, a statistic needs one value or more along "
            f"axis {axis}."
        )
    return values
