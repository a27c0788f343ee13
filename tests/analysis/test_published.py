"""Published results: which points stand beside ours."""

from __future__ import annotations

import csv
from pathlib import Path

import pytest

from rljax.analysis import published

ROOT = Path(__file__).parents[2]


@pytest.mark.parametrize(
    ("environment", "data", "task"),
    [
        ("Hopper-v5", None, "Hopper"),
        ("envpool/Hopper-v5", None, "Hopper"),
        ("brax/hopper", None, "hopper"),
        ("Hopper-v5", "d4rl/hopper-medium-v2", "hopper-medium-v2"),
        ("Hopper-v5", "sets/hopper-medium-v2.hdf5", "hopper-medium-v2"),
        ("x", "neorl2/SafetyHalfCheetah-v0", "SafetyHalfCheetah-v0"),
    ],
)
def test_task_of(environment, data, task):
    assert published.task_of(environment, data) == task


def test_each_source_gives_its_nearest_point():
    found = {
        (p.source.split("@")[0], p.environment): p
        for p in published.points("td3", "Hopper", "return", 320_000)
    }
    assert found["sfujim/TD3", "Hopper-v1"].step == 300_000
    assert found["thu-ml/tianshou", "Hopper-v3"].step == 300_000
    assert ("vwxyzjn/cleanrl", "Hopper-v4") not in found  # 1M steps are no comparison for 320,000
    late = {
        (point.source.split("@")[0], point.step)
        for point in published.points("sac", "Ant", "return", 3_000_000)
    }
    assert late == {("dojeon-ai/SimbaV2", 2_999_880)}  # nor 1M for 3M


def test_data_sets_have_scores():
    (corl, jax_corl) = published.points("iql", "hopper-medium-v2", "score", 1_000_000)
    assert (corl.source.split("@")[0], corl.mean, corl.std, corl.seeds) == (
        "corl-team/CORL",
        67.53,
        3.78,
        4,
    )
    assert jax_corl.seeds == 5
    (safety,) = published.points("bc", "SafetyHalfCheetah-v0", "score", 50_000)
    # Without a number of updates, shown at any step.
    assert (safety.mean, safety.step) == (70.16, None)
    assert published.points("iql", "hopper-medium-v0", "score", 1_000_000) == []


def test_reference_is_that_of_sac_and_above_zero():
    reference = published.reference("Hopper")
    assert reference is not None
    assert (reference.agent, reference.environment, reference.seeds) == ("sac", "Hopper-v4", 10)
    assert published.reference("Reacher") is None  # its returns are negative
    assert published.reference("Pendulum") is None


def test_curve_is_of_one_source_in_order():
    points = published.curve("td3", "Ant", "return")
    assert len({(point.source, point.environment) for point in points}) == 1
    steps = [point.step for point in points if point.step is not None]
    assert steps == sorted(steps)
    assert len(steps) > 2
    assert published.curve("iql", "hopper-medium-v2", "score") == []


def test_table_is_small_and_every_row_has_a_source():
    rows = list(csv.DictReader(published.FILE.read_text().splitlines()))
    assert len(rows) <= 500
    assert all(
        row["source"].count("@") == 1 and row["note"] and int(row["seeds"]) > 1 for row in rows
    )


def test_points_agree_with_the_curves_of_the_results_page():
    curves = {}
    with (ROOT / "results/published/online.csv").open() as file:
        for row in csv.DictReader(file):
            place = row["agent"], row["published_environment"], row["repository"]
            curves[*place, round(int(row["step"]), -3)] = row
    compared = 0
    for row in csv.DictReader(published.FILE.read_text().splitlines()):
        place = row["agent"], row["environment"], row["source"].split("@")[0]
        point = curves.get((*place, round(int(row["step"] or 0), -3)))
        if point is not None:
            compared += 1
            for name in ("mean", "std"):
                assert float(row[name]) == pytest.approx(float(point[name]), abs=0.06)
    assert compared > 50
