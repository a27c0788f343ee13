"""Faults of a dataset, their effects and remedies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from rljax.buffers.storage import frames
from rljax.datasets.dataset import (
    FIELDS,
    LARGEST,
    OfflineDataset,
    columns,
    is_usable,
    unusable,
)
from rljax.datasets.formats.assembly import WITHOUT_SUCCESSOR
from rljax.datasets.formats.schema import MOST_CHOICES
from rljax.datasets.formats.text import listed

SCALE = 1e3  # the largest observation without normalisation
AT_BOUND = 1e-6  # largest distance from -1 or 1 of an action at the bound
BLOCK = 1 << 16  # rows per step
BLOCK_BYTES = 1 << 25  # of observations per step
OBSERVED = ("float32", "uint8", "bool")  # dtypes of the arrays of an observation
# These spoil learning; other findings may be intended.
ERRORS = (
    "wrong_dtype",
    "not_finite",
    "actions_out_of_bounds",
    "too_many_actions",
    "open_end",
    "successors_do_not_follow",
)


@dataclasses.dataclass(frozen=True)
class Finding:
    """One kind of fault."""

    name: str  # for example "not_finite"
    count: int  # of rows, dimensions or episodes: see `where`
    where: str  # the first occurrences
    effect: str  # on learning
    remedy: str

    @property
    def severity(self) -> Literal["error", "warning"]:
        """An "error" spoils learning; a "warning" may be intended."""
        return "error" if self.name in ERRORS else "warning"

    def __str__(self) -> str:
        return f"{self.severity}: {self.name} ({self.where}). {self.effect} {self.remedy}"


def check(dataset: OfflineDataset) -> list[Finding]:
    """All faults of a dataset, errors first."""
    findings = [finding for rule in RULES for finding in rule(dataset)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _dtypes(dataset: OfflineDataset) -> Iterator[Finding]:
    expected = dict.fromkeys(FIELDS, "float32") | {"terminated": "bool", "truncated": "bool"}
    if dataset.discrete:
        expected["action"] = "int32"
    wrong = [
        f"{part} is {column.dtype}, not {dtype}"
        for name, dtype in expected.items()
        for part, column in columns(dataset.transitions, name)
        if column.dtype.name not in (OBSERVED if name.endswith("observation") else (dtype,))
    ]
    if wrong:
        yield Finding(
            "wrong_dtype",
            len(wrong),
            "; ".join(wrong),
            "Programs compile for other types, and float64 takes twice the memory.",
            "Read the file with rljax.datasets.load, which converts the types.",
        )


def _not_finite(dataset: OfflineDataset) -> Iterator[Finding]:
    fields = ("observation", "action", "reward", "next_observation")
    for name, array in (part for field in fields for part in columns(dataset.transitions, field)):
        if not is_usable(array):
            rows = np.unique(unusable(array)[:, 0])
            yield Finding(
                "not_finite",
                len(rows),
                f"{name}, {_rows(rows)}",
                f"The first batch with such a row, or one beyond {LARGEST:g}, turns every "
                "parameter into NaN.",
                "Drop its episode: rljax.datasets.subset.",
            )


def _actions(dataset: OfflineDataset) -> Iterator[Finding]:
    action = _field(dataset, "action")
    if dataset.discrete:
        yield from _choices(dataset)
        return
    beyond = _where(dataset, lambda rows: (np.abs(action[rows]) > 1).any(axis=1))
    if len(beyond):
        yield Finding(
            "actions_out_of_bounds",
            len(beyond),
            _rows(beyond),
            "No policy with bounded actions can imitate them: log-probabilities under a squashed "
            "one are NaN.",
            "Load with the environment's bounds (action_bounds), or with clip_actions=True.",
        )
    at = _where(dataset, lambda rows: (np.abs(np.abs(action[rows]) - 1) <= AT_BOUND).any(axis=1))
    if len(at):
        part = _where(dataset, lambda rows: (action[rows] != np.round(action[rows])).any(axis=1))
        hint = " All are whole numbers: if they number choices, store them as integers."
        yield Finding(
            "actions_at_bounds",
            len(at),
            f"{len(at) / dataset.num:.2%} of rows: {_rows(at)}",
            "Their inverse tanh is infinite: log-probabilities under a squashed Gaussian are NaN.",
            "Clip actions to +-(1 - 1e-5) before computing their log-probabilities, as IQL's code "
            f"does.{'' if len(part) else hint}",
        )


def _choices(dataset: OfflineDataset) -> Iterator[Finding]:
    known, size = dataset.provenance.get("num_actions"), dataset.action_size
    if size > MOST_CHOICES:
        yield Finding(
            "too_many_actions",
            size,
            f"{size:,} discrete actions, at most {MOST_CHOICES:,}",
            "An agent has an output for each of them: no memory holds its networks.",
            "Number the actions that occur from 0 on, or store continuous ones as float32.",
        )
    number = (
        f"{known} actions" if known else f"at least {size} actions (the file does not say how many)"
    )
    cases = [
        (most, f"the {most} choices of action {i}", "choices")
        for i, most in enumerate(dataset.choices)
    ] or [(max(size, 2), number, "actions")]
    columns = _field(dataset, "action").reshape(dataset.num, -1).T
    for (most, number, kind), column in zip(cases, columns, strict=True):
        occurring = np.unique(column)
        if len(occurring) < most:
            yield Finding(
                "actions_that_never_occur",
                most - len(occurring),
                f"{len(occurring)} of {number} occur: {_rows(occurring, kind)}",
                "The values of the others are guesses, which a policy may prefer.",
                "Intended, or are rows missing? If the file does not say how many actions there "
                "are, the environment does: rljax data convert FILE NEW --env NAME",
            )


def _ends(dataset: OfflineDataset) -> Iterator[Finding]:
    if not dataset.last[-1]:
        yield Finding(
            "open_end",
            1,
            f"row {dataset.num - 1}",
            "Sequences and n-step targets would continue into the first trajectory.",
            "Mark the last row as truncated.",
        )
    both = np.flatnonzero(_field(dataset, "terminated") & _field(dataset, "truncated"))
    in_file = dataset.provenance.get("both_ends", 0)  # a file that is read keeps one mark only
    if len(both) or in_file:
        yield Finding(
            "both_ends",
            len(both) or in_file,
            _rows(both) if len(both) else f"{in_file} rows of the file",
            "Rows that are both terminal and truncated count as terminal: nothing is bootstrapped "
            "after them.",
            "If time limits were copied into the terminals, remove them: terminals & ~timeouts.",
        )


def not_following(dataset: OfflineDataset, tolerance: float = 1e-5) -> np.ndarray:
    """The rows within episodes whose successors differ from the next observations.

    `tolerance` is relative to 1 plus a number's size.
    """
    inside = np.flatnonzero(~dataset.last[:-1])
    marked = np.zeros(dataset.num, np.bool_)
    both = dataset.transitions.observation, dataset.transitions.next_observation
    for observation, successor in zip(*map(frames.columns, both), strict=True):
        rows = inside
        if frames.is_frames(observation):
            rows = inside[(successor.index[inside] != observation.index[inside + 1]).any(axis=1)]
        size = max(1, min(BLOCK, BLOCK_BYTES // max(1, math.prod(observation.shape[1:]))))
        for start in range(0, len(rows), size):
            block = rows[start : start + size]
            differ = _differ(successor[block], observation[block + 1], tolerance)
            marked[block[differ.reshape(len(block), -1).any(axis=1)]] = True
    return np.flatnonzero(marked)


def _successors(dataset: OfflineDataset) -> Iterator[Finding]:
    broken = not_following(dataset)
    if len(broken):
        yield Finding(
            "successors_do_not_follow",
            len(broken),
            _rows(broken),
            "An end of a trajectory is not marked, or rows are shuffled: returns, n-step targets "
            "and sequences cross from one trajectory into another.",
            "Mark those rows as ends (timeouts) in the file.",
        )


def _duplicates(dataset: OfflineDataset) -> Iterator[Finding]:
    code = np.zeros(dataset.num, np.uint64)
    # 64-bit hashes of rows: two of a million are equal with odds of 1 in 10^7.
    for name in ("observation", "action", "reward"):
        for _, array in columns(dataset.transitions, name):
            for bits in _words(array):
                code = (code ^ bits) * np.uint64(0x9E3779B97F4A7C15)
                code ^= code >> np.uint64(29)
    rows = np.delete(np.arange(dataset.num), np.unique(code, return_index=True)[1])
    if len(rows):
        yield Finding(
            "duplicated_rows",
            len(rows),
            _rows(rows),
            "They weigh more than other rows, and validation on the same rows measures memory.",
            "Drop them, unless they are intended.",
        )


def _rewards(dataset: OfflineDataset) -> Iterator[Finding]:
    reward = _field(dataset, "reward")
    if dataset.num > 1 and reward.min() == reward.max():
        yield Finding(
            "constant_rewards",
            dataset.num,
            f"all {dataset.num} rows: {reward[0]:g}",
            "Values then depend only on when episodes end.",
            "Imitate (bc), or choose a dataset with rewards, such as OGBench's '-singletask' ones.",
        )


def _observations(dataset: OfflineDataset) -> Iterator[Finding]:
    for name, column in columns(dataset.transitions, "observation"):
        if column.dtype == np.float32 and column.ndim == 2:
            yield from _dimensions(dataset, column, name.removeprefix("observation"))


def _dimensions(dataset: OfflineDataset, observation: np.ndarray, part: str) -> Iterator[Finding]:
    low, high = observation.min(axis=0), observation.max(axis=0)
    with np.errstate(invalid="ignore"):
        largest = np.maximum(np.abs(low), np.abs(high))
        large = np.flatnonzero(largest > SCALE)
    kind = f"dimensions of {part}" if part else "dimensions"
    constant = np.flatnonzero(low == high)
    if len(constant) and dataset.num > 1:
        yield Finding(
            "constant_observations",
            len(constant),
            _rows(constant, kind),
            "They carry no information, and division by their standard deviation gives infinity.",
            "Normalise with an epsilon (1e-3 is usual), or remove them.",
        )
    if len(large):
        yield Finding(
            "large_observations",
            len(large),
            f"{_rows(large, kind)}, up to {largest[large].max():g}",
            "They dominate the first layer, and cause large gradients.",
            "Normalise observations.",
        )


def _equal_dimensions(dataset: OfflineDataset) -> Iterator[Finding]:
    fields = ("observation",) if dataset.discrete else ("observation", "action")
    for name, column in (part for field in fields for part in columns(dataset.transitions, field)):
        if column.dtype != np.float32 or column.ndim != 2 or len(column) < 2:
            continue
        varying = np.flatnonzero(column.min(axis=0) != column.max(axis=0))
        _, first, which = np.unique(
            column[:BLOCK, varying], axis=1, return_index=True, return_inverse=True
        )
        pairs = [
            (varying[first[group]], dimension)
            for dimension, group in zip(varying, which, strict=True)
            if varying[first[group]] < dimension
        ]
        pairs = [(one, other) for one, other in pairs if (column[:, one] == column[:, other]).all()]
        if pairs:
            yield Finding(
                "equal_dimensions",
                len(pairs),
                f"{name}: " + ", ".join(f"{one} and {other}" for one, other in pairs[:5]),
                "One of them says nothing that the other does not.",
                "Intended, or was a column written twice?",
            )


def _lengths(dataset: OfflineDataset) -> Iterator[Finding]:
    limit = dataset.provenance.get("recorded_max_episode_steps") or dataset.max_episode_steps
    if limit is None:
        return
    lengths = dataset.episode_lengths
    long = np.flatnonzero(lengths > limit)
    if len(long):
        yield Finding(
            "episodes_too_long",
            len(long),
            f"{_rows(long, 'episodes')}, up to {lengths.max()} steps with a limit of {limit}",
            "Ends by the time limit are not marked: each return sums several episodes.",
            "Mark them (timeouts) in the file, unless the data were recorded without a limit.",
        )


def _terminals(dataset: OfflineDataset) -> Iterator[Finding]:
    terminated = _field(dataset, "terminated")
    if dataset.num > 1 and terminated.all():
        yield Finding(
            "only_terminals",
            dataset.num,
            f"all {dataset.num} rows",
            "Each row is an episode of its own: nothing is bootstrapped. That is right for tasks "
            "of one step only.",
            "Check how the marks were written: 'terminals' is 1 where an episode ended, else 0.",
        )
    if not terminated.any():
        yield Finding(
            "no_terminals",
            0,
            f"none of {dataset.num} rows",
            "Every value is bootstrapped for ever. That is right if the environment never "
            "terminates, like HalfCheetah. In others, falling costs nothing.",
            "If the environment terminates, the marks were lost.",
        )


def _stored(dataset: OfflineDataset) -> Iterator[Finding]:
    coarse = {
        key: name
        for key, name in dataset.provenance.get("types", {}).items()
        if name not in ("float32", "float64", "bool") and not key.startswith(("terminal", "act"))
    }
    if coarse:
        yield Finding(
            "stored_coarsely",
            len(coarse),
            ", ".join(f"{key} as {name}" for key, name in coarse.items()),
            "Small differences between values were lost.",
            "Record in float32, unless the values are whole numbers.",
        )


def _notes(dataset: OfflineDataset) -> Iterator[Finding]:
    for note in dataset.provenance.get("notes", ()):
        yield Finding(
            "assumed",
            dataset.num,
            note,
            "If the assumption is wrong, values are bootstrapped at the wrong rows.",
            "Store 'terminals' and 'timeouts' separately.",
        )


def _left_out(dataset: OfflineDataset) -> Iterator[Finding]:
    others = dataset.provenance.get("unread", ())
    if others:
        yield Finding(
            "unread_arrays",
            len(others),
            listed(others),
            "Nothing learns from them: ends of episodes under such a name are lost.",
            "Intended, or has an array another name? docs/datasets.md lists the names.",
        )
    count = dataset.provenance.get("dropped", {}).get(WITHOUT_SUCCESSOR, 0)
    if count:
        yield Finding(
            "dropped_rows",
            count,
            f"{count} rows of the file: {WITHOUT_SUCCESSOR}",
            "Their rewards are missing, also in returns.",
            "Store 'next_observations' in the file.",
        )


RULES = (
    _dtypes,
    _not_finite,
    _actions,
    _ends,
    _successors,
    _duplicates,
    _rewards,
    _observations,
    _equal_dimensions,
    _lengths,
    _terminals,
    _stored,
    _left_out,
    _notes,
)


def _field(dataset: OfflineDataset, name: str) -> np.ndarray:
    return np.asarray(getattr(dataset.transitions, name))


def _differ(one: np.ndarray, other: np.ndarray, tolerance: float) -> np.ndarray:
    if one.dtype.kind != "f" or tolerance == 0:
        return one != other
    return np.abs(one - other) > tolerance * (1 + np.abs(other))


def _words(array: Any) -> Iterator[np.ndarray]:
    """Words [N] uint64 of the rows of a column: one per number, or one of all bytes."""

    def hashes(rows: Any) -> np.ndarray:
        return np.array([hash(row.tobytes()) for row in rows], np.int64).view(np.uint64)

    if frames.is_frames(array):
        yield from hashes(array.pictures)[array.index].T
    elif array.dtype.kind in "bu":
        yield hashes(array)
    else:
        flat = array.reshape(len(array), -1)
        for index in range(flat.shape[1]):
            yield np.ascontiguousarray(flat[:, index], np.float32).view(np.uint32).astype(np.uint64)


def _where(dataset: OfflineDataset, holds: Any) -> np.ndarray:
    blocks = [slice(start, start + BLOCK) for start in range(0, dataset.num, BLOCK)]
    return np.concatenate([np.flatnonzero(holds(block)) + block.start for block in blocks])


def _rows(indices: np.ndarray, kind: str = "rows") -> str:
    shown = ", ".join(str(index) for index in indices[:5])
    return f"{kind} {shown}{f', ... ({len(indices)} in all)' if len(indices) > 5 else ''}"
