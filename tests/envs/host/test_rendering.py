"""Pictures of environments on the host, with and without a display."""

import ctypes.util
import os
import subprocess
import sys
from typing import Any

import gymnasium
import numpy as np
import pytest

from rljax.envs.host.gymnasium import make_hosted
from tests.envs.host.walk import Walk

register: Any = gymnasium.register
pytestmark = pytest.mark.usefixtures("walk_is_registered")


def test_pictures():
    hosted = make_hosted("Walk-v0", 2, render_mode="rgb_array")
    hosted.reset([0, 1])
    picture = hosted.render()
    assert (picture.shape, picture.dtype, hosted.frames_per_second) == ((4, 6, 3), np.uint8, 7)
    with pytest.raises(
        ValueError, match="'Walk-v0' was made with render_mode=None, pictures need 'rgb_array'"
    ):
        make_hosted("Walk-v0", 1).render()


def test_pictures_that_fail(monkeypatch):
    hosted = make_hosted("Walk-v0", 1, render_mode="rgb_array", disable_env_checker=True)
    hosted.reset([0])
    monkeypatch.setattr(Walk, "render", lambda self: None)
    with pytest.raises(
        ValueError, match="'Walk-v0' returned no picture for render_mode='rgb_array'"
    ):
        hosted.render()

    def without_pygame(self: Walk) -> None:
        raise gymnasium.error.DependencyNotInstalled(
            "pygame is not installed, run `pip install pygame`"
        )

    monkeypatch.setattr(Walk, "render", without_pygame)
    with pytest.raises(
        ValueError, match=r"'Walk-v0' could not be rendered: pygame .*, run `pip install pygame`\.$"
    ):
        hosted.render()
    register("Blind-v0", lambda: Walk())
    with pytest.raises(
        ValueError, match=r"'Blind-v0' cannot be rendered as 'rgb_array': .*unexpected keyword"
    ):
        make_hosted("Blind-v0", 1, render_mode="rgb_array")


@pytest.mark.parametrize(
    ("libraries", "given", "chosen"),
    [
        ({"EGL", "OSMesa"}, {}, "egl"),
        ({"OSMesa"}, {}, "osmesa"),
        (set(), {}, None),
        ({"EGL"}, {"DISPLAY": ":0"}, None),
        ({"EGL"}, {"MUJOCO_GL": "osmesa"}, "osmesa"),
    ],
)
def test_how_mujoco_draws_without_a_display(monkeypatch, libraries, given, chosen):
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(
        "ctypes.util.find_library", lambda name: name if name in libraries else None
    )
    monkeypatch.setattr(os, "environ", dict(given))
    make_hosted("Walk-v0", 1, render_mode="rgb_array")
    assert os.environ.get("MUJOCO_GL") == chosen


@pytest.mark.slow
@pytest.mark.skipif(ctypes.util.find_library("EGL") is None, reason="needs EGL")
def test_pictures_of_mujoco_without_a_display():
    program = (
        "from rljax.envs import make_hosted; h = make_hosted('Hopper-v5', 1, "
        "render_mode='rgb_array');"
    )
    program += (
        "h.reset([0]); picture = h.render(); h.close(); print(picture.shape, picture.dtype, "
        "picture.std() > 1)"
    )
    hidden = {
        name: value for name, value in os.environ.items() if name not in ("DISPLAY", "MUJOCO_GL")
    }
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, env=hidden
    )
    assert done.stdout.strip() == "(480, 480, 3) uint8 True", done.stderr
