import itertools
import json

import numpy as np
import pytest

from rljax.runs.statistics import estimators, summaries


def record(step, learner, returns, **more):
    seed = 10 + learner if isinstance(learner, int) else 0
    return {"step": step, "learner": learner, "seed": seed, "returns": returns, **more}


# Interquartile mean


@pytest.mark.parametrize("shape", [(1,), (2,), (3,), (5,), (7, 3), (10, 13), (4, 4, 4)])
def test_iqm_is_scipys_trimmed_mean(shape):
    scipy_stats = pytest.importorskip("scipy.stats")
    values = np.random.default_rng(0).normal(size=shape) ** 3
    for axis in (None, *range(len(shape))):
        expected = scipy_stats.trim_mean(values, 0.25, axis=axis)
        np.testing.assert_allclose(estimators.iqm(values, axis=axis), expected, rtol=1e-12)


def test_iqm_does_not_trim_what_is_not_a_number():
    assert np.isnan(estimators.iqm([np.nan, 1.0, 2.0, 3.0, 4.0]))
    assert np.isnan(estimators.iqm(np.array([1.0, 2.0, 3.0, 4.0, None])))
    np.testing.assert_array_equal(
        estimators.iqm([[1.0, np.nan], [1.0, 3.0]], axis=1), [np.nan, 2.0]
    )


def test_iqm_with_counts_is_that_of_repeated_values():
    generator = np.random.default_rng(0)
    for size in (1, 3, 8):
        values, counts = generator.normal(size=(5, size)), generator.integers(1, 5, size=size)
        expected = estimators.iqm(np.repeat(values, counts, axis=-1), axis=-1)
        np.testing.assert_allclose(
            estimators.iqm(values, axis=-1, counts=counts), expected, atol=1e-12
        )
    assert np.isnan(estimators.iqm([1.0, np.nan], counts=[1, 2]))


def test_iqm_leaves_its_argument_as_it_is():
    values = np.array([3.0, 1.0, 2.0])
    estimators.iqm(values)
    np.testing.assert_array_equal(values, [3.0, 1.0, 2.0])


@pytest.mark.parametrize("statistic", [estimators.mean, estimators.iqm, estimators.interval])
def test_a_statistic_of_nothing_is_an_error(statistic):
    with pytest.raises(
        ValueError, match=r"values has shape \(0,\), a statistic needs one value or more"
    ):
        statistic([])


# Interval


def test_interval_of_the_mean_is_the_normal_one_for_many_values():
    values = np.random.default_rng(1).normal(3.0, 2.0, size=400)
    low, high = estimators.interval(values, estimators.mean)
    half = 1.96 * values.std() / np.sqrt(400)
    assert low == pytest.approx(values.mean() - half, abs=0.02)
    assert high == pytest.approx(values.mean() + half, abs=0.02)


def test_interval_covers_the_truth_about_as_often_as_its_level():
    samples = np.random.default_rng(2).normal(size=(300, 20))
    low, high = estimators.interval(samples)
    assert 0.87 < np.mean((low < 0) & (high > 0)) < 0.97


def test_bootstrap_of_two_values_by_enumeration():
    # The mean of two draws from {0, 1} is 0, 1/2, 1 with probabilities 1/4, 1/2, 1/4.
    draws = lambda generator, number: generator.integers(2, size=(number, 2)).mean(axis=1)  # noqa: E731
    assert estimators.bootstrap(draws, 2) == (0.0, 1.0)
    assert estimators.bootstrap(draws, 2, level=0.4) == (0.5, 0.5)


def test_interval_is_deterministic_and_seeded():
    values = np.random.default_rng(3).normal(size=30)
    assert estimators.interval(values) == estimators.interval(values)
    draws = lambda generator, number: generator.normal(size=number)  # noqa: E731
    assert estimators.bootstrap(draws, 1) != estimators.bootstrap(draws, 1, seed=1)


def test_interval_in_parts_is_as_wide_as_at_once(monkeypatch):
    values = np.random.default_rng(4).normal(size=50)
    whole = estimators.interval(values)
    monkeypatch.setattr(estimators, "_VALUES_AT_ONCE", 700)
    np.testing.assert_allclose(estimators.interval(values), whole, atol=0.1)


def test_intervals_over_the_last_axis():
    values = np.random.default_rng(5).normal(size=(3, 8))
    for low, high, row in zip(*estimators.interval(values), values, strict=True):
        assert estimators.interval(row) == (low, high)


@pytest.mark.parametrize("last", [np.nan, np.inf])
def test_there_is_no_interval_of_what_is_not_finite(last):
    assert np.isnan(estimators.interval([1.0, 2.0, 3.0, 4.0, 5.0, last])).all()


def test_fewer_than_five_values_have_no_interval():
    values = np.array([1.0, 2.0, 3.0, 4.0, 5.0])
    for number in (1, 2, 3, 4):
        assert np.isnan(estimators.interval(values[:number])).all()
    low, high = estimators.interval(values, estimators.mean)
    assert 1.0 < low < 3.0 < high < 5.0


def test_bootstrap_errors():
    draws = lambda generator, number: generator.normal(size=number)  # noqa: E731
    with pytest.raises(
        ValueError, match=r"level is 95, it must lie between 0 and 1, for example 0\.95"
    ):
        estimators.bootstrap(draws, 1, level=95)
    with pytest.raises(ValueError, match="resamples is 0, it must be at least 1"):
        estimators.bootstrap(draws, 1, resamples=0)


# Summary


def test_summary_by_hand():
    evaluations = [
        record(10, 0, [0.0, 2.0]),  # mean 1
        record(10, 1, [8.0, 10.0]),  # 9: over learners 5, the highest
        record(20, 0, [3.0, 5.0]),  # 4: the best of learner 0
        record(20, 1, [1.0, 3.0]),  # 2: over learners 3
    ]
    summary = summaries.summarise(evaluations)
    final, best = summary["final"], summary["best"]
    assert (final["step"], final["mean"], final["iqm"]) == (20, 3.0, 3.0)
    assert final["interval"] is None  # two learners
    learners = [[own[x] for x in ("learner", "seed", "step", "mean")] for own in final["learners"]]
    assert learners == [[0, 10, 20, 4.0], [1, 11, 20, 2.0]]
    assert (best["step"], best["mean"], best["interval"]) == (10, 5.0, None)
    assert [(own["step"], own["mean"]) for own in best["learners"]] == [(20, 4.0), (10, 9.0)]
    assert (final["score"], final["success"], best["learners"][0]["score"]) == (None, None, None)
    fields = ["learner", "seed", "step", "mean", "iqm", "interval", "score", "success"]
    assert list(final["learners"][0]) == fields
    assert list(final) == [*fields[2:], "learners"]


def test_summary_has_scores_and_success_where_the_environment_has_them():
    evaluations = [
        record(10, 0, [1.0, 2.0], scores=[10.0, 20.0], success=[0.0, 0.0]),
        record(10, 1, [3.0, 4.0], scores=[30.0, 40.0], success=[1.0, 0.0]),
    ]
    final = summaries.summarise(evaluations)["final"]
    assert (final["score"], final["success"]) == (25.0, 0.25)
    learners = [(own["score"], own["success"]) for own in final["learners"]]
    assert learners == [(15.0, 0.0), (35.0, 0.5)]


def test_summary_of_one_learner_has_no_interval_over_learners():
    final = summaries.summarise([record(10, 0, [0.0, 1.0, 2.0, 3.0, 4.0])])["final"]
    assert (final["mean"], final["interval"]) == (2.0, None)
    low, high = final["learners"][0]["interval"]  # over its episodes
    assert 0.0 <= low < 2.0 < high <= 4.0


def test_summary_of_one_episode_has_no_interval_at_all():
    final = summaries.summarise([record(10, 0, [1.0])])["final"]
    assert (final["interval"], final["learners"][0]["interval"]) == (None, None)


def test_summary_is_strict_json_with_returns_that_are_not_finite():
    evaluations = [
        record(10, 0, [1.0, 2.0]),
        record(20, 0, [None, 2.0]),
        record(30, 0, [float("inf"), 2.0]),
    ]
    summary = summaries.summarise(evaluations[:2])
    json.dumps(summary, allow_nan=False)
    assert (summary["final"]["mean"], summary["final"]["iqm"]) == (None, None)
    assert summary["best"]["step"] == summary["best"]["learners"][0]["step"] == 10
    json.dumps(summaries.summarise(evaluations), allow_nan=False)


def test_summary_takes_the_last_step_that_every_learner_has():
    evaluations = [record(10, 0, [1.0]), record(10, 1, [1.0]), record(20, 0, [9.0])]
    summary = summaries.summarise(evaluations)
    assert (summary["final"]["step"], summary["best"]["step"]) == (10, 10)
    assert summary["best"]["learners"][0]["step"] == 20


def test_summary_takes_the_earlier_of_equals_and_the_later_of_repeats():
    summary = summaries.summarise(
        [record(20, 0, [5.0]), record(10, 0, [0.0]), record(10, 0, [5.0])]
    )
    best = summary["best"]
    assert (best["step"], best["learners"][0]["step"], summary["final"]["step"]) == (10, 10, 20)


def test_summary_before_the_first_evaluation():
    assert summaries.summarise([]) == {"final": None, "best": None}


# Curves


def test_curves_over_learners():
    evaluations = [
        record(step, learner, [step + learner, step + learner + 2.0])
        for step in (0, 10)
        for learner in (0, 1, 2, 3, 4)
    ]
    steps, mean, low, high = summaries.learning_curve(evaluations)
    np.testing.assert_array_equal(steps, [0, 10])
    np.testing.assert_allclose(mean, [3, 13])
    for bound, values in zip((low, high), estimators.interval(range(5), np.mean), strict=True):
        np.testing.assert_allclose(bound, [1 + values, 11 + values])


def test_curve_of_one_learner_has_its_episodes_interval():
    steps, mean, low, high = summaries.learning_curve(
        [record(10, 0, [0.0, 0.0, 2.0, 4.0, 4.0]), record(0, 0, [1.0])]
    )
    np.testing.assert_array_equal(steps, [0, 10])
    np.testing.assert_array_equal(mean, [1, 2])
    np.testing.assert_array_equal(np.isnan([low, high]), [[True, False], [True, False]])
    assert 0.0 <= low[1] < 2.0 < high[1] <= 4.0


def test_curves_take_the_statistic_over_learners():
    evaluations = [
        record(0, learner, [value]) for learner, value in enumerate([0.0, 1.0, 2.0, 97.0])
    ]
    assert summaries.learning_curve(evaluations)[1] == [25.0]
    assert summaries.learning_curve(evaluations, estimators.iqm)[1] == [1.5]


def test_curves_bring_learners_to_common_steps():
    every_ten = [record(step, (0, 0), [float(step)]) for step in (0, 10, 20, 30)]
    every_fifteen = [record(step, (1, 0), [step + 2.0]) for step in (5, 20)]
    steps, mean, low, high = summaries.learning_curve(every_ten + every_fifteen)
    np.testing.assert_array_equal(steps, [5, 10, 20])
    np.testing.assert_allclose(mean, [6, 11, 21])
    assert np.isnan([low, high]).all(), "two learners have no interval"


def test_a_diverged_evaluation_does_not_spoil_its_neighbours():
    evaluations = [
        record(step, learner, [None if step == 10 else 1.0])
        for step in (0, 10, 20)
        for learner in (0, 1)
    ]
    np.testing.assert_array_equal(summaries.learning_curve(evaluations)[1], [1, np.nan, 1])


@pytest.mark.parametrize("evaluations", [[], [record(0, 0, [1.0]), record(10, 1, [1.0])]])
def test_curves_are_empty_where_learners_share_no_steps(evaluations):
    assert [len(array) for array in summaries.learning_curve(evaluations)] == [0, 0, 0, 0]


# The best of several evaluated policies


def test_expected_best_is_the_mean_over_all_choices():
    values = {0: [3.0, 1.0, 4.0, 1.5, 9.0], 1: [2.0, 6.0, 5.0, 3.0, 5.5]}
    evaluations = [
        record(10 * i, own, [x - 1, x + 1]) for own, xs in values.items() for i, x in enumerate(xs)
    ]
    expected = summaries.expected_best(evaluations)
    for n in (1, 2, 5):
        each = [
            np.mean([max(choice) for choice in itertools.combinations(xs, n)])
            for xs in values.values()
        ]
        assert expected[n] == pytest.approx(np.mean(each))
    assert expected[1] == pytest.approx(np.mean(list(values.values())))
    assert expected[5] == pytest.approx(7.5)


def test_expected_best_has_round_numbers_and_the_last():
    evaluations = [record(step, 0, [float(step)], scores=[2.0 * step]) for step in range(1, 24)]
    assert list(summaries.expected_best(evaluations)) == [1, 2, 5, 10, 20, 23]
    assert summaries.expected_best(evaluations, "scores")[23] == 46.0
    assert summaries.expected_best(evaluations, "success") == {}
    assert summaries.expected_best([]) == {}


def test_the_last_three_evaluations():
    evaluations = [
        record(step, learner, [step + learner, step + learner + 2])
        | ({"success": [step >= 20, False]} if learner == 0 else {})
        for step in (10, 20, 30, 40)
        for learner in (0, 1)
    ]
    found = summaries.last_three(evaluations)
    assert found == {"return": pytest.approx(31.5)}, "success is not known of all"
    own = [each for each in evaluations if each["learner"] == 0]
    assert summaries.last_three(own) == {
        "return": pytest.approx(31.0),
        "success": pytest.approx(0.5),
    }
    assert summaries.last_three(evaluations[:2]) == {"return": pytest.approx(11.5)}
    assert summaries.last_three([]) == {}


def test_a_summary_has_the_means_of_signals():
    lines = [
        record(10, p, [1.0, 3.0], signals={"cost": [p, p + 2.0], "a/0": [1.0, None]})
        for p in range(2)
    ]
    final = summaries.summarise(lines)["final"]
    assert final["signals"] == {"cost": 1.5, "a/0": None}
    assert [learner["signals"]["cost"] for learner in final["learners"]] == [1.0, 2.0]
    lines[1].pop("signals")
    final = summaries.summarise(lines)["final"]
    assert "signals" not in final
    assert "signals" not in final["learners"][1]


def test_returns_are_averaged_over_lengths_of_holding() -> None:
    assert estimators.frequency_averaged([4.0], [1]) == 4.0
    assert estimators.frequency_averaged([4.0, 2.0], [1, 2]) == 3.0
    assert estimators.frequency_averaged([4.0, 2.0, 0.0], [1, 2, 4]) == pytest.approx(
        (3.0 * 1 + 1.0 * 2) / 3
    )
