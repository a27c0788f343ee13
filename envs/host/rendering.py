"""MuJoCo's rendering on a machine without a display."""

from __future__ import annotations

import ctypes.util
import os
import sys

HINT = (
    " MuJoCo renders without a display by EGL: apt install libegl1 libegl-mesa0, "
    "then MUJOCO_GL=egl."
)


def choose_renderer() -> None:
    """Without a display, set MUJOCO_GL, which MuJoCo reads at its import, to a renderer that needs
    none.
    """
    settled = {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if settled or not sys.platform.startswith("linux"):
        return
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = backend
            return
