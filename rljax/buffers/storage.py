"""Where experience waits until `update` reads it, on the device, for P learners at once."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Transition


class Replay(struct.PyTreeNode):
    """A ring of transitions per learner: the newest overwrite the oldest.

    Reads of a config: `replay_size`, `batch_size`, `warmup_steps`.

    `position` and `size` are shared by all learners and never batched: a batched index would turn the slice
    update into a scatter.
    """

    data: Transition  # [P, capacity, ...]
    position: Array  # [] int32: the next row to write
    size: Array  # [] int32: rows that hold a transition

    @classmethod
    def check(cls, config: Any, num_envs: int) -> None:
        """Raise `ValueError` for sizes that can never work."""
        if config.replay_size < config.batch_size:
            raise ValueError(
                f"--config.batch-size is {config.batch_size}, more than --config.replay-size {config.replay_size} "
                "transitions can hold. Lower the one or raise the other."
            )
        if config.replay_size < num_envs:
            raise ValueError(
                f"--config.replay-size is {config.replay_size}, one step of --config.num-envs {num_envs} environments "
                "would not fit. Raise it."
            )

    @classmethod
    def create(cls, example: Transition, config: Any) -> Replay:
        """An empty ring for transitions shaped as `example` [P, E, ...].

        The capacity is rounded down to a multiple of E, so that one write never wraps in its middle.
        """
        num_envs = example.reward.shape[1]
        rows = config.replay_size // num_envs * num_envs
        data = jax.tree.map(lambda x: jnp.zeros((x.shape[0], rows, *x.shape[2:]), x.dtype), example)
        return cls(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32))

    @property
    def capacity(self) -> int:
        """Rows per learner."""
        return self.data.reward.shape[1]

    def add(self, transitions: Transition) -> Replay:
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

    @staticmethod
    def ready(steps: Any, config: Any) -> Any:
        """Whether updates may begin after `steps` environment steps of each learner."""
        return steps >= max(config.warmup_steps, config.batch_size)

    @staticmethod
    def warmup_steps(config: Any) -> int:
        """Environment steps of each learner with uniform actions."""
        return config.warmup_steps


class Rollout(struct.PyTreeNode):
    """The last `num_steps` steps of each environment, in order.

    Reads of a config: `num_steps`, `num_envs`, `batch_size`.
    """

    data: Transition  # [P, T, E, ...]
    position: Array  # [] int32: the next step to write, shared by all learners

    @classmethod
    def check(cls, config: Any, num_envs: int) -> None:
        """Raise `ValueError` for minibatches that do not divide a rollout."""
        rows = config.num_steps * num_envs
        if rows % config.batch_size:
            near = [size for size in range(1, rows + 1) if rows % size == 0]
            best = min(near, key=lambda size: abs(size - config.batch_size))
            raise ValueError(
                f"--config.batch-size is {config.batch_size}, which does not divide a rollout of --config.num-steps "
                f"{config.num_steps} x --config.num-envs {num_envs} = {rows} transitions. Nearest: {best}."
            )

    @classmethod
    def create(cls, example: Transition, config: Any) -> Rollout:
        """An empty rollout for transitions shaped as `example` [P, E, ...]."""

        def empty(x: Any) -> Array:
            return jnp.zeros((x.shape[0], config.num_steps, *x.shape[1:]), x.dtype)

        return cls(jax.tree.map(empty, example), jnp.zeros((), jnp.int32))

    def add(self, transitions: Transition) -> Rollout:
        """Write one step [P, E, ...]; in place where the rollout is donated or carried."""

        def write(rollout: Array, step: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(rollout, step.astype(rollout.dtype), self.position, axis=1)

        data = jax.tree.map(write, self.data, transitions)
        return self.replace(data=data, position=(self.position + 1) % self.data.reward.shape[1])

    @staticmethod
    def ready(steps: Any, config: Any) -> Any:
        """Whether updates may begin after `steps` environment steps of each learner."""
        return steps >= config.num_steps * config.num_envs

    @staticmethod
    def warmup_steps(config: Any) -> int:
        """None: every step is the policy's own."""
        del config
        return 0


class Unstored:
    """Of what is no part of a learner's state: updates may begin at once, and no action is a warm-up's."""

    @classmethod
    def create(cls, example: Transition, config: Any) -> None:
        """Nothing to make room for."""
        del example, config

    @staticmethod
    def ready(steps: Any, config: Any) -> bool:
        """Updates may begin at once."""
        del steps, config
        return True

    @staticmethod
    def warmup_steps(config: Any) -> int:
        """None."""
        del config
        return 0


class Stream(Unstored):
    """Nothing: each transition is learnt from at once, before the next action is chosen, and forgotten.

    One environment of each learner: several would be a batch.
    """

    @classmethod
    def check(cls, config: Any, num_envs: int) -> None:
        """Raise `ValueError` for more than one environment, step or update at a time."""
        for name in ("num_envs", "num_steps", "num_updates"):
            if getattr(config, name) != 1:
                raise ValueError(
                    f"--config.{name.replace('_', '-')} is {getattr(config, name)}, it must be 1: a stream learns from "
                    "one transition of one environment at a time. For N streams side by side: --seeds N"
                )


class Fixed(Unstored, struct.PyTreeNode):
    """A data set, which all learners share and nothing is added to.

    Reads of a config: `batch_size`.

    It is no part of a learner's state: drivers hold it once and hand it to `Learner.update`, so that neither
    populations nor checkpoints hold copies.
    """

    data: Transition  # [N, ...]: no axis P

    @classmethod
    def check(cls, config: Any, num_envs: int) -> None:
        """Nothing can be wrong: batches are drawn with replacement."""
        del config, num_envs


class Mixed(struct.PyTreeNode):
    """A ring of new experience beside a data set.

    Reads of a config: as `Replay`. Only the ring belongs to a learner's state, as with `Fixed`.
    """

    replay: Replay
    fixed: Fixed

    check = Replay.check
    create = Replay.create
    warmup_steps = Replay.warmup_steps

    @staticmethod
    def ready(steps: Any, config: Any) -> Any:
        """Whether updates may begin after `steps` environment steps of each learner: the rest of a batch is there."""
        return steps >= max(config.warmup_steps, 1)


Storage = Replay | Rollout | None
Kind = type[Replay] | type[Rollout] | type[Stream] | type[Fixed] | type[Mixed]
STORAGES: dict[str, Kind] = {
    "replay": Replay,
    "rollout": Rollout,
    "stream": Stream,
    "dataset": Fixed,
    "mixed": Mixed,
}
