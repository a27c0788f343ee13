"""Estimators and bootstrap intervals of one run's values.

None is NaN. All raise `ValueError` where there are no values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import ArrayLike

Statistic = Callable[..., Any]  # (values, axis=None) -> array without that axis

# Values that an interval needs. The percentile bootstrap of three ends at the smallest and the
# largest, which hold the median of any continuous distribution in 75 % of samples, and not in 95 %.
FEWEST = 5
_VALUES_AT_ONCE = 1_000_000  # resampled values in memory


def mean(values: ArrayLike, axis: int | None = None) -> Any:
    """Mean along `axis`, or of all values."""
    values = _nonempty(values, axis)
    with np.errstate(invalid="ignore"):
        return values.mean(axis=axis)


def iqm(values: ArrayLike, axis: int | None = None, counts: ArrayLike | None = None) -> Any:
    """Interquartile mean along `axis`, or of all values.

    It is the mean without the N // 4 lowest and highest of N values, and NaN where one is NaN.
    Whole numbers `counts` [N] say how often each value along the axis counts.

    Source: Agarwal et al., arXiv:2108.13264, section 4.3.
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
    return np.where(np.isnan(ordered[..., -1]), np.nan, middle)[()]


def frequency_averaged(returns: Sequence[float], holds: Sequence[int]) -> float:
    """The area under `returns` over ascending `holds`, by trapezoids, divided by their range.

    Divided by the largest known return, it is the score of arXiv:2410.08979.
    """
    if len(holds) == 1:
        return float(returns[0])
    widths, heights = np.diff(floats(holds)), floats(returns)
    return float((widths * (heights[:-1] + heights[1:]) / 2.0).sum() / widths.sum())


def interval(values: ArrayLike, statistic: Statistic = iqm) -> tuple[Any, Any]:
    """95 % bootstrap intervals (low, high), each [...], over the last axis of `values` [..., N].

    The bounds are NaN with fewer than `FEWEST` values, and where a value is not finite.
    """
    values = _nonempty(values, -1)
    number = values.shape[-1]
    known = np.isfinite(values).all(axis=-1) & (number >= FEWEST)
    finite = np.where(known[..., None], values, 0)

    def resample(generator: np.random.Generator, rows: int) -> np.ndarray:
        return statistic(finite[..., generator.integers(number, size=(rows, number))], axis=-1)

    low, high = bootstrap(resample, values.size)
    return np.where(known, low, np.nan)[()], np.where(known, high, np.nan)[()]


def bootstrap(
    resample: Callable[[np.random.Generator, int], np.ndarray],
    size: int,
    level: float = 0.95,
    resamples: int = 2000,
    seed: int = 0,
) -> tuple[np.ndarray, np.ndarray]:
    """The bounds (low, high), each [...], of the share `level` of resampled statistics.

    `resample(generator, number)` returns the statistics [..., number] of so many samples of `size`
    values with replacement.

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


def floats(values: ArrayLike) -> np.ndarray:
    """The values as float64."""
    return np.asarray(values, np.float64)


def _nonempty(values: ArrayLike, axis: int | None) -> np.ndarray:
    values = floats(values)
    if values.size == 0 or values.ndim == 0:
        raise ValueError(
            f"values has shape {values.shape}, a statistic needs one value or more along "
            f"axis {axis}."
        )
    return values
