"""How an agent declares what it learns from, and the methods of every such declaration.

An agent's `experience(config)` returns one of `Replay`, `Rollout`, `Stream` and `Dataset`. A declaration says how many
transitions are kept, how batches are drawn, and how many updates follow how many steps. It is a pytree like a `Config`:
its floats are leaves, one value per learner, and everything else shapes the program.

Axes: `P` learners, `E` environments of each, `U` updates of an iteration, `B` rows of a batch, `N` rows of a data set.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, Literal, NamedTuple, TypeVar, dataclass_transform

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import MEMORY, Array, Transition, float_fields
from rljax.buffers.frames import each

T = TypeVar("T")

# Transforms of a data set's rewards before any agent sees them; definitions and sources: `rljax.datasets.preprocess`.
RewardTransform = Literal[
    "none",
    "return_range",
    "minus_one",
    "times_10_minus_5",
    "times_4_minus_2",
    "times_100",
    "standardise",
    "times_10_plus_5",
    "minus_four",
]

LARGEST = 2**30  # of sizes: sums and products of two of them stay within int32


@dataclass_transform(frozen_default=True, kw_only_default=True)
def declaration(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass with keyword arguments only, and a pytree of its floats and declarations."""
    frozen: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = [field.name for field in dataclasses.fields(frozen)]
    children = [name for name in names if name in (*float_fields(frozen), "draw", "columns", "online")]
    static = [name for name in names if name not in children]
    return jax.tree_util.register_dataclass(frozen, data_fields=children, meta_fields=static)


class RingRows(NamedTuple):
    """Rows [...] of one learner's ring, and what is known of those that come later in the same environment."""

    row: Array  # int32
    later: Array  # int32: the number of newer rows of the environment
    num_envs: int
    capacity: int
    reward_affine: tuple[float, float]  # scale and shift that make the ring's rewards those that are learnt from

    def after(self, steps: Any) -> Array:
        """The rows `steps` later in the same environment."""
        return (self.row + self.num_envs * steps) % self.capacity


class Column:
    """An additional array in the `extras` of a batch, derived from the rows around each row."""

    def check(self) -> None:
        """Raise `ValueError` for settings that can never work."""

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N, ...] of a data set [N, ...] in NumPy, by its name in `extras`."""
        raise NotImplementedError

    def of_replay(self, data: Transition, at: RingRows) -> dict[str, Array]:
        """The column [..., ...] of the rows `at` [...] of one learner's replay [capacity, ...], by its name."""
        raise NotImplementedError


@declaration
class Experience:
    """The common part of all declarations. Error messages name a field as the flag `--config.FIELD`."""

    num_envs: int = 1  # environments of each learner, stepped side by side
    num_steps: int = 1  # steps of each environment in one iteration
    num_updates: int = 1  # updates in one iteration, each on a separate batch
    perceives: bool = False  # the agent's `perceive` sees every observation before it acts
    remembers: bool = False  # batches hold memories: `extras["memory"]`, for agents with `remember`
    signals: tuple[str, ...] = ()  # what the environment gives beside the reward, in the `extras` of a batch: a cost
    time_feature: bool = False  # observations end with the share of the time limit that has passed
    columns: tuple[Column, ...] = ()  # additional arrays in the `extras` of a batch

    kind: ClassVar[str]  # its name in run folders: "replay", "rollout", "stream" or "dataset"
    needs_data: ClassVar[bool] = False  # training cannot begin without a data set

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one learner in one iteration."""
        return self.num_steps * self.num_envs

    @property
    def mixes_data(self) -> bool:
        """Whether a data set can be part of its batches."""
        return False

    @property
    def waits_for_data(self) -> bool:
        """Whether new experience is not enough: training begins only with a data set beside it."""
        return False

    @property
    def streams(self) -> bool:
        """Whether the agent learns from each transition at once, before it chooses the next action."""
        return False

    @property
    def on_policy(self) -> bool:
        """Whether all transitions must come from the newest policy: drivers then choose an action after learning."""
        return False

    @property
    def goals(self) -> bool:
        """Whether observations are [state; goal], with goals drawn from the data."""
        return False

    @property
    def stores_time(self) -> bool:
        """Whether transitions are stored with `extras["time"]`: the number of the step in its episode, from 1 on."""
        return False

    @property
    def clips_rewards(self) -> bool:
        """Whether rewards are stored clipped to [-1, 1]."""
        return False

    @property
    def random_steps(self) -> int:
        """Environment steps of each learner with uniform actions, before its policy acts."""
        return 0

    @property
    def steps_before_updates(self) -> int:
        """Environment steps of each learner before the first update."""
        return 0

    @property
    def labels(self) -> tuple[str, ...]:
        """Columns of a data set, beside its signals, that the draw needs."""
        return ()

    @property
    def reward_transform(self) -> RewardTransform:
        """The transform of a data set's rewards, and of new rewards that are mixed with them, before any update."""
        return "none"

    @property
    def online(self) -> Any:
        """How an agent learns in an environment after a data set; None where it cannot."""
        return None

    @property
    def learns_until(self) -> Any:
        """Steps of the run after which the learning rate is 0; None where it stays above 0."""
        return None

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] in NumPy with the columns that the agent asks for."""
        extras = dict(data.extras)
        for column in self.columns:
            extras |= column.of_data(data)
        return data.replace(extras=extras)

    def check(self) -> None:
        """Raise `ValueError` for numbers that can never work."""
        self.check_numbers()
        if self.steps_per_iteration > LARGEST:
            raise ValueError(
                f"--config.num-envs {self.num_envs:,} x --config.num-steps {self.num_steps:,} are "
                f"{self.steps_per_iteration:,} steps of an iteration, there must be at most {LARGEST:,}."
            )
        for column in self.columns:
            column.check()
        draw = getattr(self, "draw", None)
        if (self.columns or self.signals) and draw is not None and not draw.has_columns:
            asked = ", ".join([*(type(column).__name__ for column in self.columns), *self.signals])
            raise ValueError(
                f"{type(draw).__name__} draws rows without columns, and the agent asks for {asked}. Let its "
                "`experience` ask for the one or the other."
            )

    def check_numbers(self) -> None:
        """Raise `ValueError` for a number of something that is too small or too large."""
        limits = dict.fromkeys(("num_envs", "num_steps", "num_updates", "batch_size", "replay_size"), 1)
        for name, limit in (limits | {"warmup_steps": 0}).items():
            value, flag = getattr(self, name, limit), f"--config.{name.replace('_', '-')}"
            if value < limit:
                raise ValueError(f"{flag} is {value}, it must be at least {limit}.")
            if value > LARGEST:
                raise ValueError(f"{flag} is {value:,}, it must be at most {LARGEST:,}.")

    def create(self, example: Transition, stack: int = 1) -> Any:
        """An empty buffer for transitions with the shapes of `example` [P, E, ...]; None where nothing is stored.

        `stack` is the number of frames in an observation; see `rljax.agent.EnvSpec`.
        """
        del example, stack
        return None

    def ready(self, steps: Any) -> Any:
        """Whether updates may begin after `steps` environment steps of each learner. `steps` is never batched."""
        del steps
        return True

    def sample(self, buffer: Any, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...], from a buffer, a data set [N, ...] or both; `keys` are [P].

        All batches are drawn in one gather of O(U x B), independent of the buffer's size.
        """
        raise NotImplementedError


@declaration
class Stream(Experience):
    """Each learner has one environment, and learns from each transition [O...] before it chooses the next action."""

    kind: ClassVar[str] = "stream"

    @property
    def streams(self) -> bool:
        """True: a stream learns from each transition at once."""
        return True

    def check(self) -> None:
        """Raise `ValueError` for more than one environment, step or update at a time."""
        for name in ("num_envs", "num_steps", "num_updates"):
            if getattr(self, name) != 1:
                raise ValueError(
                    f"--config.{name.replace('_', '-')} is {getattr(self, name)}, it must be 1: a stream learns from "
                    "one transition of one environment at a time. For N streams side by side: --seeds N"
                )


def random_rows(key: Array, capacity: Any, number: int, size: int) -> Array:
    """Random rows [P, number, size] of a data set, with replacement; `key` is [P]."""
    return jax.vmap(lambda key: jax.random.randint(key, (number, size), 0, capacity))(key)


def spread_rows(number: int, most: int) -> np.ndarray:
    """At most `most` of the rows 0 to `number` - 1, evenly spread."""
    return np.linspace(0, number - 1, min(number, most)).round().astype(np.int64)


def rows_of(data: T, rows: Any) -> T:
    """The `rows` [...] of transitions, or of any other tree of arrays [N, ...], in one gather."""
    return each(lambda x: x[rows], data)


def apart(transitions: Transition) -> tuple[Transition, Any]:
    """Transitions without the memory in their extras, and this memory; None where there is none."""
    extras = dict(transitions.extras)
    memory = extras.pop(MEMORY, None)
    return transitions.replace(extras=extras), memory


def beginnings(batch: Transition) -> Array:
    """Which steps of a batch [N, T, ...] begin an episode, as the step before ended; the first step is never marked."""
    return jnp.roll(batch.terminated | batch.truncated, 1, axis=1).at[:, 0].set(False)
