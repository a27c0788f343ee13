"""Callbacks: functions of the events of a run, called between chunks, outside compiled programs.

A callback is any function of an event. One that remembers something gives it by `state`, and takes
it back by `restore`, so that a run that goes on from a checkpoint is the same. The classes here are
dataclasses, which `rljax resume` makes again from config.json.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from rljax import envs
from rljax.learning.settings import LARGEST
from rljax.runs.events.types import (
    BeginEvent,
    EndEvent,
    EvaluationEvent,
    Event,
    MetricsEvent,
)


class Callback(Protocol):
    """A function of an event."""

    def __call__(self, event: Event, /) -> Any:
        """Called once for each event, in order."""


@runtime_checkable
class Remembers(Protocol):
    """A callback whose state belongs to checkpoints."""

    def state(self) -> Any:
        """What it remembers, ready for JSON."""

    def restore(self, state: Any, /) -> None:
        """Go on from what `state` returned."""


@dataclasses.dataclass
class StopAtReturn:
    """Ends a run once the mean return of an evaluation, over all learners, is `value`."""

    value: float

    def __call__(self, event: Event) -> None:
        """Stop the run where it is good enough."""
        if isinstance(event, EvaluationEvent) and event.returns.mean() >= self.value:
            event.run.stop(f"the mean return has reached {self.value:,g}")


@dataclasses.dataclass
class StopAtSuccess:
    """Ends a run once a `share` of an evaluation's episodes, over all learners, succeeds."""

    share: float

    def __call__(self, event: Event) -> None:
        """Stop the run where it is good enough. Raises `ValueError` without success."""
        if not isinstance(event, EvaluationEvent):
            return
        if event.success is None:
            raise ValueError("StopAtSuccess: the environment reports no success.")
        if event.success.mean() >= self.share:
            event.run.stop(f"the share of successes has reached {self.share:g}")


@dataclasses.dataclass
class StopWithoutImprovement:
    """Ends a run after `evaluations` evaluations in a row whose mean return, over all learners, is
    not above the best one by more than `least`.
    """

    evaluations: int
    least: float = 0.0

    def __post_init__(self) -> None:
        self._best, self._waited = -math.inf, 0

    def __call__(self, event: Event) -> None:
        """Count evaluations without a better return."""
        if not isinstance(event, EvaluationEvent):
            return
        mean = float(event.returns.mean())
        improves = mean > self._best + self.least
        self._best, self._waited = (mean, 0) if improves else (self._best, self._waited + 1)
        if self._waited >= self.evaluations:
            event.run.stop(f"no better return in {self.evaluations} evaluations")

    def state(self) -> Any:
        """The best mean return, and the evaluations since then."""
        return [None if math.isinf(self._best) else self._best, self._waited]

    def restore(self, state: Any) -> None:
        """Go on from `state`."""
        best, self._waited = state
        self._best = -math.inf if best is None else best


@dataclasses.dataclass
class StopAfter:
    """Ends a run after `seconds` in all, whatever it has reached."""

    seconds: float

    def __call__(self, event: Event) -> None:
        """Stop the run when its time is over."""
        if isinstance(event, MetricsEvent) and event.run.seconds() >= self.seconds:
            event.run.stop(f"{self.seconds:,g} seconds are over")


@dataclasses.dataclass
class EvaluateIn:
    """Plays `episodes` episodes in a second environment after each evaluation.

    The line of metrics gets `evaluation/ENV/return` and `evaluation/ENV/length`.
    """

    env: str
    episodes: int = 10

    def __post_init__(self) -> None:
        self._evaluator: Any = None

    def __call__(self, event: Event) -> None:
        """Play, and add the means. Raises what making the environment raises."""
        if isinstance(event, BeginEvent):
            self._evaluator = event.run.evaluator(self.env, self.episodes)
        elif isinstance(event, EvaluationEvent):
            played = event.run.evaluate(self._evaluator, self.episodes)
            columns = {"return": played.returns, "length": played.lengths}
            if played.success is not None:
                columns["success"] = played.success
            name = f"evaluation/{envs.short(self.env)}"
            event.run.add_metrics(
                {f"{name}/{key}": np.mean(x, axis=1).tolist() for key, x in columns.items()}
            )
        elif isinstance(event, EndEvent):
            self._evaluator.close()


@dataclasses.dataclass
class FilmEvery:
    """Films an episode of the first learner after the first evaluation in each `steps` steps.

    The files are films/STEP.mp4 in the run's folder.
    """

    steps: int

    def __post_init__(self) -> None:
        self._next = 0

    def __call__(self, event: Event) -> None:
        """Film where it is time. Raises `ValueError` at once where it cannot."""
        from rljax.runs.policies import videos

        if isinstance(event, BeginEvent):
            videos.require_pictures(event.run.environment)
        elif isinstance(event, EvaluationEvent) and event.step >= self._next:
            path = Path(event.run.folder, "films", f"{event.step:012d}.mp4")
            videos.film(event.run.policies(), path)
            event.run.films.append((path, event.step))
            self._next = (event.step // self.steps + 1) * self.steps

    def state(self) -> Any:
        """The step of the next film."""
        return self._next

    def restore(self, state: Any) -> None:
        """Go on from `state`."""
        self._next = state


READY = (StopAtReturn, StopAtSuccess, StopWithoutImprovement, StopAfter, EvaluateIn, FilmEvery)


def name_of(part: Any) -> str:
    """The name of a callback or logger, for config.json."""
    kind = part if hasattr(part, "__qualname__") else type(part)
    return f"{kind.__module__}.{kind.__qualname__}"


def described(parts: Sequence[Any], ready: Sequence[type]) -> list[dict[str, Any]]:
    """Callbacks or loggers for config.json: with their settings where they are one of `ready`."""
    return [
        {
            "name": type(part).__name__ if type(part) in ready else name_of(part),
            "settings": dataclasses.asdict(part) if type(part) in ready else None,
        }
        for part in parts
    ]


def made_again(
    entries: Sequence[Mapping[str, Any]], parts: Sequence[Any], ready: Sequence[type], what: str
) -> list[Any]:
    """The callbacks or loggers of a run that goes on: `parts`, or without any those that its
    `entries` in config.json describe.

    Raises `ValueError` where the run began with others than `parts`, or with some that cannot be
    made.
    """
    names = [entry["name"] for entry in entries]
    if parts:
        present = [entry["name"] for entry in described(parts, ready)]
        if present != names:
            raise ValueError(
                f"this run began with the {what} {', '.join(names) or 'none'}, and goes on with "
                f"{', '.join(present)}: give the same ones, in the same order."
            )
        return list(parts)
    classes = {kind.__name__: kind for kind in ready}
    for entry in entries:
        if entry["settings"] is None or entry["name"] not in classes:
            raise ValueError(
                f"this run has {what} of Python ({', '.join(names)}): go on from Python, "
                f"rljax.resume(folder, {what}=[...])."
            )
    return [classes[entry["name"]](**entry["settings"]) for entry in entries]


def check(callbacks: Sequence[Any]) -> None:
    """Raise `TypeError` for callbacks that are no functions, and `ValueError` for settings of
    ready ones that are out of range.
    """
    for callback in callbacks:
        if not callable(callback) or isinstance(callback, type):
            raise TypeError(
                f"a callback is {callback!r}, it must be a function of an event, or an object such "
                "as rljax.callbacks.StopAtReturn(200)."
            )
        if isinstance(callback, StopWithoutImprovement | FilmEvery | StopAfter):
            (name, number), *_ = dataclasses.asdict(callback).items()
            if not 0 < number < LARGEST:
                raise ValueError(
                    f"{type(callback).__name__}: {name} is {number}, it must be above 0."
                )


def states(callbacks: Sequence[Any]) -> list[Any]:
    """What the callbacks remember; None for those that remember nothing."""
    return [each.state() if isinstance(each, Remembers) else None for each in callbacks]


def restore(callbacks: Sequence[Any], saved: Sequence[Any]) -> None:
    """Let the callbacks go on from the `states` in a checkpoint."""
    for each, state in zip(callbacks, saved, strict=False):
        if isinstance(each, Remembers):
            each.restore(state)
