"""Sequences: windows of consecutive steps from a replay, with the memory before each.

Windows may hold ends of episodes, and nothing is padded. Priorities and weights are those of rows
in `rljax.buffers.prioritised`.

Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning, ICLR 2019,
whose windows begin and end with episodes.
"""

from __future__ import annotations

import functools
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import MEMORY, Array, Transition
from rljax.buffers.experience import declaration
from rljax.buffers.prioritised import Pending, Priorities
from rljax.buffers.replay import Draw, Replay
from rljax.buffers.rows import apart, beginnings
from rljax.buffers.storage import sum_tree
from rljax.buffers.storage.learners import PerLearner
from rljax.buffers.storage.ring import ReplayBuffer


class Windows(PerLearner):
    """Memories and priorities of W windows of each of E environments.

    Window w E + e begins at step w x `every` of environment e.
    """

    memory: Any  # [P, W, E, M...] before each window, if stored
    priorities: Priorities | None  # of the windows; None for uniform draws
    every: int = struct.field(pytree_node=False)  # steps between windows' beginnings

    @classmethod
    def create(
        cls, memory: Any, learners: int, num_envs: int, steps: int, draw: Sequences
    ) -> Windows:
        """The windows of an empty ring of `steps` steps, for memories like `memory`."""
        number = steps // draw.every
        stored = jax.tree.map(
            lambda x: jnp.zeros((x.shape[0], number, *x.shape[1:]), x.dtype), memory
        )
        uniform = draw.exponent is None
        priorities = None if uniform else Priorities.create(learners, number * num_envs)
        return cls(stored, priorities, draw.every)

    def with_memory(self, memory: Any, step: Array) -> Windows:
        """The windows after the ring's `step` [], with the `memory` [P, E, M...] of those that
        begin there.
        """
        begins = step % self.every == 0
        at = step // self.every

        def write(stored: Array, new: Array) -> Array:
            old = jax.lax.dynamic_index_in_dim(stored, at, axis=1, keepdims=False)
            memory = jnp.where(begins, new.astype(stored.dtype), old)
            return jax.lax.dynamic_update_index_in_dim(stored, memory, at, axis=1)

        return self.replace(memory=jax.tree.map(write, self.memory, memory))

    def with_priorities(
        self, pending: Pending, step: Array, num_envs: int, exponent: Array
    ) -> Windows:
        """The windows with `pending` priorities, after the ring's `step` []; new ones have the
        largest yet.
        """
        assert self.priorities is not None
        new = jnp.where(
            step % self.every == 0, step // self.every * num_envs + jnp.arange(num_envs), -1
        )
        return self.replace(priorities=self.priorities.written(pending, new, exponent))


@declaration
class Sequences(Draw):
    """Windows of `length` steps, beginning at every `every`-th step of each environment.

    Batches are sequences [T, B, ...] with T = `length`. `extras["first"]` [T, B] marks later steps
    that begin an episode. Windows have `extras["weight"]` [B], for the losses, and with `remembers`
    `extras["memory"]` [B, M...] before the first step, from when the agent acted.

    With an exponent, windows are drawn by priority, and batches have `extras["row"]` [B] int32. The
    agent returns `metrics["priorities"]` [B].

    A weight is 0 where no whole window may be drawn, see `rljax.buffers.storage.successors`.
    """

    length: int  # T
    every: int
    exponent: float | None = None  # alpha, as of `Prioritised`; None for no priorities
    correction: float = 0.6  # beta: 0 for no correction, 1 for a full one

    flag: ClassVar[str] = "length"

    def steps(self, experience: Replay) -> int:
        """Stored steps of each environment: a multiple of `every`."""
        return experience.replay_size // experience.num_envs // self.every * self.every

    def fewest(self, experience: Replay) -> int:
        return self.length * experience.num_envs

    def check(self, experience: Replay) -> None:
        if self.steps(experience) < self.length:
            fewest = -(-self.length // self.every) * self.every * experience.num_envs
            raise ValueError(
                f"--config.replay-size is {experience.replay_size:,}, sequences of {self.length:,} "
                f"steps in --config.num-envs {experience.num_envs:,} environments need at "
                f"least {fewest:,}. Raise it."
            )
        if experience.shift:
            raise ValueError(
                f"--config.shift is {experience.shift}, it must be 0: sequences are drawn as "
                "they are."
            )

    def create(self, example: Transition, experience: Replay, stack: int) -> ReplayBuffer:
        example, memory = apart(example)
        steps = self.steps(experience)
        ring = ReplayBuffer.create(example, steps * experience.num_envs, stack)
        return ring.replace(
            index=Windows.create(memory, len(example.reward), experience.num_envs, steps, self)
        )

    def add(self, ring: ReplayBuffer, transitions: Transition) -> ReplayBuffer:
        transitions, memory = apart(transitions)
        step = ring.position // transitions.reward.shape[1]
        return ring.add(transitions).replace(index=ring.index.with_memory(memory, step))

    def write_back(self, ring: ReplayBuffer, pending: Pending, experience: Replay) -> ReplayBuffer:
        step = (ring.position // experience.num_envs - 1) % (ring.capacity // experience.num_envs)
        settings = (experience.num_envs, jnp.asarray(self.exponent))
        return ring.replace(index=ring.index.with_priorities(pending, step, *settings))

    def row_bytes(self, row: float) -> float:
        return row * self.length

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, T, B, ...]; `keys` are [P]."""
        draw = functools.partial(self._draw, experience)
        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, self.correction)  # type: ignore[arg-type]

    def _draw(
        self, experience: Replay, ring: ReplayBuffer, key: Array, correction: Array
    ) -> Transition:
        """Batches [U, T, B, ...] of one learner."""
        num_envs = experience.num_envs
        windows: Windows = ring.index
        shape = (experience.num_updates, experience.batch_size)
        steps = ring.capacity // num_envs
        last, number = self.complete(ring, num_envs)
        whole = jnp.where(number > 0, 1.0, 0.0)
        number = jnp.maximum(number, 1)
        if windows.priorities is None:
            drawn = jax.random.randint(key, shape, 0, number * num_envs)
            slot = (last - drawn // num_envs) % (steps // self.every)
            window = slot * num_envs + drawn % num_envs
            extras = {"weight": jnp.broadcast_to(whole, shape)}
        else:
            first = (last - number + 1) % (steps // self.every)
            edges = (first * num_envs, last * num_envs + num_envs - 1)
            window = sum_tree.draw(windows.priorities.sums, key, shape, edges)
            weight = windows.priorities.weights(window, correction)
            extras = {"weight": whole * weight, "row": window}
        begin, environment = window // num_envs, window % num_envs
        step = (begin[:, None] * self.every + jnp.arange(self.length)[:, None]) % steps  # [U, T, B]
        batch = ring.transitions(step * num_envs + environment[:, None])
        extras |= {"first": beginnings(batch)}
        if windows.memory is not None:
            extras |= {MEMORY: jax.tree.map(lambda x: x[begin, environment], windows.memory)}
        return batch.replace(extras={**batch.extras, **extras})

    def complete(self, ring: ReplayBuffer, num_envs: int) -> tuple[Array, Array]:
        """For each environment of one learner's ring, the newest whole window, and their number."""
        steps = ring.capacity // num_envs
        next_step = ring.position // num_envs
        last = (next_step + steps - self.length) // self.every
        age = next_step + steps - last * self.every  # steps since it began
        number = (ring.drawable // num_envs - age) // self.every + 1
        return last % (steps // self.every), number


def n_step_returns(value: Array, batch: Transition, discount: Array | float, number: int) -> Array:
    """Returns R^n_t [T, B] of sequences; V_t [T, B] are the values of successors.

      R^1_t = r_t + gamma (1 - terminated_t) V_t
      R^k_t = R^1_t where t ended, and in the last step;  r_t + gamma R^{k-1}_{t+1} elsewhere

    n is `number`. Kapturowski et al., R2D2, ICLR 2019, section 2.3.
    """
    last = (batch.terminated | batch.truncated).at[-1].set(True)
    following = (1.0 - batch.terminated) * value

    def longer(_: Any, later: Array) -> Array:  # R^k of R^{k-1}
        after = jnp.where(last, following, jnp.roll(later, -1, axis=0))
        return batch.reward + discount * after

    first = batch.reward + discount * following
    return jax.lax.fori_loop(1, number, longer, first)
