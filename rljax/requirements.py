"""Checks of an agent's settings: each raises `ValueError` that names the setting and says what it must be.

Agents call them as `agent.require_range` and so on. Those of environments are in `rljax.agent`.
"""

from __future__ import annotations

from typing import Any

import numpy as np


def require_range(config: Any, **ranges: tuple[float | None, float | None]) -> None:
    """Raise `ValueError` unless each named field (every value of a population) lies in its closed range."""
    for name, (low, high) in ranges.items():
        for value in np.ravel(getattr(config, name)):
            outside = (low is not None and value < low) or (high is not None and value > high)
            if outside or not np.isfinite(_single(value)):
                limits = f" and in [{low}, {high}]" if high is not None else f" and at least {low}" * (low is not None)
                raise ValueError(f"{_flag(name)} is {value:g}, it must be finite{limits}.")


def require_above(config: Any, **limits: float) -> None:
    """Raise `ValueError` unless each value of the named fields is finite and above its limit, or None."""
    for name, limit in limits.items():
        for value in np.ravel(getattr(config, name)):
            if value is not None and not (np.isfinite(_single(value)) and _single(value) > limit):
                raise ValueError(f"{_flag(name)} is {value:g}, it must be finite and above {limit}.")


def require_below(config: Any, **limits: float) -> None:
    """Raise `ValueError` unless each named field (every value of a population) is below its limit, also in float32."""
    for name, limit in limits.items():
        for value in np.ravel(getattr(config, name)):
            if not _single(value) < limit:
                raise ValueError(f"{_flag(name)} is {value:.9g}, it must be below {limit}.")


def require_order(config: Any, low: str, high: str) -> None:
    """Raise `ValueError` where the field `low` is above the field `high`, for any learner; None is no limit."""
    lower, upper = getattr(config, low), getattr(config, high)
    if lower is not None and upper is not None and np.any(np.asarray(lower) > np.asarray(upper)):
        raise ValueError(f"{_flag(low)} is {lower}, it must not be above {_flag(high)} {upper}.")


def require_at_least(config: Any, **limits: int) -> None:
    """Raise `ValueError` unless each named integer field is at least its limit."""
    for name, limit in limits.items():
        if getattr(config, name) < limit:
            raise ValueError(f"{_flag(name)} is {getattr(config, name)}, it must be at least {limit}.")


def require_subset(min_critics: int | None, num_critics: int) -> None:
    """Raise `ValueError` unless `min_critics` is None or a number of the `num_critics` critics."""
    if min_critics is not None and not 1 <= min_critics <= num_critics:
        raise ValueError(
            f"--config.min-critics is {min_critics}, it must lie between 1 and --config.num-critics {num_critics}, or "
            "be None for all of them."
        )


def require_widths(config: Any, *names: str) -> None:
    """Raise `ValueError` unless each layer of the named fields has at least 1 unit."""
    for name in names:
        if min(getattr(config, name), default=1) < 1:
            raise ValueError(f"{_flag(name)} is {getattr(config, name)}: each layer has at least 1 unit.")


def _single(value: float) -> np.float32:
    """A value in float32, as programs compute with it: 1 - 1e-9 is 1 there, and 1e39 is infinite."""
    with np.errstate(over="ignore", under="ignore"):
        return np.float32(value)


def _flag(name: str) -> str:
    return f"--config.{name.replace('_', '-')}"
