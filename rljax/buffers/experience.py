"""How an agent declares what it learns from, and what every such declaration can do.

An agent's `experience(config)` returns one of `Replay`, `Rollout`, `Stream` and `Dataset`. A declaration says how much
is kept, how batches are drawn, and how many updates follow how many steps. It is a pytree, as a `Config` is: its
floats are leaves, one value per learner, and everything else shapes the program.

Axes: `P` learners, `E` environments of each, `U` updates of an iteration, `B` rows of a batch, `N` rows of a data set.
"""

from __future__ import annotations

import dataclasses
from typing import Any, ClassVar, TypeVar, dataclass_transform

import jax
import numpy as np

from rljax.agent import Array, RewardTransform, Transition, float_fields

T = TypeVar("T")


@dataclass_transform(frozen_default=True, kw_only_default=True)
def declaration(cls: type[T]) -> type[T]:
    """Turn a class into a frozen dataclass, all by keyword, and a pytree of its floats and of other declarations."""
    frozen: Any = dataclasses.dataclass(frozen=True, kw_only=True)(cls)
    names = [field.name for field in dataclasses.fields(frozen)]
    children = [name for name in names if name in (*float_fields(frozen), "draw", "columns", "online")]
    static = [name for name in names if name not in children]
    return jax.tree_util.register_dataclass(frozen, data_fields=children, meta_fields=static)


class Column:
    """One more array that the rows of a batch carry in `extras`, derived from the rows around them."""

    in_replay: ClassVar[bool] = True  # whether rows of new experience can have it

    def of_data(self, data: Transition) -> dict[str, np.ndarray]:
        """The column [N, ...] of a data set [N, ...] in NumPy, by its name in `extras`."""
        raise NotImplementedError

    def of_replay(self, data: Transition, rows: Array, following: Array, has_following: Array) -> dict[str, Array]:
        """The column [..., ...] of `rows` [...] of one learner's replay [capacity, ...], by its name in `extras`.

        `following` [...] are the rows one step later in the same environment, where `has_following` [...] bool.
        """
        raise NotImplementedError


@declaration
class Experience:
    """What all declarations have in common. Error messages name a field as the flag `--config.FIELD`."""

    num_envs: int = 1  # environments of each learner, stepped side by side
    num_steps: int = 1  # steps of each environment in one iteration
    num_updates: int = 1  # updates of one iteration, each on a batch of its own
    perceives: bool = False  # the agent's `perceive` sees every observation before it acts
    time_feature: bool = False  # observations end with the share of the time limit that has passed
    columns: tuple[Column, ...] = ()  # what else the rows of a batch carry in `extras`

    kind: ClassVar[str]  # as run folders name it: "replay", "rollout", "stream" or "dataset"
    needs_data: ClassVar[bool] = False  # it cannot begin without a data set
    mixes_data: ClassVar[bool] = False  # a data set can be part of its batches

    @property
    def steps_per_iteration(self) -> int:
        """Environment steps of one learner in one iteration."""
        return self.num_steps * self.num_envs

    @property
    def streams(self) -> bool:
        """Whether each transition is learnt from at once, before the next action is chosen."""
        return False

    @property
    def goals(self) -> bool:
        """Whether observations are [state; goal] with goals drawn from the data."""
        return False

    @property
    def stores_time(self) -> bool:
        """Whether transitions are stored with `extras["time"]`: which step of its episode each one is, from 1 on."""
        return False

    @property
    def random_steps(self) -> int:
        """Environment steps of each learner with uniform actions, before its policy acts."""
        return 0

    @property
    def reward_transform(self) -> RewardTransform:
        """What becomes of a data set's rewards, and of new ones beside it, before any update."""
        return "none"

    @property
    def online(self) -> Any:
        """How an agent that learns from a data set learns in an environment after it, where it can."""
        return None

    @property
    def learns_until(self) -> Any:
        """Updates after which the learning rate is 0; None where it stays."""
        return None

    def prepare(self, data: Transition) -> Transition:
        """A data set [N, ...] in NumPy with the columns that the agent asks for."""
        extras = dict(data.extras)
        for column in self.columns:
            extras |= column.of_data(data)
        return data.replace(extras=extras)

    def check(self) -> None:
        """Raise `ValueError` for numbers that can never work."""
        for name in ("num_envs", "num_steps", "num_updates", "batch_size"):
            value = getattr(self, name, 1)
            if value < 1:
                raise ValueError(f"--config.{name.replace('_', '-')} is {value}, it must be at least 1.")
        draw = getattr(self, "draw", None)
        if self.columns and draw is not None and not draw.has_columns:
            asked = ", ".join(type(column).__name__ for column in self.columns)
            raise ValueError(
                f"{type(draw).__name__} draws rows without columns, and the agent asks for {asked}. Let its "
                "`experience` ask for the one or the other."
            )

    def create(self, example: Transition) -> Any:
        """An empty buffer for transitions shaped as `example` [P, E, ...]; None where nothing is kept."""
        del example
        return None

    def ready(self, steps: Any) -> Any:
        """Whether updates may begin after `steps` environment steps of each learner. `steps` is never batched."""
        del steps
        return True

    def sample(self, buffer: Any, data: Transition | None, keys: Array) -> Transition:
        """The batches of one iteration, [P, U, B, ...], from a buffer, a data set [N, ...] or both; `keys` are [P].

        All batches are one gather of O(U x B), whatever the buffer's size.
        """
        raise NotImplementedError


def random_rows(key: Array, capacity: Any, number: int, size: int) -> Array:
    """Rows [P, number, size] of a data set, with replacement; `key` is [P]."""
    return jax.vmap(lambda key: jax.random.randint(key, (number, size), 0, capacity))(key)


def rows_of(data: Transition, rows: Any) -> Transition:
    """The transitions in `rows` [...] of a data set [N, ...], in one gather."""
    return jax.tree.map(lambda x: x[rows], data)
