"""Arguments of environments that a stranger's file may choose."""

from __future__ import annotations

import math
from typing import Any

import pytest

from rljax import trust


@pytest.mark.parametrize(
    "value",
    [
        0.1,
        3,
        True,
        None,
        math.inf,
        "4x4",
        "bottom burner",
        "sparse",
        [[1, "r"], [0, "g"]],
        {"a": [1]},
        "",
    ],
)
def test_numbers_and_plain_words_are_safe(value: Any) -> None:
    assert trust.unsafe_argument({"name": value}) is None


@pytest.mark.parametrize(
    "value",
    [
        "/etc/passwd",
        "../x",
        "~root",
        "x.xml",
        "a\\b",
        "C:x",
        "a\nb",
        "\x1b[2J",
        math.nan,
        ["a/b"],
        {"a/b": 1},
        "x" * 999,
    ],
)
def test_what_may_be_a_path_is_named(value: Any) -> None:
    argument = trust.unsafe_argument({"good": 1, "name": value})
    assert argument is not None
    assert argument.startswith("the argument 'name' = ")
    assert len(argument) < 200


def test_deep_values_and_odd_names_are_not_safe() -> None:
    value: Any = 1
    for _ in range(500):
        value = [value]
    assert trust.unsafe_argument({"name": value}) is not None
    assert trust.unsafe_argument({"a b": 1}) is not None


def test_names_carry_arguments_as_json() -> None:
    assert trust.unsafe_argument_in("Hopper-v5") is None
    assert trust.unsafe_argument_in('Hopper-v5?{"reset_noise_scale": 0.1}') is None
    assert (
        trust.unsafe_argument_in('Hopper-v5?{"xml_file": "/x"}') == "the argument 'xml_file' = '/x'"
    )
    for text in ("[1]", "{", "[" * 100_000):
        assert (
            trust.unsafe_argument_in(f"Hopper-v5?{text}") == "arguments that are not a JSON object"
        )
