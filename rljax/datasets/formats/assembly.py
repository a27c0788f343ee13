"""`Rows`: the rows of a file, and the rules that assemble an `OfflineDataset` from them.

Axes: `M` rows of a file, `O` dimensions of an observation, `A` of an action, `K` discrete actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rljax.agent import Transition
from rljax.buffers.storage import frames
from rljax.datasets import dataset as base
from rljax.datasets.dataset import FIELDS, Bounds, OfflineDataset, are_whole, as_bounds, is_unit
from rljax.datasets.formats import schema

WITHOUT_SUCCESSOR = "last of a trajectory, without a successor"  # why a row is dropped
TOLERANCE = 1e-3  # half ranges beyond the bounds of an action that count as rounding errors


@dataclasses.dataclass
class Rows:
    """The rows of a file."""

    file: str  # its name in error messages
    keys: Mapping[str, str]  # field of Transition -> key in the file
    observation: Any  # [M, O] float32; with successors, any tree that `OfflineDataset` holds
    action: np.ndarray  # [M, A] floating point, or [M] or [M, K] integers
    reward: np.ndarray  # [M] float32
    terminated: np.ndarray  # [M] bool
    truncated: np.ndarray  # [M] bool: all other ends
    next_observation: Any = None  # None: the next row's observation is the successor
    rows: np.ndarray | None = None  # of the file, which the arrays hold; None: all of them
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)  # reason -> number of rows
    both_ends: int = 0  # kept rows that were marked as both terminal and another end
    types: dict[str, str] = dataclasses.field(default_factory=dict)  # key -> type in the file
    signals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)  # [M, K...] float32

    def check_lengths(self) -> None:
        """Raise `ValueError` for no rows, and for unequal lengths or widths."""
        arrays = {name: frames.columns(getattr(self, name)) for name in FIELDS}
        lengths = {name: len(part) for name, parts in arrays.items() for part in parts}
        lengths |= {f"{schema.SIGNALS}{name}": len(column) for name, column in self.signals.items()}
        total = lengths["reward"]
        if not any(lengths.values()):
            raise ValueError(
                f"'{self.file}' is empty: '{self.keys['reward']}' has no rows. Record or download "
                "it again."
            )
        for name, length in lengths.items():
            key = self.keys.get(name, name)
            schema.require_length(self.file, key, length, self.keys["reward"], total)
        successor = self.next_observation
        if isinstance(successor, np.ndarray) and successor.shape != self.observation.shape:
            raise ValueError(
                f"'{self.file}': '{self.keys['observation']}' has {self.observation.shape[1]} "
                f"numbers in each row, '{self.keys['next_observation']}' has {successor.shape[1]}. "
                "The file was assembled wrongly: make it again."
            )


def successors(rows: Rows, keep: np.ndarray, *, leak: bool = False) -> Rows:
    """The rows where `keep` [M] is true, with successors and ends as `OfflineDataset` promises.

    Successors that are not stored are the next rows' observations; those of terminal rows are their
    own, except with `leak`.

    Raises `ValueError` if no row is left.
    """
    total, observation, successor = len(keep), rows.observation, rows.next_observation
    if successor is None:
        observation = _once(observation)
    here = np.flatnonzero(keep)
    if not len(here):
        reasons = ", ".join(f"{why}: {count}" for why, count in rows.dropped.items()) or "no rows"
        raise ValueError(
            f"'{rows.file}': of its {total} rows none is left by its rules ({reasons})."
        )
    indices = None if keep.all() else here
    terminated = _take(rows.terminated, indices)
    last = rows.truncated | np.append(~keep[1:], True)
    if successor is None:
        after = np.minimum(here + 1, total - 1)
        if not leak:
            after[terminated] = here[terminated]
        successor = _take(observation, after)
    else:
        successor = _take(successor, indices)
    rows.next_observation = None  # frees memory
    return dataclasses.replace(
        rows,
        next_observation=successor,
        observation=_take(observation, indices),
        action=_take(rows.action, indices),
        reward=_take(rows.reward, indices),
        terminated=terminated,
        truncated=~terminated & _take(last, indices),
        rows=indices,
        both_ends=int((terminated & _take(rows.truncated, indices)).sum()),
        signals={name: _take(column, indices) for name, column in rows.signals.items()},
    )


def assemble(
    name: str,
    rows: Rows,
    *,
    env: Any,
    reference: Any,
    bounds: Any = None,
    clip_actions: bool = False,
    unbounded: bool = False,
    complete: bool = True,
    provenance: dict[str, Any],
) -> OfflineDataset:
    """The dataset of `rows`, which have their successors.

    Args:
        env, reference, provenance: checked by `schema.facts`.
        bounds: low and high of the actions, each a number or [A]; None means -1 and 1.
        clip_actions: whether actions beyond the bounds are clipped or refused.
        unbounded: whether they stay as they are, as in corrupted data.

    Raises:
        ValueError: values that are not finite or beyond `LARGEST`, actions beyond
            `TOLERANCE`, and what `schema.facts` refuses.
    """
    for field in ("observation", "next_observation", "reward", "action"):
        _require_finite(rows, field)
    for signal, column in rows.signals.items():
        if not base.is_usable(column):
            raise ValueError(
                f"'{rows.file}': the signal '{signal}' has values that are not finite or beyond "
                f"{base.LARGEST:g}. Record it again."
            )
    most_action = int(rows.action.max()) if rows.action.ndim == 1 else None
    if rows.action.ndim == 2 and rows.action.dtype.kind in "iu":
        choices = provenance.get("choices")
        schema.require_choices(rows.file, rows.keys["action"], rows.action, choices)
    reference = schema.facts(rows.file, env, reference, provenance, most_action)
    action, limits, clipped = _normalised(rows, bounds, clip_actions, unbounded)
    fields: dict[str, Any] = {field: getattr(rows, field) for field in FIELDS}
    transitions = Transition(**fields | {"action": action, "extras": rows.signals})
    provenance = provenance | {
        "rows": len(rows.reward),
        "dropped": rows.dropped,
        "clipped_actions": clipped,
        "types": rows.types,
    }
    if rows.both_ends:
        provenance["both_ends"] = rows.both_ends
    return OfflineDataset(name, transitions, env, reference, limits, provenance, complete)


def _once(observation: Any) -> Any:
    """Observations with pictures as `Frames`, which successors share."""
    if isinstance(observation, dict):
        return {name: _once(column) for name, column in observation.items()}
    if not frames.is_stored_once(observation.shape[1:], observation.dtype):
        return observation
    return frames.Frames(observation, np.arange(len(observation), dtype=np.int32)[:, None])


def _take(array: Any, indices: np.ndarray | None) -> Any:
    if indices is None:
        return array
    if isinstance(array, dict):
        return {name: _take(column, indices) for name, column in array.items()}
    return array.replace(index=array.index[indices]) if frames.is_frames(array) else array[indices]


def _require_finite(rows: Rows, field: str) -> None:
    for name, array in base.columns(rows, field):  # pyright: ignore[reportArgumentType]
        if base.is_usable(array):
            continue
        bad = base.unusable(array)
        index, *place = bad[0]
        row = index if rows.rows is None else rows.rows[index]
        where = f", dimension {place[0]}" if place else ""
        raise ValueError(
            f"'{rows.file}': '{rows.keys.get(field, field)}{name.removeprefix(field)}' is "
            f"{array[tuple(bad[0])]} in row {row}{where}, and not finite or beyond "
            f"{base.LARGEST:g} in {len(np.unique(bad[:, 0]))} of {len(array)} rows. Drop the "
            "episodes from the file, or download it again."
        )


def _normalised(
    rows: Rows, bounds: Any, clip_actions: bool, unbounded: bool
) -> tuple[np.ndarray, Bounds | None, int]:
    action = rows.action
    if action.dtype.kind in "iu":
        return action, None, 0
    low, high = as_bounds(bounds, action.shape[-1])
    if is_unit((low, high)):
        action = action.astype(np.float32, copy=False)
    else:
        center, half = (low.astype(np.float64) + high) / 2, (high.astype(np.float64) - low) / 2
        action = ((action - center) / half).astype(np.float32)
    if (action.min() >= -1 and action.max() <= 1) or (unbounded and not clip_actions):
        return action, (low, high), 0
    beyond = np.abs(action) > 1 + TOLERANCE
    count = int(beyond.any(axis=1).sum())
    if count and not clip_actions:
        index, place = np.argwhere(beyond)[0]
        row = index if rows.rows is None else rows.rows[index]
        hint = ". If they number discrete actions, store integers: actions.astype(np.int64)"
        raise ValueError(
            f"'{rows.file}': '{rows.keys['action']}' is "
            f"{rows.action[index, place]:g} in row {row}, dimension {place}, outside "
            f"[{low[place]:g}, {high[place]:g}], as {count} of {len(action)} rows are (values from "
            f"{rows.action.min():g} to {rows.action.max():g}). If the environment's bounds are "
            "wider, name them: action_bounds=(low, high), or rljax data convert FILE NEW "
            "--action-bounds LOW HIGH. If the environment clips actions, clip them too: "
            "clip_actions=True, or rljax data convert FILE NEW --clip-actions"
            f"{hint if are_whole(rows.action) else ''}"
        )
    return np.clip(action, -1, 1), (low, high), count
