"""The schema of all readers: which arrays and which facts are accepted."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rljax.datasets.formats import minari_spaces, schema

KINDS = (np.bool_, np.uint8, np.int64, np.float32, np.float64)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", [(3,), (3, 1)])
def test_marks_are_truth_values_or_0_and_1(kind: Any, shape: tuple[int, ...]) -> None:
    found = schema.marks(np.array([0, 1, 1], kind).reshape(shape), "a.npz", "terminals")
    assert found.dtype == np.bool_
    assert found.tolist() == [False, True, True]


@pytest.mark.parametrize("value", [7, 0.5, -1, -0.5, np.nan, np.inf, 255])
def test_other_marks_are_refused(value: float) -> None:
    with pytest.raises(
        ValueError,
        match=r"'a.npz': 'terminals' is .* in row 1, it must be 0 or 1, which says whether",
    ):
        schema.marks(np.array([0, value, 1], np.float64), "a.npz", "terminals")


@pytest.mark.parametrize(
    "lengths",
    [
        [-1, 4],
        [0, 3],
        [1.5, 1.5],
        [4],
        [2, 2],
        [np.nan],
        [10**18, 3],
        [],
        [[1, 2]],
        ["a"],
        [2**63 - 1, 4],
    ],
)
def test_lengths_that_are_none_are_refused(lengths: list[Any]) -> None:
    with pytest.raises(ValueError, match="'episode_lengths'"):
        schema.lengths(np.array(lengths), "a.npz", "episode_lengths", 3)


@pytest.mark.parametrize(
    "kind", [np.uint8, np.int8, np.int16, np.int32, np.int64, np.uint64, np.bool_]
)
def test_discrete_actions_of_any_integer_are_int32(kind: Any) -> None:
    found = schema.actions(np.array([0, 1, 1], kind), "a.npz", "actions")
    assert found.dtype == np.int32
    assert found.tolist() == [0, 1, 1]


def test_discrete_actions_count_from_their_start() -> None:
    assert schema.actions(np.array([-1, 0, 1]), "a.npz", "actions", -1).tolist() == [0, 1, 2]
    assert schema.actions(np.array([10, 11], np.uint8), "a.npz", "actions", 10).tolist() == [0, 1]
    assert schema.actions(np.array([200, 255], np.uint8), "a.npz", "actions").tolist() == [200, 255]
    with pytest.raises(ValueError, match="'actions' is 9 in row 1; discrete actions count from 10"):
        schema.actions(np.array([10, 9]), "a.npz", "actions", 10)


@pytest.mark.parametrize("value", [np.uint64(2**64 - 1), np.int64(2**31), np.int64(2**40 + 1)])
def test_actions_that_int32_cannot_hold_are_refused(value: Any) -> None:
    with pytest.raises(
        ValueError, match=r"in row 1, the largest number of a discrete action is 2147483647"
    ):
        schema.actions(np.array([0, value], value.dtype), "a.npz", "actions")


def test_facts_that_are_accepted() -> None:
    assert schema.facts("a.npz", None, None, {}, None) is None
    assert schema.facts("a.npz", "Hopper-v5", [-20, 3234.3], {"max_episode_steps": 1000}, None) == (
        -20.0,
        3234.3,
    )
    schema.facts(
        "a.npz",
        None,
        None,
        {"num_actions": 2, "corruptions": [{"what": "reward"}], "both_ends": 0},
        1,
    )


@pytest.mark.parametrize(
    ("key", "value"),
    [
        *(("env", value) for value in (3, "", ["Hopper-v5"], "a\x1b[2J", "a" * 10_001)),
        *(("reference", value) for value in ([1], [1, 1], [0, float("nan")], ["0", "1"], 3, "01")),
        *(("reference", value) for value in ([0, 1, 2], [0, True], {"0": 1}, [0, 10**400])),
        *(("max_episode_steps", value) for value in (-1, 0, 1.5, "3", True, [], 10**30)),
        *(("recorded_max_episode_steps", value) for value in ("3", 0, 1.5)),
        *(("num_actions", value) for value in (1, 0, -3, "3", 2.0, {})),
        *(("corruptions", value) for value in (["x"], [{}], "x", {"what": "x"}, [{"what": 3}], 3)),
        *(("both_ends", value) for value in ("x", -1, [1])),
    ],
)
def test_other_facts_are_refused(key: str, value: Any) -> None:
    given = {"env": None, "reference": None, "provenance": {}}
    given |= {key: value} if key in given else {"provenance": {key: value}}
    with pytest.raises(
        ValueError, match=rf"^'a.npz': '{key}' is .*, it must be .*Correct the file's metadata"
    ) as refused:
        schema.facts("a.npz", **given, most_action=1)
    assert str(refused.value).isprintable()


@pytest.mark.parametrize(
    "space",
    [
        3,
        [],
        {},
        {"type": "Graph"},
        {"type": ["Box"]},
        {"type": "Box"},
        {"type": "Box", "low": "a", "high": 1},
        {"type": "Box", "low": [[1], [1, 2]], "high": 1},
        {"type": "Discrete", "n": 0},
        {"type": "Discrete", "n": "3"},
        {"type": "Discrete", "n": 3, "start": "a"},
        {"type": "Discrete", "n": 10**12},
        {"type": "Dict"},
        {"type": "Dict", "subspaces": []},
        {"type": "Tuple", "subspaces": {"a": 1}},
        {"type": "Tuple", "subspaces": [3]},
    ],
)
def test_spaces_that_are_none_are_refused(space: Any) -> None:
    with pytest.raises(ValueError, match=r"'action_space(/0)?' is .*, it must be a"):
        minari_spaces.checked(space, "a", "action_space")


def test_spaces_within_spaces_have_an_end() -> None:
    deep = {"type": "Discrete", "n": 2}
    for _ in range(20):
        deep = {"type": "Tuple", "subspaces": [deep]}
    with pytest.raises(ValueError, match="it must be a space"):
        minari_spaces.checked(deep, "a", "action_space")
