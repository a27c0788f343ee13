"""Replay: the newest transitions of each learner in a ring, and batches drawn from it."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Transition
from rljax.buffers.draws import Draw, Uniform
from rljax.buffers.experience import Experience, declaration


class ReplayBuffer(struct.PyTreeNode):
    """A ring of transitions per learner: the newest overwrite the oldest.

    All learners share `position` and `size`, which are never batched: a batched index would turn the slice update into
    a scatter.
    """

    data: Transition  # [P, capacity, ...]
    position: Array  # [] int32: the next row to write
    size: Array  # [] int32: number of rows that hold a transition

    @classmethod
    def create(cls, example: Transition, capacity: int) -> ReplayBuffer:
        """An empty ring for transitions with the shapes of `example` [P, E, ...].

        The capacity is rounded down to a multiple of E, so that one write never wraps in its middle.
        """
        num_envs = example.reward.shape[1]
        rows = capacity // num_envs * num_envs
        data = jax.tree.map(lambda x: jnp.zeros((x.shape[0], rows, *x.shape[2:]), x.dtype), example)
        return cls(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def capacity(self) -> int:
        """Rows per learner."""
        return self.data.reward.shape[1]

    def add(self, transitions: Transition) -> ReplayBuffer:
        """Write transitions [P, E, ...] at the ring's position; in place where the ring is donated or carried."""
        number = transitions.reward.shape[1]

        def write(ring: Array, rows: Array) -> Array:
            start = (0, self.position) + (0,) * (ring.ndim - 2)
            return jax.lax.dynamic_update_slice(ring, rows.astype(ring.dtype), start)

        return self.replace(
            data=jax.tree.map(write, self.data, transitions),
            position=(self.position + number) % self.capacity,
            size=jnp.minimum(self.size + number, self.capacity),
        )

    def cut_episodes(self, num_envs: int) -> ReplayBuffer:
        """Mark the newest row of each environment as truncated, unless it has ended: the next row begins an episode."""
        newest = (self.position - num_envs + jnp.arange(num_envs)) % self.capacity
        cut = ~self.data.terminated[:, newest] & (self.size > 0)
        truncated = self.data.truncated.at[:, newest].set(self.data.truncated[:, newest] | cut)
        return self.replace(data=self.data.replace(truncated=truncated))


@declaration
class Replay(Experience):
    """Batches from the newest `replay_size` transitions. With `--data`, a share of each batch is from the data set."""

    replay_size: int  # transitions kept per learner; new ones overwrite the oldest
    batch_size: int  # transitions of one update
    warmup_steps: int = 0  # environment steps of each learner with uniform actions and without updates
    draw: Draw = Uniform()  # how batches are drawn

    kind: ClassVar[str] = "replay"
    mixes_data: ClassVar[bool] = True

    @property
    def stores_time(self) -> bool:
        """Whether the draw needs the number of each transition's step in its episode."""
        return self.draw.needs_time

    @property
    def random_steps(self) -> int:
        """Environment steps of each learner with uniform actions."""
        return self.warmup_steps

    def check(self) -> None:
        """Raise `ValueError` for sizes that can never work."""
        super().check()
        if self.replay_size < self.batch_size:
            raise ValueError(
                f"--config.batch-size is {self.batch_size}, more than --config.replay-size {self.replay_size} "
                "transitions can hold. Lower the one or raise the other."
            )
        if self.replay_size < self.num_envs:
            raise ValueError(
                f"--config.replay-size is {self.replay_size}, one step of --config.num-envs "
                f"{self.num_envs} environments would not fit. Raise it."
            )
        self.draw.check(self)
        for column in self.columns:
            if not column.in_replay:
                raise ValueError(f"{type(column).__name__} is known of a data set's rows alone, not of new experience.")

    def create(self, example: Transition) -> ReplayBuffer:
        """An empty ring for transitions with the shapes of `example` [P, E, ...]."""
        return ReplayBuffer.create(example, self.replay_size)

    @property
    def steps_before_updates(self) -> int:
        """Environment steps of each learner before the first update: the warm-up, or those of one batch."""
        return max(self.warmup_steps, self.batch_size)

    def ready(self, steps: Any) -> Any:
        """Whether the warm-up is over and there are enough transitions for one batch."""
        return steps >= self.steps_before_updates

    def sample(self, buffer: ReplayBuffer, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...]."""
        del data
        return self.draw(buffer, keys, self)
