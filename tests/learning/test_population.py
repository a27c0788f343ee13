"""Learners that diverge are marked and frozen, and nobody else notices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax.numpy as jnp
import numpy as np
import pytest

from rljax.agents import td3
from rljax.learning import population
from rljax.learning.population import Member
from rljax.runs import checkpoints, failures, records, run
from tests.helpers import small_runs

# No critic survives the second one's learning rate, from step 150 on.
DIVERGES = {"critic_lr": [1e-3, 1e18, 1e-3], "warmup_steps": 150}


def states(out: Path) -> dict[str, np.ndarray]:
    found = small_runs.arrays(out)
    return {name: x for name, x in found.items() if name.startswith("['agent']")}


@pytest.mark.parametrize(
    ("agent", "env", "name", "wild"),
    [
        pytest.param("td3", "rljax/Pendulum", "critic_lr", 1e18, id="compiled"),
        pytest.param("td3", "Pendulum-v1", "critic_lr", 1e18, id="hosted"),
        pytest.param("ppo", "Pendulum-v1", "learning_rate", 1e38, id="hosted-on-policy"),
        pytest.param("stream_ac", "Pendulum-v1", "entropy_cost", 1e38, id="stream"),
    ],
)
@pytest.mark.learn
def test_a_learner_that_diverges_is_frozen_and_the_others_do_not_notice(
    agent: str, env: str, name: str, wild: float, tmp_path: Path, capsys: Any
) -> None:
    broken = small_runs.train(
        agent, env, 400, tmp_path / "broken", {name: [1e-3, wild, 1e-3]}, seeds=3
    )
    well = small_runs.train(agent, env, 400, tmp_path / "well", {name: [1e-3, 1e-3, 1e-3]}, seeds=3)

    summary = records.read_summary(broken)
    (found,) = summary["diverged"]
    assert found["learner"] == 1
    assert summary["complete"]
    warned = capsys.readouterr().err
    assert f"of learner 1 (seed 1, {name.replace('_', '-')}={wild:g}) is not finite" in warned
    assert "it is kept as it was before, the others go on" in warned

    one, other = states(broken), states(well)
    for place, value in one.items():
        assert np.isfinite(value.astype(np.float64)).all(), place
        np.testing.assert_array_equal(value[[0, 2]], other[place][[0, 2]], err_msg=place)
    for line in records.read(broken, "metrics"):
        for metric, values in line.items():
            if isinstance(values, list) and line["step"] >= found["step"]:
                assert values[1] is None, metric
    evaluations = records.read(broken, "evaluations")
    assert len(evaluations) == 3 * 4
    for line in evaluations:
        lost = line["learner"] == 1 and line["step"] >= found["step"]
        assert line.get("diverged", False) == lost
    assert all(np.isfinite(line["returns"]).all() for line in evaluations)


@pytest.mark.learn
def test_a_frozen_learner_stays_frozen_when_the_run_is_resumed(tmp_path: Path) -> None:
    small_runs.train("td3", "Pendulum-v1", 400, tmp_path / "whole", DIVERGES, seeds=3)
    small_runs.train("td3", "Pendulum-v1", 200, tmp_path / "half", DIVERGES, seeds=3)
    before = states(tmp_path / "half")
    run.resume(tmp_path / "half", 400)
    small_runs.assert_same(tmp_path / "whole", tmp_path / "half")
    after = states(tmp_path / "half")
    changed = [name for name in before if before[name].ndim > 1]
    assert changed
    for name in changed:
        np.testing.assert_array_equal(before[name][1], after[name][1], err_msg=name)
    assert any((before[name][0] != after[name][0]).any() for name in changed)


@pytest.mark.learn
def test_where_all_have_diverged_the_run_stops_and_the_summary_says_so(tmp_path: Path) -> None:
    config = {"critic_lr": [1e18, 1e17], "warmup_steps": 150}
    with pytest.raises(
        failures.Diverged,
        match=r"nothing was saved after it\. No other learner is left\. The last good",
    ):
        small_runs.train("td3", "rljax/Pendulum", 5_000, tmp_path / "run", config, seeds=2)
    summary = records.read_summary(tmp_path / "run")
    assert [found["learner"] for found in summary["diverged"]] == [0, 1]
    assert not summary["complete"]
    assert checkpoints.steps(tmp_path / "run/checkpoints") == [100]


@pytest.mark.slow
def test_what_is_kept_was_finite() -> None:
    frozen = population.Frozen(2)
    frozen.remember({"weights": jnp.array([[1.0, 2.0], [3.0, 4.0]]), "count": jnp.array([1, 1])})
    spoiled = {"weights": jnp.array([[5.0, 6.0], [7.0, jnp.nan]]), "count": jnp.array([2, 2])}
    frozen.remember(spoiled)
    frozen.records[1] = {}
    back = frozen.put_back(spoiled)
    np.testing.assert_array_equal(back["weights"], [[5.0, 6.0], [3.0, 4.0]])
    np.testing.assert_array_equal(back["count"], [2, 1])


def test_learners_are_told_apart_by_seed_and_settings() -> None:
    config = td3.Config(actor_lr=(1e-4, 1e-4, 3e-4, 3e-4), discount=0.9)  # type: ignore[arg-type]
    rows = population.members(config, [0, 1, 0, 1])
    assert rows[2] == Member(0, {"actor_lr": 3e-4})
    assert population.settings(rows) == [({"actor_lr": 1e-4}, [0, 1]), ({"actor_lr": 3e-4}, [2, 3])]
    assert population.settings(population.members(td3.Config(), [3, 5])) == [({}, [0, 1])]
    with pytest.raises(
        ValueError,
        match=r"^learners 0 and 2 are the same: seed 0 with actor-lr=0.0001\. Each learner",
    ):
        population.members(td3.Config(actor_lr=(1e-4, 1e-4, 1e-4)), [0, 1, 0])  # type: ignore[arg-type]
    with pytest.raises(ValueError, match=r"^learners 0 and 1 are the same: seed 4\. Each"):
        population.members(td3.Config(), [4, 4])


def test_part_of_a_population_has_one_number_where_it_agrees() -> None:
    config = td3.Config(actor_lr=(1e-4, 1e-4, 3e-4), discount=(0.9, 0.8, 0.8))  # type: ignore[arg-type]
    part = population.of_learners(config, [0, 1])
    assert (part.actor_lr, part.discount) == (1e-4, (0.9, 0.8))
    assert population.of_learners(config, [2]) == td3.Config(actor_lr=3e-4, discount=0.8)


def test_settings_are_shown_as_they_are_written() -> None:
    values = {"actor_lr": 1e-4, "hidden": (256, 256), "layer_norm": True, "decay_steps": None}
    assert (
        population.label(values)
        == "actor-lr=0.0001 hidden=256x256 layer-norm=true decay-steps=none"
    )


@pytest.mark.learn
def test_the_summary_tells_settings_apart(tmp_path: Path) -> None:
    config = {"actor_lr": [1e-4, 1e-4, 3e-4, 3e-4]}
    out = small_runs.train(
        "td3", "rljax/Pendulum", 200, tmp_path / "run", config, seeds=(0, 1, 0, 1)
    )
    summary = records.read_summary(out)
    assert summary["final"] is None
    values = [entry["values"] for entry in summary["settings"]]
    assert values == [{"actor_lr": 1e-4}, {"actor_lr": 3e-4}]
    last = [line for line in records.read(out, "evaluations") if line["step"] == 200]
    returns = {line["learner"]: line["returns"] for line in last}
    for entry in summary["settings"]:
        expected = np.mean([returns[learner] for learner in entry["learners"]])
        assert entry["final"]["mean"] == pytest.approx(expected)
        assert len(entry["final"]["learners"]) == 2
    described = records.read_config(out)
    assert described["learners"][3] == {"seed": 1, "settings": {"actor_lr": 3e-4}}
