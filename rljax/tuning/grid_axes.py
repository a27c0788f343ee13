"""The axes of a grid: settings with their values."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.learning import configuration
from rljax.learning.settings import MOST_LEARNERS


def parse(texts: Sequence[str], config: Any) -> dict[str, tuple[Any, ...]]:
    """Read axes written as "config.actor-lr=1e-4,3e-4"; return the settings' names and values.

    Raises `ValueError` for an unknown name, a wrong value, and an axis or a value given twice.
    """
    axes: dict[str, tuple[Any, ...]] = {}
    for text in texts:
        field, equals, values = text.partition("=")
        name = configuration.setting(config, field.removeprefix("config.").replace("-", "_"))
        if not equals or not values or not field.startswith("config."):
            raise ValueError(
                f"--grid {text}: write a setting and its values, such as config.actor-lr=1e-4,3e-4."
            )
        if name in axes:
            raise ValueError(f"--grid {field} is given twice: write all its values in one list.")
        axes[name] = tuple(
            configuration.parse(config, name, value, f"--grid {field}")
            for value in values.split(",")
        )
        if len(set(axes[name])) < len(axes[name]):
            raise ValueError(f"--grid {text}: a value is given twice.")
    return axes


def points(axes: Mapping[str, Sequence[Any]]) -> list[dict[str, Any]]:
    """All combinations of the axes' values; the last axis varies fastest.

    Raises `ValueError` for more than `MOST_LEARNERS`.
    """
    number = math.prod(map(len, axes.values()))
    if number > MOST_LEARNERS:
        raise ValueError(
            f"--grid asks for {number:,} combinations, there must be at most {MOST_LEARNERS:,}."
        )
    return [dict(zip(axes, values, strict=True)) for values in itertools.product(*axes.values())]
