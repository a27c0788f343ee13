"""Files of other libraries: where episodes end, and which arrays nothing reads."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from tests.datasets.files import arrays, findings, hdf5, load, npz, same, without

LENGTHS, ENDS = [7, 1, 5, 3, 9], "totot"
LAST = np.cumsum(LENGTHS) - 1


def ends_of(dataset: Any) -> tuple[list[int], list[int]]:
    """Terminal rows and truncated rows."""
    t = dataset.transitions
    return np.flatnonzero(t.terminated).tolist(), np.flatnonzero(t.truncated).tolist()


@pytest.mark.parametrize("marks", ["terminals", "done", "dones_float", "episode_terminals"])
@pytest.mark.parametrize("column", [False, True])
def test_masks_are_0_where_the_environment_ended(tmp_path: Path, marks: str, column: bool) -> None:
    """OGBench (main.py), IQL (dataset_utils.py): nothing is bootstrapped at a mask of 0."""
    values = arrays(LENGTHS, ENDS)
    ends = (values["terminals"] | values["timeouts"]).astype(np.float32)
    masks = 1 - values["terminals"].astype(np.float32)
    masks = masks[:, None] if column else masks
    plain = without(values, "terminals", "timeouts")
    dataset = load(tmp_path, plain | {marks: ends, "masks": masks})
    assert ends_of(dataset) == (LAST[[0, 2, 4]].tolist(), LAST[[1, 3]].tolist())
    assert dataset.provenance["unread"] == []


def test_marks_of_both_ends_alone_are_truncated(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    ends = (values["terminals"] | values["timeouts"]).astype(np.float32)
    plain = without(values, "terminals", "timeouts")
    assert ends_of(load(tmp_path, plain | {"dones_float": ends})) == ([], LAST.tolist())
    for marks in ({"dones_float": ends}, {"episode_lengths": np.array(LENGTHS)}):
        dataset = load(tmp_path, without(values, "timeouts") | marks)
        assert ends_of(dataset) == (LAST[[0, 2, 4]].tolist(), LAST[[1, 3]].tolist())


def test_masks_of_actions_are_refused_under_that_name(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS) | {"masks": np.ones((25, 4))}
    with pytest.raises(ValueError, match=r"'masks' has shape \(25, 4\), it must be \[rows\]"):
        load(tmp_path, values)


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_arrays_that_nothing_reads_are_named(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    from rljax.cli import data

    values = arrays(LENGTHS, ENDS) | {"episode_id": np.arange(25), "signals/cost": np.ones(25)}
    values |= {"infos/qpos": np.ones(25)}
    dataset = load(tmp_path, values, name)
    finding = findings(dataset)["unread_arrays"]
    assert (finding.severity, finding.count, finding.where) == ("warning", 1, "episode_id")
    data.main(["info", str(tmp_path / name), "--output", str(tmp_path / "a.png")])
    assert "not read: episode_id\n" in capsys.readouterr().out
    for file in ("copy.npz", "copy.hdf5"):
        copy = datasets.load(str(datasets.write(dataset, tmp_path / file)))
        assert copy.provenance["unread"] == [], "our own files are read in full"


@pytest.mark.parametrize("damaged", ["next_mbservations", "Next_observations", "next_observation_"])
@pytest.mark.parametrize("name", ["a.npz", "a.hdf5", "hopper_medium-v2.hdf5"])
def test_a_name_that_is_one_letter_off_is_refused(tmp_path: Path, damaged: str, name: str) -> None:
    values = arrays(LENGTHS, ENDS)
    values[damaged] = values.pop("next_observations")
    with pytest.raises(ValueError, match=rf"has '{damaged}' and no 'next_observations?', which"):
        load(tmp_path, values, name)
    values = arrays(LENGTHS, ENDS)
    values["timeoutr"] = values.pop("timeouts")
    with pytest.raises(ValueError, match=r"has 'timeoutr' and no 'timeouts', which differs by one"):
        load(tmp_path, values, name)


def test_a_damaged_suffix_in_an_archive_is_refused(tmp_path: Path) -> None:
    path = npz(tmp_path / "a.npz", arrays(LENGTHS, ENDS))
    content = path.read_bytes().replace(b"next_observations.npy", b"next_observations.npx")
    path.write_bytes(content)
    with pytest.raises(ValueError, match=r"has 'next_observations.npx' and no 'next_observations'"):
        datasets.load(str(path))


def test_other_names_are_not_taken_for_damage(tmp_path: Path) -> None:
    others = {"tasks": np.zeros(25), "acts": np.zeros(25), "rewards2": np.zeros(25)}
    dataset = load(tmp_path, arrays(LENGTHS, ENDS) | others)
    assert dataset.provenance["unread"] == ["acts", "rewards2", "tasks"]


def test_rows_without_a_successor_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from rljax.cli import data

    values = without(arrays(LENGTHS, ENDS), "next_observations")
    dataset = load(tmp_path, values)
    finding = findings(dataset)["dropped_rows"]
    assert (finding.severity, finding.count) == ("warning", 2)
    assert "next_observations" in finding.remedy
    data.main(["info", str(tmp_path / "a.npz"), "--output", str(tmp_path / "a.png")])
    assert "dropped rows: 2, last of a trajectory, without a successor\n" in capsys.readouterr().out
    whole = load(tmp_path, arrays(LENGTHS, ENDS), "b.npz")
    assert "dropped_rows" not in {*findings(whole)}


def episodes() -> list[dict[str, np.ndarray]]:
    values = arrays(LENGTHS, ENDS)
    pairs = itertools.pairwise(np.append(0, LAST + 1))
    return [{key: value[i:j] for key, value in values.items()} for i, j in pairs]


def d3rlpy() -> dict[str, Any]:
    """What version 2.1's `dump` writes."""
    values = {
        f"{key}_{i}": episode[key]
        for i, episode in enumerate(episodes())
        for key in ("observations", "actions")
    }
    for i, episode in enumerate(episodes()):
        values[f"rewards_{i}"] = episode["rewards"][:, None]
        values[f"terminated_{i}"] = bool(episode["terminals"][-1])
    columns = [b"observations", b"actions", b"rewards", b"terminated"]
    return values | {"columns": columns, "num_episodes": 5, "version": "2.1"}


def test_episodes_of_d3rlpy_are_read(tmp_path: Path) -> None:
    dataset = load(tmp_path, d3rlpy(), "a.h5")
    plain = load(tmp_path, without(arrays(LENGTHS, ENDS), "next_observations"))
    assert ends_of(dataset) == ends_of(plain)
    same(dataset, plain, "observation", "action", "reward", "next_observation")
    assert dataset.provenance["unread"] == []
    several = {("observations_2_0" if k == "observations_2" else k): v for k, v in d3rlpy().items()}
    with pytest.raises(ValueError, match=r"no 'observations_2'.* of several arrays are not"):
        load(tmp_path, several, "b.h5")
    with pytest.raises(ValueError, match=r"'actions_1' has 4 rows, 'rewards_1' has 1"):
        load(tmp_path, d3rlpy() | {"actions_1": np.zeros((4, 2))}, "c.h5")
    with pytest.raises(ValueError, match=r"'observations_0' has another type or shape elsewhere"):
        load(tmp_path, d3rlpy() | {"observations_1": np.zeros((1, 4))}, "d.h5")


def robomimic(pictures: bool = False, successors: bool = True) -> dict[str, Any]:
    """The groups of its documentation (datasets/overview)."""
    values = {"mask/train": [b"demo_0"]}
    numbers = np.arange(25, dtype=np.uint8)
    for i, episode in enumerate(episodes()):
        place, total = f"data/demo_{i + 8}", len(episode["rewards"])
        values |= {f"{place}/actions": episode["actions"], f"{place}/rewards": episode["rewards"]}
        values |= {f"{place}/dones": episode["terminals"].astype(np.int64)}
        values |= {f"{place}/states": np.zeros((total, 9))}
        for group, key in (("obs", "observations"), ("next_obs", "next_observations")):
            if group == "obs" or successors:
                values |= {f"{place}/{group}/object": episode[key][:, 1:].astype(np.float64)}
                values |= {f"{place}/{group}/eef": episode[key][:, :1]}
                if pictures:
                    shown = np.broadcast_to(numbers[:total, None, None, None], (total, 32, 32, 3))
                    values |= {f"{place}/{group}/camera": shown + np.uint8(group != "obs")}
    return values


@pytest.mark.filterwarnings("ignore:.*are flattened")
def test_demonstrations_of_robomimic_are_read(tmp_path: Path) -> None:
    dataset = load(tmp_path, robomimic(), "a.hdf5")
    plain = load(tmp_path, arrays(LENGTHS, ENDS))
    assert ends_of(dataset) == (LAST[[0, 2, 4]].tolist(), LAST[[1, 3]].tolist())
    # demo_8 before demo_10
    same(dataset, plain, "observation", "action", "reward", "next_observation")
    assert dataset.provenance["unread"] == [
        *(f"data/demo_{i}/states" for i in (10, 11, 12, 8, 9)),
        "mask",
    ]
    finding = findings(dataset)["assumed"]
    assert "'dones' are read as the environment's own ends" in finding.where
    with pytest.raises(ValueError, match=r"has no 'obs'; it has: actions. robomimic's dataset"):
        load(tmp_path, {"data/demo_1/actions": np.zeros((3, 2))}, "raw.hdf5")


@pytest.mark.parametrize("successors", [True, False])
def test_demonstrations_with_pictures_have_parts(tmp_path: Path, successors: bool) -> None:
    dataset = load(tmp_path, robomimic(True, successors), "a.hdf5")
    t = dataset.transitions
    assert sorted(t.observation) == ["camera", "eef", "object"]
    assert dataset.num == (25 if successors else 23)
    camera, following = (np.asarray(x["camera"]) for x in (t.observation, t.next_observation))
    assert (camera.dtype, camera.shape[1:]) == (np.uint8, (32, 32, 3))
    assert (camera[5] == 5).all()
    assert (following[4] == 5).all()


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"terminated_1": np.zeros(2)}, "'terminated_1' must be one truth value"),
        ({"terminated_1": b"yes"}, "'terminated_1' must be one truth value"),
        ({"terminated_1/a": np.zeros(2)}, "'terminated_1' must be one truth value"),
        ({"rewards_1": np.float32(1)}, r"'rewards_1' has shape \(\)"),
        ({"rewards_1/a": np.zeros(2)}, r"'rewards_1' is a group \(a\)"),
        ({"actions_1": np.full((1, 2), b"a")}, "'actions_1' is of type"),
    ],
)
def test_other_things_in_the_place_of_episodes_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (key,) = (key.partition("/")[0] for key in changes)
    with pytest.raises(ValueError, match=message):
        load(tmp_path, without(d3rlpy(), key) | changes, "a.h5")


@pytest.mark.filterwarnings("ignore:.*are flattened")
@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data/demo_9": np.zeros(3)}, "'data/demo_9' must be a group of arrays"),
        ({"data/demo_9/obs": np.float32(1)}, r"'data/demo_9/obs' has shape \(\)"),
        ({"data/demo_9/obs/eef/deep": np.zeros(2)}, r"'data/demo_9/obs/eef' is a group \(deep\)"),
        ({"data/demo_9/obs/eef": np.zeros((1, 3))}, "'data/demo_8/obs' has another type or shape"),
        ({"data/demo_9/dones": np.full(1, 3)}, "'data/demo_9/dones' is 3 in row 0"),
    ],
)
def test_other_things_in_the_place_of_demonstrations_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    (place,) = changes
    inside = [key for key in robomimic() if f"{key}/".startswith(f"{place.removesuffix('/deep')}/")]
    with pytest.raises(ValueError, match=message):
        load(tmp_path, without(robomimic(), *inside) | changes, "a.hdf5")


def test_links_in_a_circle_are_not_followed_for_unread_arrays(tmp_path: Path) -> None:
    import h5py

    path = hdf5(tmp_path / "a.hdf5", arrays(LENGTHS, ENDS) | {"rljax": "of another program"})
    with h5py.File(path, "a") as file:
        file["metadata"] = h5py.SoftLink("/")
        file["group/again"] = file["/"]
    assert datasets.load(str(path)).provenance["unread"] == ["group"]
