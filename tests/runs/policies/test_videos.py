"""Films of environments inside the program."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rljax import envs
from rljax.runs.policies import videos
from rljax.trust import Folder

# MuJoCo reads how to draw as it is imported.
PROGRAM = """
import sys
from pathlib import Path
import numpy as np
from rljax.envs.host import rendering as drawing
drawing.choose_renderer()
from rljax import envs
from rljax.runs.policies import videos
environment = envs.make("brax/inverted_pendulum")
states = videos.episode(environment, lambda observation, step: np.zeros(1, np.float32), 0, 3)
videos.brax(environment, states, Path(sys.argv[1]))
"""


@pytest.mark.learn
def test_brax_is_filmed_without_a_display(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(tmp_path / "play.mp4")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "brax" in (tmp_path / "play.html").read_text()
    if "could not be rendered" in done.stderr:
        pytest.skip("no library to draw with, such as libegl1")
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "play.mp4").stat().st_size > 1_000


def test_other_suffixes_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"it must end in \.mp4 or \.gif"):
        videos.write([np.zeros((8, 8, 3), np.uint8)], tmp_path / "play.avi", 30.0)


def test_a_film_that_cannot_be_written_is_refused_before_the_episode(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(videos, "_player", lambda *_: ("Some-v0", "Some-v0", None, [0]))
    monkeypatch.setattr(videos, "envs", None)  # nothing can be played
    with pytest.raises(ValueError, match=r"it must end in \.mp4 or \.gif"):
        videos.play(tmp_path, output=tmp_path / "play.avi")
    (tmp_path / "play.mp4").mkdir()
    with pytest.raises(IsADirectoryError, match=r"play\.mp4"):
        videos.play(tmp_path)


def press_first(observation: np.ndarray, step: int) -> np.ndarray:
    del observation, step
    return np.zeros((), np.int32)


@pytest.mark.parametrize("prefix", ["", "timed/", "with-last-step/", "timed/with-last-step/"])
def test_what_draws_itself_is_filmed_to_its_end(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefix: str
) -> None:
    written = {}
    monkeypatch.setattr(
        videos, "write", lambda frames, path, rate: written.update({path: (frames, rate)}) or path
    )
    environment = envs.make(f"{prefix}rljax/LightsOut-3x3")
    states = videos.episode(environment, press_first, 0, 1_000)
    assert videos.drawn(environment, states, tmp_path / "play.mp4") == [tmp_path / "play.mp4"]
    frames, rate = written[tmp_path / "play.mp4"]
    assert rate == 4.0
    assert len(frames) == 10
    np.testing.assert_array_equal(frames[0], frames[2])  # a cell pressed twice
    assert (frames[0] != frames[1]).any()


def test_episodes_end_where_the_environment_says_so() -> None:
    alone = envs.make("rljax/BoxPick-4x4-vertical")
    states = list(
        videos.episode(alone, lambda observation, step: np.int32(3), 0, 1_000)
    )  # to the right, until it is out
    assert len(states) <= 3
    cells = [int(state.agent) for state in states]
    assert [bool(state.allowed[cell]) for state, cell in zip(states, cells, strict=True)][-2:] == [
        True,
        False,
    ]
    assert len(list(videos.episode(alone, lambda observation, step: np.int32(0), 0, 7))) == 8


DRAWN = """
import gymnasium, numpy

class Drawn(gymnasium.Env):
    observation_space = gymnasium.spaces.Box(0, 9, (1,))
    action_space = gymnasium.spaces.Discrete(2)
    metadata = {"render_modes": ["rgb_array"], "render_fps": 9}

    def __init__(self, render_mode=None):
        self.render_mode = render_mode

    def reset(self, *, seed=None, options=None):
        self.steps = 0
        return numpy.zeros(1, numpy.float32), {}

    def step(self, action):
        self.steps += 1
        return numpy.zeros(1, numpy.float32), 0.0, self.steps == 3, False, {}

    def render(self):
        return numpy.full((2, 2, 3), self.steps, numpy.uint8)
"""


@pytest.mark.parametrize(("most", "expected"), [(9, [0, 1, 2, 3] * 2), (2, [0, 1, 2] * 2)])
def test_films_on_the_host_show_last_states_of_all_episodes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int, expected: list[int]
) -> None:
    (tmp_path / "drawn.py").write_text(DRAWN)
    name = f"{tmp_path}/drawn.py:Drawn"
    policy = lambda observation, normalised, step: np.zeros(1, np.int32)  # noqa: E731
    monkeypatch.setattr(videos, "_player", lambda *_: (name, name, policy, [0, 1]))
    monkeypatch.setattr(videos, "write", lambda frames, path, rate: frames)
    monkeypatch.setattr(videos.arguments, "run_folder", lambda out: out)
    (frames,) = videos.play(tmp_path, episodes=2, max_steps=most, output=tmp_path / "play.mp4")
    assert [frame[0, 0, 0] for frame in frames] == expected  # type: ignore[index]


SHOWN = DRAWN.replace('"rgb_array"', '"human"').replace("0.0, self", "1.0, self")


def shown(
    folder: Path, monkeypatch: pytest.MonkeyPatch, source: str = SHOWN, name: str = ""
) -> list[str]:
    """What is said of two episodes in a window."""
    (folder / "drawn.py").write_text(source)
    name = name or f"{folder}/drawn.py:Drawn"
    policy = lambda observation, normalised, step: np.zeros(1, np.int32)  # noqa: E731
    monkeypatch.setattr(videos, "_player", lambda *_: (name, name, policy, [0, 1]))
    monkeypatch.setattr(videos.arguments, "run_folder", lambda out: Folder(out))
    return list(videos.window(folder, episodes=2))


def test_a_window_shows_all_episodes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    expected = [f"episode {number}: return 3.0 in 3 steps" for number in (1, 2)]
    assert shown(tmp_path, monkeypatch) == expected


def test_what_cannot_be_shown_in_a_window_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("DISPLAY", ":0")
    with pytest.raises(ValueError, match=r"'rljax/Pendulum' is not Gymnasium's and has no window"):
        shown(tmp_path, monkeypatch, name="rljax/Pendulum")
    without = SHOWN.replace('"human"', '"ansi"')
    with pytest.raises(ValueError, match=r"has no render_mode 'human', so no window\. As a film"):
        shown(tmp_path, monkeypatch, without)
    for name in videos.DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(videos.sys, "platform", "linux")
    with pytest.raises(ValueError, match=r"no display for a window: neither DISPLAY nor WAYLAND"):
        shown(tmp_path, monkeypatch)


def test_text_is_told_state_by_state() -> None:
    environment = envs.make("rljax/LightsOut-2x2")
    states = videos.episode(environment, press_first, 0, 2)
    told = list(videos.told(environment, states, colours=False))
    assert [part.split("\n")[0] for part in told] == ["step 0", "step 1", "step 2"]
    before, after = (part.split("\n")[1:] for part in told[:2])
    flipped = {".": "#", "#": "."}
    assert after[0] == f"{flipped[before[0][0]]} {flipped[before[0][2]]}{before[0][3:]}"
    assert after[1] == f"{flipped[before[1][0]]}{before[1][1:]}"


@pytest.mark.parametrize("show", [videos.drawn, videos.told])
def test_what_does_not_draw_itself_is_refused(tmp_path: Path, show: Any) -> None:
    with pytest.raises(
        ValueError,
        match=r"'rljax/Pendulum' has no pictures: `rljax play` films Gymnasium's and Brax's",
    ):
        list(show(envs.make("rljax/Pendulum"), [], tmp_path / "play.mp4"))
