"""Settings that change during training."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Protocol

import numpy as np

from rljax.learning import configuration
from rljax.learning.settings import Settings

Values = Mapping[str, Sequence[float]]  # settings by name, one value per learner

BROKEN = -1e9  # a policy's value beyond a limit, times 1 plus its excess


def constrained(value: float, sums: Mapping[str, float], most: Mapping[str, float]) -> float:
    """A policy's value: its return, or beyond a limit a number below all returns.

    `sums` are means of signals per episode, `most` their limits. The number falls with the sum of
    all excesses, as shares of their limits.
    """
    excess = sum(
        max(0.0, sums[name] - limit) / max(abs(limit), 1.0) for name, limit in most.items()
    )
    return BROKEN * (1.0 + excess) if excess else value


@dataclasses.dataclass(frozen=True)
class Change:
    """The changes at one step."""

    values: dict[str, list[float]]  # settings by name, one value per learner [P]
    parents: np.ndarray  # [P] whose agent each learner continues, perhaps its own


class SettingsSchedule(Protocol):
    """Says when settings change, and to which values."""

    @property
    def limits(self) -> Mapping[str, float]:
        """Limits on means of signals per episode: see `constrained`."""
        ...

    def change(self, step: int, scores: np.ndarray, values: Values) -> Change | None:
        """The change after `step` for learners with these scores [P], if any."""
        ...


@dataclasses.dataclass(frozen=True)
class PopulationBased:
    """Population-based training: the worst learners go on from the best ones.

    Every `every` steps, by the last evaluation, each of the worst `share` takes over agent and
    settings of a learner drawn from the best `share`. Each setting is multiplied by one of
    `factors` and clipped to its range.

    Source: Jaderberg et al., arXiv:1711.09846, sections 3 and 4.1.
    """

    ranges: Mapping[str, tuple[float, float]]  # settings that change: lowest and highest value
    every: int  # steps; rounded up to a multiple of those between evaluations
    share: float = 0.2
    factors: tuple[float, float] = (0.8, 1.2)
    seed: int = 0
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def check(self, varied: Collection[str]) -> None:
        """Raise `ValueError` for a small `every` or a setting not `varied`."""
        if self.every < 1:
            raise ValueError(
                f"settings are to change every {self.every} steps, it must be at least 1."
            )
        for name in self.ranges:
            if name not in varied:
                raise ValueError(
                    f"population-based training changes '{name}', so each learner needs its "
                    "own value of it."
                )

    def change(self, step: int, scores: np.ndarray, values: Values) -> Change | None:
        """Exploit and explore, after every `every` steps."""
        if step % self.every:
            return None
        number = len(scores)
        generator = np.random.Generator(np.random.PCG64([self.seed, step]))
        ranked = np.argsort(np.nan_to_num(scores, nan=-np.inf), kind="stable")
        size = min(max(1, round(self.share * number)), number // 2)
        best, worst = ranked[number - size :], ranked[:size]
        parents = np.arange(number)
        parents[worst] = generator.choice(best, size)
        changed = {}
        for name, value in values.items():
            new = np.asarray(value, np.float64)[parents]
            if name in self.ranges:
                perturbed = new[worst] * generator.choice(self.factors, size)
                new[worst] = np.clip(perturbed, *self.ranges[name])
            changed[name] = new.tolist()
        return Change(changed, parents)


def scores(
    schedule: SettingsSchedule, returns: np.ndarray, signals: Mapping[str, np.ndarray]
) -> np.ndarray:
    """The learners' `constrained` mean returns [P], by `signals` per episode, [P] each."""
    limits = schedule.limits
    sums = [{name: float(signals[name][p]) for name in limits} for p in range(len(returns))]
    pairs = zip(returns, sums, strict=True)
    return np.array([constrained(float(value), totals, limits) for value, totals in pairs])


@dataclasses.dataclass(frozen=True)
class Piecewise:
    """Settings of all learners after given steps."""

    changes: Sequence[tuple[int, Mapping[str, float]]]
    limits: Mapping[str, float] = dataclasses.field(default_factory=dict)

    def change(self, step: int, scores: np.ndarray, values: Values) -> Change | None:
        """The new settings after `step`, if they change."""
        number = len(scores)
        for when, settings in self.changes:
            if when == step:
                values = {name: [value] * number for name, value in settings.items()}
                return Change(values, np.arange(number))
        return None


def in_steps(module: Any, config: Any, settings: Settings) -> Any:
    """`config` with shares of the run in steps and updates."""
    steps = float(settings.steps)
    changed = configuration.replace(config, settings.online or {}, "--online")
    online = module.experience(changed).online if settings.then_online else None
    if online is not None:
        online.check_numbers()
        steps += settings.then_online * online.num_updates / online.steps_per_iteration
    if hasattr(module, "schedule"):
        config = module.schedule(config, steps)
    if hasattr(config, "in_run"):
        config = config.in_run(module.experience(config).updates(steps))
    return config


def differences(module: Any, config: Any, before: Settings, after: Settings) -> list[str]:
    """Settings that follow the run's new length: "decay_steps 1,000 -> 2,000"."""
    old, new = (in_steps(module, config, settings) for settings in (before, after))
    names = [field.name for field in dataclasses.fields(config)]
    pairs = [(name, np.ravel(getattr(old, name)), np.ravel(getattr(new, name))) for name in names]
    return [
        f"{name} {left[0]:,.0f} -> {right[0]:,.0f}"
        for name, left, right in pairs
        if (left != right).any()
    ]


def schedule(described: Mapping[str, Any] | None) -> SettingsSchedule | None:
    """The schedule of JSON: {"schedule": [[step, settings]]} or `PopulationBased`."""
    if described is None:
        return None
    if "schedule" in described:
        return Piecewise([(step, dict(settings)) for step, settings in described["schedule"]])
    ranges = {name: (low, high) for name, (low, high) in described["ranges"].items()}
    factors = tuple(described.get("factors", PopulationBased.factors))
    return PopulationBased(**{**described, "ranges": ranges, "factors": factors})


def schedule_of_learner(
    learner: int, initial: Values, changes: Iterable[Mapping[str, Any]]
) -> list[tuple[int, dict[str, float]]]:
    """The settings over time that led to a learner's final agent: those of its ancestors.

    `initial` has all learners' settings at step 0. `changes` are a run's records, in order.
    """
    entries: list[tuple[int, dict[str, float]]] = []
    for change in reversed(list(changes)):
        entries.append(
            (change["step"], {name: values[learner] for name, values in change["values"].items()})
        )
        learner = change["parents"][learner]
    entries.append((0, {name: values[learner] for name, values in initial.items()}))
    entries.reverse()
    return entries[:1] + [new for old, new in pairwise(entries) if new[1] != old[1]]


def _end_of_learning(module: Any, config: Any, settings: Settings) -> float:
    until = module.experience(in_steps(module, config, settings)).learns_until
    return np.inf if until is None else float(np.min(until))


def early_end(module: Any, config: Any, settings: Settings) -> str | None:
    """A warning where the learning rate is 0 before the last twentieth of the run."""
    until = _end_of_learning(module, config, settings)
    if settings.then_online or until > 0.95 * settings.steps:
        return None
    return (
        f"the learning rate of '{settings.agent}' falls to 0 at step {until:,.0f}, and the "
        f"run has {settings.steps:,} steps: nothing is learnt after it. The setting behind "
        f"this: {configuration.flags_behind(module, config, 'learns_until')}."
    )


def require_rate(module: Any, config: Any, settings: Settings) -> None:
    """Raise `ValueError` where the learning rate falls to 0 before the online stage ends."""
    until = _end_of_learning(module, config, settings)
    if until < settings.steps + settings.then_online:
        raise ValueError(
            f"the actor's learning rate of '{settings.agent}' falls to 0 at update {until:,.0f}, "
            f"before the end of {settings.steps:,} updates and {settings.then_online:,} steps "
            "online, after which it would learn nothing. Train it from the first update on with a "
            "rate that does not fall to 0, "
            f"by {configuration.flags_behind(module, config, 'learns_until')}."
        )
