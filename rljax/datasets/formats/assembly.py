"""`Rows`: the rows of a file, and the rules that assemble an `OfflineDataset` from them.

Axes: `M` rows of a file, `N` kept transitions, `O` dimensions of an observation, `A` of an action,
`K` several discrete actions.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import numpy as np

from rljax.agent import Transition
from rljax.buffers import frames
from rljax.datasets import dataset as base
from rljax.datasets.dataset import FIELDS, Bounds, OfflineDataset, are_whole, as_bounds, is_unit
from rljax.datasets.formats import schema

# Half ranges: actions beyond their bounds by less are rounding errors, which are clipped silently.
TOLERANCE = 1e-3


@dataclasses.dataclass
class Rows:
    """The rows of a file. `successors` and `assemble` turn them into a dataset."""

    file: str  # its name in error messages
    keys: Mapping[str, str]  # field of Transition -> key in the file
    # [M, O] float32; where each row has its successor, any tree that `OfflineDataset` holds
    observation: Any
    action: np.ndarray  # [M, A] floating point, or [M] or [M, K] integers
    reward: np.ndarray  # [M] float32
    terminated: np.ndarray  # [M] bool
    truncated: np.ndarray  # [M] bool: all other ends
    # like `observation`; None: the next row's observation is the successor
    next_observation: Any = None
    # [N] the rows of the file that the arrays hold; None: all of them
    rows: np.ndarray | None = None
    dropped: dict[str, int] = dataclasses.field(default_factory=dict)  # reason -> number of rows
    both_ends: int = 0  # kept rows that were marked as both terminal and another end
    # key in the file -> type in the file
    types: dict[str, str] = dataclasses.field(default_factory=dict)
    # [M, K...] float32 by name
    signals: dict[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def check_lengths(self) -> None:
        """Raise `ValueError` if there are no rows, or if arrays have unequal lengths or widths."""
        arrays = {name: frames.columns(getattr(self, name)) for name in FIELDS}
        lengths = {name: len(part) for name, parts in arrays.items() for part in parts}
        lengths |= {f"{schema.SIGNALS}{name}": len(column) for name, column in self.signals.items()}
        total = lengths["reward"]
        if not any(lengths.values()):
            raise ValueError(
                f"'{self.file}' is empty: '{self.keys['reward']}' has no rows. Record or "
                "download it again."
            )
        for name, length in lengths.items():
            if length != total:
                raise ValueError(
                    f"'{self.file}': '{self.keys.get(name, name)}' has {length} rows, "
                    f"'{self.keys['reward']}' has {total}; they must have the same number. The "
                    "file was cut or assembled wrongly: make it again."
                )
        successor = self.next_observation
        if isinstance(successor, np.ndarray) and successor.shape != self.observation.shape:
            raise ValueError(
                f"'{self.file}': '{self.keys['observation']}' has {self.observation.shape[1]} "
                f"numbers in each row, '{self.keys['next_observation']}' has {successor.shape[1]}; "
                "they must have the same. The file was assembled wrongly: make it again."
            )


def successors(rows: Rows, keep: np.ndarray, *, leak: bool = False) -> Rows:
    """The rows where `keep` [M] is true, with the successors and ends of trajectories that
    `OfflineDataset` promises.

    The successor of a row is the stored one. If none are stored, it is the observation of the next
    row; after a terminal state it is the row's own observation, because the next row begins another
    episode. With `leak`, it is the observation of the next row even then.

    A kept row that is not terminal is truncated if it was marked so, if the next row is dropped, or
    if the file ends. Rows that were marked as both are terminal, and are counted.

    Raises `ValueError` if no row is left.
    """
    total, observation = len(keep), rows.observation
    if rows.next_observation is None and frames.is_stored_once(
        observation.shape[1:], observation.dtype
    ):
        pictures = frames.Frames(
            pictures=observation, index=np.arange(total, dtype=np.int32)[:, None]
        )
        rows = dataclasses.replace(rows, observation=pictures)
    last = rows.truncated | np.append(~keep[1:], True)
    indices = None if keep.all() else np.flatnonzero(keep)
    if indices is not None and not len(indices):
        raise ValueError(
            f"'{rows.file}': of its {total} rows none is left by its "
            f"rules ({_counts(rows.dropped)})."
        )
    terminated = _take(rows.terminated, indices)
    truncated = ~terminated & _take(last, indices)
    both = int((terminated & _take(rows.truncated, indices)).sum())
    if rows.next_observation is not None:
        successor = _take(rows.next_observation, indices)
    else:
        here = np.arange(total) if indices is None else indices
        after = np.minimum(here + 1, total - 1)
        if not leak:
            after[terminated] = here[terminated]
        successor = _take(rows.observation, after)
    rows.next_observation = None  # frees memory: only one field is held twice
    return dataclasses.replace(
        rows,
        next_observation=successor,
        observation=_take(rows.observation, indices),
        action=_take(rows.action, indices),
        reward=_take(rows.reward, indices),
        terminated=terminated,
        truncated=truncated,
        rows=indices,
        both_ends=both,
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
    """The dataset of `rows`, which have their successors. Normalises the actions.

    Args:
        env, reference: see `rljax.datasets.formats.schema.facts`, which checks them and
            `provenance`.
        bounds: low and high of the actions, each a number or [A]; None means -1 and 1.
        clip_actions: whether actions beyond the bounds are clipped (True) or refused (False).
        unbounded: whether actions beyond the bounds are left unchanged, as in corrupted data.

    Raises:
        ValueError: values that are not finite, actions beyond their bounds by more than 1e-3 half
            ranges, and everything that `schema.facts` refuses.
    """
    for field in ("observation", "next_observation", "reward", "action"):
        _require_finite(rows, field)
    for signal, column in rows.signals.items():
        if not np.isfinite(column).all():
            raise ValueError(
                f"'{rows.file}': the signal '{signal}' is not finite in every row. Record it again."
            )
    most_action = int(rows.action.max()) if rows.action.ndim == 1 else None
    if rows.action.ndim == 2 and rows.action.dtype.kind in "iu":
        schema.require_choices(
            rows.file, rows.keys.get("action", "action"), rows.action, provenance.get("choices")
        )
    reference = schema.facts(rows.file, env, reference, provenance, most_action)
    action, limits, clipped = _normalised(rows, bounds, clip_actions, unbounded)
    transitions = Transition(
        observation=rows.observation,
        action=action,  # pyright: ignore[reportArgumentType]
        reward=rows.reward,  # pyright: ignore[reportArgumentType]
        terminated=rows.terminated,  # pyright: ignore[reportArgumentType]
        truncated=rows.truncated,  # pyright: ignore[reportArgumentType]
        next_observation=rows.next_observation,
        extras=rows.signals,  # pyright: ignore[reportArgumentType]
    )
    provenance = provenance | {
        "rows": len(rows.reward),
        "dropped": rows.dropped,
        "clipped_actions": clipped,
    }
    provenance["types"] = rows.types
    if rows.both_ends:
        provenance["both_ends"] = rows.both_ends
    return OfflineDataset(name, transitions, env, reference, limits, provenance, complete)


def _take(array: Any, indices: np.ndarray | None) -> Any:
    if indices is None:
        return array
    return array.replace(index=array.index[indices]) if frames.is_frames(array) else array[indices]


def _counts(dropped: Mapping[str, int]) -> str:
    return ", ".join(f"{why}: {count}" for why, count in dropped.items()) or "no rows"


def _require_finite(rows: Rows, field: str) -> None:
    for name, array in base.columns(rows, field):  # pyright: ignore[reportArgumentType]
        # Minimum and maximum propagate NaN, and allocate no array.
        if array.dtype.kind != "f" or (np.isfinite(array.min()) and np.isfinite(array.max())):
            continue
        bad = np.argwhere(~np.isfinite(array))
        index, *place = bad[0]
        row = index if rows.rows is None else rows.rows[index]
        where = f", dimension {place[0]}" if place else ""
        raise ValueError(
            f"'{rows.file}': '{rows.keys.get(field, field)}{name.removeprefix(field)}' is "
            f"{array[tuple(bad[0])]} in row {row}{where}, and not finite in "
            f"{len(np.unique(bad[:, 0]))} of {len(array)} rows. One such row turns every parameter "
            "into NaN: drop its episode from the file, or download it again."
        )


def _normalised(
    rows: Rows, bounds: Any, clip_actions: bool, unbounded: bool
) -> tuple[np.ndarray, Bounds | None, int]:
    """Actions in [-1, 1] as float32 [N, A], their bounds in the file,
    and the number of rows that were clipped.
    """
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
        index, place = (int(number) for number in np.argwhere(beyond)[0])
        row = index if rows.rows is None else int(rows.rows[index])
        hint = ""
        if are_whole(rows.action):
            hint = (
                ". If they number discrete actions, store them in the file as integers: "
                "actions.astype(np.int64)"
            )
        raise ValueError(
            f"'{rows.file}': '{rows.keys.get('action', 'action')}' is "
            f"{rows.action[index, place]:g} in row {row}, dimension {place}, outside "
            f"[{low[place]:g}, {high[place]:g}], as {count} of {len(action)} rows are (values from "
            f"{rows.action.min():g} to {rows.action.max():g}). If the environment's bounds are "
            "wider, name them: action_bounds=(low, high), or rljax data convert FILE NEW "
            "--action-bounds LOW HIGH. If the environment clips actions, clip them too: "
            "clip_actions=True, or rljax data convert FILE NEW --clip-actions"
            f"{hint}"
        )
    return np.clip(action, -1, 1), (low, high), count
