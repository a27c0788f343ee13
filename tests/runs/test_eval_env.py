"""Runs that are judged in another environment of the same spaces."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest

from rljax import cli, datasets
from rljax.analysis import folders
from rljax.learning import evaluation
from rljax.learning.loop.training import Training
from rljax.runs import experiments, records
from rljax.runs.policies import evaluate, loading
from tests.cli import commands
from tests.helpers import counting, small_runs

# Inside the program, and on the host.
LEARNS_IN, HEAVY = "rljax/Pendulum", 'Pendulum-v1?{"g": 30.0}'


@pytest.mark.slow
def test_evaluations_play_in_the_other_environment(tmp_path: Path) -> None:
    there = small_runs.train("td3", LEARNS_IN, 200, tmp_path / "there", eval_env=HEAVY)
    here = small_runs.train("td3", LEARNS_IN, 200, tmp_path / "here")
    assert not [
        x for x in small_runs.different_arrays(there, here) if not x.startswith("['state']['best']")
    ]
    policies = loading.load_all(there)
    evaluator = evaluation.make(policies.module, HEAVY, 1, 2, {})
    played = evaluation.evaluate(evaluator, policies.state, policies.settings, 200, policies.config)
    evaluator.close()
    lines, others = (records.read(run, "evaluations")[-1] for run in (there, here))
    assert lines["returns"] == played.returns[0].tolist()
    assert np.mean(lines["returns"]) < np.mean(others["returns"]) - 100.0
    assert evaluate.evaluate_run(there, episodes=2)["environment"] == HEAVY
    assert evaluate.evaluate_run(there, episodes=2, env=LEARNS_IN)["environment"] == LEARNS_IN
    described = records.read_config(there)
    environments = [described[name] for name in ("env", "environment", "eval_env")]
    assert environments == [LEARNS_IN, HEAVY, HEAVY]
    assert described["spaces"] is None, "agents see what the environment inside the program shows"
    of_there = folders.read(there)
    assert of_there.task == (HEAVY, None)
    assert of_there.learners[0].settings["env"] == LEARNS_IN
    small_runs.assert_same(
        there, small_runs.train("td3", LEARNS_IN, 200, tmp_path / "again", eval_env=HEAVY)
    )


@pytest.mark.slow
def test_it_resumes(tmp_path: Path) -> None:
    words = commands.train("td3", HEAVY, "--eval-env", LEARNS_IN)
    cli.main([*words, "--steps", "200", "--out", str(tmp_path / "whole")])
    cli.main([*words, "--steps", "100", "--out", str(tmp_path / "parts")])
    cli.main(["resume", str(tmp_path / "parts"), "--steps", "200", "--quiet"])
    small_runs.assert_same(tmp_path / "whole", tmp_path / "parts")
    spaces = records.read_config(tmp_path / "whole")["spaces"]
    assert spaces is not None, "those of the environment in which it learns, on the host"


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ["sac", "--env", LEARNS_IN, "--eval-env", "rljax/PointHazards"],
            "--eval-env 'rljax/PointHazards' has ",
        ),
        (
            ["sac", "--env", "Pendulum-v1", "--eval-env", "MountainCarContinuous-v0"],
            "Name one that fits.",
        ),
        (
            ["iql", "--data", "DATA", "--env", LEARNS_IN, "--eval-env", HEAVY],
            "--env names the environment that judges",
        ),
        (["sac", "--env", LEARNS_IN, "--eval-env", "Pendulums-v1"], "Pendulums-v1"),
    ],
)
def test_what_does_not_fit_is_refused(
    words: list[str], message: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = datasets.write(counting.recorded(), tmp_path / "data.npz"), tmp_path / "run"
    words = [str(data) if word == "DATA" else word for word in words]
    assert message in commands.refused(["train", *words, "--quiet", "--out", out], capsys)
    assert not (out / "config.json").exists()


def test_code_in_its_name_is_refused_from_others(tmp_path: Path) -> None:
    run = small_runs.trained("td3", LEARNS_IN, 100, tmp_path / "run")
    described = records.read_config(run) | {"eval_env": "evil_module:Evil-v0"}
    records.write_json(run / "config.json", described)
    with pytest.raises(ValueError, match="names code as its eval_env, 'module evil_module'"):
        evaluate.evaluate_run(run)


def test_other_bounds_of_actions_are_noted() -> None:
    def unit(**options: Any) -> Any:
        return gymnasium.wrappers.RescaleAction(gymnasium.make("Pendulum-v1", **options), -1, 1)

    gymnasium.register("UnitPendulum-v0", entry_point=unit, max_episode_steps=200)
    experiment = experiments.prepare("td3", "Pendulum-v1", 2_000, eval_env="UnitPendulum-v0")
    with pytest.warns(UserWarning, match="the bounds of actions in --eval-env 'UnitPendulum-v0'"):
        Training(experiment).close()
