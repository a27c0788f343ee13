"""Reward transforms, and the choice of trajectories.

Transforms are for learning only: scale r + shift of those in `CONSTANT`, and

    return_range   1000 r / (max - min of the trajectories' returns)   IQL on locomotion [3]
    standardise    (r - mean) / standard deviation of the rows         Diffusion-QL on Adroit [8]
    sparse         0 where r is 0, else -1                             QAM on scene and puzzles [9]

[1] Fujimoto and Gu, arXiv:2106.06860. [2] Tarasov et al., arXiv:2305.09836. [3] Kostrikov et al.,
    arXiv:2110.06169; ikostrikov/implicit_q_learning, train_offline.py. [4] Park et al.,
    arXiv:2502.02538. [5] Kumar et al., arXiv:2006.04779. [6] Nakamoto et al., arXiv:2303.05479.
    [7] Zhou et al., arXiv:2412.07762. [8] Wang et al., arXiv:2208.06193; main.py,
    utils/data_sampler.py. [9] Li and Levine, arXiv:2601.14234; main.py.
"""

from __future__ import annotations

import dataclasses
import typing
from collections.abc import Sequence
from typing import Any

import numpy as np

from rljax.agent import Transition, difference, shown
from rljax.buffers import OPTIMAL_ACTION, PART, TASK, RewardTransform
from rljax.buffers.rows import RewardMap
from rljax.buffers.storage import frames
from rljax.datasets.dataset import FIELDS, OfflineDataset, cut
from rljax.trust import nearest

# Scale and shift of the transforms that are the same for all data.
CONSTANT: dict[str, tuple[float, float]] = {
    "none": (1.0, 0.0),  # TD3+BC [1], ReBRAC [2] except on AntMaze
    "minus_one": (1.0, -1.0),  # IQL [3], FQL [4] on AntMaze
    "times_10_minus_5": (10.0, -5.0),  # CQL [5], Cal-QL [6], WSRL [7] on AntMaze
    "times_4_minus_2": (4.0, -2.0),  # Diffusion-QL on AntMaze [8]
    "times_100": (100.0, 0.0),  # ReBRAC on AntMaze [2]
    "times_10_plus_5": (10.0, 5.0),  # Cal-QL [6], WSRL [7] on binary Adroit, rewards -1 and 0
    "minus_four": (1.0, -4.0),  # WSRL on Kitchen [7]
}
BLOCK = 1 << 16  # rows compared at a time
REST = tuple(name for name in FIELDS if name not in ("observation", "next_observation"))


def reward_transform(name: RewardTransform, dataset: OfflineDataset) -> RewardMap:
    """The transform called `name`, a function of rewards.

    "return_range" uses `iql_returns`. "standardise" divides by N - 1 in the deviation. Raises
    `ValueError` for an unknown name, for equal returns or rewards, and for rewards above 0 that
    "sparse" does not know.
    """
    if name in CONSTANT:
        return RewardMap(*CONSTANT[name])
    if name == "sparse":
        largest = np.asarray(dataset.transitions.reward).max()
        if largest <= 0.0:
            return RewardMap(sparse=True)
        raise ValueError(
            f"reward transform '{name}' is for rewards that are below 0 until a task is done, and "
            f"0 then; those of '{dataset.name}' go up to {largest:g}. Choose another, such as "
            "'none'."
        )
    if name == "return_range":
        returns = iql_returns(dataset)
        span = returns.max() - returns.min()
        if span > 0:
            return RewardMap(float(1000 / span))
        why = f"range of returns, all {len(returns)} of '{dataset.name}' are {returns[0]:g}"
        raise ValueError(
            f"reward transform '{name}' divides by the {why}. Choose another, such as 'none'."
        )
    if name == "standardise":
        reward = np.asarray(dataset.transitions.reward, np.float64)
        deviation = reward.std(ddof=1) if len(reward) > 1 else 0.0
        if deviation > 0:
            return RewardMap(float(1 / deviation), float(-reward.mean() / deviation))
        why = f"standard deviation of rewards, all of '{dataset.name}' are {reward[0]:g}"
        raise ValueError(
            f"reward transform '{name}' divides by the {why}. Choose another, such as 'none'."
        )
    known = typing.get_args(RewardTransform)
    raise ValueError(
        f"no reward transform '{name}'.{nearest(str(name), known, most=1)} All of "
        f"them: {', '.join(known)}."
    )


def iql_returns(dataset: OfflineDataset) -> np.ndarray:
    """[trajectories] float64: undiscounted returns of the trajectories as IQL's code splits them.

    A trajectory ends at a terminal row, at a row whose successor is further than 1e-6 from the next
    row's observation, and at the last row [3, dataset_utils.py]; docs/datasets.md has exceptions.
    """
    transitions, starts = dataset.transitions, dataset.episode_starts
    corrupted = {note["what"] for note in dataset.provenance.get("corruptions") or ()}
    if dataset.spec.is_vector and not corrupted & {"observation", "dynamics"}:
        observation = np.asarray(transitions.observation)
        successor = np.asarray(transitions.next_observation)
        ends = np.asarray(transitions.terminated).copy()
        for start in range(0, dataset.num - 1, BLOCK):
            stop = min(start + BLOCK, dataset.num - 1)
            step = observation[start + 1 : stop + 1] - successor[start:stop]
            ends[start:stop] |= np.linalg.norm(step, axis=-1) > 1e-6
        starts = np.append(0, np.flatnonzero(ends[:-1]) + 1)
    return np.add.reduceat(np.asarray(transitions.reward, np.float64), starts)


def top_fraction(dataset: OfflineDataset, fraction: float, discount: float = 1.0) -> OfflineDataset:
    """The best trajectories by discounted return, in recorded order.

    Of K trajectories, including one that the end of the file cut, max(1, floor(fraction K)) are
    kept. CORL also splits trajectories of more than 1000 steps. Raises `ValueError` if `fraction`
    is not in (0, 1] or `discount` not in [0, 1].
    """
    if not 0 < fraction <= 1:
        raise ValueError(
            f"fraction is {fraction:g}, it must be in (0, 1]: 0.1 keeps the best tenth."
        )
    if not 0 <= discount <= 1:
        raise ValueError(f"discount is {discount:g}, it must be in [0, 1].")
    starts, lengths = dataset.episode_starts, dataset.episode_lengths
    age = np.arange(dataset.num) - np.repeat(starts, lengths)
    rewards = np.asarray(dataset.transitions.reward, np.float64) * np.power(discount, age)
    returns = np.add.reduceat(rewards, starts)
    why = f"the best {fraction:g} of trajectories at discount {discount:g}"
    return subset(dataset, np.repeat(_best(returns, fraction), lengths), why)


def row_weights(
    dataset: OfflineDataset, name: str, alpha: float = 0.1, share: float = 0.1
) -> np.ndarray:
    """[N] float64: the probability to draw each row, by docs/datasets.md.

    "return" and "advantage" are of arXiv:2306.13085 (Improbable-AI/harness-offline-rl). Raises
    `ValueError` if all have the same score.
    """
    starts, lengths = dataset.episode_starts, dataset.episode_lengths
    if len(starts) < 2:
        raise ValueError(
            f"--weights {name} compares trajectories, and '{dataset.name}' is a single one of "
            f"{dataset.num:,} rows. Leave out --weights; where the file has several, mark their "
            "ends as terminated or truncated."
        )
    score = np.add.reduceat(np.asarray(dataset.transitions.reward, np.float64), starts)
    if name == "top":
        best = _best(score, share)
        return np.repeat(best / lengths[best].sum(), lengths)
    if name == "advantage":
        score = score - _fit(dataset, score)
    low, high = score.min(), score.max()
    if not high - low > 1e-9 * max(1.0, abs(low), abs(high)):
        raise ValueError(
            f"--weights {name}: all {len(starts):,} trajectories of '{dataset.name}' have one "
            f"{name}, {low:g}: no row would be drawn more often. Leave out --weights."
        )
    weight = np.repeat(np.exp(((score - low) / (high - low) - 1.0) / alpha), lengths)
    return weight / weight.sum()


def effective_sizes(dataset: OfflineDataset, probability: np.ndarray) -> dict[str, float]:
    """The numbers of rows and of trajectories, and those of equal weight that they are worth."""
    trajectories = np.add.reduceat(probability, dataset.episode_starts)
    return {
        "rows": dataset.num,
        "effective_rows": float(1.0 / np.square(probability).sum()),
        "trajectories": len(trajectories),
        "effective_trajectories": float(1.0 / np.square(trajectories).sum()),
    }


def _fit(dataset: OfflineDataset, returns: np.ndarray) -> np.ndarray:
    """[trajectories] the least-squares fit of returns, linear in the first observation."""
    if not dataset.spec.is_vector:
        raise ValueError(
            "--weights advantage fits returns on first observations, and those of "
            f"'{dataset.name}' are not vectors: --weights return needs none."
        )
    first = np.asarray(dataset.transitions.observation)[dataset.episode_starts].astype(np.float64)
    inputs = np.column_stack([first - first.mean(axis=0), np.ones(len(first))])
    if len(first) <= inputs.shape[1]:
        raise ValueError(
            f"--weights advantage fits {inputs.shape[1]} coefficients to the returns of "
            f"{len(first)} trajectories of '{dataset.name}', which would be exact: --weights "
            "return needs no fit."
        )
    return inputs @ np.linalg.lstsq(inputs, returns, rcond=None)[0]


def _best(returns: np.ndarray, fraction: float) -> np.ndarray:
    mask = np.zeros(len(returns), np.bool_)
    mask[np.argsort(returns, kind="stable")[-max(1, int(fraction * len(returns))) :]] = True
    return mask


def join(parts: Sequence[OfflineDataset], name: str, mark: bool = False) -> OfflineDataset:
    """Join datasets, in their order. Environment, references and bounds are those of the first.

    With `mark`, the signal "part" numbers each row's data set from 0. Raises `ValueError` if
    dimensions, bounds or signals differ.
    """
    first, *others = parts
    for part in others:
        require_equal(first, part)
    rows, sizes = [part.transitions for part in parts], [part.num for part in parts]
    fields: dict[str, Any] = {
        name: np.concatenate([np.asarray(getattr(part, name)) for part in rows]) for name in REST
    }
    both = [part.observation for part in rows], [part.next_observation for part in rows]
    fields["observation"], fields["next_observation"] = frames.concatenated(*both)
    fields["extras"] = {
        name: np.concatenate([np.asarray(part.extras[name]) for part in rows])
        for name in first.transitions.extras
    }
    if mark:
        fields["extras"][PART] = np.repeat(np.arange(len(parts), dtype=np.float32), sizes)
    transitions = cut(Transition(**fields), np.cumsum(sizes) - 1)
    provenance: dict[str, Any] = {
        "reader": "join",
        "parts": [part.provenance | {"name": part.name} for part in parts],
        "max_episode_steps": first.max_episode_steps,
        "corruptions": [
            note for part in parts for note in part.provenance.get("corruptions") or ()
        ],
    }
    if first.choices:
        provenance["choices"] = list(first.choices)
    elif first.discrete:
        provenance["num_actions"] = first.action_size
    if first.stack > 1:
        provenance["stack"] = first.stack
    both_ends = sum(part.provenance.get("both_ends", 0) for part in parts)
    if both_ends:
        provenance["both_ends"] = both_ends
    return OfflineDataset(
        name, transitions, first.env, first.reference, first.action_bounds, provenance
    )


def require_labels(dataset: OfflineDataset, labels: Sequence[str], agent: str) -> None:
    """Raise `ValueError` for a missing label that the agent needs."""
    purposes = {
        PART: "tells joined data sets apart",
        OPTIMAL_ACTION: "learns optimal actions",
        TASK: "compares lifetimes of the same task",
    }
    commands = {
        PART: "rljax data join BOTH.hdf5 EXPERT MIXTURE --mark-parts",
        OPTIMAL_ACTION: "rljax data record rljax/DarkRoom-10x10 FILE.npz",
        TASK: "rljax data record rljax/DarkRoom-9x9-20 FILE.npz --from learning",
    }
    for label in labels:
        if label not in dataset.transitions.extras:
            raise ValueError(
                f"agent '{agent}' {purposes[label]} by the signal '{label}', and "
                f"'{dataset.name}' has none: {commands[label]}"
            )


def subset(dataset: OfflineDataset, rows: Any, why: str = "chosen rows") -> OfflineDataset:
    """The dataset of some rows, given as a mask [N] bool or as rising indices.

    A trajectory is cut where the next row is left out. Raises `ValueError` for no rows, or wrong
    indices.
    """
    rows = np.asarray(rows)
    if rows.dtype == np.bool_ and rows.shape == (dataset.num,):
        rows = np.flatnonzero(rows)
    valid = rows.ndim == 1 and rows.dtype.kind in "iu" and len(rows) > 0
    if not valid or rows[0] < 0 or rows[-1] >= dataset.num or (np.diff(rows) <= 0).any():
        raise ValueError(
            f"rows of '{dataset.name}' must be a mask [{dataset.num}] of at least one row, or "
            f"rising indices below {dataset.num}; these are {rows.dtype} of shape {rows.shape}."
        )
    if len(rows) == dataset.num:
        return dataset
    transitions = dataset.transitions
    fields: dict[str, Any] = {name: np.asarray(getattr(transitions, name))[rows] for name in REST}
    both = frames.taken(transitions.observation, transitions.next_observation, rows)
    fields["observation"], fields["next_observation"] = both
    extras: Any = {name: np.asarray(value)[rows] for name, value in transitions.extras.items()}
    loses_last = bool(rows[-1] < dataset.num - 1)
    cuts = np.append(np.diff(rows) > 1, loses_last)
    history = [*dataset.provenance.get("subsets", []), f"{why}: {len(rows)} of {dataset.num} rows"]
    return dataclasses.replace(
        dataset,
        transitions=cut(Transition(**fields, extras=extras), cuts),
        provenance=dataset.provenance | {"rows": len(rows), "subsets": history},
        complete=dataset.complete or (loses_last and bool(dataset.last[rows[-1]])),
    )


def require_equal(one: OfflineDataset, other: OfflineDataset) -> None:
    """Raise `ValueError` if two datasets cannot be joined."""
    reasons = _differences(one, other)
    if reasons:
        raise ValueError(f"'{one.name}' and '{other.name}' differ: {'; '.join(reasons)}.")


def _differences(one: OfflineDataset, other: OfflineDataset) -> list[str]:
    both, reasons = (one, other), []
    if not (one.spec.is_vector and other.spec.is_vector):
        if difference(one.spec, other.spec) in ("observation_shape", "observation_dtype", "parts"):
            reasons.append(f"they show {shown(one.spec)} and {shown(other.spec)}")
        elif one.stack != other.stack:
            reasons.append(f"their pictures are stacks of {one.stack} and {other.stack} frames")
    elif one.observation_size != other.observation_size:
        reasons.append(
            f"they have {one.observation_size} and {other.observation_size} observation dimensions"
        )
    if one.spec.signals != other.spec.signals:
        signals = (
            ", ".join(f"{part.name} {list(part.shape)}" for part in x.spec.signals) or "none"
            for x in both
        )
        reasons.append(f"their signals are {' and '.join(signals)}")
    if one.discrete != other.discrete:
        kinds = ("choices" if part.discrete else "vectors" for part in both)
        return [*reasons, f"their actions are {' and '.join(kinds)}"]
    if one.choices != other.choices:
        return [*reasons, f"their actions have {one.choices or 1} and {other.choices or 1} choices"]
    if one.action_size != other.action_size:
        what = "choices of actions" if one.discrete else "action dimensions"
        return [*reasons, f"they have {one.action_size} and {other.action_size} {what}"]
    if not one.discrete and not np.array_equal(
        np.array(one.action_bounds), np.array(other.action_bounds)
    ):
        bounds = " and in ".join(_words(part.action_bounds) for part in both)
        reasons.append(
            f"their actions lie in {bounds} (where a file does not say its bounds: rljax data "
            "convert FILE NEW --action-bounds LOW HIGH)"
        )
    return reasons


def _words(bounds: Any) -> str:
    pairs = [f"[{low:g}, {high:g}]" for low, high in zip(*bounds, strict=True)]
    return pairs[0] if len(set(pairs)) == 1 else " x ".join(pairs)
