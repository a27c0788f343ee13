"""Reward transforms, the choice of trajectories, and weights."""

from __future__ import annotations

import dataclasses
import typing
from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax import datasets
from rljax.buffers import RewardTransform
from rljax.datasets.tools import preprocess
from rljax.datasets.tools.corruption import corrupt
from tests.datasets.files import arrays, load, shared
from tests.helpers import counting


def made(tmp_path: Path, lengths: list[int], ends: str, **changes: Any) -> datasets.OfflineDataset:
    return load(tmp_path, arrays(lengths, ends) | changes, f"{ends}.npz")


def iql_loop(dataset: datasets.OfflineDataset) -> tuple[float, float]:
    """The smallest and the largest return of IQL's trajectories."""
    t = dataset.transitions
    returns, current = [], 0.0
    for row in range(dataset.num):
        current += float(t.reward[row])
        end = row == dataset.num - 1 or bool(t.terminated[row])
        if end or np.linalg.norm(t.observation[row + 1] - t.next_observation[row]) > 1e-6:
            returns.append(current)
            current = 0.0
    return min(returns), max(returns)


def range_scale(dataset: datasets.OfflineDataset) -> float:
    rewards = datasets.reward_transform("return_range", dataset)
    assert rewards.shift == 0
    return rewards.scale


def assert_loops_range(dataset: datasets.OfflineDataset) -> None:
    low, high = iql_loop(dataset)
    assert range_scale(dataset) == pytest.approx(1000 / (high - low), rel=1e-6)


@pytest.mark.parametrize("block", [4, preprocess.BLOCK])
def test_return_range_equals_the_loop(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, block: int
) -> None:
    monkeypatch.setattr(preprocess, "BLOCK", block)
    for ends in ("totn", "nnnn", "tttt"):
        assert_loops_range(made(tmp_path, [5, 8, 3, 6], ends))


def test_return_range_of_real_data() -> None:
    path = shared("offline", "neorl2_RocketRecovery-high-20000-val.npz")
    dataset = datasets.load(str(path))
    assert_loops_range(dataset)
    returns = dataset.returns()
    assert iql_loop(dataset) == pytest.approx((returns.min(), returns.max()), rel=1e-5)


def test_iql_splits_where_successors_do_not_follow_though_no_end_is_marked() -> None:
    dataset = datasets.load(str(shared("offline", "tianshou_expert_QRDQN_CartPole.npz")))
    assert len(preprocess.iql_returns(dataset)) == 157
    assert len(dataset.returns()) == 100


@pytest.mark.parametrize("what", ["observation", "dynamics", ["action", "dynamics"]])
def test_corruption_does_not_change_the_return_range(tmp_path: Path, what: Any) -> None:
    dataset = made(tmp_path, [25, 18, 23, 26], "toto")
    worse = corrupt(dataset, what=what, how="random", rate=0.5)
    low, high = iql_loop(worse)
    scale = range_scale(dataset)
    assert 1000 / (high - low) > 1.2 * scale, "the loop splits at corrupted rows"
    copy = datasets.load(str(datasets.write(worse, tmp_path / "worse.npz")))
    assert [range_scale(worse), range_scale(copy)] == pytest.approx([scale] * 2, rel=1e-6)


def test_corrupted_rewards_leave_iqls_trajectories_alone(tmp_path: Path) -> None:
    dataset = made(tmp_path, [25, 18, 23], "nnt")
    assert_loops_range(corrupt(dataset, what="reward", how="random"))


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("none", lambda r: r),
        ("minus_one", lambda r: r - 1),
        ("times_10_minus_5", lambda r: 10 * r - 5),
        ("times_4_minus_2", lambda r: 4 * (r - 0.5)),
        ("times_100", lambda r: 100 * r),
        ("standardise", lambda r: (r - r.mean()) / r.std(ddof=1)),
        ("times_10_plus_5", lambda r: 10 * r + 5),
        ("minus_four", lambda r: r - 4),
    ],
)
def test_transforms(tmp_path: Path, name: Any, expected: Any) -> None:
    dataset = made(tmp_path, [5, 8], "to")
    reward = np.asarray(dataset.transitions.reward, np.float64)
    changed = datasets.reward_transform(name, dataset)(reward)
    np.testing.assert_allclose(changed, expected(reward), rtol=1e-12, atol=1e-12)


def test_sparse_rewards_are_qams(tmp_path: Path) -> None:
    """(r != 0) * -1, main.py of arXiv:2601.14234's code; here without a minus before 0."""
    rewards = -np.asarray([3, 2, 1, 0, 0, 0.5, 1, 0], np.float32)
    dataset = made(tmp_path, [5, 3], "to", rewards=rewards)
    sparse = datasets.reward_transform("sparse", dataset)
    for array in (rewards, jnp.asarray(rewards)):
        changed = sparse(array)
        assert changed.dtype == np.float32
        np.testing.assert_array_equal(changed, (rewards != 0.0) * -1.0)
        assert not np.signbit(changed[rewards == 0]).any()
    above = made(tmp_path, [5, 3], "ot", rewards=rewards + 0.25)
    message = r"'sparse' is for rewards that are below 0 until .* go up to 0\.25\. Choose another"
    with pytest.raises(ValueError, match=message):
        datasets.reward_transform("sparse", above)


def test_every_name_is_known(tmp_path: Path) -> None:
    rewards = -np.arange(13, dtype=np.float32)
    dataset = made(tmp_path, [5, 8], "to", rewards=rewards)
    for name in typing.get_args(RewardTransform):
        assert datasets.reward_transform(name, dataset)(rewards).shape == (13,)
    wrong = "minus_on"
    message = "no reward transform 'minus_on'. Nearest: 'minus_one'. All of them: none, "
    with pytest.raises(ValueError, match=message):
        datasets.reward_transform(wrong, dataset)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("return_range", "divides by the range of returns, all 2"),
        ("standardise", "divides by the standard deviation"),
    ],
)
def test_equal_rewards_cannot_be_scaled(tmp_path: Path, name: Any, message: str) -> None:
    dataset = made(tmp_path, [4, 4], "tt", rewards=np.ones(8, np.float32))
    with pytest.raises(ValueError, match=rf"reward transform '{name}' {message}.*Choose another"):
        datasets.reward_transform(name, dataset)


@pytest.mark.parametrize("discount", [1.0, 0.9])
@pytest.mark.parametrize(("fraction", "number"), [(0.1, 1), (0.5, 3), (0.99, 5), (1.0, 6)])
def test_top_fraction_equals_a_loop(
    tmp_path: Path, fraction: float, number: int, discount: float
) -> None:
    dataset = made(tmp_path, [5, 8, 3, 6, 2, 7], "totoot")
    trajectories = returns_of(dataset, discount)
    best = sorted(sorted(trajectories, key=lambda trajectory: trajectory[2])[-number:])
    rows = np.concatenate([np.arange(begin, end) for begin, end, _ in best])
    result = datasets.top_fraction(dataset, fraction, discount)
    expected = np.asarray(dataset.transitions.observation)[rows]
    np.testing.assert_array_equal(result.transitions.observation, expected)
    assert len(result.returns()) == number


@pytest.mark.parametrize(("fraction", "discount"), [(0, 1), (1.5, 1), (0.1, 1.1), (0.1, -0.1)])
def test_top_fraction_checks_its_numbers(tmp_path: Path, fraction: float, discount: float) -> None:
    with pytest.raises(ValueError, match=r"(fraction|discount) is .*, it must be in"):
        datasets.top_fraction(made(tmp_path, [5, 8], "to"), fraction, discount)


def test_subset_marks_what_it_cuts(tmp_path: Path) -> None:
    dataset, rows = made(tmp_path, [4, 3, 3], "tot"), np.array([0, 1, 3, 4, 5, 6, 8])
    part = datasets.subset(dataset, rows)
    t = part.transitions
    assert np.flatnonzero(t.terminated).tolist() == [2]
    assert np.flatnonzero(t.truncated).tolist() == [1, 5, 6]
    following = np.asarray(dataset.transitions.next_observation)[rows]
    np.testing.assert_array_equal(t.next_observation, following)
    assert part.provenance["subsets"] == ["chosen rows: 7 of 10 rows"]
    assert datasets.subset(dataset, np.ones(10, bool)) is dataset
    assert datasets.subset(dataset, np.isin(np.arange(10), [2, 3])).num == 2


@pytest.mark.parametrize(
    "rows", [[], [3, 2], [0, 10], [-1, 2], [0.5], np.zeros(10, np.bool_), np.ones(9, np.bool_)]
)
def test_subset_checks_its_rows(tmp_path: Path, rows: Any) -> None:
    with pytest.raises(
        ValueError, match=r"must be a mask \[10\] of at least one row, or rising indices below 10"
    ):
        datasets.subset(made(tmp_path, [4, 3, 3], "tot"), rows)


def test_subset_of_a_cut_dataset_knows_whether_its_last_episode_is_complete(tmp_path: Path) -> None:
    dataset = made(tmp_path, [4, 3], "tn")
    assert not dataset.complete
    assert datasets.subset(dataset, np.arange(4)).lengths().tolist() == [4]
    assert datasets.subset(dataset, np.arange(3, 7)).lengths().tolist() == [1]
    assert datasets.subset(dataset, np.arange(3)).lengths().tolist() == []


def test_score_needs_references(tmp_path: Path) -> None:
    assert made(tmp_path, [4], "t").score(1.0) is None


def returns_of(dataset: Any, discount: float = 1.0) -> list[tuple[int, int, float]]:
    """First row, end and return of each trajectory."""
    t, result, begin, total = dataset.transitions, [], 0, 0.0
    for row in range(dataset.num):
        total += float(t.reward[row]) * discount ** (row - begin)
        if t.terminated[row] or t.truncated[row] or row == dataset.num - 1:
            result.append((begin, row + 1, total))
            begin, total = row + 1, 0.0
    return result


@pytest.mark.parametrize("alpha", [0.05, 0.1, 2.0])
def test_weights_by_return_equal_a_loop(tmp_path: Path, alpha: float) -> None:
    dataset = made(tmp_path, [5, 8, 3, 6], "totn")
    returns = np.array([total for *_, total in returns_of(dataset)])
    score = (returns - returns.min()) / np.ptp(returns)
    weight = np.repeat(np.exp(score / alpha), [5, 8, 3, 6])
    actual = datasets.row_weights(dataset, "return", alpha)
    np.testing.assert_allclose(actual, weight / weight.sum(), rtol=1e-9)


def test_weights_by_advantage_take_the_first_observation_out(tmp_path: Path) -> None:
    dataset = walks_with_luck(tmp_path)
    returns = np.array([total for *_, total in returns_of(dataset)])
    first = np.asarray(dataset.transitions.observation)[dataset.episode_starts].astype(np.float64)
    inputs = np.column_stack([first, np.ones(len(first))])
    fit = inputs @ np.linalg.solve(inputs.T @ inputs, inputs.T @ returns)
    score = (returns - fit - (returns - fit).min()) / np.ptp(returns - fit)
    expected = np.repeat(np.exp(score / 0.1), dataset.episode_lengths)
    actual = datasets.row_weights(dataset, "advantage", 0.1)
    np.testing.assert_allclose(actual, expected / expected.sum(), rtol=1e-4)
    best = np.argmax(actual) // 4
    assert best != np.argmax(returns), "the luckiest start is not the best policy"


def walks_with_luck(tmp_path: Path, number: int = 30) -> datasets.OfflineDataset:
    """Returns depend mostly on where the trajectories of 4 rows begin."""
    generator = np.random.default_rng(5)
    observations = generator.normal(size=(4 * number, 3)).astype(np.float32)
    rewards = 10.0 * observations[::4, 0] + generator.normal(size=number)
    changes = {"observations": observations, "rewards": np.repeat(rewards, 4).astype(np.float32)}
    return made(tmp_path, [4] * number, "o" * number, **changes)


def test_weights_of_the_top_are_those_of_the_filter(tmp_path: Path) -> None:
    dataset = made(tmp_path, [5, 8, 3, 6], "totn")
    kept = datasets.top_fraction(dataset, 0.5)
    actual = datasets.row_weights(dataset, "top", share=0.5)
    rows = np.flatnonzero(actual)
    np.testing.assert_allclose(actual[rows], 1 / kept.num)
    np.testing.assert_array_equal(
        np.asarray(dataset.transitions.reward)[rows], kept.transitions.reward
    )


def test_weights_need_trajectories_that_differ(tmp_path: Path) -> None:
    flat = made(tmp_path, [5, 5], "to", rewards=np.ones(10, np.float32))
    pictures = walks_with_luck(tmp_path)
    shown = np.zeros((pictures.num, 3, 3, 1), np.float32)
    odd = pictures.transitions.replace(observation=shown, next_observation=shown)
    cases = [
        (made(tmp_path, [5], "n"), name, f"--weights {name} compares trajectories, and .* a single")
        for name in ("return", "advantage", "top")
    ]
    cases += [
        (flat, "return", "all 2 trajectories of .* have one return, 5"),
        (
            made(tmp_path, [5, 8], "to"),
            "advantage",
            r"fits \d coefficients .* 2 .*--weights ret",
        ),
        (dataclasses.replace(pictures, transitions=odd), "advantage", "not vectors: --weights ret"),
    ]
    for dataset, name, message in cases:
        with pytest.raises(ValueError, match=message):
            datasets.row_weights(dataset, name)


def test_signals_are_joined() -> None:
    def with_cost(scale: float) -> datasets.OfflineDataset:
        made = counting.recorded()
        costs = scale * np.arange(made.num, dtype=np.float32)
        rows = made.transitions.replace(extras={"cost": costs})
        return dataclasses.replace(made, transitions=rows)

    parts = [with_cost(1.0), with_cost(2.0)]
    number = parts[0].num
    cost = preprocess.join(parts, "both").transitions.extras["cost"]
    np.testing.assert_array_equal(cost, [*range(number), *range(0, 2 * number, 2)])
    marked = preprocess.join(parts, "both", mark=True)
    np.testing.assert_array_equal(marked.transitions.extras["part"], np.repeat([0.0, 1.0], number))
    assert set(marked.signal_sums()) == {"cost"}, "a sum of labels says nothing"
    part = preprocess.join([marked] * 3, "thrice", mark=True).transitions.extras["part"]
    np.testing.assert_array_equal(part, np.repeat([0.0, 1.0, 2.0], 2 * number))
    with pytest.raises(ValueError, match=r"their signals are cost \[\] and none"):
        preprocess.join([parts[0], counting.recorded()], "both")
