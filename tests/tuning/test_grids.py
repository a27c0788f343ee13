"""Grids: every combination is trained once, in few programs."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import cli
from rljax.agents import iql, td3
from rljax.learning.loop import Training
from rljax.learning.plan import Experiment
from rljax.runs import experiments, failures, records
from rljax.system import hardware
from rljax.tuning import grid_axes, grids
from tests.cli import commands
from tests.helpers import small_runs
from tests.runs import parts

AXES = {"actor_lr": (1e-4, 3e-4), "hidden": ((16, 16), (8, 8)), "discount": (0.9, 0.99)}


def experiment(
    steps: int = 200, seeds: int = 2, env: str = "rljax/Pendulum", **config: Any
) -> Experiment:
    return experiments.prepare(
        "td3", env, steps, seeds=seeds, config=small_runs.SMALL | config, **small_runs.EVERY
    )


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("config.actor-lr=1e-4,3e-4", "actor_lr", (1e-4, 3e-4)),
        ("config.batch-size=32,64", "batch_size", (32, 64)),
        ("config.warmup-steps=1e2,2e2", "warmup_steps", (100, 200)),
        ("config.replay-size=1e6,1_000,2.5e5", "replay_size", (1_000_000, 1_000, 250_000)),
        ("config.layer-norm=true,false", "layer_norm", (True, False)),
        ("config.hidden=256x256,64", "hidden", ((256, 256), (64,))),
        ("config.activation=relu,tanh", "activation", ("relu", "tanh")),
        ("config.tau=0.005,0.01", "target_rate", (0.005, 0.01)),
    ],
)
def test_axes_are_read(text: str, name: str, values: tuple[Any, ...]) -> None:
    assert grid_axes.parse([text], td3.Config()) == {name: values}


def test_none_is_a_value_where_a_setting_can_be_off() -> None:
    assert grid_axes.parse(["config.decay-steps=none,1000"], iql.Config()) == {
        "decay_steps": (None, 1000)
    }


@pytest.mark.parametrize(
    ("texts", "message"),
    [
        (
            ["actor-lr=1e-4"],
            r"^--grid actor-lr=1e-4: write a setting and its values, such as config.actor-lr=1e",
        ),
        (["config.actor-lr"], r"^--grid config.actor-lr: write a setting and its values"),
        (
            ["config.actor-rl=1,2"],
            r"^--grid config.actor-rl: no setting 'actor_rl'\. Nearest: 'actor_lr'",
        ),
        (
            ["config.actor-lr=1e-4,high"],
            r"^--grid config.actor-lr: 'high' is no value of 'actor_lr', which is float\.",
        ),
        (
            ["config.hidden=256-256"],
            r"'256-256' is no value of 'hidden', which is integers such as 256x256\.",
        ),
        (["config.warmup-steps=1e2,1.5"], r"'1\.5' is no value of 'warmup_steps', which is int\."),
        (["config.warmup-steps=100,1e2"], r"a value is given twice\."),
        (["config.layer-norm=yes"], r"'yes' is no value of 'layer_norm', which is bool\."),
        (["config.activation=swosh"], r"'activation' is 'swosh', it must be one of "),
        (["config.actor-lr=1e-4,0.0001"], r"a value is given twice\."),
        (
            ["config.actor-lr=1", "config.actor-lr=2"],
            r"^--grid config.actor-lr is given twice: write all its values",
        ),
        (
            ["config.tau=1", "config.target-rate=2"],
            r"^--grid config.target-rate is given twice: write all its values",
        ),
    ],
)
def test_what_is_no_axis_is_refused(texts: list[str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        grid_axes.parse(texts, td3.Config())


def test_every_combination_and_seed_is_a_learner_of_one_program_for_each_shape() -> None:
    made = grids.launches(td3.Config(), grid_axes.points(AXES), [0, 1, 2])
    assert [launch.shape for launch in made] == [{"hidden": (16, 16)}, {"hidden": (8, 8)}]
    for launch in made:
        rates, discounts = launch.config.actor_lr, launch.config.discount
        found = set(zip(launch.seeds, rates, discounts, strict=True))
        assert found == {
            (s, rate, discount)
            for s in (0, 1, 2)
            for rate in (1e-4, 3e-4)
            for discount in (0.9, 0.99)
        }
        assert len(launch.seeds) == 12
        assert launch.config.hidden == launch.shape["hidden"]


def test_a_plan_says_what_will_run() -> None:
    text = str(grids.plan(experiment(), grid_axes.points(AXES)))
    assert text.startswith("16 learners in 2 programs one after the other:\n")
    assert "config.actor-lr = 0.0001, 0.0003: an axis of the program\n" in text
    assert "config.hidden = 16x16, 8x8: a program for each value\n" in text
    assert "program 1: 8 learners, 0.00 GB of state, hidden=8x8\n" in text


@pytest.mark.slow
def test_a_plan_fills_the_memory_and_no_more(monkeypatch: Any) -> None:
    axes = {"actor_lr": (1e-4, 2e-4, 3e-4, 4e-4, 5e-4)}
    (whole,) = grids.plan(experiment(seeds=1), grid_axes.points(axes)).launches
    needed = Training(_of(whole, experiment())).needed_bytes
    assert whole.bytes_needed == pytest.approx(needed, rel=1e-3)  # counters are counted for each
    monkeypatch.setattr(hardware, "device_memory", lambda: int(0.65 * needed / grids.SHARE))
    assert [
        len(launch.seeds)
        for launch in grids.plan(experiment(seeds=1), grid_axes.points(axes)).launches
    ] == [3, 2]
    monkeypatch.setattr(hardware, "device_memory", lambda: None)
    split = grids.plan(experiment(seeds=1), grid_axes.points(axes), most=2).launches
    assert [launch.config.actor_lr for launch in split] == [(1e-4, 2e-4), (3e-4, 4e-4), 5e-4]


def _of(launch: grids.Launch, experiment: Experiment) -> Experiment:
    settings = dataclasses.replace(experiment.settings, seeds=launch.seeds)
    return dataclasses.replace(experiment, settings=settings, config=launch.config)


def test_a_plan_refuses_what_a_run_would() -> None:
    with pytest.raises(ValueError, match=r"discount is 1\.5, it must be finite and in \[0"):
        grids.plan(experiment(), [{"discount": 0.9}, {"discount": 1.5}])
    with pytest.raises(ValueError, match=r"--learners-per-launch is 0, it must be at least 1"):
        grids.plan(experiment(), grid_axes.points(AXES), most=0)


@pytest.mark.slow
def test_a_grid_in_one_program_is_a_run_whose_learners_are_those_of_runs_alone(
    tmp_path: Path,
) -> None:
    out = grids.train(experiment(), [{"actor_lr": 1e-4}, {"actor_lr": 3e-4}], out=tmp_path / "grid")
    lines = [line for line in records.read(out, "evaluations") if line["learner"] == 3]
    assert [line["seed"] for line in lines] == [1, 1]
    alone = small_runs.train(
        "td3", "rljax/Pendulum", 200, tmp_path / "alone", {"actor_lr": 3e-4}, seeds=(1,)
    )
    for line, expected in zip(lines, records.read(alone, "evaluations"), strict=True):
        np.testing.assert_allclose(line["returns"], expected["returns"], rtol=1e-3)


@pytest.mark.learn
def test_a_grid_that_was_stopped_goes_on(tmp_path: Path) -> None:
    axes = {"hidden": ((16, 16), (8, 8)), "actor_lr": (1e-4, 3e-4)}
    whole = grids.train(experiment(), grid_axes.points(axes), out=tmp_path / "whole")
    with parts.stopped(lambda run: run.folder.name == "launch-001" and run.training.step == 100, 1):
        broken = grids.train(experiment(), grid_axes.points(axes), out=tmp_path / "broken")
    assert not records.read_summary(broken / "launch-001")["complete"]
    grids.resume(broken)
    for launch in ("launch-000", "launch-001"):
        small_runs.assert_same(whole / launch, broken / launch)
    with pytest.raises(
        ValueError, match=r"the grid in '.*' is complete\. To go on: rljax resume .* --steps N"
    ):
        grids.resume(broken)


@pytest.mark.learn
def test_a_launch_that_diverges_whole_does_not_stop_the_next(tmp_path: Path) -> None:
    axes = {"batch_size": (16, 32), "critic_lr": (1e18, 1e-3)}
    with pytest.raises(
        failures.RunError,
        match=r"^all learners of launch-000, launch-002 in '.*' have diverged; the other",
    ):
        grids.train(experiment(seeds=1), grid_axes.points(axes), out=tmp_path / "grid", most=1)
    found = [records.read_summary(tmp_path / f"grid/launch-00{i}") for i in range(4)]
    assert [summary["complete"] for summary in found] == [False, True, False, True]
    with pytest.raises(ValueError, match=r"is complete"):
        grids.resume(tmp_path / "grid")


@pytest.mark.learn
def test_the_command_line_plans_trains_and_resumes(tmp_path: Path, capsys: Any) -> None:
    more = ("--steps", 100, "--out", tmp_path / "grid", "--grid", "config.hidden=16x16,8x8")
    words = commands.train("td3", "rljax/Pendulum", *more, but="hidden")
    cli.main([*words, "--dry-run"])
    assert "2 learners in 2 programs" in capsys.readouterr().out
    assert not (tmp_path / "grid").exists()
    cli.main(words)
    assert capsys.readouterr().out.strip() == str(tmp_path / "grid")
    cli.main(["resume", str(tmp_path / "grid"), "--steps", "200", "--quiet"])
    for launch in ("launch-000", "launch-001"):
        assert records.read(tmp_path / "grid" / launch, "evaluations")[-1]["step"] == 200
    for again, message in (
        (words, "exists. Choose another --out, or continue that grid: rljax resume"),
        ([*words[:4], "--dry-run"], "--dry-run, --learners-per-launch and --ray are for a grid"),
    ):
        assert message in commands.refused(again, capsys)


@pytest.mark.parametrize(
    ("agent", "flags", "axis"),
    [
        ("td3", ["--config.target-rate", "0.1"], "config.tau=0.005,0.01"),
        ("td3", ["--config.tau=0.1"], "config.target-rate=0.005,0.01"),
        ("td3", ["--config.layer-norm"], "config.layer-norm=true,false"),
        ("cql", ["--config.no-importance-sampling"], "config.importance-sampling=true,false"),
    ],
)
def test_a_flag_beside_a_grid_of_its_setting_is_refused(
    agent: str, flags: list[str], axis: str, capsys: Any
) -> None:
    words = ["train", agent, "--env", "rljax/Pendulum", *flags, "--grid", axis]
    assert "leave out the flag, or list its value" in commands.refused(words, capsys)
