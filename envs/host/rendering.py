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
    """Set MUJOCO_GL, if there is no display, to a renderer that needs none. MuJoCo reads it at its
    import.
    """
    settled = {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    if settled or not sys.platform.startswith("linux"):
        return
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = backend
            return
