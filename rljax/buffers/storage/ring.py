"""The ring: the newest transitions of each learner, written in place."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition
from rljax.buffers.rows import rows_of
from rljax.buffers.storage.learners import PerLearner
from rljax.buffers.storage.successors import Successors, is_large, newest_frame


class ReplayBuffer(PerLearner):
    """A ring of transitions per learner: the newest overwrite the oldest.

    `position` and `size` are never batched: this would turn the slice update into a scatter. Where
    large observations are stored once, `data.next_observation` is None, `data.observation` holds
    the newest frame of each, and `successors` those that are no row's.
    """

    data: Transition  # [P, capacity, ...]
    position: Array  # [] int32: the next row to write
    size: Array  # [] int32: rows that hold a transition
    successors: Successors | None = None
    index: Any = None  # the draw's `PerLearner`, such as priorities
    returns: Any = None  # `SeenReturns`, where rewards are scaled

    shared: ClassVar[tuple[str, ...]] = ("position", "size")

    @classmethod
    def create(cls, example: Transition, capacity: int, stack: int = 1) -> ReplayBuffer:
        """An empty ring for transitions with the shapes of `example` [P, E, ...].

        The capacity is rounded down to a multiple of E, so that no write wraps. `stack` is the
        number of frames in an observation.
        """
        num_envs = example.reward.shape[1]
        successors = None
        rows = capacity // num_envs * num_envs
        if is_large(example.observation):
            whole = not isinstance(example.observation, dict) and rows >= 2 * stack * num_envs
            stack = stack if whole else 1
            successors = Successors.create(example, rows, stack)
            frame = jax.eval_shape(lambda x: newest_frame(x, stack), example.observation)
            example = example.replace(observation=frame, next_observation=None)
        data = jax.tree.map(lambda x: jnp.zeros((x.shape[0], rows, *x.shape[2:]), x.dtype), example)
        return cls(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), successors)

    @property
    def capacity(self) -> int:
        """Rows per learner."""
        return self.data.reward.shape[-1]

    def add(self, transitions: Transition) -> ReplayBuffer:
        """Write transitions [P, E, ...] at the ring's position; in place where it is donated or
        carried.
        """
        number = transitions.reward.shape[1]
        successors = self.successors
        if successors is not None:
            frame = newest_frame(transitions.observation, successors.stack)
            successors = successors.add(transitions, self.position, self._grown(number))
            transitions = transitions.replace(observation=frame, next_observation=None)

        def write(ring: Array, rows: Array) -> Array:
            start = (0, self.position) + (0,) * (ring.ndim - 2)
            return jax.lax.dynamic_update_slice(ring, rows.astype(ring.dtype), start)

        return self.replace(
            data=jax.tree.map(write, self.data, transitions),
            position=(self.position + number) % self.capacity,
            size=self._grown(number),
            successors=successors,
        )

    def _grown(self, number: int) -> Array:
        return jnp.minimum(self.size + number, self.capacity)

    def cut_episodes(self, num_envs: int) -> ReplayBuffer:
        """Mark each environment's newest row as truncated unless it has ended."""
        newest = (self.position - num_envs + jnp.arange(num_envs)) % self.capacity
        cut = ~self.data.terminated[:, newest] & (self.size > 0)
        successors = self.successors
        if successors is not None:
            successors = successors.cut(cut & ~self.data.truncated[:, newest], newest)
        truncated = self.data.truncated.at[:, newest].set(self.data.truncated[:, newest] | cut)
        return self.replace(
            data=self.data.replace(truncated=truncated),
            successors=successors,
            returns=None if self.returns is None else self.returns.cut(),
        )

    # One learner's ring: the buffer without the axis P.

    @property
    def drawable(self) -> Array:
        """The number [] of newest rows of one learner that may be drawn, a multiple of E."""
        return self.size if self.successors is None else self.successors.usable

    @property
    def window(self) -> tuple[Array, Array] | None:
        """The oldest and the newest row that may be drawn; None for all written ones."""
        if self.successors is None:
            return None
        return (self.position - self.drawable) % self.capacity, (self.position - 1) % self.capacity

    def row(self, number: Array) -> Array:
        """The row of a `number` [...] from 0 to `drawable` - 1."""
        return number if self.successors is None else (self.position - 1 - number) % self.capacity

    def row_of(self, step: Array, environment: Array, num_envs: int) -> Array:
        """The row of an environment [...] at a `step` [...] from 0 to `drawable` / E - 1, in any
        order.
        """
        if self.successors is None:
            return step * num_envs + environment
        return (self.position - (step + 1) * num_envs + environment) % self.capacity

    def observations(self, rows: Array) -> Any:
        """The observations of `rows` [...]."""
        ring = self.data.observation
        if self.successors is None:
            return rows_of(ring, rows)
        return self.successors.observations(ring, rows)

    def next_observations(self, rows: Array) -> Any:
        """The true next observations of `rows` [...]."""
        if self.successors is None:
            return rows_of(self.data.next_observation, rows)
        is_newest = (self.position - 1 - rows) % self.capacity < self.successors.num_envs
        return self.successors.next_observations(self.data.observation, rows, is_newest)

    def transitions(self, rows: Array) -> Transition:
        """The transitions in `rows` [...]."""
        if self.successors is None:
            return rows_of(self.data, rows)
        rest = rows_of(self.data.replace(observation=None), rows)
        return rest.replace(
            observation=self.observations(rows), next_observation=self.next_observations(rows)
        )


def later_rows(ring: ReplayBuffer, rows: Array, num_envs: int) -> Array:
    """For each of a ring's `rows`, the number of newer rows of its environment."""
    return (ring.position - 1 - rows) % ring.capacity // num_envs


def earlier_rows(ring: ReplayBuffer, rows: Array, num_envs: int) -> Array:
    """For each of a ring's `rows`, the number of older rows of its environment."""
    return ring.drawable // num_envs - 1 - later_rows(ring, rows, num_envs)


def steps_left(ring: ReplayBuffer, rows: Array, num_envs: int) -> Array:
    """For each of a ring's `rows`, the number of later steps of its episode that the ring has.

    "time" in extras counts an episode's steps.
    """
    time, capacity = ring.data.extras["time"], ring.capacity

    def halve(_: Any, bounds: tuple[Array, Array]) -> tuple[Array, Array]:
        low, high = bounds
        middle = (low + high + 1) // 2
        # No step of the episode is missing.
        same = time[(rows + num_envs * middle) % capacity] == time[rows] + middle
        return jnp.where(same, middle, low), jnp.where(same, high, middle - 1)

    bounds = (jnp.zeros_like(rows), later_rows(ring, rows, num_envs))
    return jax.lax.fori_loop(0, (capacity // num_envs).bit_length(), halve, bounds)[0]
