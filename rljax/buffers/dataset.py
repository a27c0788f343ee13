"""Data sets: recorded transitions that all learners share, and batches from them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, ClassVar, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec, Transition, config
from rljax.buffers.experience import (
    ON_HOST,
    WITHOUT_ENVIRONMENT,
    D,
    Experience,
    Observed,
    Parallelism,
    RewardTransform,
    Supply,
    declaration,
)
from rljax.buffers.replay import Replay, ReplaySettings
from rljax.buffers.rows import (
    TerminalRows,
    random_rows,
    repeated_rows,
    rows_of,
    terminal_rows,
    without,
)
from rljax.buffers.windows import LAST, chunks_of_data, steps_of_data
from rljax.networks.inputs import OfData, Raw
from rljax.system.hardware import nbytes

ALIAS = "alias_table"  # in a data set's extras: see `alias_table`
PART = "part"  # label of joined data: a row's data set, counted from 0
OPTIMAL_ACTION = "optimal_action"  # label: the action [] that is optimal where a row begins
TASK = "task"  # label: a number [] that tells the tasks of lifetimes apart
WHOLE = 1 << 32  # the weight of an average row in an alias table


@declaration
class DatasetDraw:
    """How batches are drawn from a data set.

    `random` reads no data. `take` gathers rows, also of NumPy arrays outside compiled programs.
    """

    has_columns: ClassVar[bool] = False  # batches carry the agent's columns
    # needed columns of the data, without signals
    labels: ClassVar[tuple[str, ...]] = ()
    # batches' extras that are [state; goal], as their observations are
    pairs: ClassVar[tuple[str, ...]] = ()

    @property
    def observes(self) -> Observed:
        """See `Experience.observes`."""
        return ()

    def observed_spec(self, spec: EnvSpec, name: str) -> EnvSpec:
        """See `Experience.observed_spec`."""
        return spec

    def require_weights(self, supply: Supply) -> None:
        """Raise `ValueError` for rows with weights, where this draw has its own."""
        raise ValueError(
            f"agent '{supply.agent}' draws rows in its own way, and --weights {supply.weights} is "
            "for agents that draw all rows alike: leave it out."
        )

    def require_all_tasks(self, supply: Supply) -> None:
        """Raise `ValueError` where data cut for one task cannot be learnt from."""

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] in NumPy with the arrays that `take` needs."""
        return data

    def terminal_rows(self, data: Transition, most: int) -> TerminalRows | None:
        """See `Experience.terminal_rows`."""
        return terminal_rows(data, np.flatnonzero(data.terminated), most)

    def random(self, keys: Array, number: int, experience: Dataset) -> Any:
        """The draws for an iteration's batches from `number` rows, [P, U, B]; `keys` are [P]."""
        raise NotImplementedError

    def rows(self, data: Transition, drawn: Any) -> Any:
        """The rows [..., B] of a data set [N, ...] for what was `drawn`."""
        raise NotImplementedError

    def take(self, data: Transition, drawn: Any) -> Transition:
        """The batches [..., B, ...] from a data set [N, ...] for what was `drawn`."""
        return rows_of(without(data, ALIAS, LAST), self.rows(data, drawn))

    def batches(self, data: Transition, drawn: Any, experience: Experience) -> Transition:
        """As `take`, with chunks if the agent asks for them."""
        if experience.chunk_length == 1:
            return self.take(data, drawn)
        return transitions(data, self.rows(data, drawn), experience)

    # What a draw that depends on earlier updates keeps; others keep nothing.

    def require_on_device(self, supply: Supply) -> None:
        """Raise `ValueError` where rows cannot be drawn of data in the host's memory."""

    def create(self, learners: int, data: Transition) -> Any:
        """What is kept beside a data set [N, ...]."""
        return None

    def settle(self, kept: Any, pending: Any) -> tuple[Any, Any]:
        """What is kept after the updates of an iteration, and what is still `pending` of them."""
        return kept, pending

    def sample(self, kept: Any, data: Transition, keys: Array, experience: Dataset) -> Transition:
        """The batches of an iteration, [P, U, B, ...]; `keys` are [P]."""
        del kept
        drawn = self.random(keys, data.reward.shape[0], experience)
        return self.batches(data, drawn, experience)


@declaration
class UniformRows(DatasetDraw):
    """Uniform rows with replacement."""

    has_columns: ClassVar[bool] = True

    def require_weights(self, supply: Supply) -> None:
        """Rows drawn alike can have weights."""

    def random(self, keys: Array, number: int, experience: Dataset) -> Array:
        return random_rows(keys, number, experience.num_updates, experience.batch_size)

    def rows(self, data: Transition, drawn: Array) -> Array:
        return drawn


class AliasDraws(NamedTuple):
    """Random draws from an alias table, [...] each."""

    row: Any  # int32: a uniform row
    bits: Any  # uint32: the row's alias replaces it where these are at least the row's share


@declaration
class WeightedRows(DatasetDraw):
    """Rows with the probabilities of `with_weights`, with replacement."""

    has_columns: ClassVar[bool] = True

    def random(self, keys: Array, number: int, experience: Dataset) -> AliasDraws:
        return alias_draws(keys, number, experience.num_updates, experience.batch_size)

    def rows(self, data: Transition, drawn: AliasDraws) -> Any:
        return aliased(data, drawn)


@declaration
class PartRows(DatasetDraw):
    """Batches of 2 B rows: B uniform rows of joined data, then B uniform ones of one part."""

    part: int  # counted from 0

    has_columns: ClassVar[bool] = True
    labels: ClassVar[tuple[str, ...]] = (PART,)
    flag: ClassVar[str] = "expert-part"  # name of the setting that asks for this draw

    def prepare(self, data: Transition) -> Transition:
        """With an alias table of the part's rows, if any; else `ValueError`."""
        inside = np.asarray(data.extras[PART]) == self.part
        if not inside.any():
            parts = ", ".join(f"{part:g}" for part in np.unique(data.extras[PART]))
            raise ValueError(
                f"--config.{self.flag} is {self.part}, and the data have the parts {parts}."
            )
        return with_weights(without(data, PART), inside / inside.sum())

    def random(self, keys: Array, number: int, experience: Dataset) -> tuple[Array, AliasDraws]:
        key_all, key_part = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
        size = (number, experience.num_updates, experience.batch_size)
        return random_rows(key_all, *size), alias_draws(key_part, *size)

    def rows(self, data: Transition, drawn: tuple[Array, AliasDraws]) -> Any:
        rows = (drawn[0], aliased(data, drawn[1]))
        xp: Any = np if isinstance(rows[1], np.ndarray) else jnp
        return xp.concatenate(rows, axis=-1)


@declaration
class Dataset(Experience):
    """Batches from a data set alone, or with `online` afterwards from it and an environment."""

    batch_size: int  # transitions of one update
    reward_transform: RewardTransform = "none"
    draw: DatasetDraw = UniformRows()  # how batches are drawn
    online: Replay | None = None
    learns_until: float | None = None
    # statistics of observations count next observations too
    counts_successors: bool = False

    kind: ClassVar[str] = "dataset"

    @classmethod
    def of(cls: type[D], config: Any, **others: Any) -> D:
        """Numbers of environments are those of `online`."""
        return super().of(config, num_envs=1, num_steps=1, **others)

    @property
    def inputs(self) -> Raw:
        """By statistics of the data set, also online."""
        if not self.normalise_observations:
            return Raw()
        return OfData(self.counts_successors, self.draw.pairs, self.last_step)

    @property
    def observes(self) -> Observed:
        return self.draw.observes or super().observes

    @property
    def labels(self) -> tuple[str, ...]:
        return self.draw.labels

    @property
    def summed_steps(self) -> int:
        return 0 if self.online is None else self.online.summed_steps

    @property
    def steps_per_iteration(self) -> int:
        return self.num_updates  # each step is an update

    def check(self) -> None:
        super().check()
        if self.online is not None:
            self.online.check_numbers()

    def require_data(self, supply: Supply) -> None:
        if supply.data is None:
            raise ValueError(
                f"agent '{supply.agent}' learns from data: rljax train {supply.agent} --data "
                "d4rl/hopper-medium-v2"
            )

    def require_supply(self, supply: Supply) -> None:
        if supply.weights != "uniform":
            self.draw.require_weights(supply)
        if supply.data_on_host:
            self.draw.require_on_device(supply)
        if supply.data_on_host and supply.then_online:
            raise ValueError(ON_HOST)
        if supply.then_online and self.online is None:
            raise ValueError(
                f"agent '{supply.agent}' learns from data alone, without --then-online."
            )
        if self.online is not None and self.online.draw.only_new and not supply.then_online:
            flag = self.online.draw.flag
            raise ValueError(
                f"--config.{flag} changes new experience, not a data set: add --then-online N, or "
                f"say --config.{flag} 0."
            )
        if supply.all_tasks is not None:
            self.draw.require_all_tasks(supply)
        if supply.eval_env is not None and not supply.then_online:
            raise ValueError(
                "--eval-env is for agents that learn in an environment and are judged in another. "
                f"Agent '{supply.agent}' learns from data alone: --env names the environment "
                "that judges it."
            )
        if supply.env == "none" and supply.then_online:
            raise ValueError(WITHOUT_ENVIRONMENT)

    def require_mixing(self, supply: Supply) -> None:
        if not supply.then_online:
            raise ValueError(
                f"--offline-share {supply.offline_share} is of batches from a data set and new "
                "experience, which are mixed with --then-online N."
            )

    def observed_spec(self, spec: EnvSpec, name: str) -> EnvSpec:
        return self.draw.observed_spec(super().observed_spec(spec, name), name)

    def stages(self, steps: int, then_online: int) -> tuple[int, int]:
        return steps, then_online

    def in_environment(self) -> Experience:
        assert self.online is not None
        return self.online

    def weighted(self) -> Dataset:
        return dataclasses.replace(self, draw=WeightedRows())

    def parallelism(self, num_learners: int, in_program: bool) -> Parallelism:
        return "cores" if num_learners > 1 else "threads"

    def oddities(self, rows: int | None, longest: int | None) -> Iterator[str]:
        return repeated_rows(self.batch_size, rows)

    def batch_bytes(self, storage: Any, data: Any, num_learners: int) -> int:
        return num_learners * self.num_updates * self.batch_size * self.row_bytes(data)

    def row_bytes(self, data: Transition) -> int:
        """As in `Experience`, also of a chunk."""
        row = jnp.zeros((), jnp.int32)
        return nbytes(jax.eval_shape(lambda data: transitions(data, row, self), data))

    def idle(self, steps: int, iteration: int, on_host: bool, flag: str) -> str | None:
        return None  # every step is an update

    def prepare(self, data: Transition, num_actions: int | None = None) -> Transition:
        return self.draw.prepare(super().prepare(data, num_actions))

    def terminal_rows(self, data: Transition, most: int) -> TerminalRows | None:
        return None if self.chunk_length > 1 else self.draw.terminal_rows(data, most)

    def random(self, keys: Array, number: int) -> Any:
        """See `DatasetDraw.random`."""
        return self.draw.random(keys, number, self)

    def take(self, data: Transition, drawn: Any) -> Transition:
        """See `DatasetDraw.take`."""
        return self.draw.batches(data, drawn, self)

    def create(self, example: Transition, stack: int = 1, data: Transition | None = None) -> Any:
        return None if data is None else self.draw.create(len(example.reward), data)

    def settle(self, storage: Any, pending: Any) -> tuple[Any, Any]:
        """See `DatasetDraw.settle`."""
        return self.draw.settle(storage, pending)

    def sample(self, buffer: Any, data: Transition | None, keys: Array) -> Transition:
        assert data is not None
        return self.draw.sample(buffer, data, keys, self)


@config
class OnlineSettings(ReplaySettings):
    """Settings of agents that can go on online: a base of their Config."""

    replay_size: int = 1_000_000  # online: newest transitions that are kept beside the data set
    warmup_steps: int = 0  # online: environment steps with uniform actions and no update
    num_envs: int = 1  # online: environments stepped side by side
    num_steps: int = 1  # online: steps of each environment per iteration
    normalise_observations: bool = False  # by the data set's mean and std


@config
class DatasetSettings(OnlineSettings):
    """Settings of agents that learn from data: a base of their Config."""

    reward_transform: RewardTransform = "none"  # of the data set's rewards, before any update


def with_weights(data: Transition, probability: np.ndarray) -> Transition:
    """A data set [N, ...] in NumPy with an alias table, from which `WeightedRows` draws with
    `probability` [N], rounded to multiples of 2^-32 / N.

    Source: Walker, Electronics Letters 10(8), 1974.
    """
    return data.replace(extras={**data.extras, ALIAS: alias_table(probability)})


def alias_draws(keys: Array, capacity: int, number: int, size: int) -> AliasDraws:
    """Random draws [P, number, size] from a table of `capacity` rows; `keys` are [P]."""
    key_row, key_bits = jnp.moveaxis(jax.vmap(jax.random.split)(keys), 1, 0)
    bits = jax.vmap(lambda key: jax.random.bits(key, (number, size)))(key_bits)
    return AliasDraws(random_rows(key_row, capacity, number, size), bits)


def drawn_rows(
    data: Transition, keys: Array, size: int, experience: Experience, steps: int = 0
) -> Transition:
    """`size` random rows of a data set [N, ...] for each update, [P, U, size], by its alias table
    if any; see `transitions`.
    """
    shape = (data.reward.shape[0], experience.num_updates, size)
    if ALIAS not in data.extras:
        return transitions(data, random_rows(keys, *shape), experience, steps)
    return transitions(data, aliased(data, alias_draws(keys, *shape)), experience, steps)


def transitions(data: Transition, rows: Any, experience: Experience, steps: int = 0) -> Transition:
    """The `rows` [...] of a data set [N, ...], as chunks if the agent asks for them, or over
    up to `steps` steps, where these are not 0.
    """
    if experience.chunk_length > 1:
        return chunks_of_data(without(data, ALIAS), rows, experience.chunk_length)
    if steps:
        return steps_of_data(without(data, ALIAS), rows, steps)
    return rows_of(without(data, ALIAS, LAST), rows)


def aliased(data: Transition, drawn: AliasDraws) -> Any:
    """The drawn rows [...] of data `with_weights`, of NumPy or JAX."""
    entry = data.extras[ALIAS][drawn.row]
    xp: Any = np if isinstance(entry, np.ndarray) else jnp
    return xp.where(drawn.bits < entry[..., 0], drawn.row, entry[..., 1].astype(np.int32))


def alias_table(probability: np.ndarray) -> np.ndarray:
    """[N, 2] uint32: for each row 2^32 times the probability to keep it, and its alias.

    Heavy rows, in order, fill up light ones, exactly in whole numbers.
    """
    number = len(probability)
    weight = _whole(np.asarray(probability, np.float64), number)
    (light,), (heavy,) = np.nonzero(weight < WHOLE), np.nonzero(weight >= WHOLE)
    keep = np.full(number, WHOLE, np.int64)
    alias = np.arange(number)
    taken = np.cumsum(WHOLE - weight[light])  # by light rows until now
    spare = np.cumsum(weight[heavy] - WHOLE)  # by heavy rows, at most
    keep[light] = weight[light]
    alias[light] = heavy[np.searchsorted(spare, taken - (WHOLE - weight[light]), side="right")]
    # A light row may take too much of a heavy row: the next heavy row pays.
    last = np.searchsorted(taken, spare)
    ends = last < len(taken)
    keep[heavy[ends]] = WHOLE - (taken[last[ends]] - spare[ends])
    alias[heavy[ends]] = heavy[np.minimum(np.flatnonzero(ends) + 1, len(heavy) - 1)]
    alias[keep == WHOLE] = np.flatnonzero(keep == WHOLE)
    return np.stack([np.minimum(keep, WHOLE - 1), alias], axis=-1).astype(np.uint32)


def _whole(probability: np.ndarray, number: int) -> np.ndarray:
    """The probabilities [N] as whole numbers of sum N 2^32, by the largest remainders."""
    exact = probability / probability.sum() * number * WHOLE
    weight = np.floor(exact).astype(np.int64)
    missing = number * WHOLE - int(weight.sum())
    up = np.argsort(weight - exact, kind="stable")[: max(missing, 0)]
    weight[up[exact[up] > weight[up]]] += 1
    weight[np.argmax(weight)] += number * WHOLE - int(weight.sum())  # what float64 has lost
    return weight
