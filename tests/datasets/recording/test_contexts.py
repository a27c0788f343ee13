"""Data of tasks that are learnt in context, and the command that records them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rljax import cli, datasets
from rljax.runs.policies import collect
from tests.cli.commands import refused

ROOM = "rljax/DarkRoom-4x4-6"


def lifetimes(dataset: Any, name: str) -> np.ndarray:
    """A column [lifetimes, rows, ...]."""
    t = dataset.transitions
    column = t.extras[name] if name in t.extras else getattr(t, name)
    return np.asarray(column).reshape(len(dataset.episode_starts), -1, *column.shape[1:])


def test_rows_have_the_optimal_action_of_a_random_state() -> None:
    dataset = collect.demonstrated(ROOM, steps=3_000, length=30)
    assert dataset.num == 3_000
    np.testing.assert_array_equal(dataset.lengths(), 30)
    cell, after = (lifetimes(dataset, name) for name in ("observation", "next_observation"))
    optimal, reward = (lifetimes(dataset, name) for name in ("optimal_action", "reward"))
    task = lifetimes(dataset, "task")
    assert len(np.unique(cell.reshape(-1, 2), axis=0)) == 16
    goals = 0
    for i in range(100):
        reached = np.unique(after[i][reward[i] == 1], axis=0)
        assert len(reached) <= 1, "one goal in a lifetime"
        goals += len(reached)
        for goal in reached:
            down, right = (goal - cell[i]).T
            sideways = np.select([right > 0, right < 0], [2, 3], 4)
            np.testing.assert_array_equal(
                optimal[i], np.select([down > 0, down < 0], [0, 1], sideways)
            )
        assert len(np.unique(task[i])) == 1
        assert len(reached) == 0 or task[i, 0] == reached[0] @ (4, 1)
    assert goals > 60
    np.testing.assert_allclose(np.bincount(dataset.transitions.action) / 3_000, 0.2, atol=0.03)


def test_a_learner_finds_the_goal_and_stays() -> None:
    dataset = collect.demonstrated(ROOM, steps=20 * 60 * 6, source="learning", length=60)
    np.testing.assert_array_equal(dataset.lengths(), 60 * 6)
    returns = lifetimes(dataset, "reward").reshape(20, 60, 6).sum(axis=2)
    assert returns[:, -10:].mean() > 2 * returns[:, :10].mean() + 0.5
    cell, after = (lifetimes(dataset, name) for name in ("observation", "next_observation"))
    np.testing.assert_array_equal(cell[:, 1:], after[:, :-1])
    np.testing.assert_array_equal(cell[:, ::6], 0)  # each episode begins in the corner


def test_the_command_writes_what_agents_read(tmp_path: Any, capsys: Any) -> None:
    file = tmp_path / "rooms.npz"
    arguments = ["data", "record", ROOM, str(file), "--steps", "210", "--seed", "3"]
    cli.main(arguments)
    assert "202 transitions" in capsys.readouterr().out
    read = datasets.load(str(file))
    again = collect.demonstrated(ROOM, steps=210, seed=3)
    for name in ("observation", "action", "reward"):
        np.testing.assert_array_equal(
            getattr(read.transitions, name), getattr(again.transitions, name)
        )
    np.testing.assert_array_equal(
        read.transitions.extras["optimal_action"], again.transitions.extras["optimal_action"]
    )
    assert read.signal_sums() == {}, "labels are no signals"


@pytest.mark.parametrize(
    ("env", "options", "message"),
    [
        (ROOM, {"source": "random"}, "--from is 'random', .* or with --from learning by a learner"),
        (ROOM, {"steps": 10}, "--steps is 10, an episode .* has 101"),
        (ROOM, {"length": 1}, "--length is 1, .* at least 2"),
        ("rljax/CombinationLock-5", {"length": 9}, "--length is 9, which is for lifetimes"),
        ("rljax/CombinationLock-5", {"source": "learning"}, r"is recorded by its oracles\.$"),
        ("rljax/LightsOut-3x3", {}, "is no run, and no task that shows its own solution"),
    ],
)
def test_what_cannot_be_recorded_is_refused(env: str, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        collect.demonstrated(env, **({"steps": 1_000} | options))


def test_a_length_is_for_tasks_in_context(tmp_path: Any, capsys: Any) -> None:
    words = ["data", "record", "ogbench/cube-single-play-v0", tmp_path / "x.npz", "--length", 5]
    assert "--length is for tasks that are learnt in context" in refused(words, capsys)
