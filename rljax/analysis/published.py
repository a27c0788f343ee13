"""Published results, from scripts/results/published.py.

A point's `note` describes its protocol.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import re
from pathlib import Path
from typing import Any

FILE = Path(__file__).parent / "published.csv"


@dataclasses.dataclass(frozen=True)
class Point:
    """One published number: the mean over seeds at one step, and their standard deviation."""

    task: str  # as `task_of` names our environments and data sets
    agent: str  # the name of the algorithm in this repository
    environment: str  # as published, with its version
    metric: str  # "return", or "score": normalised, 100 for the reference policy of its data set
    # environment steps, or updates from a data set; None where the source does not say
    step: int | None
    mean: float
    std: float | None  # None where none was published
    seeds: int
    source: str  # repository@commit
    note: str


def task_of(environment: str, data: str | None = None) -> str:
    """A task's published name: the environment without its version, or the data set with it."""
    if data is None:
        return re.sub(r"-v\d+$", "", environment.rpartition("/")[2])
    return re.sub(r"\.(hdf5|h5|npz)$", "", data.rpartition("/")[2])


def points(agent: str, task: str, metric: str, step: int) -> list[Point]:
    """For each source of an agent in a task, the point nearest to `step`.

    Points at less than half or more than twice of `step` are left out.
    """
    nearest: dict[tuple[str, str], Point] = {}
    for point in _of(agent, task, metric):
        distance = 0 if point.step is None else abs(point.step - step)
        if point.step is None or step / 2 <= point.step <= 2 * step:
            known = nearest.setdefault((point.source, point.environment), point)
            if known.step is not None and distance < abs(known.step - step):
                nearest[point.source, point.environment] = point
    return list(nearest.values())


def curve(agent: str, task: str, metric: str) -> list[Point]:
    """The points of the first source that has more than one, by their steps."""
    by_source: dict[tuple[str, str], list[Point]] = {}
    for point in _of(agent, task, metric):
        by_source.setdefault((point.source, point.environment), []).append(point)
    first = next((points for points in by_source.values() if len(points) > 1), [])
    return sorted(first, key=lambda point: point.step or 0)


def reference(task: str) -> Point | None:
    """The published return that counts as 1 in a task: SAC's at 1M steps, if above 0."""
    of_sac = points("sac", task, "return", 1_000_000)
    return next((point for point in of_sac if point.mean > 0), None)


def _of(agent: str, task: str, metric: str) -> list[Point]:
    return [
        point
        for point in _table()
        if (point.agent, point.task, point.metric) == (agent, task, metric)
    ]


@functools.cache
def _table() -> tuple[Point, ...]:
    with FILE.open(newline="", encoding="utf-8") as file:
        return tuple(_point(row) for row in csv.DictReader(file))


def _point(row: dict[str, Any]) -> Point:
    step = int(row["step"]) if row["step"] else None
    std = float(row["std"]) if row["std"] else None
    return Point(
        **row | {"step": step, "mean": float(row["mean"]), "std": std, "seeds": int(row["seeds"])}
    )
