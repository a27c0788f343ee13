"""Faults of a dataset, their effect on learning, and the remedies."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from rljax.buffers import frames
from rljax.datasets.dataset import FIELDS, OfflineDataset, columns

SCALE = 1e3  # the largest observation that networks are expected to handle without normalisation
AT_BOUND = 1e-6  # actions within this distance from -1 or 1 count as at the bound
BLOCK = 1 << 16  # rows per step: no temporary array is as large as the dataset
BLOCK_BYTES = 1 << 25  # of observations per step
OBSERVED = ("float32", "uint8", "bool")  # dtypes of the arrays of an observation


@dataclasses.dataclass(frozen=True)
class Finding:
    """One kind of fault, with all of its occurrences."""

    name: str  # for example "not_finite"
    severity: Literal["error", "warning"]  # errors spoil learning; warnings may be intended
    count: int  # of rows, dimensions or episodes: see `where`
    where: str  # the first occurrences
    effect: str  # on learning
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name} ({self.where}). {self.effect} {self.remedy}"


def check(dataset: OfflineDataset) -> list[Finding]:
    """All faults of a dataset, errors first; [] if there are none.

    Errors: wrong_dtype, not_finite, actions_out_of_bounds, open_end, successors_do_not_follow.
    Warnings: actions_at_bounds, actions_that_never_occur, both_ends, duplicated_rows,
    constant_rewards, constant_observations, large_observations, episodes_too_long, no_terminals,
    only_terminals, stored_coarsely, assumed.
    """
    findings = [finding for rule in RULES for finding in rule(dataset)]
    return sorted(findings, key=lambda finding: finding.severity != "error")


def _dtypes(dataset: OfflineDataset) -> Iterator[Finding]:
    expected: dict[str, Any] = dict.fromkeys(FIELDS, np.float32) | {
        "terminated": np.bool_,
        "truncated": np.bool_,
    }
    if dataset.discrete:
        expected["action"] = np.int32
    wrong = [
        f"{part} is {column.dtype}, not {np.dtype(dtype).name}"
        for name, dtype in expected.items()
        for part, column in columns(dataset.transitions, name)
        if column.dtype != dtype
        and not (name in ("observation", "next_observation") and column.dtype.name in OBSERVED)
    ]
    if wrong:
        yield Finding(
            "wrong_dtype",
            "error",
            len(wrong),
            "; ".join(wrong),
            "Programs compile for unexpected types, and float64 takes twice the memory.",
            "Read the file with rljax.datasets.load, which converts the types.",
        )


def _not_finite(dataset: OfflineDataset) -> Iterator[Finding]:
    fields = ("observation", "action", "reward", "next_observation")
    for name, array in (
        column for field in fields for column in columns(dataset.transitions, field)
    ):
        if array.dtype.kind == "f" and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            rows = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
            yield Finding(
                "not_finite",
                "error",
                len(rows),
                f"{name}, {_rows(rows)}",
                "The first batch that holds such a row turns every parameter into NaN.",
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
            "error",
            len(beyond),
            _rows(beyond),
            "No policy with bounded actions can imitate them. Their log-probabilities under a "
            "squashed one are NaN.",
            "Load with the environment's bounds (action_bounds), or with clip_actions=True.",
        )
    at = _where(dataset, lambda rows: (np.abs(np.abs(action[rows]) - 1) <= AT_BOUND).any(axis=1))
    if len(at):
        whole = not len(
            _where(dataset, lambda rows: (action[rows] != np.round(action[rows])).any(axis=1))
        )
        yield Finding(
            "actions_at_bounds",
            "warning",
            len(at),
            f"{len(at) / dataset.num:.2%} of rows: {_rows(at)}",
            "Their inverse tanh is infinite: log-probabilities under a squashed Gaussian "
            "explode or are NaN.",
            (
                "Clip actions to +-(1 - 1e-5) before computing their log-probabilities, as "
                "IQL's code does."
            )
            + " All are whole numbers: if they number choices, store them as integers." * whole,
        )


def _choices(dataset: OfflineDataset) -> Iterator[Finding]:
    """Whether each discrete action occurs."""
    known, action = dataset.provenance.get("num_actions"), _field(dataset, "action")
    for i, most in enumerate(dataset.choices):
        occurring = np.unique(action[:, i])
        if len(occurring) < most:
            yield Finding(
                "actions_that_never_occur",
                "warning",
                most - len(occurring),
                f"{len(occurring)} of the {most} choices of action {i} "
                f"occur: {_rows(occurring, 'choices')}",
                "Nothing is known of the others: a policy may prefer them by mistake.",
                "Intended, or are rows missing?",
            )
    if dataset.choices:
        return
    most, occurring = dataset.action_size, np.unique(action)
    if len(occurring) < max(most, 2):
        number = (
            f"{known} actions"
            if known
            else f"at least {most} actions (the file does not say how many)"
        )
        yield Finding(
            "actions_that_never_occur",
            "warning",
            max(most, 2) - len(occurring),
            f"{len(occurring)} of {number} occur: {_rows(occurring, 'actions')}",
            "Nothing is known of the others: their values are guesses, which a policy may prefer.",
            "Intended, or are rows missing? If the file does not say how many actions there are, "
            "the environment does: rljax data convert FILE NEW --env NAME",
        )


def _ends(dataset: OfflineDataset) -> Iterator[Finding]:
    if not dataset.last[-1]:
        yield Finding(
            "open_end",
            "error",
            1,
            f"row {dataset.num - 1}",
            "The last trajectory has no end: sequences and n-step targets would continue into "
            "the first one.",
            "Mark the last row as truncated.",
        )
    both = np.flatnonzero(_field(dataset, "terminated") & _field(dataset, "truncated"))
    in_file = dataset.provenance.get("both_ends", 0)  # a file that is read keeps one mark only
    if len(both) or in_file:
        yield Finding(
            "both_ends",
            "warning",
            len(both) or in_file,
            _rows(both) if len(both) else f"{in_file} rows of the file",
            "Rows that are both terminal and truncated count as terminal: nothing is "
            "bootstrapped after them.",
            "If time limits were copied into the terminals, remove them there: terminals "
            "& ~timeouts.",
        )


def not_following(dataset: OfflineDataset, tolerance: float = 1e-5) -> np.ndarray:
    """The rows within episodes whose successors are not the next rows' observations.

    Numbers may differ by `tolerance`, relative to 1 plus their size.
    """
    observations, successors = (
        columns(dataset.transitions, name) for name in ("observation", "next_observation")
    )
    inside = np.flatnonzero(~dataset.last[:-1])
    marked = np.zeros(len(dataset.last), np.bool_)
    for (_, observation), (_, successor) in zip(observations, successors, strict=True):
        doubtful = inside
        if frames.is_frames(observation):  # what is the same picture needs no comparison
            doubtful = inside[
                (successor.index[inside] != observation.index[inside + 1]).any(axis=1)
            ]
        size = max(1, min(BLOCK, BLOCK_BYTES // max(1, math.prod(observation.shape[1:]))))
        for start in range(0, len(doubtful), size):
            block = doubtful[start : start + size]
            differ = _differ(successor[block], observation[block + 1], tolerance)
            marked[block[differ.reshape(len(block), -1).any(axis=1)]] = True
    return np.flatnonzero(marked)


def _successors(dataset: OfflineDataset) -> Iterator[Finding]:
    broken = not_following(dataset)
    if len(broken):
        yield Finding(
            "successors_do_not_follow",
            "error",
            len(broken),
            _rows(broken),
            "An end of a trajectory is not marked, or rows are shuffled. One-step learning is as "
            "right as the stored successors; returns, n-step targets and sequences cross from one "
            "trajectory into another.",
            "Mark those rows as ends (timeouts) in the file.",
        )


def _duplicates(dataset: OfflineDataset) -> Iterator[Finding]:
    code = np.zeros(dataset.num, np.uint64)
    # A 64-bit hash of each row, column by column: two different rows of a million share one with
    # odds of 1 in 10^7.
    for array in (
        x
        for name in ("observation", "action", "reward")
        for _, x in columns(dataset.transitions, name)
    ):
        for bits in _words(array):
            code = (code ^ bits) * np.uint64(0x9E3779B97F4A7C15)
            code ^= code >> np.uint64(29)
    first = np.unique(code, return_index=True)[1]
    if len(first) < dataset.num:
        repeated = np.ones(dataset.num, np.bool_)
        repeated[first] = False
        rows = np.flatnonzero(repeated)
        yield Finding(
            "duplicated_rows",
            "warning",
            len(rows),
            _rows(rows),
            "They weigh more than other rows, and a validation split with the same rows "
            "measures memorisation.",
            "Drop them, unless they are intended.",
        )


def _rewards(dataset: OfflineDataset) -> Iterator[Finding]:
    reward = _field(dataset, "reward")
    if dataset.num > 1 and reward.min() == reward.max():
        yield Finding(
            "constant_rewards",
            "warning",
            dataset.num,
            f"all {dataset.num} rows: {reward[0]:g}",
            "Values then depend only on when episodes end. If none ends, they depend on nothing.",
            "Imitate (bc), or choose a dataset with rewards, for example OGBench's "
            "'-singletask' datasets.",
        )


def _observations(dataset: OfflineDataset) -> Iterator[Finding]:
    for name, column in columns(dataset.transitions, "observation"):
        # Pictures and masks are constant in many places.
        if column.dtype == np.float32 and column.ndim == 2:
            yield from _dimensions(dataset, column, name.removeprefix("observation"))


def _dimensions(dataset: OfflineDataset, observation: np.ndarray, part: str) -> Iterator[Finding]:
    """Constant and large dimensions of vectors [N, O], which are the `part` of an observation."""
    low, high = observation.min(axis=0), observation.max(axis=0)
    kind = f"dimensions of {part}" if part else "dimensions"
    constant = np.flatnonzero(low == high)
    if len(constant) and dataset.num > 1:
        yield Finding(
            "constant_observations",
            "warning",
            len(constant),
            _rows(constant, kind),
            "They carry no information. Dividing by their standard deviation gives infinity unless "
            "that is bounded.",
            "Normalise with an epsilon (1e-3 is usual), or remove them.",
        )
    with np.errstate(invalid="ignore"):
        large = np.flatnonzero(np.maximum(np.abs(low), np.abs(high)) > SCALE)
    if len(large):
        yield Finding(
            "large_observations",
            "warning",
            len(large),
            f"{_rows(large, kind)}, up to {np.maximum(np.abs(low), np.abs(high))[large].max():g}",
            "They dominate the other dimensions in the first layer, and cause large gradients.",
            "Normalise observations.",
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
            "warning",
            len(long),
            f"{_rows(long, 'episodes')}, up to {lengths.max()} steps with a limit of {limit}",
            "Ends by the time limit are not marked: each return sums several episodes.",
            "Mark them (timeouts) in the file, or check whether the data were recorded without "
            "a limit.",
        )


def _terminals(dataset: OfflineDataset) -> Iterator[Finding]:
    if dataset.num > 1 and _field(dataset, "terminated").all():
        yield Finding(
            "only_terminals",
            "warning",
            dataset.num,
            f"all {dataset.num} rows",
            "Each row is then an episode of its own: nothing is bootstrapped, and each value is a "
            "single reward. That is right for tasks of one step only.",
            "Check how the marks were written: 'terminals' is 1 where an episode ended, and "
            "0 elsewhere.",
        )
    if not _field(dataset, "terminated").any():
        yield Finding(
            "no_terminals",
            "warning",
            0,
            f"none of {dataset.num} rows",
            "Every value is bootstrapped for ever. That is right if the environment never "
            "terminates, like HalfCheetah. In other environments, falling costs nothing.",
            "Check whether the environment terminates. If it does, the marks were lost.",
        )


def _stored(dataset: OfflineDataset) -> Iterator[Finding]:
    coarse = {
        key: name
        for key, name in dataset.provenance.get("types", {}).items()
        if name not in ("float32", "float64", "bool") and not (key.startswith(("terminal", "act")))
    }
    if coarse:
        yield Finding(
            "stored_coarsely",
            "warning",
            len(coarse),
            ", ".join(f"{key} as {name}" for key, name in coarse.items()),
            "The file's type was too coarse: small differences between values were lost.",
            "Record in float32, unless the values are whole numbers.",
        )


def _notes(dataset: OfflineDataset) -> Iterator[Finding]:
    for note in dataset.provenance.get("notes", ()):
        yield Finding(
            "assumed",
            "warning",
            dataset.num,
            note,
            "If the assumption is wrong, values are bootstrapped at the wrong rows.",
            "Store 'terminals' and 'timeouts' separately.",
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
    _lengths,
    _terminals,
    _stored,
    _notes,
)


def _field(dataset: OfflineDataset, name: str) -> np.ndarray:
    return np.asarray(getattr(dataset.transitions, name))


def _differ(one: np.ndarray, other: np.ndarray, tolerance: float) -> np.ndarray:
    """Whether numbers differ by more than the tolerance, and bytes and truth values at all."""
    if one.dtype.kind != "f" or tolerance == 0:
        return one != other
    return np.abs(one - other) > tolerance * (1 + np.abs(other))


def _words(array: Any) -> Iterator[np.ndarray]:
    """Words [N] uint64 of the rows of a column, which differ where the rows do:
    one per number, or one of all bytes.
    """
    if frames.is_frames(array):
        each = np.array([hash(picture.tobytes()) for picture in array.pictures], np.int64).view(
            np.uint64
        )
        yield from each[array.index].T
    elif array.dtype.kind in "bu":
        yield np.array([hash(row.tobytes()) for row in array], np.int64).view(np.uint64)
    else:
        flat = array.reshape(len(array), -1)
        for index in range(flat.shape[1]):
            yield np.ascontiguousarray(flat[:, index], np.float32).view(np.uint32).astype(np.uint64)


def _where(dataset: OfflineDataset, holds: Any) -> np.ndarray:
    """The rows for which `holds(rows)` is true, computed in blocks."""
    blocks = [slice(start, start + BLOCK) for start in range(0, dataset.num, BLOCK)]
    return np.concatenate([np.flatnonzero(holds(block)) + block.start for block in blocks])


def _rows(indices: np.ndarray, kind: str = "rows") -> str:
    shown = ", ".join(str(index) for index in indices[:5])
    return f"{kind} {shown}{f', ... ({len(indices)} in all)' if len(indices) > 5 else ''}"
