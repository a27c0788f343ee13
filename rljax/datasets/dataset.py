"""`Dataset`: recorded transitions with their metadata, and the rules that turn the rows of a file into a dataset.

Axes: `M` rows of a file, `N` transitions that are kept, `O` dimensions of an observation, `A` of an action.
"""

from __future__ import annotations

import dataclasses
import warnings
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.agent import Transition

TOLERANCE = 1e-3  # half ranges: actions beyond their bounds by less are rounding errors, which are clipped silently

FAMILIES = (
    "d4rl",
    "minari",
    "ogbench",
    "neorl2",
)  # prefixes of names; each is also the name of the module that reads them

Bounds = tuple[np.ndarray, np.ndarray]


def score(returns: Any, reference: Sequence[float] | None) -> Any:
    """Normalised score of undiscounted returns [...]: 100 (R - min) / (max - min). None without a reference."""
    if reference is None:
        return None
    low, high = reference
    return 100 * (np.asarray(returns, np.float64) - low) / (high - low)


@dataclasses.dataclass(frozen=True, eq=False)
class Dataset:
    """Transitions of complete and cut trajectories, in recorded order.

    Actions are normalised to [-1, 1]. `terminated` marks the environment's own end, after which nothing is
    bootstrapped. `truncated` marks every other end of a trajectory: a time limit, a cut, the end of the file. The last
    row of a trajectory carries one of the two marks, so boundaries need no separate array. `next_observation` is the
    true successor. If the successor of a terminal state was not recorded, it is the row's own observation.
    """

    name: str  # as given: "d4rl/hopper-medium-v2", or a path
    transitions: Transition = dataclasses.field(repr=False)  # NumPy arrays [N, ...]; float32, int32 and bool
    env: str | None  # the matching Gymnasium environment, such as "Hopper-v5"; None if there is none
    reference: tuple[float, float] | None  # undiscounted returns that score 0 and 100; None if none are published
    action_bounds: Bounds | None  # low [A] and high [A] of the actions in the file; None if they are discrete
    provenance: dict[str, Any] = dataclasses.field(repr=False)  # files, checksums, rules and versions; JSON-able
    complete: bool = True  # False: the last trajectory was cut by the end of the file

    @property
    def num(self) -> int:
        """N, the number of transitions."""
        return len(self.transitions.reward)

    @property
    def observation_size(self) -> int:
        """O, the dimensions of an observation."""
        return self.transitions.observation.shape[-1]

    @property
    def discrete(self) -> bool:
        """Whether actions are indices of choices (int32). If not, they are vectors (float32)."""
        return self.transitions.action.ndim == 1

    @property
    def action_size(self) -> int:
        """A, the dimensions of an action. For discrete actions, their number: as recorded, or the largest + 1."""
        if not self.discrete:
            return self.transitions.action.shape[-1]
        return int(self.provenance.get("num_actions") or self.transitions.action.max() + 1)

    @property
    def max_episode_steps(self) -> int | None:
        """The time limit of the recorded environment, in environment steps; None if it is not known."""
        return self.provenance.get("max_episode_steps")

    @property
    def last(self) -> np.ndarray:
        """[N] bool: the last rows of episodes, `terminated | truncated`."""
        return np.asarray(self.transitions.terminated) | np.asarray(self.transitions.truncated)

    @property
    def episode_starts(self) -> np.ndarray:
        """[episodes] int64: the first row of each episode, including one that the end of the file cut."""
        return np.concatenate([[0], np.flatnonzero(self.last[:-1]) + 1])

    @property
    def episode_lengths(self) -> np.ndarray:
        """[episodes] int64: transitions of each episode, including one that the end of the file cut."""
        return np.diff(np.append(self.episode_starts, self.num))

    def lengths(self) -> np.ndarray:
        """[episodes] int64: transitions of each complete episode."""
        return self.episode_lengths[: self._finished]

    def returns(self) -> np.ndarray:
        """[episodes] float64: undiscounted return of each complete episode, over the kept transitions.

        If D4RL's rules drop the last transition of an episode, its reward is missing.
        """
        rewards = np.asarray(self.transitions.reward, np.float64)
        return np.add.reduceat(rewards, self.episode_starts)[: self._finished]

    def score(self, returns: Any) -> Any:
        """`score` of undiscounted returns [...] by this data set's reference."""
        return score(returns, self.reference)

    @property
    def nbytes(self) -> int:
        """Bytes of all transitions."""
        return sum(np.asarray(getattr(self.transitions, name)).nbytes for name in FIELDS)

    @property
    def _finished(self) -> int | None:
        return None if self.complete else -1


FIELDS = ("observation", "action", "reward", "terminated", "truncated", "next_observation")


@dataclasses.dataclass
class Rows:
    """The rows of a file. `successors` and `assemble` turn them into a dataset."""

    file: str  # its name in error messages
    keys: Mapping[str, str]  # field of Transition -> key in the file
    observation: np.ndarray  # [M, O] float32
    action: np.ndarray  # [M, A] floating point, or [M] integers
    reward: np.ndarray  # [M] float32
    terminated: np.ndarray  # [M] bool
    truncated: np.ndarray  # [M] bool: all other ends
    next_observation: np.ndarray | None = None  # [M, O] float32; None: the next row's observation is the successor
    rows: np.ndarray | None = None  # [N] the rows of the file that the arrays hold; None: all of them
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)  # reason -> number of rows
    both_ends: int = 0  # kept rows that were marked as both terminal and another end
    types: dict[str, str] = dataclasses.field(default_factory=dict)  # key in the file -> type in the file

    def check_lengths(self) -> None:
        """Raise `ValueError` for no rows at all, and for arrays of unequal lengths."""
        lengths = {name: len(getattr(self, name)) for name in FIELDS if getattr(self, name) is not None}
        total = lengths["reward"]
        if not any(lengths.values()):
            raise ValueError(
                f"'{self.file}' is empty: '{self.keys['reward']}' has no rows. Record or download it again."
            )
        for name, length in lengths.items():
            if length != total:
                raise ValueError(
                    f"'{self.file}': '{self.keys.get(name, name)}' has {length} rows, '{self.keys['reward']}' has "
                    f"{total}; they must have the same number. The file was cut or assembled wrongly: make it again."
                )


def successors(rows: Rows, keep: np.ndarray, *, leak: bool = False) -> Rows:
    """The rows where `keep` [M] is true, with the successors and the ends of trajectories that `Dataset` promises.

    The successor of a row is the stored one. If none are stored, it is the observation of the next row; after a
    terminal state it is the row's own observation, because the next row begins another episode. With `leak`, it is the
    observation of the next row even then.

    A kept row that is not terminal is truncated if it was marked so, if the next row is dropped, or if the file ends.
    Rows that were marked as both are terminal, and are counted.

    Raises `ValueError` if no row is left.
    """
    total = len(keep)
    last = rows.truncated | np.append(~keep[1:], True)
    kept = None if keep.all() else np.flatnonzero(keep)
    if kept is not None and not len(kept):
        raise ValueError(f"'{rows.file}': of its {total} rows none is left by its rules ({_counts(rows.dropped)}).")
    terminated = _take(rows.terminated, kept)
    truncated = ~terminated & _take(last, kept)
    both = int((terminated & _take(rows.truncated, kept)).sum())
    if rows.next_observation is not None:
        following = _take(rows.next_observation, kept)
    else:
        here = np.arange(total) if kept is None else kept
        following = rows.observation[np.minimum(here + 1, total - 1)]
        if not leak:
            following[terminated] = rows.observation[here[terminated]]
    rows.next_observation = None  # frees memory: only one field is held twice
    return dataclasses.replace(
        rows,
        next_observation=following,
        observation=_take(rows.observation, kept),
        action=_take(rows.action, kept),
        reward=_take(rows.reward, kept),
        terminated=terminated,
        truncated=truncated,
        rows=kept,
        both_ends=both,
    )


def assemble(
    name: str,
    rows: Rows,
    *,
    env: str | None,
    reference: tuple[float, float] | None,
    bounds: Any = None,
    clip_actions: bool = False,
    unbounded: bool = False,
    complete: bool = True,
    provenance: dict[str, Any],
) -> Dataset:
    """The dataset of `rows`, which have their successors. Normalises the actions.

    Args:
        bounds: low and high of the actions, each a number or [A]; None means -1 and 1.
        clip_actions: whether actions beyond the bounds are clipped (True) or refused (False).
        unbounded: whether actions beyond the bounds are left unchanged, as in corrupted data.

    Raises:
        ValueError: values that are not finite, actions beyond their bounds by more than 1e-3 half ranges.
    """
    for field in ("observation", "next_observation", "reward", "action"):
        _require_finite(rows, field)
    action, limits, clipped = _normalised(rows, bounds, clip_actions, unbounded)
    transitions = Transition(
        observation=rows.observation,  # pyright: ignore[reportArgumentType]
        action=action,  # pyright: ignore[reportArgumentType]
        reward=rows.reward,  # pyright: ignore[reportArgumentType]
        terminated=rows.terminated,  # pyright: ignore[reportArgumentType]
        truncated=rows.truncated,  # pyright: ignore[reportArgumentType]
        next_observation=rows.next_observation,  # pyright: ignore[reportArgumentType]
    )
    provenance = provenance | {"rows": len(rows.reward), "dropped": rows.dropped, "clipped_actions": clipped}
    provenance["types"] = rows.types
    if rows.both_ends:
        provenance["both_ends"] = rows.both_ends
    return Dataset(name, transitions, env, reference, limits, provenance, complete)


def cut(transitions: Transition, rows: np.ndarray) -> Transition:
    """The transitions [N, ...] with `rows` (indices, or a mask [N]) marked as truncated, except terminal rows."""
    truncated = np.array(transitions.truncated)
    truncated[rows] |= ~np.asarray(transitions.terminated)[rows]
    return transitions.replace(truncated=truncated)


def stored(array: Any, dtype: Any = None) -> np.ndarray:
    """An array or an HDF5 dataset as an array. The latter is converted to `dtype` while it is read, without a copy."""
    if isinstance(array, np.ndarray):
        return array if dtype is None else array.astype(dtype, copy=False)
    if dtype is None or array.shape == () or 0 in array.shape:
        return np.asarray(array[()])
    result = np.empty(array.shape, dtype)
    array.read_direct(result)
    return result


def numbers(array: Any, file: str, key: str) -> Any:
    """The array or HDF5 dataset [M, ...], unchanged. Each row must hold at least one number or truth value.

    Raises `ValueError` for a group of arrays, text and other types, a scalar, and empty rows.
    """
    if hasattr(array, "keys"):
        raise ValueError(
            f"'{file}': '{key}' is a group ({', '.join(sorted(array)) or 'empty'}), it must be one array. Put the "
            f"group's arrays side by side in a new file: '{key}' = np.concatenate([...], axis=1)"
        )
    if array.dtype.kind not in "biuf":
        raise ValueError(f"'{file}': '{key}' is of type {array.dtype}, it must hold numbers. Store it as float32.")
    if not array.shape or 0 in array.shape[1:]:
        raise ValueError(
            f"'{file}': '{key}' has shape {array.shape}, it must be [rows, ...] with at least one number in each row. "
            "The file was assembled wrongly: make it again."
        )
    return array


def vectors(array: Any, file: str, key: str) -> np.ndarray:
    """Observations [M, ...] as float32 vectors [M, O]: numbers and arrays are flattened, arrays with a warning.

    Raises `ValueError` for images (uint8 with three axes or more), and for everything that `numbers` refuses.
    """
    if numbers(array, file, key).ndim > 2:
        if array.dtype == np.uint8:
            raise ValueError(
                f"'{file}': '{key}' holds images {array.shape[1:]} of uint8, the networks take vectors. "
                "Choose the variant of the dataset that was recorded with states."
            )
        warnings.warn(f"'{file}': '{key}' of shape {array.shape[1:]} is flattened to vectors.", stacklevel=2)
    with np.errstate(over="ignore"):  # values too large for float32 are reported as not finite
        return _flat(stored(array, np.float32))


def column(array: Any, file: str, key: str, dtype: Any) -> np.ndarray:
    """One number per row: [M] from [M] or [M, 1].

    Raises `ValueError` for other shapes, truth values that are not finite, and everything that `numbers` refuses.
    """
    if numbers(array, file, key).shape[1:] not in ((), (1,)):
        raise ValueError(f"'{file}': '{key}' has shape {array.shape}, it must be [rows] or [rows, 1].")
    values = stored(array).reshape(-1)
    if dtype == np.bool_ and not np.isfinite(values).all():
        row = int(np.flatnonzero(~np.isfinite(values))[0])
        raise ValueError(
            f"'{file}': '{key}' is {values[row]} in row {row}, it must be 0 or 1, which says whether an episode "
            "ended there. Correct the value in the file."
        )
    with np.errstate(over="ignore"):
        return values.astype(dtype, copy=False)


def actions(array: Any, file: str, key: str) -> np.ndarray:
    """Actions as stored: floating-point vectors [M, A]; or [M] int32, if integers with one axis were stored.

    Raises `ValueError` for more axes, for negative discrete actions, and for everything that `numbers` refuses.
    """
    array = stored(numbers(array, file, key))
    if array.dtype.kind in "iub" and array.shape[1:] in ((), (1,)):
        array = array.reshape(-1).astype(np.int32, copy=False)
        if len(array) and array.min() < 0:
            row = int(array.argmin())
            raise ValueError(f"'{file}': '{key}' is {array[row]} in row {row}; discrete actions count from 0.")
        return array
    if array.ndim > 2:
        raise ValueError(f"'{file}': '{key}' has shape {array.shape}, it must be [rows, dimensions].")
    array = _flat(array)
    return array if array.dtype.kind == "f" else array.astype(np.float32)


def versions(*packages: str) -> dict[str, str]:
    """Versions of this package and of the others that read the file."""
    from importlib import metadata

    from rljax import __version__

    return {"rljax": __version__} | {name: metadata.version(name) for name in ("numpy", *packages)}


def unknown(name: str, family: str, names: Sequence[str]) -> ValueError:
    """The error for a dataset that `family` does not have. It suggests the nearest of `names`."""
    return ValueError(f"no dataset '{name}' in {family}.{nearest(name, names)} All of them: rljax data list")


def nearest(name: str, names: Sequence[str], most: int = 3) -> str:
    """ " Nearest: 'a', 'b'.", or "" if no name is near. Upper and lower case do not matter."""
    import difflib

    spellings = {known.lower(): known for known in names}
    found = [spellings[match] for match in difflib.get_close_matches(name.lower(), spellings, n=most, cutoff=0.5)]
    return f" Nearest: {', '.join(repr(known) for known in found)}." if found else ""


def as_bounds(bounds: Any, size: int) -> Bounds:
    """Low and high [A] float32 from `bounds`, two numbers or arrays [A]; None means -1 and 1.

    Raises `ValueError` if they do not fit `size` dimensions, are not finite, or low is not below high.
    """
    try:
        low, high = (
            np.broadcast_to(np.asarray(bound, np.float32), (size,)).copy()
            for bound in ((-1.0, 1.0) if bounds is None else bounds)
        )
        if np.isfinite(high - low).all() and (low < high).all():
            return low, high
    except (TypeError, ValueError):
        pass
    raise ValueError(
        f"action_bounds is {bounds!r}; it must be two, low below high, each a number or one per dimension ({size}), "
        "such as action_bounds=(-2.0, 2.0)."
    )


def denormalised(dataset: Dataset) -> np.ndarray:
    """Actions within the file's bounds [N, A], for writing. They are float64 unless the bounds are -1 and 1."""
    action = np.asarray(dataset.transitions.action)
    if dataset.action_bounds is None or _is_unit(dataset.action_bounds):
        return action
    low, high = (bound.astype(np.float64) for bound in dataset.action_bounds)
    return (low + high) / 2 + (high - low) / 2 * action


def json_able(value: Any) -> Any:
    """`value` with NumPy's numbers and arrays, tuples and paths converted for JSON."""
    if isinstance(value, Mapping):
        return {str(key): json_able(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [json_able(item) for item in value]
    if isinstance(value, np.ndarray | np.generic):
        return value.tolist()
    return value.name if isinstance(value, Path) else value


def _flat(array: np.ndarray) -> np.ndarray:
    return array.reshape(len(array), int(np.prod(array.shape[1:])))  # -1 would fail for an array without rows


def _take(array: np.ndarray, kept: np.ndarray | None) -> np.ndarray:
    return array if kept is None else array[kept]


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{why}: {count}" for why, count in dropped.items()) or "no rows"


def _is_unit(bounds: Bounds) -> bool:
    return bool((bounds[0] == -1).all() and (bounds[1] == 1).all())


def _require_finite(rows: Rows, field: str) -> None:
    array = getattr(rows, field)
    # Minimum and maximum propagate NaN, and allocate no array.
    if array.dtype.kind != "f" or (np.isfinite(array.min()) and np.isfinite(array.max())):
        return
    bad = np.argwhere(~np.isfinite(array))
    index, *place = bad[0]
    row = index if rows.rows is None else rows.rows[index]
    where = f", dimension {place[0]}" if place else ""
    raise ValueError(
        f"'{rows.file}': '{rows.keys.get(field, field)}' is {array[tuple(bad[0])]} in row {row}{where}, and not finite "
        f"in {len(np.unique(bad[:, 0]))} of {len(array)} rows. One such row turns every parameter into NaN: "
        "drop its episode from the file, or download it again."
    )


def _normalised(rows: Rows, bounds: Any, clip_actions: bool, unbounded: bool) -> tuple[np.ndarray, Bounds | None, int]:
    """Actions in [-1, 1] as float32 [N, A], their bounds in the file, and the number of rows that were clipped."""
    action = rows.action
    if action.ndim == 1:
        return action, None, 0
    low, high = as_bounds(bounds, action.shape[-1])
    if _is_unit((low, high)):
        action = action.astype(np.float32, copy=False)
    else:
        center, half = (low.astype(np.float64) + high) / 2, (high.astype(np.float64) - low) / 2
        action = ((action - center) / half).astype(np.float32)
    if (action.min() >= -1 and action.max() <= 1) or (unbounded and not clip_actions):
        return action, (low, high), 0
    beyond = np.abs(action) > 1 + TOLERANCE
    count = int(beyond.any(axis=1).sum())
    if count and not clip_actions:
        index, place = (int(number) for number in np.argwhere(beyond)[0])
        row = index if rows.rows is None else int(rows.rows[index])
        raise ValueError(
            f"'{rows.file}': '{rows.keys.get('action', 'action')}' is {rows.action[index, place]:g} in row {row}, "
            f"dimension {place}, outside [{low[place]:g}, {high[place]:g}], as {count} of {len(action)} rows are "
            f"(values from {rows.action.min():g} to {rows.action.max():g}). If the environment's bounds are wider, "
            "name them: action_bounds=(low, high), or rljax data convert FILE NEW --action-bounds LOW HIGH. If the "
            "environment clips actions, clip them too: clip_actions=True, or rljax data convert FILE NEW --clip-actions"
        )
    return np.clip(action, -1, 1), (low, high), count
