"""Statistics over several tasks against rliable, the paper's library, and by hand."""

from __future__ import annotations

import warnings

import numpy as np
import pytest

from rljax.analysis import comparison
from rljax.runs.statistics import estimators

TAUS = np.linspace(-0.5, 2.5, 13)


def scores(runs=7, tasks=4, seed=0, shift=0.0):
    return np.random.default_rng(seed).gamma(2.0, 0.4, size=(runs, tasks)) + shift


@pytest.fixture(scope="module")
def rliable():
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            from rliable import library, metrics
    except (ImportError, TypeError) as error:  # TypeError: arch 7, which it needs, with pandas 3
        pytest.skip(
            f"rliable cannot be imported ({error}). Install what goes with it: pip "
            "install 'rljax-suite[dev]'"
        )
    return library, metrics


@pytest.fixture
def same_draws(monkeypatch):
    """Let ours draw what rliable draws from NumPy's global generator with a seed."""

    def prepare(shapes, resamples, seed=0):
        np.random.seed(seed)
        # [R][agent]
        drawn = [[np.random.choice(shape[0], shape) for shape in shapes] for _ in range(resamples)]
        columns = [
            [row[k][:, task] for row in drawn]
            for k, shape in enumerate(shapes)
            for task in range(shape[1])
        ]
        queue = [np.stack(column) for column in columns]
        calls = iter(range(10**9))
        monkeypatch.setattr(comparison, "_draw_runs", lambda *_: queue[next(calls) % len(queue)])
        np.random.seed(seed)

    return prepare


# Beside rliable


@pytest.mark.slow
@pytest.mark.parametrize("shape", [(1, 1), (2, 3), (3, 1), (5, 6), (10, 4), (7, 13)])
def test_estimates_equal_those_of_rliable(rliable, shape):
    _, metrics = rliable
    values = scores(*shape)
    found = comparison.aggregate({"a": values}, resamples=1)["a"]
    expected = {
        "iqm": metrics.aggregate_iqm(values),
        "median": metrics.aggregate_median(values),
        "mean": metrics.aggregate_mean(values),
        "optimality_gap": metrics.aggregate_optimality_gap(values),
    }
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert found[name].value == pytest.approx(value, abs=1e-12), name


def test_intervals_equal_those_of_rliable_with_the_same_draws(rliable, same_draws):
    library, metrics = rliable
    values = scores(6, 3)
    for name, function in (("iqm", metrics.aggregate_iqm), ("median", metrics.aggregate_median)):
        same_draws([values.shape], 200)
        _, bounds = library.get_interval_estimates(
            {"a": values}, lambda x, f=function: np.array([f(x)]), reps=200
        )
        measure = {name: comparison.MEASURES[name]}
        own = comparison.aggregate({"a": values}, measure, resamples=200)["a"][name]
        np.testing.assert_allclose([own.low, own.high], bounds["a"][:, 0], rtol=0, atol=1e-12)


def test_improvement_equals_that_of_rliable(rliable, same_draws):
    library, metrics = rliable
    x, y = scores(5, 3, seed=1).round(1), scores(8, 3, seed=2).round(1)  # rounded: there are equals
    same_draws([x.shape, y.shape], 100)
    value, bounds = library.get_interval_estimates(
        {"x,y": (x, y)}, metrics.probability_of_improvement, reps=100
    )
    own = comparison.improvement({"x": x, "y": y}, [("x", "y")], resamples=100)["x", "y"]
    assert own.value == pytest.approx(value["x,y"], abs=1e-12)
    np.testing.assert_allclose([own.low, own.high], np.ravel(bounds["x,y"]), rtol=0, atol=1e-12)
    assert (own.runs, own.tasks) == ((5, 8), 3)


def test_profiles_equal_those_of_rliable(rliable, same_draws):
    library, _ = rliable
    values = scores(6, 3)
    same_draws([values.shape], 100)
    value, bounds = library.create_performance_profile({"a": values}, TAUS, reps=100)
    own = comparison.profiles({"a": values}, TAUS, resamples=100)["a"]
    np.testing.assert_allclose(own.value, value["a"], rtol=0, atol=1e-12)
    np.testing.assert_allclose([own.low, own.high], bounds["a"], rtol=0, atol=1e-12)


def test_sample_efficiency_equals_rliable_at_each_step(rliable):
    _, metrics = rliable
    # [runs, tasks, S]
    values = np.stack([scores(6, 3, seed=s, shift=s / 4) for s in range(5)], axis=-1)
    own = comparison.sample_efficiency({"a": values})["a"]
    np.testing.assert_allclose(
        own.value, [metrics.aggregate_iqm(values[..., s]) for s in range(5)], atol=1e-12
    )
    for step in range(5):  # its interval at one step is that of the scores of that step
        alone = comparison.aggregate({"a": values[..., step]})["a"]["iqm"]
        np.testing.assert_allclose(
            [own.low[step], own.high[step]], [alone.low, alone.high], atol=1e-12
        )


# By hand


def test_measures_by_hand():
    tasks = {"easy": [0.5, 1.5, 1.0, 2.0], "hard": [0.0, 0.1, 0.2, 0.3]}
    found = {name: e.value for name, e in comparison.aggregate({"a": tasks})["a"].items()}
    # Of the eight in order, 0 .1 .2 .3 .5 1 1.5 2, the middle four; the tasks' means are 1.25 and
    # 0.15.
    assert found["iqm"] == pytest.approx((0.2 + 0.3 + 0.5 + 1.0) / 4)
    assert found["mean"] == found["median"] == pytest.approx(0.7)
    # 1.5 and 2 count as 1
    assert found["optimality_gap"] == pytest.approx(1 - (3.5 / 4 + 0.15) / 2)


def test_each_task_counts_the_same_whatever_its_runs():
    few, many = np.array([0.0, 4.0]), np.array([1.0, 2.0, 3.0])
    unequal = {"few": few, "many": many}
    repeated = {"few": np.repeat(few, 3), "many": np.repeat(many, 2)}
    estimates = comparison.aggregate({"a": unequal, "b": repeated})
    for name, estimate in estimates["a"].items():
        assert estimate.value == pytest.approx(estimates["b"][name].value), name
        assert (estimate.runs, estimate.tasks) == ((2, 3), 2)
    # 0 0 0 1 1 2 2 3 3 4 4 4 without three at each end
    assert estimates["a"]["iqm"].value == pytest.approx(2.0)
    profile = comparison.profiles({"a": unequal}, [1.5])["a"]
    assert profile.value == pytest.approx([(1 / 2 + 2 / 3) / 2])


def test_improvement_by_hand():
    x, y = {"t": [1.0, 2.0], "u": [5.0]}, {"t": [1.0, 1.5, 3.0], "u": [5.0, 4.0]}
    # t: 1 = 1, 1 < 1.5, 1 < 3, 2 > 1, 2 > 1.5, 2 < 3: 2.5 of 6. u: 5 = 5, 5 > 4: 1.5 of 2.
    found = comparison.improvement({"x": x, "y": y})
    assert found["x", "y"].value == pytest.approx((2.5 / 6 + 1.5 / 2) / 2)
    assert found["y", "x"].value == pytest.approx(1 - found["x", "y"].value)
    assert np.isnan(found["x", "y"].low)  # a single run in u


def test_intervals_by_enumeration():
    # The number of ones in a draw of five is binomial with n = 5, p = 1/5: 0 with a probability of
    # 0.33, at most 2 with 0.94, at most 3 with 0.993.
    runs = {"a": [[0.0], [0.0], [0.0], [0.0], [1.0]]}
    wide = comparison.aggregate(runs, {"mean": comparison.mean})["a"]["mean"]
    np.testing.assert_allclose([wide.value, wide.low, wide.high], [0.2, 0.0, 0.6])
    narrow = comparison.aggregate(runs, {"mean": comparison.mean}, level=0.2)["a"]["mean"]
    np.testing.assert_allclose([narrow.low, narrow.high], [0.2, 0.2])


def test_fewer_than_five_runs_have_no_interval():
    five, four = [1.0, 2.0, 3.0, 4.0, 5.0], [1.0, 2.0, 3.0, 4.0]
    assert comparison.mean_interval(four) == [2.5]
    assert len(comparison.mean_interval(five)) == 3
    assert comparison.mean_difference(four, five) == [-0.5]
    assert len(comparison.mean_difference(five, five)) == 3
    unequal = {"t": four, "u": five}
    for found in (
        comparison.aggregate({"a": unequal})["a"]["iqm"],
        comparison.improvement({"x": unequal, "y": unequal})["x", "y"],
        comparison.profiles({"a": unequal}, [2.5])["a"],
    ):
        assert np.isfinite(found.value).all()
        assert np.isnan([found.low, found.high]).all(), "one task has four"


def test_interval_of_a_difference_draws_both_groups():
    generator = np.random.default_rng(0)
    x, y = generator.normal(size=60), generator.normal(3.0, 2.0, size=40)
    value, low, high = comparison.mean_difference(x, y)
    assert value == pytest.approx(x.mean() - y.mean())
    error = np.hypot(x.std() / 60**0.5, y.std() / 40**0.5)
    np.testing.assert_allclose(
        [low, high], [value - 1.96 * error, value + 1.96 * error], atol=0.2 * error
    )


def test_runs_are_drawn_within_tasks():
    # No spread within the tasks: drawn across them, the mean would vary.
    found = comparison.aggregate({"a": [[0.0, 1.0]] * 5})["a"]["mean"]
    assert (found.low, found.high) == (0.5, 0.5)


def test_resampling_in_parts_gives_close_intervals(monkeypatch):
    given = {"a": scores(6, 3), "b": scores(5, 3, seed=1)}
    whole = comparison.improvement(given)["a", "b"], comparison.profiles(given, TAUS)["a"]
    monkeypatch.setattr(estimators, "_VALUES_AT_ONCE", 500)
    parts = comparison.improvement(given)["a", "b"], comparison.profiles(given, TAUS)["a"]
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_allclose([one.low, one.high], [other.low, other.high], atol=0.08)


def test_order_of_tasks_does_not_matter():
    first, second = {"t": [1.0, 2.0], "u": [3.0, 9.0]}, {"u": [3.0, 9.0], "t": [1.0, 2.0]}
    assert comparison.improvement({"x": first, "y": second})["x", "y"].value == 0.5


# Errors


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({}, "there are no agents to compare: scores is empty"),
        ({"a": [1.0, 2.0]}, r"the scores of 'a' have shape \(2,\), they must be \[runs, tasks\]"),
        ({"a": {}}, "the scores of 'a' are of no task"),
        (
            {"a": {"t": []}},
            r"the scores of 'a' in task 't' have shape \(0,\), they must be \[runs\]",
        ),
        (
            {"a": {"t": [1.0, np.nan]}},
            "a score of 'a' in task 't' is not finite. Leave that agent out, or give",
        ),
        (
            {"a": {"t": [1.0]}, "b": {"u": [1.0]}},
            "'a' and 'b' have scores of different tasks: 't', 'u' of one alone",
        ),
    ],
)
def test_scores_that_cannot_be_compared(given, message):
    for compare in (
        comparison.aggregate,
        comparison.improvement,
        lambda x: comparison.profiles(x, [0.5]),
    ):
        with pytest.raises(ValueError, match=message):
            compare(given)


def test_other_errors():
    given = {"a": scores(), "b": scores(seed=1)}
    with pytest.raises(
        ValueError, match="there are no scores of agent 'c'; there are scores of 'a', 'b'"
    ):
        comparison.improvement(given, [("a", "c")])
    with pytest.raises(
        ValueError, match=r"thresholds have shape \(\), a profile needs one or more: \[T\]"
    ):
        comparison.profiles(given, 0.5)
    with pytest.raises(
        ValueError, match=r"have shape \(7, 4\), they must be \[runs, tasks, steps\]"
    ):
        comparison.sample_efficiency(given)
