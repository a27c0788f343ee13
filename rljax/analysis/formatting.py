"""Numbers, steps, settings and lists of names as text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from rljax.analysis.comparison import Estimate
from rljax.trust import printable


def quoted(names: Iterable[Any]) -> str:
    """Names in quotes, with commas; control characters as escapes."""
    return ", ".join(f"'{printable(name)}'" for name in names)


def distinct(values: Iterable[Any]) -> list[str]:
    """Different values as text, in order, without empty ones."""
    return [printable(value) for value in dict.fromkeys(values) if value]


def count(number: int, unit: str) -> str:
    """A number with its unit, in the plural for all but 1."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def steps(number: int) -> str:
    """A number of steps with three digits, such as 300k."""
    if number >= 999_500:
        return f"{number / 1e6:.3g}M"
    return f"{number / 1e3:.3g}k" if number >= 1000 else str(number)


def seconds(value: float) -> str:
    """A time as seconds, minutes or hours."""
    if value < 100:
        return f"{value:.0f} s"
    return f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def decimals(values: np.ndarray) -> int:
    """The number of decimals for numbers of this size."""
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 1 else 4


def number(value: float, places: int) -> str:
    """A number with `places` decimals, and commas between thousands."""
    return f"{value:,.{places}f}"


def plain(value: float) -> str:
    """A number with four digits."""
    return f"{value:,.4g}" if abs(value) < 1e6 else f"{value:.3g}"


def interval(estimate: Estimate, places: int) -> str:
    """The interval of an estimate, as "low to high"."""
    if not np.isfinite(estimate.low):
        return "no interval"
    return f"{number(estimate.low, places)} to {number(estimate.high, places)}"


def span(low: Any, high: Any) -> str:
    """Two values as "low to high", or one where both are the same."""
    return str(low) if low == high else f"{low} to {high}"


def seeds(numbers: list[int]) -> str:
    """Seeds as a list, or "0 to 4" where more than two are consecutive."""
    first, last = numbers[0], numbers[-1]
    consecutive = len(numbers) > 2 and list(numbers) == list(range(first, last + 1))
    return f"{first} to {last}" if consecutive else ", ".join(map(str, numbers))


def setting(value: Any) -> str:
    """A hyperparameter's value, as in the label of a row."""
    if isinstance(value, list):
        return ",".join(map(setting, value))
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return f"{value:g}" if is_number else printable(value).lower()
