"""`OfflineDataset`: recorded transitions with their metadata.

Axes: `N` transitions, `O...` one observation, `A` dimensions of an action.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from rljax.agent import EnvSpec, Part, Transition
from rljax.buffers import OPTIMAL_ACTION, PART, TASK
from rljax.buffers.storage import frames
from rljax.envs.signals import numbers
from rljax.trust import nearest

# Prefixes of names, and the modules of `publishers` that read them.
FAMILIES = ("d4rl", "minari", "ogbench", "neorl2")

Bounds = tuple[np.ndarray, np.ndarray]

LABELS = (PART, OPTIMAL_ACTION, TASK)  # names of columns that are no signals of an environment


def score(returns: Any, reference: Sequence[float] | None) -> Any:
    """Normalised score of undiscounted returns [...]: 100 (R - min) / (max - min), or None."""
    if reference is None:
        return None
    low, high = reference
    return 100 * (np.asarray(returns, np.float64) - low) / (high - low)


@dataclasses.dataclass(frozen=True, eq=False)
class OfflineDataset:
    """Transitions of complete and cut trajectories, in recorded order.

    Actions are normalised to [-1, 1]. A trajectory's last row is `terminated` or `truncated`.
    `next_observation` is the true successor, or the row's own observation where that of a terminal
    state was not recorded.

    An observation is one array or a dictionary of arrays: uint8 pictures (from 1 kB on as
    `rljax.buffers.storage.frames.Frames`), bool masks of allowed actions, all else float32.
    Signals, such as a cost, are the transitions' `extras`: [N, K...] float32 by name.
    """

    name: str  # as given: "d4rl/hopper-medium-v2", or a path
    transitions: Transition = dataclasses.field(repr=False)  # NumPy arrays [N, ...], or `Frames`
    env: str | None  # the matching Gymnasium environment, such as "Hopper-v5"
    reference: tuple[float, float] | None  # published undiscounted returns that score 0 and 100
    action_bounds: Bounds | None  # of the actions in the file; None if they are discrete
    # files, checksums, rules and versions; JSON-able
    provenance: dict[str, Any] = dataclasses.field(repr=False)
    complete: bool = True  # False: the end of the file cut the last trajectory

    def __post_init__(self) -> None:

        t = self.transitions
        observation, following = frames.stored_once(t.observation, t.next_observation)
        object.__setattr__(
            self, "transitions", t.replace(observation=observation, next_observation=following)
        )

    @property
    def num(self) -> int:
        """N, the number of transitions."""
        return len(self.transitions.reward)

    @property
    def spec(self) -> EnvSpec:
        """The spaces of the data."""
        observation = self.transitions.observation
        signals = sorted(self.transitions.extras.items())
        spaces: dict[str, Any] = {
            "discrete": self.discrete,
            "choices": self.choices,
            "stack": self.stack,
            "signals": tuple(Part(name, column.shape[1:]) for name, column in signals),
        }
        shape = ()
        if isinstance(observation, dict):
            spaces["parts"] = tuple(
                Part(name, x.shape[1:], dtype_name(x)) for name, x in sorted(observation.items())
            )
        else:
            shape, spaces["observation_dtype"] = observation.shape[1:], dtype_name(observation)
        return EnvSpec(self.name, shape, self.action_size, **spaces)

    @property
    def is_plain(self) -> bool:
        """Whether observations are vectors, and there are not several discrete actions."""
        return self.spec.is_vector and not self.choices

    @property
    def observation_size(self) -> int:
        """The numbers in an observation."""
        return sum(math.prod(x.shape[1:]) for x in frames.columns(self.transitions.observation))

    @property
    def stack(self) -> int:
        """The frames in a picture."""
        return int(self.provenance.get("stack") or 1)

    @property
    def discrete(self) -> bool:
        """Whether actions are indices of choices (int32), and not vectors (float32)."""
        return self.transitions.action.dtype.kind in "iu"

    @property
    def choices(self) -> tuple[int, ...]:
        """How many choices each of several discrete actions has, as recorded or by the largest."""
        action = self.transitions.action
        if not self.discrete or action.ndim == 1:
            return ()
        return tuple(self.provenance.get("choices") or (int(x) + 1 for x in action.max(axis=0)))

    @property
    def action_size(self) -> int:
        """The dimensions of an action; the number of discrete actions."""
        if not self.discrete:
            return self.transitions.action.shape[-1]
        return sum(self.choices) or int(
            self.provenance.get("num_actions") or self.transitions.action.max() + 1
        )

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit of `env`, in environment steps; None: the registered one."""
        return self.provenance.get("max_episode_steps")

    @property
    def last(self) -> np.ndarray:
        """[N] bool: the last rows of episodes."""
        return np.asarray(self.transitions.terminated) | np.asarray(self.transitions.truncated)

    @property
    def episode_starts(self) -> np.ndarray:
        """[episodes] int64: the first row of each episode."""
        return np.concatenate([[0], np.flatnonzero(self.last[:-1]) + 1])

    @property
    def episode_lengths(self) -> np.ndarray:
        """[episodes] int64: transitions of each episode of `episode_starts`."""
        return np.diff(np.append(self.episode_starts, self.num))

    def lengths(self) -> np.ndarray:
        """[episodes] int64: transitions of each complete episode."""
        return self.episode_lengths[: self._finished]

    def returns(self) -> np.ndarray:
        """[episodes] float64: undiscounted return of each complete episode."""
        rewards = np.asarray(self.transitions.reward, np.float64)
        return np.add.reduceat(rewards, self.episode_starts)[: self._finished]

    def signal_sums(self) -> dict[str, np.ndarray]:
        """[episodes] float64: sums of each number of a signal over each complete episode."""
        extras = sorted(self.transitions.extras.items())
        columns = {name: np.asarray(x, np.float64) for name, x in extras if name not in LABELS}
        return {
            name: np.add.reduceat(x, self.episode_starts)[: self._finished]
            for name, x in numbers(columns, 1).items()
        }

    def score(self, returns: Any) -> Any:
        """`score` of undiscounted returns [...] by this data set's reference."""
        return score(returns, self.reference)

    @property
    def nbytes(self) -> int:
        """Bytes of all transitions."""
        return frames.distinct_bytes([getattr(self.transitions, name) for name in FIELDS])

    @property
    def _finished(self) -> int | None:
        return None if self.complete else -1


LARGEST = 1e18  # values beyond it have squares that float32 cannot hold
FIELDS = ("observation", "action", "reward", "terminated", "truncated", "next_observation")


def cut(transitions: Transition, rows: np.ndarray) -> Transition:
    """The transitions, with `rows` (indices or a mask) truncated unless they are terminal."""
    truncated = np.array(transitions.truncated)
    truncated[rows] |= ~np.asarray(transitions.terminated)[rows]
    return transitions.replace(truncated=truncated)


def versions(*packages: str) -> dict[str, str]:
    """Versions of rljax, NumPy and other packages."""
    from importlib import metadata

    from rljax import __version__

    return {"rljax": __version__} | {name: metadata.version(name) for name in ("numpy", *packages)}


def unknown(name: str, family: str, names: Sequence[str]) -> ValueError:
    """The error for a dataset that `family` does not have."""
    return ValueError(
        f"no dataset '{name}' in {family}.{nearest(name, names)} All of them: rljax data list"
    )


def as_bounds(bounds: Any, size: int) -> Bounds:
    """Low and high [size] float32 from `bounds`, two numbers or arrays; None means -1 and 1.

    Raises `ValueError` for another size, values that are not finite, and low not below high.
    """
    try:
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), (size,)).copy()
            for bound in ((-1.0, 1.0) if bounds is None else bounds)
            if np.asarray(bound).dtype.kind in "iuf"  # NumPy would convert text, too
        )
        if np.isfinite(high - low).all() and (low < high).all():
            return low, high
    except (TypeError, ValueError, OverflowError):
        pass
    shown = repr(bounds)
    raise ValueError(
        f"action_bounds is {shown[:200]}{'...' * (len(shown) > 200)}; it must be two, low below "
        f"high, each a number or one per dimension ({size}), such as action_bounds=(-2.0, 2.0)."
    )


def is_unit(bounds: Bounds) -> bool:
    """Whether bounds are -1 and 1 in every dimension."""
    return bool((bounds[0] == -1).all() and (bounds[1] == 1).all())


def dtype_name(column: Any) -> str:
    """The dtype in which agents see a column of observations."""
    return column.dtype.name if column.dtype.name in ("uint8", "bool") else "float32"


def is_usable(array: np.ndarray) -> bool:
    """Whether all values are finite and at most `LARGEST`."""
    if array.dtype.kind != "f" or not array.size:
        return True
    # Minimum and maximum propagate NaN, and allocate no array.
    return bool(array.min() >= -LARGEST and array.max() <= LARGEST)


def unusable(array: np.ndarray) -> np.ndarray:
    """The places [K, axes] of values that are not finite, or beyond `LARGEST`."""
    return np.argwhere(~(np.abs(array) <= LARGEST))


def columns(transitions: Transition, name: str) -> Iterator[tuple[str, Any]]:
    """The columns [N, ...] of a field of transitions, with its name or those of its parts."""
    value = getattr(transitions, name)
    if isinstance(value, dict):
        yield from ((f"{name}[{part!r}]", value[part]) for part in sorted(value))
    else:
        yield name, value


def denormalised(dataset: OfflineDataset) -> np.ndarray:
    """Actions within the file's bounds [N, A]: float64, unless the bounds are -1 and 1."""
    action = np.asarray(dataset.transitions.action)
    if dataset.action_bounds is None or is_unit(dataset.action_bounds):
        return action
    low, high = (bound.astype(np.float64) for bound in dataset.action_bounds)
    return (low + high) / 2 + (high - low) / 2 * action


def require_integers(dataset: OfflineDataset, env: str, number: int) -> None:
    """Raise `ValueError` if `env` has discrete actions but these are real numbers."""
    if not dataset.discrete and are_whole(denormalised(dataset)):
        raise ValueError(
            f"the actions of '{dataset.name}' are whole numbers, stored as real ones, and '{env}' "
            f"has {number} discrete actions. Store integers: actions.astype(np.int64)"
        )


def are_whole(action: np.ndarray) -> bool:
    """Whether actions [N, A] are single whole numbers from 0 on."""
    return action.shape[-1] == 1 and bool((action >= 0).all() and (np.rint(action) == action).all())
