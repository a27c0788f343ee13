"""Replay: the newest transitions of each learner in a ring, and batches drawn from it."""

from __future__ import annotations

from typing import Any, ClassVar

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Transition, config
from rljax.buffers.augmentation import has_pictures, shifted
from rljax.buffers.draws import Draw, Uniform
from rljax.buffers.experience import Experience, apart, declaration, rows_of
from rljax.buffers.prioritised import Pending, Priorities, Prioritised
from rljax.buffers.sequences import Sequences, Windows
from rljax.buffers.successors import Successors, is_large, newest_frame


class ReplayBuffer(struct.PyTreeNode):
    """A ring of transitions per learner: the newest overwrite the oldest.

    All learners share `position` and `size`, which are never batched: a batched index would turn the slice update into
    a scatter. Large observations are stored once: `data.next_observation` is then None, `data.observation` holds the
    newest frame of each, and `beside` holds what the rows do not say of their successors. `priorities` is for
    draws of rows by priority, and `windows` for draws of consecutive steps.
    """

    data: Transition  # [P, capacity, ...]
    position: Array  # [] int32: the next row to write
    size: Array  # [] int32: number of rows that hold a transition
    beside: Successors | None = None
    priorities: Priorities | None = None  # of rows
    windows: Windows | None = None

    @classmethod
    def create(cls, example: Transition, capacity: int, stack: int = 1) -> ReplayBuffer:
        """An empty ring for transitions with the shapes of `example` [P, E, ...].

        The capacity is rounded down to a multiple of E, so that one write never wraps in its middle. `stack` is the
        number of frames in an observation.
        """
        num_envs, beside = example.reward.shape[1], None
        rows = capacity // num_envs * num_envs
        if is_large(example.observation):
            whole = not isinstance(example.observation, dict) and rows >= 2 * stack * num_envs
            stack = stack if whole else 1
            beside = Successors.create(example, rows, stack)
            frame = jax.eval_shape(lambda x: newest_frame(x, stack), example.observation)
            example = example.replace(observation=frame, next_observation=None)
        data = jax.tree.map(lambda x: jnp.zeros((x.shape[0], rows, *x.shape[2:]), x.dtype), example)
        return cls(data, jnp.zeros((), jnp.int32), jnp.zeros((), jnp.int32), beside)

    @property
    def capacity(self) -> int:
        """Rows per learner."""
        return self.data.reward.shape[-1]

    def add(self, transitions: Transition) -> ReplayBuffer:
        """Write transitions [P, E, ...] at the ring's position; in place where the ring is donated or carried."""
        number = transitions.reward.shape[1]
        beside, windows = self.beside, self.windows
        if windows is not None:
            transitions, memory = apart(transitions)
            windows = windows.remembered(memory, self.position // number)
        if beside is not None:
            frame = newest_frame(transitions.observation, beside.stack)
            beside = beside.add(transitions, self.position, self._grown(number))
            transitions = transitions.replace(observation=frame, next_observation=None)

        def write(ring: Array, rows: Array) -> Array:
            start = (0, self.position) + (0,) * (ring.ndim - 2)
            return jax.lax.dynamic_update_slice(ring, rows.astype(ring.dtype), start)

        return self.replace(
            data=jax.tree.map(write, self.data, transitions),
            position=(self.position + number) % self.capacity,
            size=self._grown(number),
            beside=beside,
            windows=windows,
        )

    def prioritised(self, pending: Pending, experience: Replay) -> ReplayBuffer:
        """The ring with the `pending` priorities and those of its newest step of E environments."""
        draw: Any = experience.draw
        exponent = jnp.asarray(draw.exponent)
        if self.windows is not None:
            step = (self.position // experience.num_envs - 1) % (self.capacity // experience.num_envs)
            return self.replace(windows=self.windows.written(pending, step, experience.num_envs, exponent))
        assert self.priorities is not None
        new = (self.position - experience.num_envs + jnp.arange(experience.num_envs)) % self.capacity
        return self.replace(priorities=self.priorities.written(pending, new, exponent))

    def _grown(self, number: int) -> Array:
        """The number of rows that hold a transition after `number` more."""
        return jnp.minimum(self.size + number, self.capacity)

    def cut_episodes(self, num_envs: int) -> ReplayBuffer:
        """Mark the newest row of each environment as truncated, unless it has ended: the next row begins an episode."""
        newest = (self.position - num_envs + jnp.arange(num_envs)) % self.capacity
        cut = ~self.data.terminated[:, newest] & (self.size > 0)
        beside = self.beside
        if beside is not None:
            beside = beside.cut(cut & ~self.data.truncated[:, newest], newest)
        truncated = self.data.truncated.at[:, newest].set(self.data.truncated[:, newest] | cut)
        return self.replace(data=self.data.replace(truncated=truncated), beside=beside)

    # One learner's ring: the buffer without the axis P.

    @property
    def axes(self) -> ReplayBuffer:
        """Which parts have the axis P, for `jax.vmap`."""
        parts: dict[str, Any] = {"data": 0, "position": None, "size": None}
        if self.beside is not None:
            parts["beside"] = Successors.axes(self.beside.stack)
        if self.priorities is not None:
            parts["priorities"] = Priorities.axes()
        if self.windows is not None:
            parts["windows"] = self.windows.axes
        return ReplayBuffer(**parts)

    def of_learner(self, index: int) -> ReplayBuffer:
        """The ring of one of P learners."""
        learner = lambda tree: jax.tree.map(lambda x: x[index], tree)  # noqa: E731
        beside = None if self.beside is None else learner(self.beside.replace(steps=None))
        beside = None if beside is None else beside.replace(steps=self.beside.steps)  # type: ignore[union-attr]
        priorities = None if self.priorities is None else self.priorities.of_learner(index)
        windows = None if self.windows is None else self.windows.of_learner(index)
        return self.replace(data=learner(self.data), beside=beside, priorities=priorities, windows=windows)

    @property
    def drawable(self) -> Array:
        """The number [] of newest rows of one learner's ring that may be drawn, a multiple of E."""
        return self.size if self.beside is None else self.beside.usable

    @property
    def window(self) -> tuple[Array, Array] | None:
        """The oldest and the newest row of those that may be drawn; None where all rows that are written may be."""
        if self.beside is None:
            return None
        return (self.position - self.drawable) % self.capacity, (self.position - 1) % self.capacity

    def row(self, number: Array) -> Array:
        """The row of a `number` [...] from 0 to `drawable` - 1."""
        return number if self.beside is None else (self.position - 1 - number) % self.capacity

    def row_of(self, step: Array, environment: Array, num_envs: int) -> Array:
        """The row of an environment [...] at a `step` [...] from 0 to `drawable` / E - 1, in any order of time."""
        if self.beside is None:
            return step * num_envs + environment
        return (self.position - (step + 1) * num_envs + environment) % self.capacity

    def random_rows(self, key: Array, shape: tuple[int, ...]) -> Array:
        """Rows of this shape, drawn uniformly with replacement from those that may be drawn."""
        return self.row(jax.random.randint(key, shape, 0, self.drawable))

    def observations(self, rows: Array) -> Any:
        """The observations of `rows` [...]."""
        ring = self.data.observation
        return rows_of(ring, rows) if self.beside is None else self.beside.observations(ring, rows)

    def successors(self, rows: Array) -> Any:
        """The true successors of `rows` [...]."""
        if self.beside is None:
            return rows_of(self.data.next_observation, rows)
        is_newest = (self.position - 1 - rows) % self.capacity < self.beside.num_envs
        return self.beside.successors(self.data.observation, rows, is_newest)

    def transitions(self, rows: Array) -> Transition:
        """The transitions in `rows` [...]."""
        if self.beside is None:
            return rows_of(self.data, rows)
        rest = rows_of(self.data.replace(observation=None), rows)
        return rest.replace(observation=self.observations(rows), next_observation=self.successors(rows))


@declaration
class Replay(Experience):
    """Batches from the newest `replay_size` transitions. With `--data`, a share of each batch is from the data set."""

    replay_size: int  # transitions kept per learner; new ones overwrite the oldest
    batch_size: int  # transitions of one update
    warmup_steps: int = 0  # environment steps of each learner with uniform actions and without updates
    uniform_warmup: bool = True  # False: in the warm-up the policy acts, as where another run has trained it
    draw: Draw = Uniform()  # how batches are drawn
    clip_rewards: bool = False  # store rewards clipped to [-1, 1]
    shift: int = 0  # pixels by which pictures of a batch are moved at random, at most; 0 for none, 4 in DrQ
    beside_data: bool = False  # training needs a data set, too: `--data`

    kind: ClassVar[str] = "replay"

    @property
    def mixes_data(self) -> bool:
        """True: a data set can be part of its batches."""
        return True

    @property
    def waits_for_data(self) -> bool:
        """Whether there must be a data set, as `beside_data` says."""
        return self.beside_data

    @property
    def stores_time(self) -> bool:
        """Whether the draw needs the number of each transition's step in its episode."""
        return self.draw.needs_time

    @property
    def clips_rewards(self) -> bool:
        """Whether rewards are stored clipped to [-1, 1]."""
        return self.clip_rewards

    @property
    def random_steps(self) -> int:
        """Environment steps of each learner with uniform actions."""
        return self.warmup_steps if self.uniform_warmup else 0

    def check(self) -> None:
        """Raise `ValueError` for sizes that can never work."""
        super().check()
        if self.shift < 0:
            raise ValueError(f"--config.shift is {self.shift}, it must be at least 0.")
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

    def create(self, example: Transition, stack: int = 1) -> ReplayBuffer:
        """An empty ring for transitions with the shapes of `example` [P, E, ...].

        Raises `ValueError` where pictures are to be moved and there are none.
        """
        if self.shift and not has_pictures(example.observation, leading=2):
            raise ValueError(
                f"--config.shift is {self.shift}, and no part of the observations is a picture: use --config.shift 0."
            )
        if isinstance(self.draw, Sequences):
            return self._of_sequences(example, self.draw, stack)
        ring = ReplayBuffer.create(example, self.replay_size, stack)
        if not isinstance(self.draw, Prioritised):
            return ring
        return ring.replace(priorities=Priorities.create(len(example.reward), ring.capacity))

    def _of_sequences(self, example: Transition, draw: Sequences, stack: int) -> ReplayBuffer:
        example, memory = apart(example)
        learners, steps = len(example.reward), draw.steps(self)
        ring = ReplayBuffer.create(example, steps * self.num_envs, stack)
        return ring.replace(windows=Windows.create(memory, learners, self.num_envs, steps, draw))

    @property
    def steps_before_updates(self) -> int:
        """Environment steps of each learner before the first update: the warm-up, or those of one batch or window."""
        return max(self.warmup_steps, self.batch_size, self.draw.fewest(self))

    def ready(self, steps: Any) -> Any:
        """Whether the warm-up is over and there are enough transitions for one batch."""
        return steps >= self.steps_before_updates

    def sample(self, buffer: ReplayBuffer, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...]."""
        del data
        return self.augmented(self.draw(buffer, keys, self), keys)

    def augmented(self, batches: Transition, keys: Array) -> Transition:
        """The batches [P, U, B, ...] with their pictures moved, where `shift` asks for it."""
        return shifted(batches, keys, self.shift) if self.shift else batches


@config
class ReplaySettings:
    """Settings of every agent that learns from new experience: the base of its Config."""

    batch_size: int = 256  # transitions per update
    replay_size: int = 1_000_000  # newest transitions that are kept
    warmup_steps: int = 0  # environment steps with uniform actions and no update
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    normalise_observations: bool = False  # by running mean and std of observations
