"""What is wrong with a dataset, what it would do to learning, and what to do."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any, Literal

import numpy as np

from rljax.datasets.dataset import FIELDS, Dataset

SCALE = 1e3  # largest observation that networks without normalisation are expected to bear
AT_BOUND = 1e-6  # distance from -1 or 1 at which an action counts as on its bound
BLOCK = 1 << 16  # rows that are looked at together, so that no array of the dataset's size is made


@dataclasses.dataclass(frozen=True)
class Finding:
    """One kind of fault, wherever it occurs."""

    name: str  # such as "not_finite"
    severity: Literal["error", "warning"]  # an error makes what is learnt wrong; a warning may be as it should
    count: int  # of rows, dimensions or episodes, as `where` says
    where: str  # the first of them
    effect: str  # on learning
    remedy: str

    def __str__(self) -> str:
        return f"{self.severity}: {self.name} ({self.where}). {self.effect} {self.remedy}"


def check(dataset: Dataset) -> list[Finding]:
    """All that is found wrong, errors first; [] where nothing is.

    Errors: wrong_dtype, not_finite, actions_out_of_bounds, open_end, successors_do_not_follow. Warnings:
    actions_at_bounds, both_ends, duplicated_rows, constant_rewards, constant_observations, large_observations,
    episodes_too_long, no_terminals, stored_coarsely, assumed.
    """
    found = [finding for look in LOOKS for finding in look(dataset)]
    return sorted(found, key=lambda finding: finding.severity != "error")


def _dtypes(dataset: Dataset) -> Iterator[Finding]:
    expected: dict[str, Any] = dict.fromkeys(FIELDS, np.float32) | {"terminated": np.bool_, "truncated": np.bool_}
    if dataset.discrete:
        expected["action"] = np.int32
    wrong = [
        f"{name} is {_field(dataset, name).dtype}, not {np.dtype(dtype).name}"
        for name, dtype in expected.items()
        if _field(dataset, name).dtype != dtype
    ]
    if wrong:
        yield Finding(
            "wrong_dtype",
            "error",
            len(wrong),
            "; ".join(wrong),
            "Programs compile for other types than expected, and float64 takes twice the memory.",
            "Read the file with rljax.datasets.load, which converts.",
        )


def _not_finite(dataset: Dataset) -> Iterator[Finding]:
    for name in ("observation", "action", "reward", "next_observation"):
        array = _field(dataset, name)
        if array.dtype.kind == "f" and not (np.isfinite(array.min()) and np.isfinite(array.max())):
            rows = np.flatnonzero(~np.isfinite(array.reshape(len(array), -1)).all(axis=1))
            yield Finding(
                "not_finite",
                "error",
                len(rows),
                f"{name}, {_rows(rows)}",
                "The first batch with such a row makes every parameter NaN.",
                "Drop its episode: rljax.datasets.subset.",
            )


def _actions(dataset: Dataset) -> Iterator[Finding]:
    action = _field(dataset, "action")
    if dataset.discrete:
        return
    beyond = _where(dataset, lambda rows: (np.abs(action[rows]) > 1).any(axis=1))
    if len(beyond):
        yield Finding(
            "actions_out_of_bounds",
            "error",
            len(beyond),
            _rows(beyond),
            "No policy with bounded actions can imitate them, and log-probabilities of a squashed one are NaN.",
            "Load with the environment's bounds (action_bounds), or with clip_actions=True.",
        )
    at = _where(dataset, lambda rows: (np.abs(np.abs(action[rows]) - 1) <= AT_BOUND).any(axis=1))
    if len(at):
        yield Finding(
            "actions_at_bounds",
            "warning",
            len(at),
            f"{len(at) / dataset.num:.2%} of rows: {_rows(at)}",
            "Their inverse tanh is infinite: log-probabilities under a squashed Gaussian explode or are NaN.",
            "Clip actions to +-(1 - 1e-5) where log-probabilities of data are taken, as IQL's code does.",
        )


def _ends(dataset: Dataset) -> Iterator[Finding]:
    if not dataset.last[-1]:
        yield Finding(
            "open_end",
            "error",
            1,
            f"row {dataset.num - 1}",
            "The last trajectory has no end: sequences and n-step targets would run over it into the first.",
            "Mark the last row as truncated.",
        )
    both = np.flatnonzero(_field(dataset, "terminated") & _field(dataset, "truncated"))
    in_file = dataset.provenance.get("both_ends", 0)  # the marks of a file are one or the other once it is read
    if len(both) or in_file:
        yield Finding(
            "both_ends",
            "warning",
            len(both) or in_file,
            _rows(both) if len(both) else f"{in_file} rows of the file",
            "Rows that are terminal and cut at once count as terminal: nothing is bootstrapped behind them.",
            "Where the mark of a time limit was copied into the terminals, take it out there: terminals & ~timeouts.",
        )


def _successors(dataset: Dataset) -> Iterator[Finding]:
    observation, following = _field(dataset, "observation"), _field(dataset, "next_observation")
    inside = np.flatnonzero(~dataset.last[:-1])
    rows = []
    for start in range(0, len(inside), BLOCK):
        block = inside[start : start + BLOCK]
        here, there = following[block], observation[block + 1]
        rows.append(block[(np.abs(here - there) > 1e-5 * (1 + np.abs(there))).any(axis=1)])
    broken = np.concatenate(rows) if rows else inside
    if len(broken):
        yield Finding(
            "successors_do_not_follow",
            "error",
            len(broken),
            _rows(broken),
            "An end of a trajectory is not marked, or rows are shuffled. One-step learning is right as far as the "
            "stored successors are; returns, n-step targets and sequences run across trajectories.",
            "Mark those rows as ends (timeouts) in the file.",
        )


def _duplicates(dataset: Dataset) -> Iterator[Finding]:
    names = ("observation", "action", "reward")
    code = np.zeros(dataset.num, np.uint64)
    # A 64-bit hash of each row, column by column: two different rows of a million share one with odds of 1 in 10^7.
    for name in names:
        array = _field(dataset, name).reshape(dataset.num, -1)
        for index in range(array.shape[1]):
            bits = np.ascontiguousarray(array[:, index], np.float32).view(np.uint32).astype(np.uint64)
            code = (code ^ bits) * np.uint64(0x9E3779B97F4A7C15)
            code ^= code >> np.uint64(29)
    first = np.unique(code, return_index=True)[1]
    if len(first) < dataset.num:
        again = np.ones(dataset.num, np.bool_)
        again[first] = False
        rows = np.flatnonzero(again)
        yield Finding(
            "duplicated_rows",
            "warning",
            len(rows),
            _rows(rows),
            "They weigh more than others, and a validation split that shares them measures memory.",
            "Drop them, unless the data were put together so on purpose.",
        )


def _rewards(dataset: Dataset) -> Iterator[Finding]:
    reward = _field(dataset, "reward")
    if dataset.num > 1 and reward.min() == reward.max():
        yield Finding(
            "constant_rewards",
            "warning",
            dataset.num,
            f"all {dataset.num} rows: {reward[0]:g}",
            "Values then depend on when episodes end only, and where none do, on nothing.",
            "Imitate (bc), or choose a dataset with rewards: of OGBench the '-singletask' ones.",
        )


def _observations(dataset: Dataset) -> Iterator[Finding]:
    observation = _field(dataset, "observation")
    low, high = observation.min(axis=0), observation.max(axis=0)
    constant = np.flatnonzero(low == high)
    if len(constant) and dataset.num > 1:
        yield Finding(
            "constant_observations",
            "warning",
            len(constant),
            _rows(constant, "dimensions"),
            "They tell nothing, and dividing by their standard deviation gives infinity unless it is bounded below.",
            "Normalise with an epsilon (1e-3 is usual), or leave them out.",
        )
    with np.errstate(invalid="ignore"):
        large = np.flatnonzero(np.maximum(np.abs(low), np.abs(high)) > SCALE)
    if len(large):
        yield Finding(
            "large_observations",
            "warning",
            len(large),
            f"{_rows(large, 'dimensions')}, up to {np.maximum(np.abs(low), np.abs(high))[large].max():g}",
            "They drown the others in the first layer, and gradients are as large.",
            "Normalise observations.",
        )


def _lengths(dataset: Dataset) -> Iterator[Finding]:
    limit = dataset.max_episode_steps
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
            "Ends by the time limit are not marked: returns are of several episodes at once.",
            "Mark them (timeouts) in the file, or see whether the data were recorded without a limit.",
        )


def _terminals(dataset: Dataset) -> Iterator[Finding]:
    if not _field(dataset, "terminated").any():
        yield Finding(
            "no_terminals",
            "warning",
            0,
            f"none of {dataset.num} rows",
            "Every value is bootstrapped for ever. So it should be where the environment never ends by itself, as "
            "HalfCheetah does not; elsewhere falling costs nothing.",
            "See whether the environment terminates; if so, the marks were lost.",
        )


def _stored(dataset: Dataset) -> Iterator[Finding]:
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
            "Differences below that type's step were lost when the file was written.",
            "Record in float32, unless the values are whole numbers.",
        )


def _notes(dataset: Dataset) -> Iterator[Finding]:
    for note in dataset.provenance.get("notes", ()):
        yield Finding(
            "assumed",
            "warning",
            dataset.num,
            note,
            "If it is not so, values are bootstrapped where they should not be, or are not where they should.",
            "Store 'terminals' and 'timeouts' apart.",
        )


LOOKS = (
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


def _field(dataset: Dataset, name: str) -> np.ndarray:
    return np.asarray(getattr(dataset.transitions, name))


def _where(dataset: Dataset, holds: Any) -> np.ndarray:
    """Rows for which `holds(rows)` does, in blocks."""
    blocks = [slice(start, start + BLOCK) for start in range(0, dataset.num, BLOCK)]
    return np.concatenate([np.flatnonzero(holds(block)) + block.start for block in blocks])


def _rows(indices: np.ndarray, kind: str = "rows") -> str:
    shown = ", ".join(str(index) for index in indices[:5])
    return f"{kind} {shown}{f', ... ({len(indices)} in all)' if len(indices) > 5 else ''}"
