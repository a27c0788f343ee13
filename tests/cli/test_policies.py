"""`rljax eval`, `play`, `export` and `pack` on small runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax import cli
from tests.cli import commands
from tests.helpers import small_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.train("td3", "Hopper-v5", 100, tmp_path_factory.mktemp("cli") / "run")


def test_eval_prints_each_learner(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["eval", str(trained), "--episodes", "2"])
    assert "learner 0 (seed 0): return" in capsys.readouterr().out


def test_eval_refuses_settings_that_are_not_for_evaluations(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = commands.refused(["eval", trained, "--config.hidden", 3], capsys)
    assert "--config.hidden cannot change once agent 'td3' is trained" in printed


@pytest.mark.learn
def test_eval_changes_declared_settings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "torso": "iru",
        "compute": 2,
        "actor_hidden": (8,),
        "critic_hidden": (8,),
        "num_envs": 2,
        "num_steps": 8,
    }
    out = small_runs.train(
        "ppo", "rljax/Pendulum", 100, tmp_path / "run", config | {"batch_size": 16}
    )
    capsys.readouterr()
    cli.main(["eval", str(out), "--config.compute", "1", "2", "--episodes", "1"])
    shown = capsys.readouterr().out
    assert [f"--config.compute {steps}, " in shown for steps in (1, 2, 3)] == [True, True, False]
    for word, message in {
        "--config.compute": "--config.compute needs a value",
        "--config.compute=some": "--config.compute: 'some' is no value of 'compute', which is int",
    }.items():
        assert message in commands.refused(["eval", out, word], capsys)


@pytest.mark.learn
def test_play_films_without_a_display(trained: Path) -> None:
    done = small_runs.command("play", trained, "--max-steps", "20")
    if "could not be rendered" in done.stderr:
        pytest.skip("no library to draw with, such as libegl1")
    assert done.returncode == 0, done.stderr
    assert (trained / "play.mp4").stat().st_size > 1_000


@pytest.mark.slow
def test_play_refuses_what_has_no_pictures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    assert "'rljax/Pendulum' has no pictures" in commands.refused(["play", out], capsys)


@pytest.mark.learn
def test_play_shows_grids_as_video_and_as_text(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = small_runs.train("stream_q", "rljax/LightsOut-2x2", 100, tmp_path / "run")
    cli.main(["play", str(out), "--terminal", "--max-steps", "3"])
    shown = capsys.readouterr().out
    assert shown.startswith("step 0\n")
    assert set(shown) <= set(".# \nstep0123"), "without colours where it is no terminal"
    cli.main(["play", str(out)])
    assert capsys.readouterr().out.strip() == str(out / "play.mp4")
    assert (out / "play.mp4").stat().st_size > 500


def test_play_tells_as_text_what_is_on_grids_only(
    trained: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = commands.refused(["play", trained, "--terminal"], capsys)
    assert f"cannot be shown as text. As a video: rljax play {trained}" in printed


def test_export_says_how_it_was_checked(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["export", str(trained), "--to", "numpy", "--best"])
    printed = capsys.readouterr().out
    assert printed.startswith(f"{trained / 'policy.py'}: acts as the run's policy, to ")
    assert "in 16 sampled observations (limit 1e-05)" in printed


def test_pack_prints_the_file(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["pack", str(trained)])
    assert capsys.readouterr().out.strip() == str(trained / "policy.zip")


def test_what_is_no_run_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert "is not a run" in commands.refused(["export", tmp_path, "--to", "numpy"], capsys)
    assert "is not a run" in commands.refused(["pack", tmp_path], capsys)
