"""What a training begins with."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any

from rljax import datasets
from rljax.agent import Base, EnvSpec, Transition
from rljax.buffers import Experience, Mixed
from rljax.buffers.rows import AS_STORED, RewardMap
from rljax.learning.settings import Settings


@dataclasses.dataclass(frozen=True)
class Experiment:
    """An agent, its hyperparameters and its data."""

    settings: Settings
    module: Any  # the agent
    config: Any  # the agent's Config; a tuple has one value per learner
    dataset: datasets.OfflineDataset | None
    # reads another run's policy, for agents with `use_base`, in spaces of `EnvSpec` and config.json
    load_base: Callable[[EnvSpec, Any], Base] | None = None
    load_start: Callable[[], Any] | None = None  # another run's policies, with which learners begin

    @property
    def experience(self) -> Experience:
        """The agent's declaration of what it learns from."""
        return self.module.experience(self.config)


@dataclasses.dataclass(frozen=True)
class WeightedExperience:
    """Maps a Config to the declaration for a data set whose rows have weights."""

    module: Any  # the agent

    def __call__(self, config: Any) -> Experience:
        return self.module.experience(config).weighted()


@dataclasses.dataclass(frozen=True)
class OnlineExperience:
    """Maps a Config to the declaration for new experience."""

    module: Any  # the agent
    mixture: tuple[Any, RewardMap] | None  # beside a data set: see `Mixed.of`
    name: str  # of the environment
    # of hindsight: the environment or `Goals`, why none can be replaced, or None
    goals: Any
    has_policy: bool = False  # with which learners begin: it acts in the warm-up

    def __call__(self, config: Any) -> Experience:
        declared = self.module.experience(config).in_environment()
        if self.has_policy:
            declared = declared.with_policy()
        if self.mixture is not None:
            offline_share, reward_map = self.mixture
            declared = declared.mixed(lambda replay: Mixed.of(replay, offline_share, reward_map))
        return declared.with_goals(self.goals, self.name)


def prepared(
    dataset: datasets.OfflineDataset, experience: Experience
) -> tuple[Transition, RewardMap]:
    """The data set as the agent declares it, and the map of all rewards."""
    reward_map = datasets.reward_transform(experience.reward_transform, dataset)
    transitions = dataset.transitions
    names = (*experience.signals, *experience.labels)
    transitions = transitions.replace(extras={name: transitions.extras[name] for name in names})
    if reward_map != AS_STORED:
        transitions = transitions.replace(reward=reward_map(transitions.reward))
    num_actions = dataset.action_size if dataset.discrete else None
    return experience.prepare(transitions, num_actions), reward_map
