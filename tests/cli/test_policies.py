"""`rljax eval` and `rljax play` on small runs."""

from __future__ import annotations

from pathlib import Path

import pytest

from rljax import cli
from tests.helpers import small_runs


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_runs.train("td3", "Hopper-v5", 100, tmp_path_factory.mktemp("cli") / "run")


def test_eval_prints_each_learner(trained: Path, capsys: pytest.CaptureFixture[str]) -> None:
    cli.main(["eval", str(trained), "--episodes", "2"])
    assert "learner 0 (seed 0): return" in capsys.readouterr().out


@pytest.mark.learn
def test_play_films_without_a_display(trained: Path) -> None:
    done = small_runs.command("play", trained, "--max-steps", "20")
    if "could not be rendered" in done.stderr:
        pytest.skip("no library to draw with, such as libegl1")
    assert done.returncode == 0, done.stderr
    assert (trained / "play.mp4").stat().st_size > 1_000


@pytest.mark.slow
def test_play_refuses_what_has_no_pictures(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = small_runs.trained("td3", "rljax/Pendulum", 100, tmp_path / "run")
    with pytest.raises(SystemExit) as exit:
        cli.main(["play", str(out)])
    assert exit.value.code == 2
    assert "'rljax/Pendulum' has no pictures" in capsys.readouterr().err


@pytest.mark.learn
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
