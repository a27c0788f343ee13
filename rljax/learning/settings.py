"""The settings of a run, without its agent's hyperparameters."""

from __future__ import annotations

import contextlib
import dataclasses
import math
import typing
from collections.abc import Mapping, Sequence
from typing import Any

from rljax.learning import configuration

LARGEST = 10**18  # of whole numbers
MOST_LEARNERS = 1_000_000  # of one program
POOLED = "pooled"  # an offline share: draws from data set and new experience as one
WEIGHTS = {  # weights of a data set's rows, and the setting of each
    "uniform": None,
    "return": "weights_alpha",
    "advantage": "weights_alpha",
    "top": "weights_share",
}


@dataclasses.dataclass(frozen=True)
class Settings:
    """All settings of a run except the agent's hyperparameters.

    `rljax train --help` explains what has no comment here. Steps are each learner's environment
    steps, or updates from a data set alone.
    """

    agent: str
    env: str  # "none" for a data set without one
    steps: int = 1_000_000
    seeds: tuple[int, ...] = (0,)  # one learner per seed
    data: str | None = None
    then_online: int = 0
    offline_share: float | str = 0.5
    weights: str = "uniform"
    weights_alpha: float = 0.1
    weights_share: float = 0.1
    preset: str | None = None  # variant whose presets come after those of the environment
    without_updates: bool = False  # train although the run ends before its first update
    data_on_host: bool = False  # keep a data set that the device cannot hold in the host's memory
    log_every: int = 1_000  # steps between lines of metrics, and where Ctrl-C takes effect
    eval_every: int = 10_000
    eval_env: str | None = None
    eval_episodes: int = 10
    checkpoint_every: int | None = None
    keep_checkpoints: int = 2
    online: Mapping[str, Any] | None = None  # hyperparameters that change with `then_online`
    base: str | None = None
    from_run: str | None = None  # --from
    from_parts: tuple[str, ...] = ()
    schedule: Mapping[str, Any] | None = None  # see `rljax.learning.schedules.schedule`
    tensorboard: bool = False
    wandb: str | None = None
    wandb_group: str | None = None
    wandb_name: str | None = None
    wandb_tags: tuple[str, ...] = ()
    mlflow: str | None = None
    trackio: str | None = None
    chart_names: str = "rljax"

    @property
    def evaluated_in(self) -> str:
        """The environment that evaluations play in, or "none"."""
        return self.eval_env or self.env

    def __post_init__(self) -> None:
        for name, hint in typing.get_type_hints(Settings).items():
            if hint in (int, int | None):
                label = f"--{name.replace('_', '-')}"
                value = configuration.coerce(label, getattr(self, name), hint, LARGEST)
                object.__setattr__(self, name, value)
        seeds = tuple(configuration.integer(seed, "a seed", LARGEST) for seed in self.seeds)
        object.__setattr__(self, "seeds", seeds)
        for name in ("from_parts", "wandb_tags"):
            object.__setattr__(self, name, tuple(getattr(self, name)))


def settings_of(described: Mapping[str, Any]) -> Settings:
    """The `Settings` in a run's config.json."""
    names = [field.name for field in dataclasses.fields(Settings) if field.name in described]
    values: dict[str, Any] = {name: described[name] for name in names}
    values["seeds"] = tuple(described["seeds"])
    return Settings(**values)


def seeds_of(seeds: int | Sequence[int]) -> tuple[int, ...]:
    """The seeds 0, 1, ... of a number of learners, or the given seeds.

    Raises `ValueError` for more than `MOST_LEARNERS`.
    """
    if isinstance(seeds, Sequence):
        listed = seeds
    else:
        listed = range(configuration.integer(seeds, "seeds", LARGEST))
    # `len` of a long range fails
    number = listed.stop - listed.start if isinstance(listed, range) else len(listed)
    if number > MOST_LEARNERS:
        raise ValueError(
            f"--seeds asks for {number:,} learners, each with memory of its own: one program "
            f"trains at most {MOST_LEARNERS:,}."
        )
    return tuple(listed)


def check_settings(settings: Settings) -> None:
    """Raise `ValueError` for numbers out of range, and for settings that lack another."""
    if settings.then_online < 0:
        raise ValueError(f"--then-online is {settings.then_online}, it must be at least 0.")
    share_of(settings.offline_share)
    _check_weights(settings)
    for name in (
        "steps",
        "log_every",
        "eval_every",
        "eval_episodes",
        "checkpoint_every",
        "keep_checkpoints",
    ):
        value = getattr(settings, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} is {value}, it must be at least 1.")
    if settings.from_parts and settings.from_run is None:
        raise ValueError(
            "--from-parts names what learners take from the run of --from RUN: give both."
        )
    if settings.online and not settings.then_online:
        raise ValueError(
            "--online changes hyperparameters for the steps of --then-online N: give both."
        )
    if not settings.seeds:
        raise ValueError(
            "no seeds: give --seeds K for K learners, whose seeds begin with --seed S, by "
            "default 0."
        )
    if min(settings.seeds) < 0 or max(settings.seeds) >= 2**32:
        low, high = min(settings.seeds), max(settings.seeds)
        subject = f"the seed is {low}, it" if low == high else f"seeds are {low} to {high}, they"
        raise ValueError(f"{subject} must lie in [0, 2^32).")


def share_of(text: float | str) -> float | str | tuple[float, float, int]:
    """The share of the data set in batches: a number in [0, 1), "pooled", or "A:B:N" as (A, B, N).

    The last goes linearly from A to B over N new transitions of each learner. Raises `ValueError`
    otherwise.
    """
    if text == POOLED or (not isinstance(text, str) and 0 <= text < 1):
        return text
    with contextlib.suppress(TypeError, ValueError):
        begin, end, steps = str(text).split(":")
        number = configuration.integer(configuration.whole_number(steps), "N", LARGEST)
        line = float(begin), float(end), number
        if 0 <= line[0] <= 1 and 0 <= line[1] <= 1 and number >= 1:
            return line
    raise ValueError(
        f"--offline-share is {text}, it must lie in [0, 1), be '{POOLED}', or change from A to B "
        "over N new transitions: A:B:N, such as 0.5:0:20000."
    )


def _check_weights(settings: Settings) -> None:
    weights, alpha, share = settings.weights, settings.weights_alpha, settings.weights_share
    if weights not in WEIGHTS:
        raise ValueError(f"--weights is '{weights}', it must be one of {', '.join(WEIGHTS)}.")
    if weights != "uniform" and settings.data is None:
        raise ValueError(f"--weights {weights} is of the rows of a data set: give --data DATA.")
    for name, value in (("weights_alpha", alpha), ("weights_share", share)):
        if value != getattr(Settings, name) and WEIGHTS[weights] != name:
            used = (f"--weights {each}" for each in WEIGHTS if WEIGHTS[each] == name)
            raise ValueError(f"--{name.replace('_', '-')} is for {' or '.join(used)}.")
    if not 0 < alpha < math.inf:
        raise ValueError(f"--weights-alpha is {alpha:g}, it must be above 0: 0.1 is its authors'.")
    if not 0 < share <= 1:
        raise ValueError(
            f"--weights-share is {share:g}, it must lie in (0, 1]: 0.1 keeps the best tenth."
        )
