"""Rollout: the last steps of all environments, in order, as one batch."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Transition
from rljax.buffers.experience import Experience, declaration


class RolloutBuffer(struct.PyTreeNode):
    """The last T steps of each environment, in order."""

    data: Transition  # [P, T, E, ...]
    position: Array  # [] int32: the next step to write, shared by all learners

    @classmethod
    def create(cls, example: Transition, num_steps: int) -> RolloutBuffer:
        """An empty rollout for transitions with the shapes of `example` [P, E, ...]."""

        def empty(x: Any) -> Array:
            return jnp.zeros((x.shape[0], num_steps, *x.shape[1:]), x.dtype)

        return cls(jax.tree.map(empty, example), jnp.zeros((), jnp.int32))

    def add(self, transitions: Transition) -> RolloutBuffer:
        """Write one step [P, E, ...]; in place where the rollout is donated or carried."""

        def write(rollout: Array, step: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(rollout, step.astype(rollout.dtype), self.position, axis=1)

        data = jax.tree.map(write, self.data, transitions)
        return self.replace(data=data, position=(self.position + 1) % self.data.reward.shape[1])

    def cut_episodes(self, num_envs: int) -> RolloutBuffer:
        """Mark the newest step of each environment as truncated, unless it has ended: the next begins an episode."""
        del num_envs
        newest = (self.position - 1) % self.data.reward.shape[1]
        truncated = self.data.truncated[:, newest] | ~self.data.terminated[:, newest]
        return self.replace(data=self.data.replace(truncated=self.data.truncated.at[:, newest].set(truncated)))


@declaration
class Rollout(Experience):
    """One update receives all steps of an iteration, [T, E, ...], and splits them into minibatches of `batch_size`."""

    batch_size: int = 1  # transitions of a minibatch: a divisor of the rollout's T x E
    learns_until: float | None = None  # environment steps after which the learning rate is 0; None: it stays above 0

    kind: ClassVar[str] = "rollout"

    @property
    def on_policy(self) -> bool:
        """True: the whole rollout comes from one policy, the newest."""
        return True

    def check(self) -> None:
        """Raise `ValueError` where the size of minibatches does not divide a rollout."""
        super().check()
        rows = self.steps_per_iteration
        if rows % self.batch_size:
            low = next(size for size in range(min(self.batch_size, rows), 0, -1) if rows % size == 0)
            high = next(rows // parts for parts in range(max(1, rows // self.batch_size), 0, -1) if rows % parts == 0)
            best = min(low, high, key=lambda size: abs(size - self.batch_size))
            raise ValueError(
                f"--config.batch-size is {self.batch_size}, which does not divide a rollout of --config.num-steps "
                f"{self.num_steps} x --config.num-envs {self.num_envs} = {rows} transitions. Nearest: {best}."
            )

    def create(self, example: Transition, stack: int = 1) -> RolloutBuffer:
        """An empty rollout for transitions with the shapes of `example` [P, E, ...]."""
        del stack
        return RolloutBuffer.create(example, self.num_steps)

    @property
    def steps_before_updates(self) -> int:
        """Environment steps of each learner before the first update: those of one rollout."""
        return self.steps_per_iteration

    def ready(self, steps: Any) -> Any:
        """Whether one rollout is full."""
        return steps >= self.steps_before_updates

    def sample(self, buffer: RolloutBuffer, data: Transition | None, keys: Array) -> Transition:
        """The whole rollout as the only batch of an iteration, [P, 1, T, E, ...]."""
        del data, keys
        return jax.tree.map(lambda x: x[:, None], buffer.data)
