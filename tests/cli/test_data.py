"""`rljax data` as a user meets it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import datasets
from rljax.cli import data
from tests.datasets.files import arrays, npz


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A file that does not name its environment."""
    return npz(tmp_path / "foreign.npz", arrays([5, 4, 6], "tot"))


@pytest.mark.slow_after(1)
@pytest.mark.parametrize("name", ["mine.npz", "mine.hdf5"])
def test_the_environment_is_kept(
    foreign: Path, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = foreign.with_name(name)
    data.main(["convert", str(foreign), str(path), "--env", "Pendulum-v1"])
    assert datasets.environment(str(foreign)) is None
    assert datasets.environment(str(path)) == datasets.load(str(path)).env == "Pendulum-v1"
    data.main(["info", str(path), "--output", str(foreign.with_name("info.png"))])
    assert "environment: Pendulum-v1\n" in capsys.readouterr().out
    again, other = foreign.with_name(f"again-{name}"), foreign.with_name(f"other-{name}")
    data.main(["convert", str(path), str(again)])
    assert datasets.environment(str(again)) == "Pendulum-v1"
    data.main(["convert", str(path), str(other), "--env", "Hopper-v5"])
    assert datasets.environment(str(other)) == "Hopper-v5"


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "absent.npz", "FILE"],
        ["corrupt", "absent.npz", "FILE", "--what", "reward"],
        ["join", "FILE", "absent.npz"],
        ["record", "absent", "FILE"],
    ],
)
def test_no_file_is_overwritten(foreign: Path, command: list[str]) -> None:
    before = foreign.read_bytes()
    arguments = [str(foreign) if word == "FILE" else word for word in command]
    with pytest.raises(
        ValueError, match=r"'.*foreign.npz' exists. Choose another name, or delete it."
    ):
        data.main(arguments)  # not that there is no 'absent'
    assert foreign.read_bytes() == before


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "absent.npz", "new.html"],
        ["correct", "absent.npz", "absent.npz", "new.html"],
        ["record", "rljax/CombinationLock-10", "new.html"],
    ],
    ids=lambda command: command[0],
)
def test_another_suffix_is_refused_before_any_work(command: list[str]) -> None:
    with pytest.raises(ValueError, match=r"the file is 'new.html', its suffix must be"):
        data.main(command)


@pytest.mark.parametrize(
    ("other", "options", "message"),
    [
        (arrays([5], "t", size=4), {}, r"differ: they have 3 and 4 observation dimensions\.$"),
        (arrays([5], "t", actions=1), {}, r"differ: they have 2 and 1 action dimensions\.$"),
        (
            arrays([5], "t") | {"actions": np.arange(5)},
            {},
            r"differ: their actions are vectors and choices\.$",
        ),
        (
            arrays([5], "t", size=4),
            {"action_bounds": (-2, 2)},
            (
                r"3 and 4 observation dimensions; their actions lie in \[-1, 1\] and in \[-2, 2\] "
                r"\(.*--action-bounds LOW"
            ),
        ),
        (
            arrays([5], "t"),
            {"action_bounds": ([-1, 0], [1, 2])},
            r"in \[-1, 1\] and in \[-1, 1\] x \[0, 2\] \(",
        ),
    ],
)
def test_sets_that_cannot_be_joined_say_what_differs(
    foreign: Path, other: dict[str, Any], options: dict[str, Any], message: str
) -> None:
    path = npz(foreign.with_name("other.npz"), other)
    parts = [datasets.load(str(foreign)), datasets.load(str(path), clip_actions=True, **options)]
    with pytest.raises(ValueError, match=message) as refused:
        datasets.join(parts, "both")
    assert "array" not in str(refused.value)


def test_help_names_what_is_given(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        data.main(["convert", "--help"])
    printed = " ".join(capsys.readouterr().out.replace("│", " ").split())
    assert "DATA name or file" in printed
    assert "FILE file.npz" in printed
    assert "is that of 10% BC" in printed
    assert " STR " not in printed.partition(" options ")[0]


def test_bounds_are_given_per_dimension(tmp_path: Path) -> None:
    low, high = np.array([-1, -3]), np.array([1, 5])
    values = arrays([5, 4, 6], "tot")
    stored = values | {"actions": np.random.default_rng(0).uniform(low, high, (15, 2))}
    path, copy = npz(tmp_path / "a.npz", stored), tmp_path / "copy.npz"
    data.main(["convert", str(path), str(copy), "--action-bounds", "-1,-3", "1,5"])
    bounds: Any = datasets.load(str(copy)).action_bounds
    np.testing.assert_array_equal(bounds, [low, high])
    for words in (["low", "high"], ["1,,2", "3"]):
        with pytest.raises(
            ValueError,
            match="--action-bounds takes two: low and high, each a number, or one number per",
        ):
            data.main(
                ["convert", str(path), str(tmp_path / "other.npz"), "--action-bounds", *words]
            )


def test_the_environment_says_what_the_file_leaves_out(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    values = arrays([5, 4, 6], "tot", actions=1)
    path, copy = (
        npz(tmp_path / "a.npz", values | {"actions": 2 * values["actions"]}),
        tmp_path / "copy.npz",
    )
    data.main(["convert", str(path), str(copy), "--env", "Pendulum-v1"])
    bounds: Any = datasets.load(str(copy)).action_bounds
    np.testing.assert_array_equal(bounds, [[-2], [2]])
    assert "the bounds of Pendulum-v1: -2 to 2" in capsys.readouterr().err
    choices = npz(tmp_path / "choices.npz", values | {"actions": np.zeros(15, np.int64)})
    data.main(["convert", str(choices), str(tmp_path / "cart.npz"), "--env", "CartPole-v1"])
    assert datasets.load(str(choices)).action_size == 1
    assert datasets.load(str(tmp_path / "cart.npz")).action_size == 2
    floats = npz(tmp_path / "floats.npz", values | {"actions": np.resize([0.0, 1.0], 15)})
    with pytest.raises(
        ValueError, match=r"whole numbers, stored as real ones, and 'CartPole-v1' has 2 discrete"
    ):
        data.main(["convert", str(floats), str(tmp_path / "no.npz"), "--env", "CartPole-v1"])
    data.main(["convert", str(choices), str(tmp_path / "unknown.npz"), "--env", "Unknown-v0"])
    assert "'Unknown-v0' cannot be made here" in capsys.readouterr().err


@pytest.mark.slow
def test_tasks_with_a_known_solution_are_recorded_by_name(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    task, path = "rljax/CombinationLock-3-discrete", tmp_path / "lock.npz"
    data.main(["record", task, str(path), "--steps", "32"])
    assert "30 transitions, return" in capsys.readouterr().out
    found = datasets.load(str(path))
    assert (found.env, found.action_size, found.episode_lengths.tolist()) == (task, 10, [3] * 10)
    other = str(tmp_path / "other.npz")
    for arguments, message in (
        ([task, other, "--steps", "2"], r"--steps is 2, an episode of '.*' has 3"),
        (
            ["rljax/Pendulum", other],
            r"'rljax/Pendulum' is no run, and no task that shows its own solution",
        ),
        ([task, other, "--from", "replay"], r"are of runs; '.*' is recorded by its oracles"),
    ):
        with pytest.raises(ValueError, match=message):
            data.main(["record", *arguments])
