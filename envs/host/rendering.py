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
    """Set MUJOCO_GL to a renderer that needs no display, if there is none.

    MuJoCo reads MUJOCO_GL when it is imported: call this before.
    """
    if (
        not sys.platform.startswith("linux")
        or {"MUJOCO_GL", "DISPLAY", "WAYLAND_DISPLAY"} & os.environ.keys()
    ):
        return
    for backend, library in (("egl", "EGL"), ("osmesa", "OSMesa")):
        if ctypes.util.find_library(library):
            os.environ["MUJOCO_GL"] = backend
            return
