"""What the tables of settings share: their types, names of tasks, and conversions of units."""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from rljax.datasets.tools.preprocess import CONSTANT
from scripts.checks.authors import readers

NEVER = 1e12  # updates after which a learning rate is 0, in presets that say: it does not fall
LOCOMOTION = ("halfcheetah", "hopper", "walker2d")
ROBOTS = ("Hopper", "HalfCheetah", "Walker2d", "Ant", "Humanoid")  # of MuJoCo
ADROIT = ("pen", "door", "hammer", "relocate")
MAZES = ("umaze", "umaze-diverse", "medium-play", "medium-diverse", "large-play", "large-diverse")
QUALITIES = ("random", "medium", "medium-replay", "medium-expert")
LOCOMOTION_SETS = [f"d4rl/{name}-{kind}-v2" for name in LOCOMOTION for kind in QUALITIES]
ANTMAZE_SETS = [f"d4rl/antmaze-{maze}-v2" for maze in MAZES]
KITCHEN_SETS = [f"d4rl/kitchen-{kind}-v0" for kind in ("complete", "partial", "mixed")]
ADROIT_SETS = [f"d4rl/{name}-{kind}-v1" for name in ADROIT for kind in ("human", "cloned")]


Tasks = dict[str, Mapping[str, Any]]  # another's settings by our name of the task


class Settings(dict[str, Any]):
    """Another's settings of a task by name, which remembers the names that were read."""

    def __init__(self, values: Mapping[str, Any]) -> None:
        super().__init__(values)
        self.used: set[str] = set()

    def __getitem__(self, name: str) -> Any:
        self.used.add(name)
        return super().__getitem__(name)


class Logarithm(float):
    """The logarithm of another's number, which ours may give with one digit after the point."""


class DoesNotApply(Exception):
    """A rule's answer for a task in which the setting has no effect."""


# Another's name of a setting of ours, or what its value would be here. Of several names the first
# that is set counts. A task that does not set it is left out.
Rule = str | tuple[str, ...] | Callable[[Settings], Any]


class Intended(NamedTuple):
    """Settings that differ on purpose, and the words of the preset or the page that say why."""

    fields: str  # names or patterns, apart by spaces
    tasks: str  # a pattern
    reason: str  # a text of the agent's presets, its page or its file

    def covers(self, field: str, task: str) -> bool:
        """Whether this reason is about a setting of a task."""
        names = self.fields.split()
        return fnmatch.fnmatchcase(task, self.tasks) and any(
            fnmatch.fnmatchcase(field, name) for name in names
        )


class Source(NamedTuple):
    """Files of one repository beside the presets of one agent."""

    agent: str
    repository: str  # the folder of its checkout
    files: str  # which ones, for readers of the table
    tasks: Callable[[Path], Tasks]
    fields: Mapping[str, Rule]
    intended: tuple[Intended, ...] = ()
    variant: str | None = None

    @property
    def label(self) -> str:
        """The agent with its variant of presets."""
        return self.agent if self.variant is None else f"{self.agent}.{self.variant}"


def per_task(tasks: Iterable[str], values: Mapping[str, Any]) -> Tasks:
    """The same settings for several tasks."""
    return dict.fromkeys(tasks, values)


def discount_of_limit(steps: float) -> float:
    """The discount that XQC and SimbaV2 compute from the number of decisions in an episode."""
    return min(max(1.0 - 5.0 / steps, 0.95), 0.995)


def only_where(switch: str, name: str) -> Callable[[Settings], Any]:
    """A setting that has an effect only where their `switch` is on."""

    def rule(theirs: Settings) -> Any:
        if not theirs[switch]:
            raise DoesNotApply
        return theirs[name]

    return rule


def number_of(name: str) -> Callable[[Settings], int]:
    """A setting as a whole number: their files write 1e6."""
    return lambda theirs: int(float(theirs[name]))


def layers(width: str, depth: str | int) -> Callable[[Settings], tuple[int, ...]]:
    """`depth` hidden layers of one width; both may be names of settings."""

    def rule(theirs: Settings) -> tuple[int, ...]:
        number = theirs[depth] if isinstance(depth, str) else depth
        return (theirs[width],) * number

    return rule


def architecture(name: str) -> Callable[[Settings], tuple[int, ...]]:
    """Widths of layers that are written as 256-256."""
    return lambda theirs: tuple(map(int, str(theirs[name]).split("-")))


def decay(name: str) -> Callable[[Settings], float]:
    """Whether a learning rate falls over the run, as our share of the run."""
    return lambda theirs: 1.0 if theirs[name] in ("cosine", True) else NEVER


def rate_or_none(name: str) -> Callable[[Settings], Any]:
    """A share that is None, and not 0, where there is none."""
    return lambda theirs: theirs[name] or None


def unless_infinite(name: str) -> Callable[[Settings], Any]:
    """A bound that is None where there is none."""
    return lambda theirs: None if abs(theirs[name]) == float("inf") else theirs[name]


def log_of(name: str) -> Callable[[Settings], Logarithm]:
    """A bound of the standard deviation as that of its logarithm."""
    return lambda theirs: Logarithm(math.log(theirs[name]))


def affine(scale: str, shift: str) -> Callable[[Settings], Any]:
    """Our name for rewards that are scaled and shifted."""

    def rule(theirs: Settings) -> str:
        pair = (float(theirs[scale]), float(theirs[shift]))
        names = [name for name, constants in CONSTANT.items() if constants == pair]
        return names[0] if names else f"{pair[0]:g} r + {pair[1]:g}"

    return rule


def in_words(name: str, words: Mapping[Any, Any]) -> Callable[[Settings], Any]:
    """A choice by our word for it."""
    return lambda theirs: words.get(theirs[name], theirs[name])


def family(task: str) -> str:
    """ "antmaze" of d4rl/antmaze-umaze-v2."""
    return task.split("/")[-1].split("-")[0]


def with_rewards(tasks: Tasks, rewards: Mapping[str, str]) -> Tasks:
    """Settings with `rewards`, the transform that their code has for a family of tasks."""
    return {
        task: {**values, "rewards": rewards.get(family(task), "none")}
        for task, values in tasks.items()
    }


def yaml_tasks(folder: str, name: str) -> Callable[[Path], Tasks]:
    """CORL's files: a data set each, whose name is the setting `name`."""

    def read(checkout: Path) -> Tasks:
        files = sorted((checkout / folder).glob("*/*.yaml"))
        values = [readers.flat(readers.yaml_file(path)) for path in files]
        return {f"d4rl/{each[name]}": each for each in values}

    return read
