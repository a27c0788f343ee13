"""Numbers and names as text."""

from __future__ import annotations

import numpy as np
import pytest

from rljax.analysis import formatting
from rljax.analysis.comparison import Estimate


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (999, "999"),
        (1000, "1k"),
        (12_345, "12.3k"),
        (999_499, "999k"),
        (999_500, "1M"),
        (2_500_000, "2.5M"),
    ],
)
def test_steps_have_three_digits(number, text):
    assert formatting.steps(number) == text


@pytest.mark.parametrize(
    ("value", "text"), [(7.2, "7 s"), (100, "2 min"), (5999, "100 min"), (6000, "1.7 h")]
)
def test_seconds(value, text):
    assert formatting.seconds(value) == text


@pytest.mark.parametrize(
    ("values", "expected"),
    [([123.0, np.nan], 0), ([-50.0], 1), ([1.0], 2), ([0.1], 4), ([np.inf], 4)],
)
def test_larger_numbers_have_fewer_decimals(values, expected):
    assert formatting.decimals(np.array(values)) == expected


def test_numbers_and_their_intervals():
    assert formatting.number(1234.567, 1) == "1,234.6"
    assert formatting.interval(Estimate(2.0, 1.0, 3.0, (3, 3), 1), 2) == "1.00 to 3.00"
    assert formatting.interval(Estimate(2.0, np.nan, np.nan, (1, 1), 1), 2) == "no interval"
    assert (formatting.span(3, 3), formatting.span(3, 5)) == ("3", "3 to 5")
    assert (formatting.count(1, "run"), formatting.count(1200, "run")) == ("1 run", "1,200 runs")


def test_lists():
    assert formatting.quoted(["a", 1]) == "'a', '1'"
    assert formatting.distinct(["b", None, "a", "b", ""]) == ["b", "a"]
    assert [formatting.seeds(own) for own in ([0, 1, 2, 3], [0, 1], [5], [0, 2, 4])] == [
        "0 to 3",
        "0, 1",
        "5",
        "0, 2, 4",
    ]


@pytest.mark.parametrize(
    ("value", "text"),
    [(1, "1"), (1.0, "1"), (3e-4, "0.0003"), (True, "true"), (None, "none"), ([64, 64], "64,64")],
)
def test_settings(value, text):
    assert formatting.setting(value) == text
