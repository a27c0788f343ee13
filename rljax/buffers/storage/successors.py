"""Successors: next observations that no row of a ring holds, where large observations are stored
once.

Successors of the newest rows, and in a smaller ring those at ends of episodes (finals), are kept
beside the ring. Stacks are stored frame by frame.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Transition
from rljax.buffers.rows import rows_of
from rljax.buffers.storage.frames import LARGE
from rljax.buffers.storage.learners import PerLearner

SHARE = 16  # rows of a ring for each final that is kept
FEWEST = 64  # finals, where the ring is so large
NEVER = 2**31  # an empty final's step: always long ago


class Successors(PerLearner):
    """The part of a ring beside its rows.

    A frame is the newest of an observation's `stack` frames. There are F finals: a sixteenth of the
    ring's rows, at least `FEWEST` and E. Rows whose final was overwritten, and all older ones, are
    no longer drawn.
    """

    frames: Any  # [P, E + F, ...] the newest rows' successors, then the finals
    place: Array  # [P, capacity] int32: a row's final in `frames`; -1 where its episode goes on
    owned: Array  # [P, F] uint32: the step that owns each final
    cursor: Array  # [P] int32: the next final to write
    usable: Array  # [P] int32: newest rows that may be drawn
    earlier: Array | None  # [P, capacity] uint8: earlier frames of a row's episode, < stack
    passed: Array | None  # [P, E] uint8: the same of the next rows
    steps: Array  # [] uint32: steps written, never batched
    stack: int = struct.field(pytree_node=False)  # frames in an observation

    shared: ClassVar[tuple[str, ...]] = ("steps",)

    @classmethod
    def create(cls, example: Transition, rows: int, stack: int) -> Successors:
        """The part for `rows` rows of transitions with the shapes of `example` [P, E, ...]."""
        learners, num_envs = example.reward.shape
        finals = min(max(rows // SHARE, FEWEST, num_envs), rows)
        frame = jax.eval_shape(lambda x: newest_frame(x, stack), example.next_observation)
        zeros = jnp.zeros(learners, jnp.int32)
        return cls(
            frames=jax.tree.map(
                lambda x: jnp.zeros((learners, num_envs + finals, *x.shape[2:]), x.dtype), frame
            ),
            place=jnp.full((learners, rows), -1, jnp.int32),
            owned=jnp.full((learners, finals), NEVER, jnp.uint32),
            cursor=zeros,
            usable=jnp.copy(zeros),
            earlier=jnp.zeros((learners, rows), jnp.uint8) if stack > 1 else None,
            passed=jnp.zeros((learners, num_envs), jnp.uint8) if stack > 1 else None,
            steps=jnp.zeros((), jnp.uint32),
            stack=stack,
        )

    @property
    def num_envs(self) -> int:
        """E, with or without the axis P."""
        leaf = jax.tree.leaves(self.frames)[0]
        return leaf.shape[self.owned.ndim - 1] - self.owned.shape[-1]

    def add(self, transitions: Transition, position: Array, size: Array) -> Successors:
        """The part after one step's rows [P, E, ...] at `position`, for a ring of `size` rows."""
        ended = transitions.terminated | transitions.truncated
        capacity = self.place.shape[1]
        num_envs = self.num_envs
        new = newest_frame(transitions.next_observation, self.stack)
        # The oldest rows of a full ring have lost their earlier frames.
        lost = num_envs * (self.stack - 1)
        most = jnp.where(size < capacity, size, capacity - lost)
        usable = jnp.minimum(self.usable + num_envs, most)
        part, place = self.replace(usable=usable, steps=self.steps + 1)._keep(ended, new)
        part = part.replace(place=jax.lax.dynamic_update_slice(self.place, place, (0, position)))
        if self.earlier is None or self.passed is None:
            return part
        earlier = jax.lax.dynamic_update_slice(self.earlier, self.passed, (0, position))
        passed = jnp.where(ended, 0, jnp.minimum(self.passed + 1, self.stack - 1)).astype(jnp.uint8)
        return part.replace(earlier=earlier, passed=passed)

    def cut(self, cut: Array, newest: Array) -> Successors:
        """The part where episodes end at the `newest` rows [E] after all, for `cut` [P, E]."""
        part, place = self._keep(cut, jax.tree.map(lambda x: x[:, : self.num_envs], self.frames))
        place = jnp.where(cut, place, self.place[:, newest])
        passed = None if self.passed is None else jnp.zeros_like(self.passed)
        return part.replace(place=self.place.at[:, newest].set(place), passed=passed)

    def _keep(self, ended: Array, new: Any) -> tuple[Successors, Array]:
        """Keep the newest rows' successors `new` [P, E, ...], also as finals where they `ended`
        [P, E], and say where, or -1.

        Where `new` comes from `frames` itself, a compiled step copies all frames.
        """
        number, finals = self.num_envs, self.owned.shape[1]
        index = (self.cursor[:, None] + jnp.cumsum(ended, axis=1) - ended) % finals  # [P, E]
        # In steps, of overwritten finals' owners.
        age = self.steps - jnp.take_along_axis(self.owned, index, axis=1)
        newer = jnp.minimum(age, self.place.shape[1] // number).astype(jnp.int32) * number
        usable = jnp.minimum(self.usable, jnp.where(ended, newer, self.place.shape[1]).min(axis=1))

        def write(old: Array, new: Array, at: Array, mode: str) -> Array:
            return jax.vmap(lambda old, new, at: old.at[at].set(new, mode=mode))(old, new, at)

        beyond = jnp.where(ended, index, finals)  # the end, where nothing is written
        owned = write(self.owned, jnp.broadcast_to(self.steps, ended.shape), beyond, "drop")
        # Without a condition XLA writes in place: where no episode ended, the newest again.
        where = jnp.where(ended, index + number, jnp.arange(number))

        def kept(old: Array, new: Array) -> Array:
            new = new.astype(old.dtype)
            return write(old.at[:, :number].set(new), new, where, "promise_in_bounds")

        frames = jax.tree.map(kept, self.frames, new)
        cursor = (self.cursor + ended.sum(axis=1, dtype=jnp.int32)) % finals
        part = self.replace(frames=frames, owned=owned, cursor=cursor, usable=usable)
        return part, jnp.where(ended, index + number, -1)

    # Of one learner, without the axis P. `ring` are the stored frames [capacity, ...].

    def observations(self, ring: Any, rows: Array) -> Any:
        """The observations of `rows` [...]."""
        if self.stack == 1:
            return rows_of(ring, rows)
        return joined(self._frames(ring, rows, self.stack), rows.ndim)

    def next_observations(self, ring: Any, rows: Array, is_newest: Array) -> Any:
        """Next observations of `rows` [...], of which `is_newest` [...] have no next row yet."""
        place, capacity = self.place[rows], self.place.shape[0]
        in_frames = (place >= 0) | is_newest
        index = jnp.where(place >= 0, place, rows % self.num_envs)
        following = (rows + self.num_envs) % capacity

        def choose(ring: Array, frames: Array) -> Array:
            mask = in_frames.reshape(*in_frames.shape, *[1] * (ring.ndim - 1))
            return jnp.where(mask, frames[index], ring[following])

        newest = jax.tree.map(choose, ring, self.frames)
        if self.stack == 1:
            return newest
        before = self._frames(ring, rows, self.stack - 1)
        last = jax.tree.map(lambda x: jnp.expand_dims(x, rows.ndim), newest)
        both = jax.tree.map(lambda *parts: jnp.concatenate(parts, axis=rows.ndim), before, last)
        return joined(both, rows.ndim)

    def _frames(self, ring: Any, rows: Array, number: int) -> Any:
        """The last `number` frames [..., number, ...] of `rows` [...]."""
        assert self.earlier is not None
        back = jnp.minimum(
            jnp.arange(number - 1, -1, -1), self.earlier[rows][..., None].astype(jnp.int32)
        )
        return jax.tree.map(
            lambda x: x[(rows[..., None] - self.num_envs * back) % self.place.shape[0]], ring
        )


def newest_frame(observation: Any, stack: int) -> Any:
    """The newest frame [..., H, W, c] of stacks of `stack` frames [..., H, W, stack x c]."""
    if stack == 1:
        return observation
    return jax.tree.map(lambda x: x[..., -(x.shape[-1] // stack) :], observation)


def joined(frames: Any, axis: int) -> Any:
    """Stacks [..., H, W, stack x c] of frames [..., stack, H, W, c], stacked along `axis`."""

    def join(x: Array) -> Array:
        moved = jnp.moveaxis(x, axis, -2)
        return moved.reshape(*moved.shape[:-2], moved.shape[-2] * moved.shape[-1])

    return jax.tree.map(join, frames)


def is_large(example: Any) -> bool:
    """Whether one observation of `example` [P, E, ...] has at least `LARGE` bytes."""
    leaves = jax.tree.leaves(example)
    return sum(math.prod(x.shape[2:]) * jnp.dtype(x.dtype).itemsize for x in leaves) >= LARGE
