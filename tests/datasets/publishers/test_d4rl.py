"""D4RL's reading rules, and its tables."""

from __future__ import annotations

import csv
from pathlib import Path

import numpy as np
import pytest

from rljax import datasets
from rljax.datasets.publishers import d4rl
from tests.datasets.files import arrays, hdf5, shared, without

LENGTHS, ENDS = [7, 1, 5, 3, 9, 4, 6, 2, 8], "tobttonto"


def loop(
    values: dict[str, np.ndarray], limit: int, *, timeouts: bool = True
) -> dict[str, np.ndarray]:
    """D4RL's transitions one by one, with their rows in the file, by D4RL's rules."""
    rows, following = [], []
    steps = 0
    for row in range(len(values["rewards"]) - 1):
        timed_out = bool(values["timeouts"][row]) if timeouts else steps == limit - 1
        if timed_out:
            steps = 0
            continue
        if values["terminals"][row]:
            steps = 0
        rows.append(row)
        following.append(values["observations"][row + 1])
        steps += 1
    return {
        "rows": np.array(rows),
        "observation": values["observations"][rows],
        "action": values["actions"][rows],
        "reward": np.ravel(values["rewards"])[rows],
        "terminated": np.ravel(values["terminals"])[rows],
        "next_observation": np.array(following),
    }


def entry(limit: int) -> d4rl.Entry:
    return d4rl.Entry("hopper-test-v0", "test.hdf5", (0.0, 1.0), limit)


def equal(dataset: datasets.OfflineDataset, expected: dict[str, np.ndarray], *names: str) -> None:
    for name in names or ("observation", "action", "reward", "terminated", "next_observation"):
        np.testing.assert_array_equal(
            getattr(dataset.transitions, name), expected[name], err_msg=name
        )


@pytest.mark.parametrize("stored", [True, False])
def test_rows_are_those_of_the_loop(tmp_path: Path, stored: bool) -> None:
    """But for successors of terminal rows, in whose place D4RL has the next episode's first one."""
    values = arrays(LENGTHS, ENDS)
    written = values if stored else without(values, "next_observations")
    rows = loop(values, 1000)
    following = np.where(rows["terminated"][:, None], rows["observation"], rows["next_observation"])
    rows["next_observation"] = values["next_observations"][rows["rows"]] if stored else following
    equal(d4rl.read(hdf5(tmp_path / "a.hdf5", written), entry=entry(1000)), rows)


@pytest.mark.parametrize("limit", [2, 3, 4, 5, 50])
@pytest.mark.parametrize("seed", range(4))
def test_without_timeouts_the_time_limit_counts_as_d4rl_does(
    tmp_path: Path, limit: int, seed: int
) -> None:
    values = arrays([4, 1, 1, 9, 2, 7, 3, 12], "tttnttno", seed=seed)
    values["terminals"] = np.random.default_rng(seed).random(len(values["rewards"])) < 0.2
    path = hdf5(tmp_path / "a.hdf5", without(values, "timeouts"))
    equal(d4rl.read(path, entry=entry(limit), strict=True), loop(values, limit, timeouts=False))


def test_every_trajectory_ends_with_a_mark(tmp_path: Path) -> None:
    values = arrays([4, 3, 5, 2], "totn")
    dataset = d4rl.read(hdf5(tmp_path / "a.hdf5", values), entry=entry(1000))
    assert np.flatnonzero(dataset.transitions.terminated).tolist() == [3, 10]
    assert np.flatnonzero(dataset.transitions.truncated).tolist() == [5, 11]
    assert dataset.lengths().tolist() == [4, 2, 5], "the last was cut by the end of the file"
    rows = np.split(values["rewards"], [4, 6, 7, 12, 13])
    returns = [rows[i].sum() for i in (0, 1, 3)]
    np.testing.assert_allclose(dataset.returns(), returns, rtol=1e-6)
    dropped = {"timed out": 1, "timed out and terminal": 0, "last row of the file": 1}
    assert dataset.provenance["dropped"] == dropped
    assert (dataset.num, dataset.provenance["rows_in_file"]) == (12, 14)


def test_a_timeout_that_is_terminal_too_is_dropped(tmp_path: Path) -> None:
    dataset = d4rl.read(hdf5(tmp_path / "a.hdf5", arrays([3, 1, 3], "bbt")), entry=entry(1000))
    np.testing.assert_array_equal(dataset.transitions.truncated, [0, 1, 0, 1])
    assert dataset.provenance["dropped"]["timed out and terminal"] == 2


def test_columns_with_a_second_axis_and_other_types_are_read(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    expected = loop(values, 1000)
    values["rewards"] = values["rewards"][:, None].astype(np.float64)
    values["terminals"] = values["terminals"][:, None].astype(np.float32)
    values["observations"] = values["observations"].astype(np.float64)
    values |= {"infos/qpos": np.zeros((45, 2)), "metadata/algorithm": "SAC"}
    dataset = d4rl.read(hdf5(tmp_path / "a.hdf5", values), entry=entry(1000), strict=True)
    equal(dataset, expected)
    for name in ("observation", "action", "reward", "next_observation"):
        assert getattr(dataset.transitions, name).dtype == np.float32
        assert getattr(dataset.transitions, name).flags.c_contiguous


def test_real_door_demonstrations_in_d4rl_layout(tmp_path: Path) -> None:
    with np.load(shared("offline", "dapg_door-v0_human_demos.npz")) as file:
        values = {key: file[key] for key in ("observations", "actions", "rewards")}
        last = np.cumsum(file["episode_lengths"]) - 1
    values["terminals"] = np.zeros(len(values["rewards"]), np.bool_)
    values["timeouts"] = np.isin(np.arange(len(values["rewards"])), last)
    values["actions"] = np.clip(values["actions"], -1, 1)
    folder = tmp_path / "d4rl"
    folder.mkdir()
    hdf5(folder / "door-human-v1.hdf5", values)
    dataset = datasets.load("d4rl/door-human-v1", tmp_path, download=False)
    equal(dataset, loop(values, 200))
    assert (dataset.num, dataset.observation_size, dataset.action_size) == (6729 - 25, 39, 28)
    assert dataset.env == "gymnasium_robotics:AdroitHandDoor-v1"
    assert len(dataset.returns()) == 25
    assert dataset.returns().mean() == pytest.approx(794, rel=0.02)
    assert dataset.score(2880.5693087298737) == pytest.approx(100)
    by_path = datasets.load(str(folder / "door-human-v1.hdf5"))
    assert (by_path.num, by_path.env) == (dataset.num, dataset.env), (
        "a file of D4RL's is known by its name"
    )


def test_table_is_the_published_one() -> None:
    table = d4rl.entries()
    with shared("curves", "d4rl_ref_scores.csv").open() as file:
        for row in csv.DictReader(file):
            assert table[row["dataset"]].reference == (
                float(row["ref_min_score"]),
                float(row["ref_max_score"]),
            )


def test_entries() -> None:
    table = d4rl.entries()
    assert len(d4rl.names()) == len(set(d4rl.names())) == 181
    hopper, maze = table["hopper-medium-v2"], table["antmaze-umaze-v2"]
    folder = "http://rail.eecs.berkeley.edu/datasets/offline_rl/gym_mujoco_v2"
    assert hopper.url == f"{folder}/hopper_medium-v2.hdf5"
    assert (hopper.reference, hopper.env) == ((-20.272305, 3234.3), "Hopper-v5")
    assert (hopper.max_episode_steps, maze.max_episode_steps, maze.env) == (1000, 700, None)
    hands = [table[f"pen-{kind}-v1"] for kind in ("human", "human-longhorizon")]
    assert [hand.max_episode_steps for hand in hands] == [100, 200]


@pytest.mark.parametrize(
    ("file", "identity"),
    [
        ("pen-human-v1.hdf5", "pen-human-v1"),
        ("pen-v0_demos_clipped.hdf5", "pen-human-v0"),
        ("relocate-human-v1.hdf5", "relocate-human-v1"),
        ("hopper_medium-v2.hdf5", "hopper-medium-v2"),
        ("mine.hdf5", None),
    ],
)
def test_files_are_known_by_their_names(file: str, identity: str | None) -> None:
    found = d4rl.of_file(Path("somewhere", file))
    assert (None if found is None else found.id) == identity


def test_a_file_that_two_datasets_share_is_read_by_the_shorter_limit(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "pen-human-v1.hdf5", without(arrays([300], "n"), "timeouts"))
    for name, limit in ((str(path), 100), ("d4rl/pen-human-longhorizon-v1", 200)):
        dataset = datasets.load(name, tmp_path)
        assert dataset.max_episode_steps == limit
        assert dataset.lengths().tolist()[0] == limit - 1


def test_environments_take_the_observations_and_actions() -> None:
    gymnasium = pytest.importorskip("gymnasium")
    sizes = {"HalfCheetah-v5": (17, 6), "Hopper-v5": (11, 3), "Walker2d-v5": (17, 6)}
    for name, size in sizes.items():
        made = gymnasium.make(name)
        assert (*made.observation_space.shape, *made.action_space.shape) == size
        assert made.action_space.low.min() == -1
        assert made.action_space.high.max() == 1
        assert name in d4rl.ENVIRONMENTS.values()


@pytest.mark.parametrize("key", d4rl.REQUIRED)
def test_missing_arrays_are_named(tmp_path: Path, key: str) -> None:
    path = hdf5(tmp_path / "a.hdf5", without(arrays(LENGTHS, ENDS), key))
    with pytest.raises(
        ValueError, match=rf"'a.hdf5' has no '{key}'; it has: .*D4RL's layout needs"
    ):
        d4rl.read(path, entry=entry(1000))


def test_missing_timeouts_need_a_time_limit(tmp_path: Path) -> None:
    path = hdf5(tmp_path / "a.hdf5", without(arrays(LENGTHS, ENDS), "timeouts"))
    with pytest.raises(
        ValueError, match=r"has no 'timeouts', and its time limit is not known.*Name it by its id"
    ):
        d4rl.read(path)


def test_unequal_lengths_are_named(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    values["actions"] = values["actions"][:-3]
    with pytest.raises(ValueError, match=r"'actions' has 42 rows, 'rewards' has 45"):
        d4rl.read(hdf5(tmp_path / "a.hdf5", values), entry=entry(1000))


def test_an_empty_file_is_refused(tmp_path: Path) -> None:
    values = {key: value[:0] for key, value in arrays(LENGTHS, ENDS).items()}
    with pytest.raises(ValueError, match=r"'a.hdf5' is empty: 'rewards' has no rows"):
        d4rl.read(hdf5(tmp_path / "a.hdf5", values), entry=entry(1000))


def test_a_file_of_timeouts_alone_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"of its 3 rows none is left .*timed out: 3"):
        d4rl.read(hdf5(tmp_path / "a.hdf5", arrays([1, 1, 1], "ooo")), entry=entry(1000))


@pytest.mark.parametrize("key", ["observations", "actions", "rewards"])
@pytest.mark.parametrize("value", [np.nan, np.inf, 1e30])
def test_values_that_are_not_finite_are_named(tmp_path: Path, key: str, value: float) -> None:
    values = arrays(LENGTHS, ENDS)
    # Behind two dropped rows: the message must count as the file does.
    values[key][20, ...] = value
    with pytest.raises(
        ValueError, match=rf"'a.hdf5': '{key}' is .+ in row 20.*not finite or beyond 1e\+18 in 1 of"
    ):
        d4rl.read(hdf5(tmp_path / "a.hdf5", values), entry=entry(1000))


def test_actions_out_of_bounds_are_named_and_can_be_clipped(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    values["actions"][20, 1] = -1.5
    values["actions"][21, 0] = 1.0005
    path = hdf5(tmp_path / "a.hdf5", values)
    with pytest.raises(
        ValueError,
        match=r"'actions' is -1.5 in row 20, dimension 1, outside \[-1, 1\].*clip_actions",
    ):
        d4rl.read(path, entry=entry(1000))
    dataset = d4rl.read(path, entry=entry(1000), clip_actions=True)
    assert (dataset.transitions.action.min(), dataset.provenance["clipped_actions"]) == (-1, 1)


@pytest.mark.parametrize("content", [b"", b"not hdf5 at all", None])
def test_incomplete_files_are_refused(tmp_path: Path, content: bytes | None) -> None:
    path = hdf5(tmp_path / "a.hdf5", arrays([200, 200], "tt"))
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2] if content is None else content)
    with pytest.raises(
        ValueError, match=r"'a.hdf5' \([\d,]+ bytes\) is not a whole HDF5 file: .*load it again"
    ):
        d4rl.read(path, entry=entry(1000))


def test_a_minari_file_is_recognised(tmp_path: Path) -> None:
    path = hdf5(
        tmp_path / "a.hdf5", {f"episode_0/{key}": value for key, value in arrays([3], "t").items()}
    )
    with pytest.raises(ValueError, match=r"is a Minari file. Name the folder"):
        d4rl.read(path, entry=entry(1000))
