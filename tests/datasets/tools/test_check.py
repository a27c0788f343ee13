"""Each fault in a sound dataset is found alone."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from rljax.datasets.publishers import d4rl
from tests.datasets.files import FIELDS, arrays, findings, hdf5, load, without


@pytest.fixture
def sound(tmp_path: Path) -> datasets.OfflineDataset:
    dataset = load(tmp_path, arrays([30, 20, 40], "tot"))
    dataset.provenance["max_episode_steps"] = 40
    return dataset


def spoilt(
    dataset: datasets.OfflineDataset, name: str, rows: Any, value: Any
) -> datasets.OfflineDataset:
    array = np.array(getattr(dataset.transitions, name))
    array[rows] = value
    return replaced(dataset, **{name: array})


def replaced(dataset: datasets.OfflineDataset, **fields: Any) -> datasets.OfflineDataset:
    return dataclasses.replace(dataset, transitions=dataset.transitions.replace(**fields))


def test_a_sound_dataset_has_no_findings(sound: datasets.OfflineDataset) -> None:
    assert datasets.check(sound) == []


@pytest.mark.parametrize(
    ("field", "rows", "value", "expected", "count", "where"),
    [
        ("reward", 7, np.nan, "error: not_finite", 1, "reward, rows 7"),
        ("reward", 7, -1e38, "error: not_finite", 1, "reward, rows 7"),
        (
            *("next_observation", ([29, 49], 1), np.inf),
            *("error: not_finite", 2, "next_observation, rows 29, 49"),
        ),
        ("action", (5, 0), 1.5, "error: actions_out_of_bounds", 1, "rows 5"),
        ("action", ([5, 9], 0), -1.0, "warning: actions_at_bounds", 2, "2.22% of rows: rows 5, 9"),
        ("truncated", 89, True, "warning: both_ends", 1, "rows 89"),
        ("terminated", 89, False, "error: open_end", 1, "row 89"),
        ("truncated", 49, False, "error: successors_do_not_follow", 1, "rows 49"),
        ("terminated", slice(0, 60), False, "error: successors_do_not_follow", 1, "rows 29"),
        ("next_observation", ([3, 4], 2), 9.0, "error: successors_do_not_follow", 2, "rows 3, 4"),
        ("reward", slice(None), 2.0, "warning: constant_rewards", 90, "all 90 rows: 2"),
    ],
)
def test_faults_are_found(
    sound: Any, field: str, rows: Any, value: Any, expected: str, count: int, where: str
) -> None:
    finding = findings(spoilt(sound, field, rows, value))[expected.split()[1]]
    assert (finding.count, finding.where) == (count, where)
    assert finding.effect.endswith(".")
    assert finding.remedy.endswith(".")
    assert str(finding).startswith(f"{expected} ({where}).")


def test_choices_that_are_stored_as_floats_are_pointed_out(sound: datasets.OfflineDataset) -> None:
    whole = np.round(np.asarray(sound.transitions.action))
    assert set(np.unique(np.abs(whole))) == {0.0, 1.0}
    for action, pointed_out in ((whole, True), (np.where(np.abs(whole) == 1, whole, 0.25), False)):
        found = findings(spoilt(sound, "action", slice(None), action.astype(np.float32)))
        remedy = found["actions_at_bounds"].remedy
        assert remedy.endswith("number choices, store them as integers.") == pointed_out


@pytest.mark.parametrize("stored", [True, False])
def test_time_limits_that_a_file_marks_as_terminal_are_found(tmp_path: Path, stored: bool) -> None:
    values = arrays([30, 20, 40, 10], "tboo")
    values["terminals"] |= values["timeouts"]
    dataset = load(tmp_path, values if stored else without(values, "next_observations"))
    copy = datasets.load(str(datasets.write(dataset, tmp_path / "copy.hdf5")))
    for each, count in ((dataset, 3), (copy, 3), (datasets.join([dataset, copy], "both"), 6)):
        assert not np.asarray(each.transitions.truncated).any()
        finding = findings(each, "warning")["both_ends"]
        assert (finding.count, finding.where) == (count, f"{count} rows of the file")


def test_rows_that_d4rl_drops_are_no_ends_of_both_kinds(tmp_path: Path) -> None:
    values = arrays([30, 20, 40], "tbo")
    dataset = d4rl.read(hdf5(tmp_path / "a.hdf5", values))
    assert dataset.provenance["dropped"]["timed out and terminal"] == 1
    assert "both_ends" not in {*findings(dataset)}


def test_constant_and_large_observations_are_found(sound: datasets.OfflineDataset) -> None:
    names = ("observation", "next_observation")
    spoilt = {name: np.array(getattr(sound.transitions, name)) for name in names}
    for array in spoilt.values():
        array[:, 0], array[:, 2] = 3.0, array[:, 2] * 1e6
    found = findings(replaced(sound, **spoilt))
    assert set(found) == {"constant_observations", "large_observations"}
    assert found["constant_observations"].where == "dimensions 0"
    assert found["large_observations"].where.startswith("dimensions 2, up to ")


def test_equal_dimensions_are_found(tmp_path: Path) -> None:
    values = arrays([30, 20, 40], "tot", actions=2)
    assert findings(load(tmp_path, values)) == {}
    values["actions"] = np.c_[values["actions"], values["actions"][:, 0]]
    (finding,) = findings(load(tmp_path, values)).values()
    assert (finding.name, finding.count) == ("equal_dimensions", 1)
    assert finding.where == "action: 0 and 2"
    values["actions"][-1, 2] *= -1
    assert findings(load(tmp_path, values)) == {}


def test_duplicates_are_counted(sound: datasets.OfflineDataset) -> None:
    fields = {name: np.asarray(getattr(sound.transitions, name)) for name in FIELDS}
    twice = {name: np.concatenate([x, x[:30]]) for name, x in fields.items()}
    (finding,) = datasets.check(replaced(sound, **twice))
    assert (finding.name, finding.count) == ("duplicated_rows", 30)
    assert finding.where == "rows 90, 91, 92, 93, 94, ... (30 in all)"


def test_rows_that_differ_in_one_number_are_no_duplicates(tmp_path: Path) -> None:
    values = arrays([2000], "o")
    for name in ("observations", "actions", "next_observations"):
        values[name][:] = 0
    values["rewards"] = np.arange(2000, dtype=np.float32)
    assert {*findings(load(tmp_path, values))} == {"constant_observations", "no_terminals"}


def test_types_and_limits(sound: datasets.OfflineDataset) -> None:
    double = replaced(sound, reward=np.asarray(sound.transitions.reward, np.float64))
    (finding,) = datasets.check(double)
    assert (finding.name, finding.where) == ("wrong_dtype", "reward is float64, not float32")
    sound.provenance["max_episode_steps"] = 25
    (finding,) = datasets.check(sound)
    assert (finding.name, finding.count) == ("episodes_too_long", 2)
    assert finding.where == "episodes 0, 2, up to 40 steps with a limit of 25"


def test_coarse_types_are_noted(tmp_path: Path) -> None:
    values = arrays([30, 20], "to")
    names = ("observations", "next_observations")
    coarse = {name: values[name].astype(np.float16) for name in names}
    (finding,) = datasets.check(load(tmp_path, values | coarse))
    where = "observations as float16, next_observations as float16"
    assert (finding.name, finding.where) == ("stored_coarsely", where)


def test_errors_come_first(sound: datasets.OfflineDataset) -> None:
    dataset = spoilt(spoilt(sound, "reward", slice(None), 2.0), "action", (5, 0), 1.5)
    assert [finding.severity for finding in datasets.check(dataset)] == ["error", "warning"]


@pytest.mark.parametrize(
    ("present", "known", "where"),
    [
        ([0], None, "1 of at least 1 actions (the file does not say how many) occur: actions 0"),
        ([0], 2, "1 of 2 actions occur: actions 0"),
        ([0, 1, 2], 4, "3 of 4 actions occur: actions 0, 1, 2"),
        ([0, 1, 2], None, None),
        ([0, 1], 2, None),
    ],
)
def test_actions_that_never_occur_are_found(
    tmp_path: Path, present: list[int], known: Any, where: Any
) -> None:
    actions = np.resize(present, 90)
    dataset = load(tmp_path, arrays([30, 20, 40], "tot") | {"actions": actions})
    dataset.provenance["num_actions"] = known
    finding = findings(dataset).get("actions_that_never_occur")
    assert (finding and finding.where) == where


@pytest.mark.parametrize(("largest", "refused"), [(100_000, True), (99_999, False)])
def test_more_actions_than_agents_can_have_are_an_error(
    tmp_path: Path, largest: int, refused: bool
) -> None:
    values = arrays([30, 20, 40], "tot") | {"actions": np.full(90, largest)}
    assert ("too_many_actions" in findings(load(tmp_path, values), "error")) == refused


def test_rows_that_are_all_terminal_are_found(tmp_path: Path) -> None:
    values = arrays([30, 20, 40], "tot") | {"terminals": np.ones(90), "timeouts": np.zeros(90)}
    found = datasets.check(load(tmp_path, values))
    assert [(finding.name, finding.count) for finding in found] == [("only_terminals", 90)]


def test_nobody_is_sent_to_an_agent_that_refuses_the_data(tmp_path: Path) -> None:
    values = arrays([30, 20, 40], "tot") | {"rewards": np.ones(90)}
    for actions in (values["actions"], np.resize([0, 1], 90)):
        dataset = load(tmp_path, values | {"actions": actions})
        (finding,) = datasets.check(dataset)
        assert finding.name == "constant_rewards"
        assert "bc" in finding.remedy
