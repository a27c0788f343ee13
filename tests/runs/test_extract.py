"""A learner taken out of a population goes on as it would have gone on inside."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import cli, datasets
from rljax.runs import records, run
from rljax.runs.extract import extract
from rljax.runs.policies import loading
from tests.cli import commands
from tests.helpers import counting, small_runs

CASES = [
    pytest.param("sac", "rljax/Pendulum", id="compiled", marks=pytest.mark.learn),
    pytest.param("td3", "Hopper-v5", id="mujoco", marks=pytest.mark.learn),
    pytest.param("ppo", "Pendulum-v1", id="on-policy", marks=pytest.mark.learn),
    pytest.param("stream_ac", "Pendulum-v1", id="stream", marks=pytest.mark.learn),
]


@pytest.mark.parametrize(("agent", "env"), CASES)
def test_extracted_learners_go_on_as_inside(agent: str, env: str, tmp_path: Path) -> None:
    name = {"ppo": "learning_rate", "stream_ac": "entropy_cost"}.get(agent, "actor_lr")
    config: Any = {name: [1e-4, 1e-4, 3e-4]}
    whole = small_runs.train(agent, env, 200, tmp_path / "whole", config, seeds=(0, 1, 0))
    pair, single = extract(whole, [2, 0], tmp_path / "pair"), extract(whole, [1])
    assert single == tmp_path / "whole-1"
    for out in (whole, pair, single):
        run.resume(out, 300)
    inside, both, alone = (records.read(out, "evaluations") for out in (whole, pair, single))
    lines = {(line["step"], line["learner"]): line for line in inside}
    for own, learners in ((both, [2, 0]), (alone, [1])):
        assert [(line["step"], line["learner"]) for line in own] == [
            (step, number) for step in (100, 200, 300) for number in range(len(learners))
        ]
        for line in own:
            expected = lines[line["step"], learners[line["learner"]]]
            np.testing.assert_allclose(line["returns"], expected["returns"], rtol=2e-3)
            assert (line["seed"], line["lengths"]) == (expected["seed"], expected["lengths"])
    described = records.read_config(pair)
    assert described["learners"] == [
        {"seed": 0, "settings": {name: 3e-4}},
        {"seed": 0, "settings": {name: 1e-4}},
    ]
    assert records.read_config(single)["config"][name] == 1e-4
    metrics = records.read(pair, "metrics")
    for line, expected in zip(metrics, records.read(whole, "metrics"), strict=True):
        for metric, values in line.items():
            if isinstance(values, list) and None not in values:
                np.testing.assert_allclose(
                    values, [expected[metric][2], expected[metric][0]], rtol=0.05, atol=1e-3
                )


@pytest.mark.learn
def test_what_is_taken_out_is_what_was_there_to_the_bit(tmp_path: Path) -> None:
    whole = small_runs.train("td3", "Pendulum-v1", 200, tmp_path / "whole", seeds=3)
    part = extract(whole, [2], tmp_path / "part")
    inside, outside = small_runs.arrays(whole), small_runs.arrays(part)
    assert inside.keys() == outside.keys()
    for place, value in outside.items():
        expected = inside[place] if value.shape == inside[place].shape else inside[place][2:]
        np.testing.assert_array_equal(value, expected, err_msg=place)
    observation = np.array([0.5, 0.5, 1.0], np.float32)
    expected = loading.load(whole, learner=2)(observation)
    np.testing.assert_allclose(loading.load(part)(observation), expected, rtol=1e-6)
    summary = records.read_summary(part)
    assert summary["final"]["mean"] == records.read_summary(whole)["final"]["learners"][2]["mean"]
    assert summary["seeds"] == [2]


@pytest.mark.learn
def test_a_learner_that_diverged_is_still_said_to_have(tmp_path: Path) -> None:
    config = {"critic_lr": [1e-3, 1e18, 1e-3], "warmup_steps": 150}
    whole = small_runs.train("td3", "rljax/Pendulum", 300, tmp_path / "whole", config, seeds=3)
    part = extract(whole, [0, 1], tmp_path / "part")
    (found,) = records.read_summary(part)["diverged"]
    assert found["learner"] == 1
    run.resume(part, 400)
    assert [line.get("diverged") for line in records.read(part, "evaluations")][-2:] == [None, True]


@pytest.mark.learn
def test_learners_of_an_offline_run_are_taken_out(tmp_path: Path) -> None:
    file = datasets.write(counting.recorded(), tmp_path / "data.npz")
    config = {"hidden": (16, 16), "batch_size": 32}
    settings: Any = {"data": str(file), "config": config, **small_runs.EVERY}
    whole = run.train("bc", "Pendulum-v1", 100, out=tmp_path / "whole", seeds=3, **settings)
    part = extract(whole, [1])
    for out in (whole, part):
        run.resume(out, 200)
    expected = [line for line in records.read(whole, "evaluations") if line["learner"] == 1]
    for line, inside in zip(records.read(part, "evaluations"), expected, strict=True):
        np.testing.assert_allclose(line["returns"], inside["returns"], rtol=2e-3)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("learners", "message"),
    [
        ([2], r"learners \[2\]: the run in '.*' has 2, 0 to 1, name each once"),
        ([0, 0], r"name each once"),
        ([], r"name each once"),
        ([0, 1], r"these are all the learners of '.*': copy the folder, or name fewer"),
    ],
)
def test_learners_that_cannot_be_taken_out_are_refused(
    learners: list[int], message: str, tmp_path: Path
) -> None:
    whole = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "whole", seeds=2)
    with pytest.raises(ValueError, match=message):
        extract(whole, learners)
    assert [path.name for path in tmp_path.iterdir()] == ["whole"]


@pytest.mark.learn
def test_the_command_line_takes_learners_out(tmp_path: Path, capsys: Any) -> None:
    whole = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "whole", seeds=2)
    cli.main(["extract", str(whole), "--learners", "1"])
    assert capsys.readouterr().out.strip() == str(tmp_path / "whole-1")
    printed = commands.refused(["extract", whole, "--learners", 1], capsys)
    assert "exists. Choose another --out" in printed
