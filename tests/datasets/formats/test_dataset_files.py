"""Files by path: round trips, other layouts, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from rljax.agent import Part
from rljax.cli import data
from rljax.datasets.publishers import d4rl
from tests.datasets.files import arrays, findings, hdf5, load, npz, same, shared, without

LENGTHS, ENDS = [7, 1, 5, 3, 9], "tonbt"


def recorded(tmp_path: Path, **options: Any) -> datasets.OfflineDataset:
    """Of D4RL, with environment and references."""
    path = hdf5(tmp_path / "recorded.hdf5", arrays([7, 2, 5, 3], "toto"))
    return d4rl.read(
        path,
        "d4rl/hopper-test-v0",
        d4rl.Entry("hopper-test-v0", "a", (-20.0, 3000.0), 1000),
        **options,
    )


@pytest.mark.parametrize("name", ["copy.npz", "copy.hdf5", "copy.h5"])
def test_a_written_dataset_reads_back_as_the_same(tmp_path: Path, name: str) -> None:
    dataset = recorded(tmp_path)
    path = datasets.write(dataset, tmp_path / "below" / name)
    copy = datasets.load(str(path))
    same(copy, dataset)
    assert (copy.env, copy.reference, copy.max_episode_steps) == (
        "Hopper-v5",
        (-20.0, 3000.0),
        1000,
    )
    assert copy.complete == dataset.complete
    np.testing.assert_array_equal(copy.action_bounds, dataset.action_bounds)
    assert copy.provenance["origin"]["rules"] == dataset.provenance["rules"]
    assert [child.name for child in path.parent.iterdir()] == [name], "nothing else is left there"


@pytest.mark.parametrize("name", ["copy.npz", "copy.hdf5"])
def test_actions_with_other_bounds_are_kept_to_the_bit(tmp_path: Path, name: str) -> None:
    values = arrays([50, 50], "to", actions=3)
    low, high = np.array([-2.0, 0.0, -0.3], np.float32), np.array([2.0, 5.0, 0.7], np.float32)
    values["actions"] = (
        np.random.default_rng(1).uniform(low, high, values["actions"].shape).astype(np.float32)
    )
    dataset = datasets.load(str(npz(tmp_path / "a.npz", values)), action_bounds=(low, high))
    assert np.abs(dataset.transitions.action).max() <= 1
    np.testing.assert_allclose(
        low + (dataset.transitions.action + 1) / 2 * (high - low),
        values["actions"],
        rtol=0,
        atol=1e-6,
    )
    same(datasets.load(str(datasets.write(dataset, tmp_path / name))), dataset)


def test_discrete_actions_are_kept(tmp_path: Path) -> None:
    values = arrays([5, 4], "to")
    values["actions"] = np.arange(9) % 3
    dataset = load(tmp_path, values)
    assert (dataset.discrete, dataset.action_size, dataset.action_bounds) == (True, 3, None)
    assert dataset.transitions.action.dtype == np.int32
    dataset = datasets.subset(dataset, np.arange(2))
    assert dataset.action_size == 2
    dataset.provenance["num_actions"] = 5
    copy = datasets.load(str(datasets.write_hdf5(dataset, tmp_path / "b.hdf5")))
    assert copy.action_size == 5
    same(copy, dataset)


def test_hdf5_is_d4rls_layout(tmp_path: Path) -> None:
    import h5py

    dataset = recorded(tmp_path)
    path = datasets.write_hdf5(dataset, tmp_path / "a.hdf5")
    with h5py.File(path) as file:
        assert set(d4rl.REQUIRED) | {"timeouts", "next_observations", "metadata"} == set(file)
        assert np.asarray(file["metadata/env"]).item() == b"Hopper-v5"
        assert json.loads(np.asarray(file["metadata/rljax"]).item())["reference"] == [-20.0, 3000.0]


def test_a_failed_write_leaves_the_old_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    dataset = recorded(tmp_path)
    path = datasets.write_archive(dataset, tmp_path / "below" / "a.npz")
    before = path.read_bytes()

    def fail(file: Any, **values: Any) -> None:
        file.write(b"half")
        raise OSError("no space left on device")

    monkeypatch.setattr(np, "savez_compressed", fail)
    with pytest.raises(OSError, match="no space"):
        datasets.write_archive(dataset, path)
    assert path.read_bytes() == before
    assert list(path.parent.iterdir()) == [path]


@pytest.mark.parametrize(("write", "name"), [("write_archive", "a.hdf5"), ("write_hdf5", "a.npz")])
def test_suffixes_are_checked(tmp_path: Path, write: str, name: str) -> None:
    with pytest.raises(ValueError, match=rf"the file is '{name}', its suffix must be"):
        getattr(datasets, write)(recorded(tmp_path), tmp_path / name)


ALIASES = [
    {
        "observations": "observation",
        "actions": "action",
        "rewards": "reward",
        "terminals": "terminal",
    },
    {"observations": "obs", "actions": "act", "rewards": "rew", "next_observations": "obs_next"},
    {"terminals": "terminations", "timeouts": "truncations", "next_observations": "next_obs"},
    {"terminals": "terminated", "timeouts": "truncated", "next_observations": "next_observation"},
    {"timeouts": "timeout"},
]


@pytest.mark.parametrize("renamed", ALIASES)
def test_aliases_are_the_same_arrays(tmp_path: Path, renamed: dict[str, str]) -> None:
    values = arrays(LENGTHS, ENDS)
    expected = load(tmp_path, values)
    same(load(tmp_path, {renamed.get(key, key): x for key, x in values.items()}), expected)
    assert expected.num == 25, "every row is kept where successors are stored"
    following = expected.transitions.next_observation
    np.testing.assert_array_equal(following, values["next_observations"])


def test_done_less_the_time_limit_is_terminal(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    both = values["terminals"] | values["timeouts"]
    limits = values["timeouts"] & ~values["terminals"]
    plain = without(values, "terminals", "timeouts") | {"done": both}
    dataset = load(tmp_path, plain | {"timeouts": limits})
    np.testing.assert_array_equal(dataset.transitions.terminated, values["terminals"])
    alone = load(tmp_path, plain)
    np.testing.assert_array_equal(alone.transitions.terminated, both)
    assert "time limits were not recorded" in findings(alone)["assumed"].where


def test_without_successors_the_last_row_goes_unless_it_is_terminal(tmp_path: Path) -> None:
    values = arrays([4, 3, 2], "tot")
    dataset = load(tmp_path, without(values, "next_observations"))
    t, rows = dataset.transitions, [0, 1, 2, 3, 4, 5, 7, 8]
    assert np.flatnonzero(t.terminated).tolist() == [3, 7]
    assert np.flatnonzero(t.truncated).tolist() == [5]
    np.testing.assert_array_equal(t.observation, values["observations"][rows])
    following = values["observations"][[1, 2, 3, 3, 5, 6, 8, 8]]
    np.testing.assert_array_equal(t.next_observation, following)
    assert dataset.provenance["dropped"] == {"last of a trajectory, without a successor": 1}
    assert dataset.complete


def test_an_episode_that_the_end_of_the_file_cuts_is_incomplete(tmp_path: Path) -> None:
    dataset = load(tmp_path, arrays([4, 3], "tn"))
    assert dataset.transitions.truncated[-1]
    assert (dataset.lengths().tolist(), len(dataset.episode_starts)) == ([4], 2)


def test_stable_baselines_recording() -> None:
    path = shared("offline", "sb_expert_pendulum.npz")
    with pytest.raises(
        ValueError, match=r"'actions' is -?1\.\d+ in row \d+, dimension 0, outside \[-1, 1\]"
    ):
        datasets.load(str(path))
    dataset = datasets.load(str(path), action_bounds=(-2, 2))
    with np.load(path) as file:
        returns = file["episode_returns"]
    assert dataset.num == 20000 - 100
    np.testing.assert_allclose(dataset.returns(), returns, atol=17)
    assert dataset.returns().mean() == pytest.approx(-150, abs=2)
    assert not np.asarray(dataset.transitions.terminated).any()
    assert set(dataset.lengths()) == {199}


def test_tianshou_recordings() -> None:
    dataset = datasets.load(str(shared("offline", "tianshou_expert_SAC_Pendulum.npz")))
    assert dataset.returns().mean() == pytest.approx(-171.66, abs=0.01)
    assert not np.asarray(dataset.transitions.terminated).any(), (
        "'done' of a time limit is no terminal"
    )
    cartpole = datasets.load(str(shared("offline", "tianshou_expert_QRDQN_CartPole.npz")))
    assert (cartpole.discrete, cartpole.action_size) == (True, 2)
    assert cartpole.returns().mean() == pytest.approx(200)
    finding = findings(cartpole)["successors_do_not_follow"]
    assert finding.count == 57, "the buffers of ten environments, one behind the other"


@pytest.mark.parametrize("task", ["Ant", "HalfCheetah", "Hopper", "Walker2d"])
def test_course_recordings_need_clipping(task: str) -> None:
    path = str(shared("offline", f"cs285_expert_{task}-v4.npz"))
    with pytest.raises(
        ValueError,
        match=r"'action' is .* outside \[-1, 1\], as \d+ of 2000 rows .*clip_actions=True",
    ):
        datasets.load(path)
    dataset = datasets.load(path, clip_actions=True)
    assert dataset.lengths().tolist() == [1000, 1000]
    assert dataset.provenance["clipped_actions"] > 0
    assert not findings(dataset, "error")


def test_demonstrations_with_episode_lengths() -> None:
    dataset = datasets.load(
        str(shared("offline", "dapg_door-v0_human_demos.npz")), clip_actions=True
    )
    assert (len(dataset.returns()), dataset.num) == (25, 6729 - 25)
    assert "all ends count as truncated" in dataset.provenance["notes"][0]


@pytest.mark.parametrize(
    ("missing", "message"),
    [
        ("observations", r"has no 'observations' \(nor 'observation', 'obs'\); it has: actions, "),
        ("actions", r"has no 'actions'"),
        ("rewards", r"has no 'rewards'"),
        ("terminals", r"has no 'terminals' .*bootstrapped for ever"),
    ],
)
def test_missing_arrays_are_named(tmp_path: Path, missing: str, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, without(arrays(LENGTHS, ENDS), missing))


def test_a_file_of_ogbench_must_be_loaded_by_name(tmp_path: Path) -> None:
    values = without(arrays(LENGTHS, ENDS), "rewards") | {"qpos": np.zeros((25, 3))}
    with pytest.raises(ValueError, match=r"OGBench's files hold none: load them by name"):
        load(tmp_path, values)


def test_python_objects_are_refused(tmp_path: Path) -> None:
    objects = {"observations": np.array([{"a": 1}] * 25, dtype=object)}
    with pytest.raises(
        ValueError,
        match=r"'a.npz': 'observations' holds Python objects, and unpickling runs whatever",
    ):
        load(tmp_path, arrays(LENGTHS, ENDS) | objects)


@pytest.mark.parametrize("content", [b"", b"not an archive", None, "array", "damaged"])
def test_incomplete_archives_are_refused(tmp_path: Path, content: Any) -> None:
    path = tmp_path / "a.npz"
    np.savez_compressed(path, **arrays([300], "t"))
    whole = path.read_bytes()
    if content == "array":
        with path.open("wb") as file:
            np.save(file, np.zeros(3))
    else:
        damaged = whole[:200] + bytes(200) + whole[400:]
        contents = {None: whole[: len(whole) // 2], "damaged": damaged}
        path.write_bytes(contents.get(content, content))
    with pytest.raises(
        ValueError, match=r"'a.npz' \([\d,]+ bytes\) is not a whole .npz archive: .*load it again"
    ):
        datasets.load(str(path))


def test_unequal_lengths_and_shapes(tmp_path: Path) -> None:
    choices = np.append(np.zeros(24, int), -1)
    cases = [
        ({"next_observations": np.zeros((24, 3))}, "has 24 rows, 'rewards' has 25"),
        ({"rewards": np.zeros((25, 2))}, r"'rewards' has shape \(25, 2\), it must be \[rows\]"),
        ({"actions": choices}, "'actions' is -1 in row 24; discrete actions count from 0"),
    ]
    values = arrays(LENGTHS, ENDS)
    for changes, message in cases:
        with pytest.raises(ValueError, match=message):
            load(tmp_path, values | changes)
    lengths = without(values, "terminals") | {"episode_lengths": np.array([20, 4])}
    with pytest.raises(ValueError, match=r"'episode_lengths' sum up to 24, not 25"):
        load(tmp_path, lengths)


def test_episode_lengths_and_starts_are_ends(tmp_path: Path) -> None:
    values = without(arrays(LENGTHS, "ooooo"), "terminals", "timeouts")
    starts = np.isin(np.arange(25), np.cumsum([0, *LENGTHS[:-1]]))
    for ends in ({"episode_lengths": np.array(LENGTHS)}, {"episode_starts": starts}):
        for name in ("a.npz", "a.h5"):
            assert load(tmp_path, values | ends, name).lengths().tolist() == LENGTHS


ILL_FORMED: list[tuple[str, Any, str]] = [
    (
        "observations",
        np.float32(1),
        r"'observations' has shape \(\), it must be \[rows, ...\] with at least one number",
    ),
    (
        "observations",
        np.zeros((25, 0)),
        r"'observations' has shape \(25, 0\), it must be \[rows, ...\]",
    ),
    ("actions", np.zeros((25, 0)), r"'actions' has shape \(25, 0\)"),
    ("rewards", np.float32(0), r"'rewards' has shape \(\)"),
    (
        "observations",
        np.full((25, 2), b"a"),
        r"'observations' is of type .*, it must hold numbers. Store it as float32",
    ),
    ("actions", np.full(25, b"left"), r"'actions' is of type .*, it must hold numbers"),
    ("rewards", np.full(25, 1j), r"'rewards' is of type complex128, it must hold numbers"),
    ("terminals", np.full(25, np.nan), r"'terminals' is nan in row 0, it must be 0 or 1"),
    (
        "timeouts",
        np.append(np.zeros(24), np.inf),
        r"'timeouts' is inf in row 24, it must be 0 or 1",
    ),
]


@pytest.mark.parametrize(("key", "value", "message"), ILL_FORMED)
@pytest.mark.parametrize("name", ["a.npz", "a.hdf5", "hopper_medium-v2.hdf5"])
def test_arrays_that_hold_no_numbers_are_refused(
    tmp_path: Path, name: str, key: str, value: Any, message: str
) -> None:
    with pytest.raises(ValueError, match=rf"'{name}': {message}"):
        load(tmp_path, arrays(LENGTHS, ENDS) | {key: value}, name)


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5", "hopper_medium-v2.hdf5"])
@pytest.mark.parametrize(
    "key", ["observations", "next_observations", "actions", "rewards", "terminals"]
)
def test_groups_are_refused(tmp_path: Path, name: str, key: str) -> None:
    parts = {f"{key}/state": np.zeros((25, 2)), f"{key}/goal": np.zeros((25, 2))}
    message = rf"'{name}': '{key}' is a group \(goal, state\), it must be one array. Put the group"
    with pytest.raises(ValueError, match=message + "'s arrays side by side"):
        load(tmp_path, without(arrays(LENGTHS, ENDS), key) | parts, name)


def test_an_array_whose_name_is_no_text_is_not_read(tmp_path: Path) -> None:
    """h5py gives its name as bytes."""
    import h5py

    path = hdf5(tmp_path / "a.hdf5", arrays(LENGTHS, ENDS))
    sound = datasets.load(str(path))
    with h5py.File(path, "r+") as file:
        h5py.h5o.copy(file.id, b"rewards", file.id, b"\xff\xferewards")
    same(datasets.load(str(path)), sound)
    assert "unread_arrays" in findings(datasets.load(str(path)))
    with h5py.File(path, "r+") as file:
        del file["rewards"]
    with pytest.raises(ValueError, match=r"'a\.hdf5' has no 'rewards'"):
        datasets.load(str(path))


def test_commands_in_the_message_about_bounds_exist(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    values["actions"] *= 2
    path, new = npz(tmp_path / "a.npz", values), tmp_path / "new.npz"
    with pytest.raises(ValueError, match="outside") as refused:
        datasets.load(str(path))
    for flags in (["--action-bounds", "-2", "2"], ["--clip-actions"]):
        assert f"rljax data convert FILE NEW {flags[0]}" in str(refused.value)
        data.main(["convert", str(path), str(new), *flags])
        assert np.abs(datasets.load(str(new)).transitions.action).max() <= 1
        new.unlink()


@pytest.mark.parametrize("bounds", [(1, -1), (-1,), "wide", ([-1, -1, -1], 1), (-np.inf, np.inf)])
def test_bounds_are_checked(tmp_path: Path, bounds: Any) -> None:
    with pytest.raises(ValueError, match=r"action_bounds is .*; it must be two, low below high"):
        load(tmp_path, arrays(LENGTHS, ENDS), action_bounds=bounds)


def test_files_of_a_newer_layout_are_refused(tmp_path: Path) -> None:
    values = arrays(LENGTHS, ENDS)
    values["metadata"] = np.array('{"format": "rljax dataset 3"}')
    with pytest.raises(
        ValueError,
        match=r"'a.npz' is a 'rljax dataset 3', this rljax reads up to 'rljax dataset 2'",
    ):
        load(tmp_path, values)
    values["metadata"] = np.array("of another program")
    assert load(tmp_path, values).num == 25


def test_our_file_under_a_name_of_d4rls_is_still_ours(tmp_path: Path) -> None:
    dataset = recorded(tmp_path)
    path = datasets.write_hdf5(dataset, tmp_path / "hopper_medium-v2.hdf5")
    same(datasets.load(str(path)), dataset)


@pytest.mark.parametrize("name", ["a.npz", "a.hdf5"])
def test_signals_are_columns_beside_the_rewards(
    tmp_path: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    values = arrays([3, 4], "to")
    pairs = np.arange(14.0).reshape(7, 2)
    values |= {"costs": np.array([1.0, 0, 1, 0, 0, 0, 5]), "signals/objectives": pairs}
    path = (npz if name.endswith("npz") else hdf5)(tmp_path / name, values)
    dataset = datasets.load(str(path))
    assert dataset.spec.signals == (Part("cost", ()), Part("objectives", (2,)))
    np.testing.assert_array_equal(dataset.transitions.extras["objectives"], pairs)
    sums = {"cost": [2.0, 5.0], "objectives/0": [6.0, 36.0], "objectives/1": [9.0, 40.0]}
    assert {signal: x.tolist() for signal, x in dataset.signal_sums().items()} == sums
    copy = datasets.load(str(datasets.write_archive(dataset, tmp_path / "copy.npz")))
    copy = datasets.load(str(datasets.write_hdf5(copy, tmp_path / "copy.hdf5")))
    same(copy, dataset)
    assert copy.signal_sums().keys() == sums.keys()
    np.testing.assert_array_equal(
        copy.transitions.extras["cost"], dataset.transitions.extras["cost"]
    )
    some = datasets.subset(copy, np.arange(3, 7))
    assert some.transitions.extras["cost"].tolist() == [0, 0, 0, 5]
    data.main(["info", str(path), "--output", str(tmp_path / "a.png")])
    assert "cost per episode: mean 3.50" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"costs": np.zeros(6)}, "'signals/cost' has 6 rows, 'rewards' has 7"),
        ({"costs": np.full(7, np.nan)}, "the signal 'cost' has values that are not finite"),
        ({"signals/return": np.zeros(7)}, "has a signal called 'return'. Choose another name"),
        ({"signals/cost": np.array(["a"] * 7)}, "cost' is of type <U1, it must hold numbers"),
    ],
)
def test_columns_that_are_no_signals_are_refused(
    tmp_path: Path, changes: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message):
        load(tmp_path, arrays([3, 4], "to") | changes)


def test_done_beside_terminals_marks_other_ends_and_a_second_cost_is_not_read(
    tmp_path: Path,
) -> None:
    values = without(arrays([3, 4], "to"), "timeouts")
    done = np.isin(np.arange(7), [2, 6])
    values |= {"done": done, "costs": np.ones(7), "cost": np.zeros(7)}
    dataset = datasets.load(str(npz(tmp_path / "a.npz", values)))
    ends = dataset.transitions.terminated | dataset.transitions.truncated
    assert ends.tolist() == done.tolist()
    assert (dataset.provenance["unread"], dataset.transitions.extras["cost"][0]) == (["cost"], 1)
