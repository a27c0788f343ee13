"""The numbers of a report."""

from __future__ import annotations

import numpy as np
import pytest

from rljax.analysis import folders, suites, tables
from rljax.analysis.report import results
from tests.helpers import run_folders


def arranged(path):
    return tables.arrange(folders.read_all([path])[0])


def result(path, at=None):
    (table,) = tables.arrange(folders.read_all([path])[0], at)
    return results.task_result(table, at)


def test_leaders_come_first_and_rows_that_are_not_compared_last(tmp_path):
    run_folders.write(tmp_path / "a", "sac", level=1000)
    run_folders.write(tmp_path / "b", "td3", level=2000)
    run_folders.write(tmp_path / "c", "ppo", level=9000, steps=(10_000,))
    found = result(tmp_path)
    assert [each.row.label for each in found.rows] == ["td3", "sac", "ppo"]
    assert [row.label for row, _ in found.leaders] == ["td3", "sac"]
    assert found.lead.value == 1.0
    assert found.decimals == 0


def test_curves_end_at_the_step_of_comparison(tmp_path):
    run_folders.write(tmp_path / "a")
    (row,) = result(tmp_path, at=20_000).rows
    np.testing.assert_array_equal(row.curve.steps, [10_000, 20_000])
    np.testing.assert_allclose(row.curve.centre, [1010 / 3, 2020 / 3])
    assert len(row.curve.learners) == 3


def test_before_the_first_evaluation_there_is_no_curve(tmp_path):
    run_folders.write(tmp_path / "a")
    (row,) = result(tmp_path, at=5_000).rows
    assert not row.row.complete
    assert not len(row.curve.steps)


def test_single_learners_are_left_out_where_there_are_many(tmp_path):
    run_folders.write(tmp_path / "a", seeds=range(21))
    found = result(tmp_path)
    assert not found.detailed
    assert found.rows[0].curve.learners == ()


def test_sources_are_numbered_in_the_order_of_the_page(tmp_path):
    run_folders.write(tmp_path / "a", "td3", steps=(150_000, 300_000), budget=300_000)
    found = result(tmp_path)
    sources = results.number_sources([found])
    assert list(sources.values()) == list(range(1, len(sources) + 1))
    assert next(iter(sources)) == results.source(found.rows[0].published[0])


@pytest.mark.parametrize(("agents", "pairs"), [(2, 1), (5, 10), (6, 5)])
def test_many_agents_are_compared_with_the_best_one_only(tmp_path, agents, pairs):
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        for k in range(agents):
            run_folders.write(
                tmp_path / task / str(k), f"agent{k}", task, level=1000.0 + 100 * k, steps=(30_000,)
            )
    (suite,), _ = suites.find(arranged(tmp_path))
    found = results.suite_result(suite)
    assert found.order == [f"agent{k}" for k in reversed(range(agents))]
    assert len(found.improvement) == pairs
    assert next(iter(found.improvement)) == (found.order[0], found.order[1])
    assert found.efficiency == {}
