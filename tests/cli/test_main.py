"""The command line as a person meets it."""

from __future__ import annotations

import json
import time
from pathlib import Path

import pytest

from rljax import cli
from tests import small_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.train("td3", "Hopper-v5", 100, tmp_path_factory.mktemp("cli") / "run")


def test_help_is_instant() -> None:
    small_runs.command("--help")  # the first one may have to read Python's files from the disk
    began = time.perf_counter()
    done = small_runs.command("--help")
    assert time.perf_counter() - began < 0.7
    assert done.returncode == 0
    for command in ("train", "resume", "eval", "play", "plot", "report", "watch", "list", "new"):
        assert f"\n  {command} " in done.stdout


def test_help_explains_each_hyperparameter(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["train", "sac", "--help"])
    assert not exit.value.code
    printed = " ".join(capsys.readouterr().out.split())
    assert "--config.discount FLOAT" in printed
    assert "per environment step, in [0, 1]" in printed


@pytest.mark.parametrize("flags", [["--config.tau=0.25"], ["--config.tau", "0.25"], ["--config.target-rate", "0.25"]])
def test_settings_may_bear_the_names_of_other_suites(flags: list[str], tmp_path: Path) -> None:
    sizes = ["--config.warmup-steps", "16", "--config.batch-size", "8", "--config.hidden", "8"]
    out = ["--steps", "32", "--eval-every", "32", "--eval-episodes", "1", "--quiet", "--out", str(tmp_path / "run")]
    cli.main(["train", "sac", "--env", "rljax/Pendulum", *out, *sizes, *flags])
    assert json.loads((tmp_path / "run" / "config.json").read_text())["config"]["target_rate"] == 0.25


def test_help_shows_the_presets_values(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["train", "sac", "--env", "Pendulum-v1", "--help"])
    assert "(default: 0.001)" in capsys.readouterr().out


def test_list_names_agents_environments_and_presets(capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["list"])
    printed = capsys.readouterr().out
    for expected in (
        "  sac ",
        "  td3 ",
        "  Hopper-v5\n",
        "  rljax/Pendulum\n",
        "  brax/ant\n",
        "presets: sac",
        "(RL Zoo",
    ):
        assert expected in printed


def test_agent_comes_first(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["train", "--env", "Hopper-v5", "sac"])
    assert exit.value.code == 2
    assert "the agent comes first: rljax train sac --env Hopper-v5" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("flags", "expected"),
    [([], [0]), (["--seeds", "3"], [0, 1, 2]), (["--seed", "7"], [7]), (["--seed", "3", "--seeds", "2"], [3, 4])],
)
def test_seeds_count_from_the_first(flags: list[str], expected: list[int], monkeypatch: pytest.MonkeyPatch) -> None:
    trained = []
    monkeypatch.setattr("rljax.runs.run.train", lambda **what: trained.extend(what["seeds"]))
    cli.main(["train", "sac", "--env", "rljax/Pendulum", *flags])
    assert trained == expected


def test_eval_prints_each_learner(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["eval", str(trained), "--episodes", "2"])
    assert "learner 0 (seed 0): return" in capsys.readouterr().out


def test_plot_writes_the_curve(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["plot", str(trained)])
    assert capsys.readouterr().out.strip() == str(trained / "curve.png")
    assert (trained / "curve.png").stat().st_size > 5_000


def test_play_films_without_a_display(trained: Path) -> None:
    done = small_runs.command("play", trained, "--max-steps", "20")
    if "could not be rendered" in done.stderr:
        pytest.skip("no library to draw with, such as libegl1")
    assert done.returncode == 0, done.stderr
    assert (trained / "play.mp4").stat().st_size > 1_000


def test_play_refuses_what_has_no_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    with pytest.raises(SystemExit) as exit:
        cli.main(["play", str(out)])
    assert exit.value.code == 2
    assert "'rljax/Pendulum' has no pictures" in capsys.readouterr().err


def test_play_shows_grids_as_video_and_as_text(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = small_runs.train("stream_q", "rljax/LightsOut-2x2", 100, tmp_path / "run")
    cli.main(["play", str(out), "--terminal", "--max-steps", "3"])
    shown = capsys.readouterr().out
    assert shown.startswith("step 0\n")
    assert set(shown) <= set(".# \nstep0123"), "without colours where it is no terminal"
    cli.main(["play", str(out)])
    assert capsys.readouterr().out.strip() == str(out / "play.mp4")
    assert (out / "play.mp4").stat().st_size > 500


def test_play_tells_as_text_what_is_on_grids_only(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as exit:
        cli.main(["play", str(trained), "--terminal"])
    assert exit.value.code == 2
    assert f"cannot be shown as text. As a video: rljax play {trained}" in capsys.readouterr().err
