"""Settings that change on the way."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from rljax.learning import schedules
from rljax.learning.schedules import Piecewise, PopulationBased
from rljax.runs import extract, records, run
from tests.helpers import small_runs

VALUES = {"rate": [1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0], "other": [0.5] * 10}


def test_the_worst_fifth_takes_over_from_the_best_fifth() -> None:
    schedule = PopulationBased({"rate": (0.5, 9.5)}, every=100)
    # worst: 8 and 2, best: 5 and 1
    scores = np.array([3.0, 9.0, 1.0, 5.0, 6.0, 10.0, 4.0, 7.0, np.nan, 8.0])
    assert schedule.change(150, scores, VALUES) is None
    seen: set[tuple[int, int, float]] = set()
    for step in range(100, 20_000, 100):
        change = schedule.change(step, scores, VALUES)
        assert change is not None
        np.testing.assert_array_equal(np.delete(change.parents, [2, 8]), [0, 1, 3, 4, 5, 6, 7, 9])
        assert set(change.parents[[2, 8]]) <= {1, 5}
        for learner in range(10):
            before = VALUES["rate"][change.parents[learner]]
            if learner in (2, 8):
                assert change.values["rate"][learner] in (0.8 * before, 1.2 * before)
                factor = round(change.values["rate"][learner] / before, 3)
                seen.add((learner, int(change.parents[learner]), factor))
            else:
                assert change.values["rate"][learner] == before
        assert change.values["other"] == VALUES["other"]
    assert len(seen) == 8


def test_learners_beyond_a_limit_are_the_worst() -> None:
    schedule = PopulationBased({"rate": (0.0, 100.0)}, every=1, limits={"cost": 25.0})
    returns, cost = np.arange(10.0), np.array([0.0] * 8 + [30.0, 50.0])
    found = schedules.scores(schedule, returns, {"cost": cost, "wear": cost})
    np.testing.assert_allclose(found, [*range(8), -1.2e9, -2e9])
    change = schedule.change(1, found, VALUES)
    assert change is not None
    assert set(change.parents[[8, 9]]) <= {6, 7}
    np.testing.assert_array_equal(schedules.scores(Piecewise([]), returns, {}), returns)


def test_perturbed_settings_stay_in_their_range() -> None:
    schedule = PopulationBased({"rate": (9.0, 10.0)}, every=1)
    scores = np.arange(10.0)
    for step in range(1, 50):
        change = schedule.change(step, scores, VALUES)
        assert change is not None
        assert all(9.0 <= change.values["rate"][learner] <= 10.0 for learner in (0, 1))


@pytest.mark.parametrize("number", [2, 3, 4])
def test_small_populations_have_a_best_and_a_worst(number: int) -> None:
    schedule = PopulationBased({"rate": (0.0, 10.0)}, every=1)
    change = schedule.change(1, np.arange(number, dtype=float), {"rate": [1.0] * number})
    assert change is not None
    np.testing.assert_array_equal(change.parents, [number - 1, *range(1, number)])


def test_a_change_depends_on_its_step_and_seed_alone() -> None:
    scores = np.arange(10.0)

    def values(seed: int) -> Any:
        schedule = PopulationBased({"rate": (0.0, 10.0)}, every=1, seed=seed)
        change = schedule.change(7, scores, VALUES)
        assert change is not None
        return change.values

    assert values(3) == values(3)
    assert any(values(seed) != values(3) for seed in range(9))


def test_a_schedule_is_that_of_the_ancestors() -> None:
    initial = {"rate": [1.0, 2.0, 3.0]}
    changes = [
        {"step": 10, "parents": [1, 1, 2], "values": {"rate": [2.4, 2.0, 3.0]}},
        {"step": 20, "parents": [0, 1, 2], "values": {"rate": [2.4, 2.0, 3.0]}},
        {"step": 30, "parents": [0, 1, 0], "values": {"rate": [2.4, 2.0, 1.92]}},
    ]
    # Learner 2 came from 0 at step 30, which came from 1 at step 10.
    schedule = schedules.schedule_of_learner(2, initial, changes)
    assert schedule == [(0, {"rate": 2.0}), (10, {"rate": 2.4}), (30, {"rate": 1.92})]
    assert schedules.schedule_of_learner(1, initial, changes) == [(0, {"rate": 2.0})]
    change = Piecewise(schedule).change(10, np.zeros(2), {})
    assert change is not None
    assert change.values == {"rate": [2.4, 2.4]}
    assert Piecewise(schedule).change(20, np.zeros(2), {}) is None


@pytest.mark.learn
def test_settings_change_what_is_learnt_and_agents_move(tmp_path: Any) -> None:
    """At a rate of 0 from step 200 on, the actor that was copied there stays what it is."""
    schedule = {"ranges": {"actor_lr": (0.0, 0.0)}, "every": 200}
    config = {"actor_lr": [1e-2, 1e-3], "critic_lr": [1e-3, 2e-3]}
    half = small_runs.train("td3", "rljax/Pendulum", 200, tmp_path / "half", config, seeds=2)
    out = small_runs.train(
        "td3", "rljax/Pendulum", 400, tmp_path / "run", config, seeds=2, schedule=schedule
    )
    (change,) = records.read(out, "changes")
    (loser,) = [p for p, parent in enumerate(change["parents"]) if parent != p]
    before, after = small_runs.arrays(half), small_runs.arrays(out)
    actor = [
        name for name in before if name.startswith("['agent']['state']['actor']['parameters']")
    ]
    assert actor
    for name in actor:
        np.testing.assert_array_equal(after[name][loser], before[name][1 - loser], err_msg=name)
        assert (after[name][1 - loser] != before[name][1 - loser]).any(), name
    assert change["values"]["actor_lr"][loser] == 0
    taken = extract.extract(out, [loser], tmp_path / "taken")
    assert run.read_config(taken)["config"]["actor_lr"] == 0


@pytest.mark.parametrize(
    ("schedule", "message"),
    [
        (
            {"ranges": {"actor_lr": (0, 1)}, "every": 0},
            r"settings are to change every 0 steps, it must be at least 1",
        ),
        (
            {"ranges": {"critic_lr": (0, 1)}, "every": 100},
            r"changes 'critic_lr', so each learner needs its own value",
        ),
    ],
)
def test_schedules_that_cannot_be_are_refused(
    schedule: dict[str, Any], message: str, tmp_path: Any
) -> None:
    with pytest.raises(ValueError, match=message):
        small_runs.train(
            "td3",
            "rljax/Pendulum",
            100,
            tmp_path / "run",
            {"actor_lr": [1e-3, 1e-4]},
            seeds=2,
            schedule=schedule,
        )
