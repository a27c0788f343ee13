"""Trajectories of a data set or of a replay, in which states are goals of earlier ones."""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.storage.ring import ReplayBuffer, steps_left
from rljax.buffers.windows import LAST


class Trajectories(ABC):
    """Rows of trajectories."""

    data: Transition  # all rows [N, ...]

    @property
    @abstractmethod
    def xp(self) -> Any:
        """NumPy or JAX, where the rows lie."""

    @abstractmethod
    def row(self, number: Any) -> Any:
        """The rows for numbers [...] from 0 to the number of rows - 1."""

    @abstractmethod
    def left(self, row: Any) -> Any:
        """How many later rows [...] the trajectories of rows [...] have."""

    @abstractmethod
    def later(self, row: Any, steps: Any) -> Any:
        """The rows [...] some steps later in the same trajectory."""

    @abstractmethod
    def states(self, row: Any) -> Any:
        """The states [..., O] of rows [...]."""

    @abstractmethod
    def next_states(self, row: Any) -> Any:
        """The states [..., O] behind rows [...]."""


@dataclasses.dataclass(frozen=True)
class Recorded(Trajectories):
    """A data set `with_last_rows` of states."""

    data: Transition  # [N, ...]

    @property
    def xp(self) -> Any:
        return np if isinstance(self.data.observation, np.ndarray) else jnp

    def row(self, number: Any) -> Any:
        return number

    def left(self, row: Any) -> Any:
        return self.data.extras[LAST][row] - row

    def later(self, row: Any, steps: Any) -> Any:
        return row + steps

    def states(self, row: Any) -> Any:
        return self.data.observation[row]

    def next_states(self, row: Any) -> Any:
        return self.data.next_observation[row]


@dataclasses.dataclass(frozen=True)
class Stored(Trajectories):
    """One learner's ring, whose observations are [state; goal] and whose extras have the time."""

    ring: ReplayBuffer
    num_envs: int

    @property
    def data(self) -> Transition:  # pyright: ignore[reportIncompatibleVariableOverride]
        """The ring's rows."""
        return self.ring.data

    @property
    def xp(self) -> Any:
        return jnp

    def row(self, number: Array) -> Array:
        return self.ring.row(number)

    def left(self, row: Array) -> Array:
        return steps_left(self.ring, row, self.num_envs)

    def later(self, row: Array, steps: Array) -> Array:
        return (row + self.num_envs * steps) % self.ring.capacity

    def states(self, row: Array) -> Any:
        return halves(self.ring.observations(row))[0]

    def next_states(self, row: Array) -> Any:
        return halves(self.ring.next_observations(row))[0]


def halves(observation: Any) -> tuple[Any, Any]:
    """The states and the goals [..., O] of observations [..., 2 O]."""
    size = observation.shape[-1] // 2
    return observation[..., :size], observation[..., size:]
