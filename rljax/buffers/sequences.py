"""Sequences: windows of consecutive steps from a replay, with the memory before each, drawn uniformly or by priority.

A window has T consecutive steps of one environment and begins at every `every`-th step that is stored. So a step is in
about T / `every` windows, and a memory is stored once per `every` steps. A window may contain the ends of episodes: it
says where an episode begins, and nothing of it is padded. It is drawn once all of its steps are stored, and until the
first of them is overwritten.

Probabilities and weights of windows are those of rows in `rljax.buffers.prioritised`: P(i) ~ (p_i + e)^alpha, with p_i
the priority of window i.

Kapturowski et al., Recurrent Experience Replay in Distributed Reinforcement Learning, ICLR 2019. Its windows end with
their episode, and begin with it.
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import MEMORY, Array, Transition
from rljax.buffers import sum_tree
from rljax.buffers.draws import Draw
from rljax.buffers.experience import beginnings, declaration
from rljax.buffers.prioritised import Pending, Priorities

if TYPE_CHECKING:
    from rljax.buffers.replay import Replay, SequenceBuffer


class Windows(struct.PyTreeNode):
    """What a ring keeps of its W E windows. That of an environment e which begins at step w `every` is w E + e."""

    memory: Any  # [P, W, E, M...] before the first step of each window; None where none is stored
    priorities: Priorities | None  # of the windows; None where they are drawn uniformly
    every: int = struct.field(pytree_node=False)  # steps from the beginning of a window to that of the next

    @classmethod
    def create(cls, memory: Any, learners: int, num_envs: int, steps: int, draw: Sequences) -> Windows:
        """Those of an empty ring of `steps` steps, for memories with the shapes of `memory` [P, E, M...]."""
        number = steps // draw.every
        stored = jax.tree.map(lambda x: jnp.zeros((x.shape[0], number, *x.shape[1:]), x.dtype), memory)
        priorities = None if draw.exponent is None else Priorities.create(learners, number * num_envs)
        return cls(stored, priorities, draw.every)

    @property
    def axes(self) -> Windows:
        """Which parts have the axis P, for `jax.vmap`."""
        priorities = None if self.priorities is None else Priorities.axes()
        return Windows(memory=0, priorities=priorities, every=self.every)

    def of_learner(self, index: int) -> Windows:
        """Those of one of P learners."""
        memory, priorities = jax.tree.map(lambda x: x[index], self.memory), self.priorities
        if priorities is not None:
            priorities = priorities.replace(sums=priorities.sums[index], largest=priorities.largest[index])
        return self.replace(memory=memory, priorities=priorities)

    def remembered(self, memory: Any, step: Array) -> Windows:
        """Those after the `memory` [P, E, M...] before a `step` [] of the ring, which may begin windows."""
        begins, at = step % self.every == 0, step // self.every

        def write(stored: Array, new: Array) -> Array:
            old = jax.lax.dynamic_index_in_dim(stored, at, axis=1, keepdims=False)
            kept = jnp.where(begins, new.astype(stored.dtype), old)
            return jax.lax.dynamic_update_index_in_dim(stored, kept, at, axis=1)

        return self.replace(memory=jax.tree.map(write, self.memory, memory))

    def written(self, pending: Pending, step: Array, num_envs: int, exponent: Array) -> Windows:
        """Those after the priorities that are `pending`, and after a `step` [] of the ring, which may begin windows.

        A new window has the largest priority so far.
        """
        assert self.priorities is not None
        new = jnp.where(step % self.every == 0, step // self.every * num_envs + jnp.arange(num_envs), -1)
        return self.replace(priorities=self.priorities.written(pending, new, exponent))


@declaration
class Sequences(Draw):
    """Windows of `length` steps, one of which begins at every `every`-th step of each environment.

    Batches are sequences [T, B] with T = `length`, but for what there is once for each window. `extras["first"]` [T, B]
    marks steps, after the first one, that begin an episode. `extras["weight"]` [B] are the weights of the losses. With
    `remembers`, `extras["memory"]` [B, M...] is the memory before the first step, as it was when the agent acted.

    With an exponent, windows are drawn by priority, and batches have `extras["row"]` [B] int32. The agent returns the
    priorities of all windows, `metrics["priorities"]` [B].

    A weight is 0 where no window is stored whole. This only happens where observations are stored once, and so many
    short episodes end that the ring may draw fewer than T steps: see `rljax.buffers.successors`.
    """

    length: int  # T
    every: int
    exponent: float | None = None  # alpha: 0 is uniform, 1 in proportion to the errors; None for no priorities
    correction: float = 0.6  # beta: 0 for no correction, 1 for a full one

    flag: ClassVar[str] = "length"

    def steps(self, experience: Replay) -> int:
        """Steps of each environment that the ring holds: a multiple of `every`."""
        return experience.replay_size // experience.num_envs // self.every * self.every

    def fewest(self, experience: Replay) -> int:
        """Environment steps of each learner before a window can be drawn."""
        return self.length * experience.num_envs

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where the replay is too small for a window, or where pictures are to be moved."""
        if self.steps(experience) < self.length:
            fewest = -(-self.length // self.every) * self.every * experience.num_envs
            raise ValueError(
                f"--config.replay-size is {experience.replay_size:,}, sequences of {self.length:,} steps in "
                f"--config.num-envs {experience.num_envs:,} environments need at least {fewest:,}. Raise it."
            )
        if experience.shift:
            raise ValueError(f"--config.shift is {experience.shift}, it must be 0: sequences are drawn as they are.")

    def __call__(self, buffer: SequenceBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, T, B, ...]; `keys` are [P]."""
        draw = functools.partial(self._draw, experience)
        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, self.correction)  # type: ignore[arg-type]

    def _draw(self, experience: Replay, ring: SequenceBuffer, key: Array, correction: Array) -> Transition:
        """Batches [U, T, B, ...] of one learner."""
        num_envs, kept = experience.num_envs, ring.windows
        shape = (experience.num_updates, experience.batch_size)
        steps = ring.capacity // num_envs
        last, number = self.complete(ring, num_envs)
        whole = jnp.where(number > 0, 1.0, 0.0)
        number = jnp.maximum(number, 1)
        if kept.priorities is None:
            drawn = jax.random.randint(key, shape, 0, number * num_envs)
            window = (last - drawn // num_envs) % (steps // self.every) * num_envs + drawn % num_envs
            extras = {"weight": jnp.broadcast_to(whole, shape)}
        else:
            sums, first = kept.priorities.sums, (last - number + 1) % (steps // self.every)
            edges = (first * num_envs, last * num_envs + num_envs - 1)
            window = sum_tree.draw(sums, key, shape, edges)
            mass = sums[window + len(sums) // 2]
            weight = (mass / mass.min(axis=-1, keepdims=True)) ** -correction
            extras = {"weight": whole * weight, "row": window}
        begin, environment = window // num_envs, window % num_envs
        step = (begin[:, None] * self.every + jnp.arange(self.length)[:, None]) % steps  # [U, T, B]
        batch = ring.transitions(step * num_envs + environment[:, None])
        extras |= {"first": beginnings(batch)}
        if kept.memory is not None:
            extras |= {MEMORY: jax.tree.map(lambda x: x[begin, environment], kept.memory)}
        return batch.replace(extras={**batch.extras, **extras})

    def complete(self, ring: SequenceBuffer, num_envs: int) -> tuple[Array, Array]:
        """Of one learner's ring: where in time the newest window that is whole begins, and the number of whole ones.

        The first is counted in windows, from 0 to W - 1.
        """
        steps, next_step = ring.capacity // num_envs, ring.position // num_envs
        last = (next_step + steps - self.length) // self.every
        age = next_step + steps - last * self.every  # steps since it began
        number = (ring.drawable // num_envs - age) // self.every + 1
        return last % (steps // self.every), number


def n_step_returns(
    value: Array, batch: Transition, discount: Array | float, number: int
) -> Array:
    """Returns R^n_t [T, B] of sequences, for the values V_t [T, B] of their steps' successors.

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
