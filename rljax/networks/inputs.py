"""How observations are normalised before an agent sees them."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rljax.agent import Array, EnvSpec, Transition
from rljax.networks import normalise


@dataclasses.dataclass(frozen=True)
class Raw:
    """Observations as they are."""

    perceives: ClassVar[bool] = False  # whether `perceive` changes anything

    def create(self, spec: EnvSpec) -> Any:
        """Statistics before the first observation, or None."""
        return None

    def __call__(self, statistics: Any, observation: Any) -> Any:
        """Observations [..., O...] as the agent sees them."""
        return observation

    def perceive(self, statistics: Any, observation: Any, first: Array) -> Any:
        """The statistics with observations [E, O...] counted before acting.

        `first` [E] marks those that begin an episode.
        """
        return statistics

    def prepare(self, statistics: Any, data: Transition) -> Any:
        """The statistics with a data set [N, ...] counted."""
        return statistics

    def batch(self, statistics: Any, batch: Transition) -> tuple[Transition, Any]:
        """A batch as the agent sees it, and the statistics after it."""
        return normalised(lambda x: self(statistics, x), batch), statistics


class _OfObservations(Raw):
    """Statistics of each part of an observation; normalised ones are clipped to [-10, 10]."""

    def create(self, spec: EnvSpec) -> Any:
        return normalise.of_observations(spec)

    def __call__(self, statistics: Any, observation: Any) -> Any:
        return normalise.normalise(statistics, observation)


@dataclasses.dataclass(frozen=True)
class Running(_OfObservations):
    """Mean and variance of all observations so far."""

    perceives: ClassVar[bool] = True

    def perceive(self, statistics: Any, observation: Any, first: Array) -> Any:
        return normalise.update(statistics, observation)


@dataclasses.dataclass(frozen=True)
class OfRollout(_OfObservations):
    """Mean and variance of all rollouts so far."""

    def batch(self, statistics: Any, batch: Transition) -> tuple[Transition, Any]:
        """A rollout [T, E, ...] normalised by those before it."""
        rows = batch.reward.size
        flat = jax.tree.map(lambda x: x.reshape(rows, *x.shape[2:]), batch.observation)
        after = normalise.update(statistics, flat)
        return normalised(lambda x: self(statistics, x), batch), after


@dataclasses.dataclass(frozen=True)
class OfData(_OfObservations):
    """Mean and std of a data set, as in TD3+BC (arXiv:2106.06860): not clipped."""

    successors: bool = False  # next observations are counted too
    # extras that are [state; goal], as observations are then; the data hold states
    pairs: tuple[str, ...] = ()
    last_step: bool = False  # observations end with the last action and reward, which stay

    def create(self, spec: EnvSpec) -> Any:
        if not self.last_step:
            return super().create(spec)
        return normalise.create((spec.observation_shape[0] - spec.action_size - 1,))

    def __call__(self, statistics: Any, observation: Any) -> Any:
        if not self.last_step:
            return normalise.standardise(statistics, observation)
        size = statistics.mean.shape[-1]
        state = normalise.standardise(statistics, observation[..., :size])
        return jnp.concatenate([state, observation[..., size:]], axis=-1)

    def prepare(self, statistics: Any, data: Transition) -> Any:
        """Goals have the statistics of states."""
        states = [data.observation, data.next_observation]
        if self.last_step:
            states = [x[:, : statistics.mean.shape[-1]] for x in states]
        statistics = normalise.of_data(states[0])
        if self.successors:
            statistics = normalise.update(statistics, states[1])
        if self.pairs:
            statistics = jax.tree.map(lambda x: jnp.tile(x, 2) if x.ndim else x, statistics)
        return statistics

    def batch(self, statistics: Any, batch: Transition) -> tuple[Transition, Any]:
        """With goals, extras have more observations."""
        batch, statistics = super().batch(statistics, batch)
        pairs = {
            name: self(statistics, batch.extras[name])
            for name in self.pairs
            if name in batch.extras
        }
        return batch.replace(extras={**batch.extras, **pairs}), statistics


@dataclasses.dataclass(frozen=True)
class OfStream(Raw):
    """Mean and variance of one stream of vectors [O], not clipped."""

    time_feature: bool = False  # the last element is the time

    perceives: ClassVar[bool] = True

    def create(self, spec: EnvSpec) -> normalise.Moments:
        return normalise.create_moments(spec.observation_shape)

    def __call__(self, statistics: normalise.Moments, observation: Any) -> Any:
        score = normalise.standard_score(statistics, observation)
        return score.at[..., -1].set(observation[..., -1]) if self.time_feature else score

    def perceive(self, statistics: normalise.Moments, observation: Any, first: Array) -> Any:
        """Count the first observation [1, O] of an episode; `batch` counts others."""
        return normalise.count_where(first[0], statistics, observation[0])

    def batch(self, statistics: normalise.Moments, batch: Transition) -> tuple[Transition, Any]:
        """A transition [O]: its successor is counted before it is normalised."""
        after = normalise.count(statistics, batch.next_observation)
        batch = batch.replace(
            observation=self(statistics, batch.observation),
            next_observation=self(after, batch.next_observation),
        )
        return batch, after


def normalised(see: Callable[[Any], Any], batch: Transition) -> Transition:
    """A batch with `see` of its observations, and of those in its extras."""
    extras = {
        name: normalised(see, extra) if isinstance(extra, Transition) else extra
        for name, extra in batch.extras.items()
    }
    return batch.replace(
        observation=see(batch.observation),
        next_observation=see(batch.next_observation),
        extras=extras,
    )
