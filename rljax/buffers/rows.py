"""Rows of transitions."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple, TypeVar

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import MEMORY, Array, Transition
from rljax.buffers.storage.frames import each

T = TypeVar("T")


class RewardMap(NamedTuple):
    """Rewards as they are learnt from: scale r + shift; if `sparse`, 0 where r is 0 and else -1."""

    scale: float = 1.0
    shift: float = 0.0
    sparse: bool = False

    def __call__(self, reward: Any) -> Any:
        """The rewards [...] of rewards [...], in their dtype."""
        if self.sparse:
            return 0.0 - (reward != 0.0).astype(reward.dtype)
        return self.scale * reward + self.shift


AS_STORED = RewardMap()


class RingRows(NamedTuple):
    """Rows [...] of one learner's ring, and what follows in their environment."""

    row: Array  # int32
    later: Array  # int32: the number of newer rows of the environment
    num_envs: int
    capacity: int
    reward_map: RewardMap  # of stored rewards

    def after(self, steps: Any) -> Array:
        """The rows `steps` later in the same environment."""
        return (self.row + self.num_envs * steps) % self.capacity


class TerminalRows(NamedTuple):
    """The terminal rows [N] of a data set, as an agent sees them."""

    observation: Any  # [N, O...]
    action: Any  # [N, A], or [N] where actions are discrete
    reward: Any  # [N] true values, in the agent's unit


def random_rows(key: Array, capacity: Any, number: int, size: int) -> Array:
    """Random rows [P, number, size] of a data set, with replacement; `key` is [P]."""
    return jax.vmap(lambda key: jax.random.randint(key, (number, size), 0, capacity))(key)


def trajectory_ends(data: Transition) -> np.ndarray:
    """Whether each row [N] ends a trajectory: terminated, truncated, or the data's last."""
    ends = np.asarray(data.terminated) | np.asarray(data.truncated)
    ends[-1] = True
    return ends


def trajectory_begins(data: Transition) -> np.ndarray:
    """Whether each row [N] begins a trajectory."""
    return np.roll(trajectory_ends(data), 1)


def without(data: Transition, *names: str) -> Transition:
    """Transitions without these extras, where they have them."""
    return data.replace(extras={name: x for name, x in data.extras.items() if name not in names})


def spread_rows(number: int, most: int) -> np.ndarray:
    """At most `most` of the rows 0 to `number` - 1, evenly spread."""
    return np.linspace(0, number - 1, min(number, most)).round().astype(np.int64)


def terminal_rows(data: Transition, rows: np.ndarray, most: int) -> TerminalRows | None:
    """At most `most` of the `rows` of a data set [N, ...], evenly spread, if any."""
    if not len(rows):
        return None
    rows = rows[spread_rows(len(rows), most)]
    observation = jax.tree.map(np.asarray, rows_of(data.observation, rows))
    return TerminalRows(
        observation, np.asarray(data.action)[rows], np.asarray(data.reward, np.float32)[rows]
    )


def rows_of(data: T, rows: Any) -> T:
    """The `rows` [...] of any tree of arrays [N, ...], in one gather."""
    return each(lambda x: x[rows], data)


def apart(transitions: Transition) -> tuple[Transition, Any]:
    """Transitions without the memory in their extras, and the memory, if any."""
    extras = dict(transitions.extras)
    memory = extras.pop(MEMORY, None)
    return transitions.replace(extras=extras), memory


def beginnings(batch: Transition) -> Array:
    """Which later steps of a batch [N, T, ...] begin an episode."""
    return jnp.roll(batch.terminated | batch.truncated, 1, axis=1).at[:, 0].set(False)


def repeated_rows(batch_size: int, rows: int | None) -> Iterator[str]:
    """A warning where a batch is larger than the data set, if any."""
    if rows is not None and batch_size > rows:
        yield (
            f"--config.batch-size {batch_size:,} is more than the data set's {rows:,} rows, "
            "which repeat in it."
        )
