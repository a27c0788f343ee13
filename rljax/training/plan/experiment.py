"""What a training needs to begin: its agent, its data, and the declarations of its stages."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

from rljax import datasets
from rljax.agent import Base, Transition
from rljax.buffers import Experience, Mixed
from rljax.training.settings import Settings


@dataclasses.dataclass(frozen=True)
class Experiment:
    """Everything that a training needs to begin: an agent, its hyperparameters and its data."""

    settings: Settings
    module: Any  # the agent
    config: Any  # the agent's Config; floats are numbers, or tuples with one value per learner
    dataset: datasets.OfflineDataset | None
    # reads another run's policy, for agents with `use_base`
    load_base: Callable[[], Base] | None = None

    # reads the policies of another run, with which learners begin
    load_start: Callable[[], Any] | None = None

    @functools.cached_property
    def base(self) -> Base | None:
        """Another run's policy. Reading it starts JAX, so call `prefer_devices` before."""
        return None if self.load_base is None else self.load_base()

    @property
    def experience(self) -> Experience:
        """The agent's declaration of what it learns from."""
        return self.module.experience(self.config)


@dataclasses.dataclass(frozen=True)
class WeightedExperience:
    """Maps a Config to the declaration for a data set whose rows have weights."""

    module: Any  # the agent

    def __call__(self, config: Any) -> Experience:
        """The agent's declaration, with weighted rows in place of uniform ones."""
        return self.module.experience(config).weighted()


@dataclasses.dataclass(frozen=True)
class OnlineExperience:
    """Maps a Config to the declaration for new experience."""

    module: Any  # the agent
    mixture: tuple[Any, tuple[float, float]] | None  # beside a data set: see `Mixed.of`
    name: str  # of the environment
    # what replaces goals in hindsight: the environment or `Goals`; else why none can, in words, or
    # None
    goals: Any
    # learners begin with a policy: it acts in the warm-up, in place of uniform actions
    has_policy: bool = False

    def __call__(self, config: Any) -> Experience:
        """The declaration, mixed with the data set where there is one.

        Rollouts stay whole, with rows beside them.
        """
        declared = self.module.experience(config).in_environment()
        if self.has_policy:
            declared = declared.with_policy()
        if self.mixture is not None:
            offline_share, reward_affine = self.mixture
            declared = declared.mixed(lambda replay: Mixed.of(replay, offline_share, reward_affine))
        return declared.with_goals(self.goals, self.name)


def prepared(
    dataset: datasets.OfflineDataset, experience: Experience
) -> tuple[Transition, tuple[float, float]]:
    """The data set in the form that the agent declares,
    and the scale and shift of its rewards and of new rewards.
    """
    scale, shift = datasets.reward_transform(experience.reward_transform, dataset)
    transitions = dataset.transitions
    names = (*experience.signals, *experience.labels)
    transitions = transitions.replace(extras={name: transitions.extras[name] for name in names})
    if (scale, shift) != (1.0, 0.0):
        transitions = transitions.replace(reward=transitions.reward * scale + shift)
    return experience.prepare(transitions), (scale, shift)
