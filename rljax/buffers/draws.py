"""Draws from a replay: returns of several steps, windows, episodes that have ended; and windows of
a data set.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, Transition
from rljax.buffers.dataset import (
    OPTIMAL_ACTION,
    TASK,
    AliasDraws,
    Dataset,
    DatasetDraw,
    alias_draws,
    aliased,
    with_weights,
)
from rljax.buffers.experience import declaration
from rljax.buffers.replay import (
    Draw,
    DrawableRows,
    Replay,
    Uniform,
    batch_rows,
    uniform,
)
from rljax.buffers.rows import random_rows, rows_of, without
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.buffers.windows import (
    LAST,
    VALID,
    n_step_return,
    steps_of_ring,
    window_of_data,
    window_of_ring,
    with_last_rows,
)

FIRST = "first_row"  # in extras: the first row [N] of each row's trajectory
PLAYED = "played"  # in extras: the steps of its chunk before each row's
BLOCK = 64  # steps of the episodes that go on, which are read at a time


@declaration
class NStep(Draw):
    """Uniform rows, with the rewards of up to `steps` steps summed.

    The sum ends early with the episode or the ring's newest row. Over k rows, `reward` is the sum
    of discount^i r_i and `extras["discount"]` is discount^k; `next_observation`, `terminated` and
    `truncated` are those of the last.
    """

    steps: int
    discount: float

    from_data: ClassVar[bool] = True
    flag: ClassVar[str] = "n-step"

    def check(self, experience: Replay) -> None:
        held = experience.replay_size // experience.num_envs
        if self.steps > held:
            raise ValueError(
                f"--config.n-step is {self.steps:,}, and --config.replay-size "
                f"{experience.replay_size:,} holds {held:,} steps of each environment. Lower the "
                "one or raise the other."
            )

    def row_bytes(self, row: float) -> float:
        return row + 16 * self.steps  # rows, rewards and ends of the summed steps

    def oddities(self, longest: int | None) -> Iterator[str]:
        if longest is not None and self.steps > longest:
            yield (
                f"--config.n-step {self.steps:,} is more than the {longest:,} steps of the "
                "longest episode."
            )

    @property
    def summed_steps(self) -> int:
        return self.steps

    def summed(self, batches: Transition) -> Transition:
        return jax.vmap(n_step_return)(batches, jnp.asarray(self.discount))

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        return self.summed(uniform(buffer, keys, experience, experience.batch_size))


def n_step_batch(
    ring: ReplayBuffer, rows: Array, num_envs: int, number: int, discount: Array | float
) -> Transition:
    """Transitions [...] over up to `number` steps from `rows` of a learner's ring; see `NStep`."""
    return n_step_return(steps_of_ring(ring, rows, num_envs, number), discount)


@declaration
class Decisions(Draw):
    """Decisions of a policy that plays chunks, as transitions over all `length` steps of each.

    They are where uniform rows' chunks begin, by `extras["played"]`: the chunk's steps before a
    row. A chunk that its episode has cut is drawn less often. Over k steps until the chunk or its
    episode ends, `reward` is the sum of discount^i r_i and `extras["discount"]` is discount^k;
    `next_observation`, `terminated` and `truncated` are those of the last. `extras["weight"]` is 0
    where the chunk is still played.
    """

    length: int
    discount: float

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where no chunk is whole."""
        if 2 * self.length * experience.num_envs > experience.replay_size:
            raise ValueError(
                f"--config.replay-size is {experience.replay_size:,}, and two chunks of each "
                f"environment have {2 * self.length * experience.num_envs:,} steps. Raise it."
            )

    def fewest(self, experience: Replay) -> int:
        return self.length * experience.num_envs

    def row_bytes(self, row: float) -> float:
        return row + 16 * self.length  # rows, rewards and ends of the chunk

    def drawable(self, ring: ReplayBuffer, num_envs: int) -> DrawableRows:
        """The rows of one learner's ring whose chunks it has from their beginning."""
        has_all = (ring.drawable == ring.size) & (ring.size < ring.capacity)
        cut = jnp.where(has_all, 0, (self.length - 1) * num_envs)
        newest = ring.position - 1
        return DrawableRows(ring.drawable - cut, lambda number: (newest - number) % ring.capacity)

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        num_envs = experience.num_envs

        def draw(ring: ReplayBuffer, key: Array, discount: Array) -> Transition:
            rows = batch_rows(ring, key, experience, experience.batch_size)
            first = (rows - num_envs * ring.data.extras[PLAYED][rows]) % ring.capacity
            batch = steps_of_ring(ring, first, num_envs, self.length)
            is_over = batch.extras[VALID][..., -1] | batch.terminated | batch.truncated
            batch = n_step_return(without(batch, PLAYED), discount)
            weight = is_over.astype(jnp.float32)
            return batch.replace(extras={**batch.extras, "weight": weight})

        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, jnp.asarray(self.discount))


@declaration
class EndedEpisodes(Uniform):
    """Uniform rows of episodes that have ended, beside a data set.

    A row waits until its episode has ended; Cal-QL's authors store whole episodes
    (nakamotoo/Cal-QL, sampler.py).
    """

    may_be_empty: ClassVar[bool] = True

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where there is no data set."""
        if experience.kind != "mixed":
            raise ValueError(
                "this agent draws new experience only from episodes that have ended, and learns "
                "from a data set until one has: name it with --data DATA."
            )

    def oddities(self, longest: int | None) -> Iterator[str]:
        if longest is None:
            yield (
                "new experience is drawn only from episodes that have ended, and no time limit of "
                "the environment is known: until one ends, batches are of the data set alone."
            )

    def drawable(self, ring: ReplayBuffer, num_envs: int) -> DrawableRows:
        """The rows of one learner's ring whose episodes have ended."""
        steps = ring.drawable // num_envs
        ended = steps - open_steps(ring, num_envs)  # [E]
        begin = jnp.cumsum(ended) - ended

        def row(number: Array) -> Array:
            environment = jnp.searchsorted(begin + ended, number, side="right")
            environment = jnp.minimum(environment, num_envs - 1)  # where there is no row at all
            later = steps - 1 - (number - begin[environment])
            return (ring.position - (later + 1) * num_envs + environment) % ring.capacity

        return DrawableRows(ended.sum(), row)


def open_steps(ring: ReplayBuffer, num_envs: int) -> Array:
    """For each environment [E]: the newest steps of one learner's ring whose episode goes on.

    They are read backwards in blocks.
    """
    environment, steps = jnp.arange(num_envs), ring.drawable // num_envs
    ends = ring.data.terminated | ring.data.truncated

    def goes_on(state: tuple[Array, Array, Array]) -> Array:
        first, _, is_open = state
        return (first < steps) & is_open.any()

    def block(state: tuple[Array, Array, Array]) -> tuple[Array, Array, Array]:
        first, number, is_open = state
        later = first + jnp.arange(BLOCK)[:, None]  # [BLOCK, 1]
        rows = (ring.position - (later + 1) * num_envs + environment) % ring.capacity
        ended = jnp.cumsum(ends[rows] | (later >= steps), axis=0) > 0  # [BLOCK, E]
        number += jnp.where(is_open, (~ended).sum(axis=0), 0)
        return first + BLOCK, number, is_open & ~ended[-1]

    zero = jnp.zeros(num_envs, jnp.int32)
    begun = (jnp.zeros((), jnp.int32), zero, zero == 0)
    return jax.lax.while_loop(goes_on, block, begun)[1]


@declaration
class EpisodeWindows(Draw):
    """Windows of up to `length` steps of one episode of a replay, which begin in uniform rows.

    Batches are those of `TrajectoryWindows`; a window also ends with the ring's newest row.
    """

    length: int

    def check(self, experience: Replay) -> None:
        """Raise `ValueError` where no window is whole."""
        if self.length * experience.num_envs > experience.replay_size:
            raise ValueError(
                f"a window has {self.length} steps, and --config.replay-size "
                f"{experience.replay_size} keeps fewer of each environment. Raise it."
            )

    def row_bytes(self, row: float) -> float:
        return row * self.length

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        def draw(ring: ReplayBuffer, key: Array) -> Transition:
            rows = batch_rows(ring, key, experience, experience.batch_size)
            window = window_of_ring(ring, rows, experience.num_envs, self.length)
            batch = ring.transitions(window.row)
            return batch.replace(extras={**batch.extras, VALID: window.valid})

        return jax.vmap(draw, in_axes=(buffer.axes, 0))(buffer, keys)


@declaration
class TrajectoryWindows(DatasetDraw):
    """Windows of up to `length` steps of one trajectory, which begin in uniform rows.

    Arrays are [..., B, length, ...]; what lies beyond the trajectory's end has no meaning, and is
    marked by `extras["valid"]` [..., B, length] bool.
    """

    length: int

    has_columns: ClassVar[bool] = True

    def prepare(self, data: Transition) -> Transition:
        return with_last_rows(data)

    def random(self, keys: Array, number: int, experience: Dataset) -> Array:
        return random_rows(keys, number, experience.num_updates, experience.batch_size)

    def take(self, data: Transition, drawn: Array) -> Transition:
        window = window_of_data(data, drawn, self.length)
        batch = rows_of(without(data, LAST), window.row)
        return batch.replace(extras={**batch.extras, VALID: window.valid})


class ContextDraws(NamedTuple):
    """Random pieces of lifetimes."""

    first: AliasDraws  # [..., B]: each piece's first row; with pairs [..., B / 2]
    order: Any  # [..., B, length] int32
    other: Any  # [..., B / 2] in [0, 1): where in the same lifetimes the second half begins


@declaration
class Contexts(DatasetDraw):
    """Pieces of `length` steps of one trajectory, a lifetime.

    Arrays are [..., B, length, ...]. The steps are in a random order if they are `shuffled`. Where
    actions are not the data's own, `extras["optimal_action"]` has those to learn.

    All pieces are equally likely. With `stability`, they have the `history_weights` of their
    lifetimes, whose episodes have `episode_steps` steps. With `pairs`, the second half of a batch
    has pieces of the same lifetimes as the first, in the same order.
    """

    length: int
    shuffled: bool
    imitates_data: bool
    episode_steps: int = 1
    stability: float | None = None
    pairs: bool = False

    has_columns: ClassVar[bool] = True

    @property
    def labels(self) -> tuple[str, ...]:  # pyright: ignore[reportIncompatibleVariableOverride]
        """See `Experience.labels`."""
        optimal = () if self.imitates_data else (OPTIMAL_ACTION,)
        return optimal if self.stability is None else (*optimal, TASK)

    def prepare(self, data: Transition) -> Transition:
        last = np.asarray(with_last_rows(data).extras[LAST])
        weight: np.ndarray = (last - np.arange(len(last)) >= self.length - 1).astype(np.float64)
        if self.stability is not None and weight.any():
            weight *= self._weights(data, last)
        if not weight.any():
            raise ValueError(
                f"--config.context-length is {self.length - 1:,}, with {self.length:,} steps of a "
                "trajectory in each piece, and the data have no such trajectory. Lower it."
            )
        data = with_weights(without(data, TASK), weight / weight.sum())
        if not self.pairs:
            return data
        first = np.searchsorted(last, last).astype(np.int32)
        return data.replace(extras={**data.extras, FIRST: first, LAST: last})

    def _weights(self, data: Transition, last: np.ndarray) -> np.ndarray:
        """The weight [N] of each row's lifetime."""
        stability = np.unique(np.asarray(self.stability, np.float32))
        if len(stability) > 1:
            raise ValueError(
                "lifetimes are weighed once for all learners: give one --config.history-stability."
            )
        ends, lifetime = np.unique(last, return_inverse=True)
        begins = np.concatenate([[0], ends[:-1] + 1])
        returns = []
        for begin, end in zip(begins, ends, strict=True):
            episodes = (end - begin + 1) // self.episode_steps
            if episodes < 2:
                raise ValueError(
                    f"--config.history-stability compares episodes of a lifetime, and one has "
                    f"{end - begin + 1:,} steps, less than two episodes of --config.episode-steps "
                    f"{self.episode_steps:,}."
                )
            rewards = data.reward[begin : begin + episodes * self.episode_steps]
            returns.append(np.asarray(rewards, np.float64).reshape(episodes, -1).sum(axis=1))
        tasks = np.asarray(data.extras[TASK])[begins]
        return history_weights(returns, tasks, float(stability[0]))[lifetime]

    def random(self, keys: Array, number: int, experience: Dataset) -> ContextDraws:
        key_first, key_order = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        shape = (experience.num_updates, experience.batch_size, self.length)
        order = jnp.broadcast_to(jnp.arange(self.length), (len(keys), *shape))
        if self.shuffled:
            draw = jax.vmap(lambda key: jax.random.uniform(key, shape))
            order = jnp.argsort(draw(key_order), axis=-1)
        halves = shape[1] // (2 if self.pairs else 1)
        first = alias_draws(key_first, number, shape[0], halves)
        uniform = jax.vmap(lambda key: jax.random.uniform(key, (shape[0], halves)))
        other = uniform(jax.vmap(jax.random.fold_in, (0, None))(key_first, 1)) if self.pairs else ()
        return ContextDraws(first, order, other)

    def rows(self, data: Transition, drawn: ContextDraws) -> Any:
        first = aliased(data, drawn.first)
        if self.pairs:
            xp: Any = np if isinstance(first, np.ndarray) else jnp
            begin, last = (data.extras[name][first] for name in (FIRST, LAST))
            number = last - begin - self.length + 2  # of whole pieces
            ahead = xp.minimum((drawn.other * number).astype(np.int32), number - 1)
            first = xp.concatenate([first, begin + ahead], axis=-1)
        return first[..., None] + drawn.order

    def take(self, data: Transition, drawn: ContextDraws) -> Transition:
        return without(super().take(data, drawn), FIRST)


def history_weights(
    returns: Sequence[np.ndarray], tasks: np.ndarray, stability: float
) -> np.ndarray:
    """Weights [L] in [0, 1] of L lifetimes, from the returns of their episodes and their `tasks`
    [L].

    They are U, linearly from 0 for the smallest to 1 for the largest of a task; all 1 where these
    are equal. With R_max, the largest return of the task:

        U           = improvement + lambda stability,  lambda = `stability`
        improvement = (mean R + max R - min R) / (2 R_max)
        stability   = 1 + mean of the changes R_(i+1) - R_i below 0 / R_max

    Source: Chen et al., LHF, arXiv:2505.15143, section 4, with R_max over the data.
    """
    weights = np.ones(len(tasks))
    for task in np.unique(tasks):
        members = np.flatnonzero(tasks == task).tolist()
        largest = max(returns[i].max() for i in members)
        if largest <= 0.0:
            continue
        scores = []
        for i in members:
            changes = np.diff(returns[i])
            falls = changes[changes < 0.0]
            improvement = (returns[i].mean() + np.ptp(returns[i])) / (2.0 * largest)
            steadiness = 1.0 + (falls.mean() / largest if len(falls) else 0.0)
            scores.append(improvement + stability * steadiness)
        low, high = min(scores), max(scores)
        if high > low:
            weights[members] = (np.array(scores) - low) / (high - low)
    return weights
