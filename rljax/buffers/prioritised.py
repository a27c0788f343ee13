"""Prioritised replay: transitions with large errors are drawn more often.

p_i priority of row i, the agent's error; alpha exponent, beta correction, e = `SMALLEST`

  q_i  = (p_i + e)^alpha             new rows: p_i is the largest priority so far, at least 1,
                                     or with `renewal` that of the rows when it was renewed
  P(i) = q_i / sum_k q_k
  w_i  = (N P(i))^-beta / max_j (N P(j))^-beta = (q_i / min_j q_j)^-beta    j: the batch's rows

Draws are independent, not stratified as the paper's.

Schaul et al., Prioritized Experience Replay, arXiv:1511.05952, algorithm 1 and section 3.3.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, Loss, Metrics, Transition, config, same_fields
from rljax.buffers.dataset import Dataset, DatasetDraw, DatasetSettings, UniformRows, transitions
from rljax.buffers.draws import NStep, n_step_batch
from rljax.buffers.experience import Supply, declaration
from rljax.buffers.goals.of_replay import GoalSource, Hindsight
from rljax.buffers.replay import Draw, Replay, Uniform
from rljax.buffers.storage import sum_tree
from rljax.buffers.storage.learners import PerLearner
from rljax.buffers.storage.ring import ReplayBuffer
from rljax.requirements import Share

SMALLEST = 1e-6  # added to all priorities: each row can be drawn again; OpenAI Baselines


class Pending(struct.PyTreeNode):
    """Priorities of an iteration, written with the next stored step: see
    `rljax.learning.drivers.hosted`.
    """

    row: Array  # [P, U, B] int32
    priority: Array  # [P, U, B]
    fresh: Array  # [] bool: not yet written
    # [] int32: updates of each learner so far, with those of the iteration
    updates: Array = struct.field(default_factory=lambda: jnp.zeros((), jnp.int32))

    @classmethod
    def none(cls, row: Any) -> Pending:
        """Nothing to write, for rows with the shape of `row` [P, U, B]."""
        return cls(jnp.zeros(row.shape, jnp.int32), jnp.zeros(row.shape), jnp.zeros((), jnp.bool_))

    def completes(self, period: int) -> Array:
        """Whether [] one of the iteration's updates completes a `period` of updates."""
        before = self.updates - self.row.shape[1]
        return self.fresh & (self.updates // period > before // period)


class Priorities(PerLearner):
    """The priorities of the rows of a replay."""

    sums: Array  # [P, 2 N]: sum trees of the q_i; empty rows have 0
    largest: Array  # [P] the largest priority so far
    steps: Array  # [] uint32: steps written, never batched

    shared: ClassVar[tuple[str, ...]] = ("steps",)

    @classmethod
    def create(cls, learners: int, rows: int) -> Priorities:
        """The priorities of empty rows."""
        return cls(
            jnp.zeros((learners, sum_tree.size(rows))),
            jnp.ones(learners),
            jnp.zeros((), jnp.uint32),
        )

    @classmethod
    def alike(cls, learners: int, rows: int) -> Priorities:
        """The priorities of rows that are all there, 1 for each."""
        sums = jnp.broadcast_to(sum_tree.ones(rows), (learners, sum_tree.size(rows)))
        return cls.create(learners, rows).replace(sums=sums)

    def weights(self, rows: Array, correction: Array) -> Array:
        """The weights [..., B] of drawn `rows`, for one learner."""
        mass = self.sums[rows + len(self.sums) // 2]
        return (mass / mass.min(axis=-1, keepdims=True)) ** -correction

    def written(
        self, pending: Pending, new: Array, exponent: Array, renewal: int | None = None
    ) -> Priorities:
        """The priorities after `pending` ones, and after a step that wrote the rows `new` [E]."""
        updated = self.updated(pending, exponent, renewal)
        largest = updated.largest
        mass = jnp.broadcast_to(powered(largest, exponent)[:, None], (len(largest), len(new)))
        sums = jax.vmap(sum_tree.write_apart, in_axes=(0, None, 0))(updated.sums, new, mass)
        return updated.replace(sums=sums, steps=self.steps + 1)

    def updated(self, pending: Pending, exponent: Array, renewal: int | None = None) -> Priorities:
        """The priorities after `pending` ones.

        Those that are not finite are ignored. After each `renewal` updates the largest priority is
        that of the rows.
        """

        def of_one(
            sums: Array, largest: Array, row: Array, priority: Array, exponent: Array
        ) -> tuple[Array, Array]:
            finite = jnp.isfinite(priority)
            largest = jnp.maximum(largest, jnp.where(finite, priority, 0.0).max())
            row = jnp.where(finite, row, -1)
            return sum_tree.write(sums, row, powered(priority, exponent)), largest

        row, priority = (x.reshape(len(x), -1) for x in (pending.row, pending.priority))

        def write(_: Any, stored: tuple[Array, Array]) -> tuple[Array, Array]:
            return jax.vmap(of_one)(*stored, row, priority, exponent)

        # One round of a loop or none: a branch would copy the tree.
        rounds = pending.fresh.astype(jnp.int32)
        sums, largest = jax.lax.fori_loop(0, rounds, write, (self.sums, self.largest))
        if renewal is not None:
            largest = jax.lax.cond(
                pending.completes(renewal),
                lambda largest: jax.vmap(largest_of)(sums, exponent),
                lambda largest: largest,
                largest,
            )
        return self.replace(sums=sums, largest=largest)


def powered(priority: Array, exponent: Array) -> Array:
    """q = (p + e)^alpha."""
    return (priority + SMALLEST) ** exponent


def largest_of(sums: Array, exponent: Array) -> Array:
    """The largest priority [] of a tree's rows, p = q^(1 / alpha) - e; 1 where all are alike."""
    mass = sums[len(sums) // 2 :].max()
    return jnp.where(exponent > 0, mass ** (1.0 / jnp.maximum(exponent, SMALLEST)) - SMALLEST, 1.0)


@declaration
class Prioritised(NStep):
    """Rows with the probabilities P(i), with the rewards of up to `steps` steps summed as by
    `NStep`.

    Batches have `extras["row"]` [B] int32 and `extras["weight"]` [B], the w_i, for `weighted`. The
    agent returns `metrics["priorities"]` [B] (`priorities`). With one step there is no
    `extras["discount"]`.
    """

    steps: int = 1
    discount: float = 1.0
    exponent: float  # alpha: 0 is uniform, 1 in proportion to the errors
    correction: float = 0.4  # beta at first: 0 for no correction, 1 for a full one
    # environment steps over which beta rises to 1; infinite: it stays
    correction_steps: float = math.inf
    # updates after which new rows get the largest priority of the rows; None: the largest so far
    renewal: int | None = None

    from_data: ClassVar[bool] = False
    flag: ClassVar[str] = "prioritised"

    def create(self, example: Transition, experience: Replay, stack: int) -> ReplayBuffer:
        ring = super().create(example, experience, stack)
        return ring.replace(index=Priorities.create(len(example.reward), ring.capacity))

    def write_back(self, ring: ReplayBuffer, pending: Pending, experience: Replay) -> ReplayBuffer:
        num_envs = experience.num_envs
        new = (ring.position - num_envs + jnp.arange(num_envs)) % ring.capacity
        exponent = jnp.asarray(self.exponent)
        return ring.replace(index=ring.index.written(pending, new, exponent, self.renewal))

    def __call__(self, buffer: ReplayBuffer, keys: Array, experience: Replay) -> Transition:
        shape = (experience.num_updates, experience.batch_size)

        def draw(ring: ReplayBuffer, key: Array, settings: Prioritised) -> Transition:
            steps = ring.index.steps.astype(jnp.float32) * experience.num_envs
            rows = sum_tree.draw(ring.index.sums, key, shape, ring.window)
            rise = jnp.minimum(steps / settings.correction_steps, 1.0)
            beta = settings.correction + (1.0 - settings.correction) * rise
            weight = ring.index.weights(rows, beta)
            if self.steps == 1:
                batch = ring.transitions(rows)
            else:
                batch = n_step_batch(ring, rows, experience.num_envs, self.steps, settings.discount)
            return batch.replace(extras={**batch.extras, "row": rows, "weight": weight})

        return jax.vmap(draw, in_axes=(buffer.axes, 0, 0))(buffer, keys, self)  # type: ignore[arg-type]


@declaration
class PrioritisedRows(DatasetDraw):
    """Rows of a data set with the probabilities P(i), all alike at first; see `Prioritised`."""

    exponent: float  # alpha
    correction: float = 0.4  # beta

    has_columns: ClassVar[bool] = True

    def require_on_device(self, supply: Supply) -> None:
        raise ValueError(
            f"agent '{supply.agent}' draws rows by their priorities, which only the device knows: "
            "leave out --data-on-host, or set --config.prioritised 0."
        )

    def create(self, learners: int, data: Transition) -> Priorities:
        return Priorities.alike(learners, len(data.reward))

    def settle(self, kept: Priorities, pending: Pending) -> tuple[Priorities, Pending]:
        kept = kept.updated(pending, jnp.asarray(self.exponent))
        return kept, pending.replace(fresh=jnp.zeros_like(pending.fresh))

    def sample(
        self, kept: Priorities, data: Transition, keys: Array, experience: Dataset
    ) -> Transition:
        shape = (experience.num_updates, experience.batch_size)

        def draw(priorities: Priorities, key: Array, correction: Array) -> tuple[Array, Array]:
            rows = sum_tree.draw(priorities.sums, key, shape)
            return rows, priorities.weights(rows, correction)

        axes = (kept.axes, 0, 0)
        rows, weight = jax.vmap(draw, in_axes=axes)(kept, keys, self.correction)  # type: ignore[arg-type]
        batch = transitions(data, rows, experience)
        return batch.replace(extras={**batch.extras, "row": rows, "weight": weight})


def weighted(losses: Array, batch: Transition) -> Array:
    """Losses [..., B] times the batch's prioritised weights, if any."""
    weight = batch.extras.get("weight")
    return losses if weight is None else weight * losses


def squared_loss(q: Array, target: Array, batch: Transition) -> Loss:
    """The mean of the weighted squares of values [C, B] off their target [B], and metrics."""
    loss = weighted(jnp.square(q - target), batch).mean()
    return loss, {"critic/loss": loss, "critic/q": q.mean(), "critic/target": target.mean()}


def priorities(error: Array, batch: Transition) -> Metrics:
    """Priorities as a metric, if they draw rows: the largest |error| [B] of critics [C, B]."""
    return {"priorities": jnp.abs(error).max(axis=0)} if "row" in batch.extras else {}


def replay_draw(
    *,
    discount: Any,
    n_step: int = 1,
    hindsight: Any = 0.0,
    hindsight_goals: GoalSource = "mixed",
    prioritised: Any = 0.0,
    correction: Any = 0.4,
    correction_steps: Any = math.inf,
    renewal: int | None = None,
    chunk_length: int = 1,
) -> Draw:
    """The draw for settings whose floats are numbers or one per learner.

    Raises `ValueError` for settings that do not go together.
    """
    if np.max(hindsight) > 0:
        for flag, what, conflicts, off in (
            ("n-step", "sums rewards", n_step > 1, 1),
            ("prioritised", "draws by errors on rewards", np.max(prioritised) > 0, 0),
            ("chunk-length", "sums rewards of chunks", chunk_length > 1, 1),
        ):
            if conflicts:
                raise ValueError(
                    f"--config.{flag} {what} that --config.hindsight would have to replace: use "
                    f"one of them, with --config.{flag} {off} or --config.hindsight 0."
                )
        return Hindsight(share=hindsight, discount=discount, goals=hindsight_goals)
    if np.max(prioritised) > 0:
        return Prioritised(
            steps=n_step,
            discount=discount,
            exponent=prioritised,
            correction=correction,
            correction_steps=correction_steps,
            renewal=renewal,
        )
    return NStep(steps=n_step, discount=discount) if n_step > 1 else Uniform()


def draw_of(config: Any, **others: Any) -> Draw:
    """`replay_draw` for a Config's fields of the same names, and `others`."""
    names = ("discount", "n_step", "hindsight", "hindsight_goals")
    names += ("prioritised", "correction", "correction_steps", "chunk_length")
    return replay_draw(**same_fields(config, names), **others)


def row_dataset(config: Any, **others: Any) -> Dataset:
    """Batches of a data set, and online beside it of new experience, by `draw_of`."""
    online = Replay.of(config, draw=draw_of(config))
    return Dataset.of(config, online=online, **others)


def data_draw_of(settings: Any) -> DatasetDraw:
    """The draw from a data set, by a Config's fields `prioritised` and `correction`."""
    if np.max(settings.prioritised) > 0:
        return PrioritisedRows(exponent=settings.prioritised, correction=settings.correction)
    return UniformRows()


@config
class WithHindsight:
    """Settings of agents whose new experience can have other goals: a base of their Config."""

    hindsight: Share = 0.0  # goals replaced; 0.8 in arXiv:1707.01495 (k = 4)
    hindsight_goals: GoalSource = "mixed"  # where new goals were reached: buffers.Hindsight


@config
class RowSettings(DatasetSettings, WithHindsight):
    """Settings of agents that learn from rows of data, by `row_dataset`: a base of their Config."""


@config
class PrioritySettings(WithHindsight):
    """Settings of agents that can draw by errors, or with other goals: a base of their Config."""

    prioritised: Share = 0.0  # exponent of errors, 0: uniform draws; 0.6 in arXiv:1511.05952
    correction: Share = 0.4  # exponent of the weights that correct for it; arXiv:1511.05952
