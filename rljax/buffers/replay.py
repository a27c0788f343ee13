"""Replay: batches from each learner's newest transitions."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp

from rljax.agent import Array, Step, Transition, config
from rljax.buffers.augmentation import has_pictures, shifted
from rljax.buffers.experience import Experience, Supply, declaration
from rljax.buffers.rows import AS_STORED, RewardMap, RingRows, repeated_rows
from rljax.buffers.storage.reward_scales import RewardScale, SeenReturns
from rljax.buffers.storage.ring import ReplayBuffer, later_rows
from rljax.buffers.windows import chunks_of_ring, steps_of_ring
from rljax.system.hardware import nbytes


class DrawableRows(NamedTuple):
    """The rows of one learner's ring that may be drawn."""

    number: Array  # [] int32
    row: Callable[[Array], Array]  # the rows for numbers [...] from 0 to `number` - 1


@declaration
class Draw:
    """How batches are drawn from a replay, and what is stored for this."""

    from_data: ClassVar[bool] = False  # batches can be mixed with rows of a data set
    relabels: ClassVar[bool] = False  # rows get other goals; those of a data set are drawn apart
    has_columns: ClassVar[bool] = False  # batches carry the agent's columns
    only_new: ClassVar[bool] = False  # it changes rows of new experience, and none of a data set
    flag: ClassVar[str] = ""  # name of the setting that asks for this draw
    may_be_empty: ClassVar[bool] = False  # there are times at which no stored row may be drawn

    @property
    def summed_steps(self) -> int:
        """Most steps whose rewards a row of a batch has; 0 for rows that are transitions."""
        return 0

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where the replay is too small for this draw."""

    def fewest(self, experience: Replay) -> int:
        """Environment steps of each learner before anything can be drawn."""
        return 1

    def extras(self, step: Step) -> dict[str, Array]:
        """Arrays [P, E, ...] to store with a step, by names in `extras`."""
        return {}

    def with_goals(self, goals: Any, env: str) -> Draw:
        """See `Experience.with_goals`."""
        return self

    def create(self, example: Transition, experience: Replay, stack: int) -> ReplayBuffer:
        """An empty ring for transitions with the shapes of `example` [P, E, ...]."""
        return ReplayBuffer.create(example, experience.replay_size, stack)

    def add(self, ring: ReplayBuffer, transitions: Transition) -> ReplayBuffer:
        """See `ReplayBuffer.add`."""
        return ring.add(transitions)

    def write_back(self, ring: ReplayBuffer, pending: Any, experience: Replay) -> ReplayBuffer:
        """Write what updates returned, after a step was added."""
        return ring

    def drawable(self, ring: ReplayBuffer, num_envs: int) -> DrawableRows:
        """The rows of one learner's ring that may be drawn, with `num_envs` environments."""
        del num_envs
        return DrawableRows(ring.drawable, ring.row)

    def row_bytes(self, row: float) -> float:
        """Bytes of a row of a batch, where a stored transition has `row` bytes."""
        return row

    def oddities(self, longest: int | None) -> Iterator[str]:
        """Warnings about unusual numbers; `longest` is the episodes' time limit."""
        return iter(())

    def summed(self, batches: Transition) -> Transition:
        """Batches [P, U, B, ...] of rows over several steps, with their rewards as one."""
        return batches

    @property
    def beside_data(self) -> Any:
        """The `DatasetDraw` of rows of a data set beside this; None for uniform ones."""
        return None

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        """Batches [P, U, B, ...]; `keys` are [P]."""
        raise NotImplementedError


@declaration
class Uniform(Draw):
    """Uniform rows with replacement."""

    from_data: ClassVar[bool] = True
    has_columns: ClassVar[bool] = True

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        return uniform(buffer, keys, experience, experience.batch_size)


def uniform(
    buffer: ReplayBuffer,
    keys: Array,
    experience: Replay,
    size: int,
    reward_map: RewardMap = AS_STORED,
) -> Transition:
    """Batches of `size` uniform rows, with the agent's columns."""

    def draw(ring: ReplayBuffer, key: Array) -> Transition:
        rows = batch_rows(ring, key, experience, size)
        return with_columns(ring, rows, experience, reward_map)

    return jax.vmap(draw, in_axes=(buffer.axes, 0))(buffer, keys)


def batch_rows(ring: ReplayBuffer, key: Array, experience: Replay, size: int) -> Array:
    """Rows [U, size] of one learner's ring for its batches, drawn with replacement.

    They are uniform, or `by_environment` the same number of each environment, give or take one.
    """
    shape = (experience.num_updates, size)
    if not experience.by_environment:
        number, row = experience.draw.drawable(ring, experience.num_envs)
        return row(jax.random.randint(key, shape, 0, jnp.maximum(number, 1)))
    number = experience.num_envs
    key_step, key_first = jax.random.split(key)
    first = jax.random.randint(key_first, (experience.num_updates, 1), 0, number)
    step = jax.random.randint(key_step, shape, 0, ring.drawable // number)
    return ring.row_of(step, (first + jnp.arange(size)) % number, number)


def with_columns(
    ring: ReplayBuffer,
    rows: Array,
    experience: Replay,
    reward_map: RewardMap = AS_STORED,
) -> Transition:
    """The transitions in `rows` [...] of one learner's ring, with the agent's columns, as chunks if
    it asks for them.
    """
    num_envs, steps = experience.num_envs, experience.summed_steps
    if experience.chunk_length > 1:
        batch = chunks_of_ring(ring, rows, num_envs, experience.chunk_length)
    elif steps:
        batch = steps_of_ring(ring, rows, num_envs, steps)
    else:
        batch = ring.transitions(rows)
    if not experience.columns:
        return batch
    later = later_rows(ring, rows, num_envs)
    at = RingRows(rows, later, num_envs, ring.capacity, reward_map)
    extras = dict(batch.extras)
    for column in experience.columns:
        extras |= column.of_replay(ring.data, at)
    return batch.replace(extras=extras)


@declaration
class Replay(Experience):
    """Batches from the newest `replay_size` transitions; with `--data` also from the data set."""

    replay_size: int  # transitions kept per learner
    batch_size: int  # transitions of one update
    warmup_steps: int = 0  # steps of each learner without updates
    uniform_warmup: bool = True  # False: another run's policy acts in the warm-up
    draw: Draw = Uniform()  # how batches are drawn
    by_environment: bool = False  # the same number of rows of each environment
    rewards: RewardScale | None = None  # how rewards of batches are scaled
    shift: int = 0  # most pixels by which pictures are moved; 4 in DrQ
    beside_data: bool = False  # training needs a data set, too: `--data`

    kind: ClassVar[str] = "replay"

    @property
    def summed_steps(self) -> int:
        return self.draw.summed_steps

    @property
    def random_steps(self) -> int:
        return self.warmup_steps if self.uniform_warmup else 0

    def check(self) -> None:
        super().check()
        if self.shift < 0:
            raise ValueError(f"--config.shift is {self.shift}, it must be at least 0.")
        if self.replay_size < self.batch_size:
            raise ValueError(
                f"--config.batch-size is {self.batch_size}, more than --config.replay-size "
                f"{self.replay_size} transitions can hold. Lower the one or raise the other."
            )
        if self.replay_size < self.num_envs:
            raise ValueError(
                f"--config.replay-size is {self.replay_size}, one step of --config.num-envs "
                f"{self.num_envs} environments would not fit. Raise it."
            )
        self.draw.check(self)

    def create(
        self, example: Transition, stack: int = 1, data: Transition | None = None
    ) -> ReplayBuffer:
        """Raises `ValueError` without pictures to be moved."""
        if self.shift and not has_pictures(example.observation, leading=2):
            raise ValueError(
                f"--config.shift is {self.shift}, and no part of the observations is a picture: "
                "use --config.shift 0."
            )
        ring = self.draw.create(example, self, stack)
        if self.rewards is None:
            return ring
        return ring.replace(returns=SeenReturns.create(*example.reward.shape))

    def transition(
        self, observation: Any, action: Array, extras: dict[str, Any], step: Step
    ) -> Transition:
        stored = super().transition(observation, action, extras, step)
        return stored.replace(extras={**stored.extras, **self.draw.extras(step)})

    def store(
        self, storage: ReplayBuffer, pending: Any, transitions: Transition
    ) -> tuple[ReplayBuffer, Any]:
        ring = self.draw.add(storage, transitions)
        if self.rewards is not None:
            ring = ring.replace(returns=self.rewards.observe(ring.returns, transitions))
        if pending is None:
            return ring, None
        ring = self.draw.write_back(ring, pending, self)
        return ring, pending.replace(fresh=jnp.zeros_like(pending.fresh))

    @property
    def steps_before_updates(self) -> int:
        return max(self.warmup_steps, self.batch_size, self.draw.fewest(self))

    def sample(self, buffer: ReplayBuffer, data: Transition | None, keys: Array) -> Transition:
        return self.augmented(buffer, self.draw(buffer, keys, self), keys)

    def augmented(self, buffer: ReplayBuffer, batches: Transition, keys: Array) -> Transition:
        """The batches [P, U, B, ...] with scaled rewards, and pictures moved by up to `shift`."""
        if self.rewards is not None:
            batches = self.rewards.scaled(buffer.returns, batches)
        return shifted(batches, keys, self.shift) if self.shift else batches

    # What a run needs for it

    def require_data(self, supply: Supply) -> None:
        if self.beside_data and supply.data is None:
            raise ValueError(
                f"agent '{supply.agent}' learns from a data set beside new experience. Name "
                "it: --data DATA."
            )

    def require_replay(self, out: Any) -> None:
        """Every replay is stored."""

    def with_policy(self) -> Replay:
        return dataclasses.replace(self, uniform_warmup=False)

    def mixed(self, mix: Callable[[Any], Experience]) -> Experience:
        return mix(self)

    def with_goals(self, goals: Any, env: str) -> Replay:
        return dataclasses.replace(self, draw=self.draw.with_goals(goals, env))

    def batch_bytes(self, storage: Any, data: Any, num_learners: int) -> int:
        rows, successors = storage.data, storage.successors
        row = nbytes(rows) / rows.reward.size
        # One frame is stored, and two stacks are drawn.
        if successors is not None:
            row += (2 * successors.stack - 1) * nbytes(rows.observation) / rows.reward.size
        return int(num_learners * self.num_updates * self.batch_size * self.draw.row_bytes(row))

    def _flags_of_first_update(self) -> str:
        warms_up = self.warmup_steps >= self.steps_before_updates
        return "--config.warmup-steps" if warms_up else "--config.batch-size"

    def oddities(self, rows: int | None, longest: int | None) -> Iterator[str]:
        yield from repeated_rows(self.batch_size, rows)
        yield from self.draw.oddities(longest)


@config
class ReplaySettings:
    """Settings of agents that learn from new experience: a base of their Config."""

    batch_size: int = 256  # transitions per update
    replay_size: int = 1_000_000  # newest transitions that are kept
    warmup_steps: int = 0  # environment steps with uniform actions and no update
    num_envs: int = 1  # environments stepped side by side
    num_steps: int = 1  # steps of each environment per iteration
    num_updates: int = 1  # updates per iteration, each on a fresh batch
    normalise_observations: bool = False  # by running mean and std of observations
