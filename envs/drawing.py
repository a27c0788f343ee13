"""Drawing with MuJoCo where there is no display."""

from __future__ import annotations

import ctypes.util
import os
import sys

HINT = " MuJoCo draws without a display by EGL: apt install libegl1 libegl-mesa0, then MUJOCO_GL=egl."


def choose_renderer() -> None:
    """Name MuJoCo's way of drawing where there is no display, which it reads as it is imported."""
    if not sys.platform.startswith("linux") or {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys():
        return
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = backend
            return
