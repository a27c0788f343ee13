"""Rollout: the last steps of all environments, in order, as one batch."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import MEMORY, Array, Metrics, Transition
from rljax.buffers.dataset import drawn_rows
from rljax.buffers.experience import Experience, Supply, T, declaration
from rljax.buffers.rows import apart, beginnings, repeated_rows
from rljax.networks.distributions import permutation
from rljax.networks.inputs import OfRollout, Raw
from rljax.system.hardware import nbytes

DATA = "data"  # in the extras of a rollout: rows of the data set


class RolloutBuffer(struct.PyTreeNode):
    """The last T steps of each environment, in order."""

    data: Transition  # [P, T, E, ...]
    position: Array  # [] int32: the next step to write
    memory: Any = None  # [P, E, M...] before the first step, if any

    @staticmethod
    def create(example: Transition, num_steps: int) -> RolloutBuffer:
        """An empty rollout for transitions with the shapes of `example` [P, E, ...]."""

        def empty(x: Any) -> Array:
            return jnp.zeros((x.shape[0], num_steps, *x.shape[1:]), x.dtype)

        example, memory = apart(example)
        memory = jax.tree.map(lambda x: jnp.zeros(x.shape, x.dtype), memory)
        return RolloutBuffer(jax.tree.map(empty, example), jnp.zeros((), jnp.int32), memory)

    def add(self, transitions: Transition) -> RolloutBuffer:
        """Write one step [P, E, ...]; in place where the rollout is donated or carried."""

        def write(rollout: Array, step: Array) -> Array:
            return jax.lax.dynamic_update_index_in_dim(
                rollout, step.astype(rollout.dtype), self.position, axis=1
            )

        transitions, memory = apart(transitions)
        return self.replace(
            data=jax.tree.map(write, self.data, transitions),
            position=(self.position + 1) % self.data.reward.shape[1],
            memory=jax.tree.map(
                lambda new, old: jnp.where(self.position == 0, new, old), memory, self.memory
            ),
        )

    def cut_episodes(self, num_envs: int) -> RolloutBuffer:
        """Mark each environment's newest step as truncated unless it has ended."""
        newest = (self.position - 1) % self.data.reward.shape[1]
        truncated = self.data.truncated[:, newest] | ~self.data.terminated[:, newest]
        return self.replace(
            data=self.data.replace(truncated=self.data.truncated.at[:, newest].set(truncated))
        )


def beside(batch: Transition) -> tuple[Transition, Transition | None]:
    """A rollout [T, E, ...], and the data set's rows [D, ...], if any."""
    extras = dict(batch.extras)
    data: Any = extras.pop(DATA, None)
    return batch.replace(extras=extras), data


def discounted_sums(values: Array, decays: Array) -> Array:
    """y_t = x_t + d_t y_{t+1} over the first axis, for `values` x and `decays` d [T, ...]; 0
    follows the last.
    """

    def backwards(later: Array, inputs: tuple[Array, Array]) -> tuple[Array, Array]:
        value, decay = inputs
        total = value + decay * later
        return total, total

    return jax.lax.scan(backwards, jnp.zeros_like(values[0]), (values, decays), reverse=True)[1]


def generalised_advantages(
    batch: Transition,
    rewards: Array,
    values: Array,
    next_values: Array,
    discount: Array | float,
    trace_decay: Array | float,
) -> Array:
    """A_t of a rollout [T, E, ...]; Schulman et al., arXiv:1506.02438, equation 16.

      delta_t = r_t + gamma (1 - terminated_t) V(s'_t) - V(s_t)
      A_t     = delta_t + gamma lambda (1 - ended_t) A_{t+1}      ended: terminated or truncated

    `rewards`, `values`, `next_values` and the result are [T, E], or [T, E, K] for K kinds of
    reward; gamma (`discount`) and lambda (`trace_decay`) are numbers, or [K].
    """
    ended = batch.terminated | batch.truncated
    kinds = (1,) * (rewards.ndim - ended.ndim)
    alive = (1.0 - batch.terminated).reshape(*ended.shape, *kinds)
    going_on = (1.0 - ended).reshape(*ended.shape, *kinds)
    delta = rewards + discount * alive * next_values - values
    return discounted_sums(delta, discount * trace_decay * going_on)


def explained_variance(rollout: Transition) -> Metrics:
    """The metric of a rollout [T, E, ...] with its critic's values V in its extras:

      1 - Var(R - V) / Var(R)      R: the extra "target", or "advantage" + V

    1 is a critic that knows all returns, 0 one that knows their mean. Of K kinds of reward, [T, E,
    K], the first counts.
    """
    value, extras = rollout.extras["value"], rollout.extras
    target = extras["target"] if "target" in extras else extras["advantage"] + value
    kinds = value.ndim > rollout.reward.ndim
    value, target = (x[..., 0] if kinds else x for x in (value, target))
    unexplained = (target - value).var() / jnp.maximum(target.var(), 1e-8)
    return {"critic/explained_variance": 1.0 - unexplained}


def minibatches(key: Array, rollout: Any, size: int) -> Any:
    """A rollout's steps, leaves [T, E, ...], in random order: [T E / B, B, ...], with `size` B.

    With a memory [n, B / T, ...], whole environments are drawn: [n, T, B / T, ...].
    """
    length, number = jax.tree.leaves(rollout)[-1].shape[:2]
    batch = rollout[0]
    memory = batch.extras.get(MEMORY)
    if memory is None:
        order = permutation(key, length * number).reshape(-1, size)
        return jax.tree.map(lambda x: x.reshape(length * number, *x.shape[2:])[order], rollout)
    order = permutation(key, number).reshape(-1, max(1, size // length))
    batch, _ = apart(batch)
    drawn = jax.tree.map(lambda x: jnp.moveaxis(x[:, order], 1, 0), (batch, *rollout[1:]))
    extras = drawn[0].extras | {MEMORY: jax.tree.map(lambda x: x[order], memory)}
    return drawn[0].replace(extras=extras), *drawn[1:]


@declaration
class Rollout(Experience):
    """One update receives all steps of an iteration, [T, E, ...].

    With `remembers`, extras hold `memory` [E, M...] before the first step, and `first` [T, E],
    which marks later steps that begin an episode. With `data_size` D, they hold `data`, see
    `beside`.
    """

    # of a minibatch: a divisor of T x E; with `remembers` at least T
    batch_size: int = 1
    data_size: int = 0  # D, rows of the data set beside each rollout
    learns_until: float | None = None

    kind: ClassVar[str] = "rollout"

    @property
    def inputs(self) -> Raw:
        """By statistics that move once per rollout: log-probabilities stay its policy's."""
        return OfRollout() if self.normalise_observations else Raw()

    def check(self) -> None:
        super().check()
        rows = self.steps_per_iteration
        size = max(self.batch_size, self.num_steps) if self.remembers else self.batch_size
        if rows % size:
            divisors = (number for number in range(1, rows + 1) if rows % number == 0)
            best = min(divisors, key=lambda divisor: abs(divisor - size))
            raise ValueError(
                f"--config.batch-size is {self.batch_size}, which does not divide a rollout of "
                f"--config.num-steps {self.num_steps} x --config.num-envs {self.num_envs} = {rows} "
                f"transitions. Nearest: {best}."
            )
        parts = rows // size
        if self.data_size < 0 or self.data_size % parts:
            raise ValueError(
                f"--config.data-size is {self.data_size}, and a rollout is learnt from in {parts} "
                f"minibatches: give a multiple of {parts}, such "
                f"as {parts * max(1, round(self.data_size / parts))}."
            )
        if self.remembers and size % self.num_steps:
            number = max(1, min(self.num_envs, round(self.batch_size / self.num_steps)))
            number = next(n for n in range(number, 0, -1) if self.num_envs % n == 0)
            raise ValueError(
                f"--config.batch-size is {self.batch_size}. An agent with a memory learns from "
                f"whole sequences of --config.num-steps {self.num_steps} steps: it must be a "
                f"multiple of it. Nearest: {number * self.num_steps}."
            )

    def create(
        self, example: Transition, stack: int = 1, data: Transition | None = None
    ) -> RolloutBuffer:
        return RolloutBuffer.create(example, self.num_steps)

    @property
    def steps_before_updates(self) -> int:
        return self.steps_per_iteration

    def sample(self, buffer: RolloutBuffer, data: Transition | None, keys: Array) -> Transition:
        """The whole rollout as the only batch, [P, 1, T, E, ...]."""
        batch = buffer.data
        if buffer.memory is not None:
            batch = batch.replace(
                extras={**batch.extras, MEMORY: buffer.memory, "first": beginnings(batch)}
            )
        batch = jax.tree.map(lambda x: x[:, None], batch)
        if not self.data_size:
            return batch
        assert data is not None
        return batch.replace(
            extras={**batch.extras, DATA: drawn_rows(data, keys, self.data_size, self)}
        )

    def iterate(self, loop: Any, *arguments: Any) -> Any:
        return loop.learn_from_rollout(*arguments)

    # What a run needs for it

    def require_data(self, supply: Supply) -> None:
        if not self.data_size:
            super().require_data(supply)
        elif supply.data is None:
            raise ValueError(
                f"agent '{supply.agent}' learns from a data set beside new experience. Name it: "
                "--data DATA. Or learn without one: --config.data-size 0."
            )

    def require_mixing(self, supply: Supply) -> None:
        if not self.data_size:
            super().require_mixing(supply)
            return
        raise ValueError(
            f"--offline-share {supply.offline_share} is of batches from a replay, agent "
            f"'{supply.agent}' learns from rollouts: --config.data-size sets the rows of the data "
            "set beside each."
        )

    def spread(self, make: Callable[..., T], num_learners: int) -> T:
        # Devices that share a learner's environments share its gradients.
        return make(num_learners, self.num_envs, split=True)

    def placed(self, storage: RolloutBuffer, spread: Any) -> RolloutBuffer:
        memory = spread.environments(storage.memory)
        return spread.rollouts(storage.replace(memory=None)).replace(memory=memory)

    def oddities(self, rows: int | None, longest: int | None) -> Iterator[str]:
        return repeated_rows(self.batch_size, rows)

    def batch_bytes(self, storage: Any, data: Any, num_learners: int) -> int:
        # Another order of the rollout, with the data set's rows.
        rows = self.data_size * num_learners
        return nbytes(storage) + (int(rows * nbytes(data) / data.reward.shape[0]) if rows else 0)
