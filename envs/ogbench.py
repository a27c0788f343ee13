"""OGBench's arms side by side, without their 150 MB and their second of compiling each.

An arm with its cubes holds meshes, textures and XML which no episode changes. Copies of one that was made share them
and have a simulator of their own; they step as others that are made each by itself, bit for bit.

Source: Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, arXiv:2410.20092; ogbench 1.2.2.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import gymnasium

COLOURS_ONLY = ("CubeEnv", "PuzzleEnv")  # all that these change of their model; a scene locks its drawer by it
FIXED = ("dm_control", "mujoco", "ogbench.manipspace.controllers")  # modules of what is not copied


def is_arm(environment: gymnasium.Env) -> bool:
    """Whether `copies` can copy it: a cube, scene or puzzle environment of OGBench."""
    return type(environment.unwrapped).__module__.startswith("ogbench.manipspace.")


def let_draw(environment: gymnasium.Env, render_mode: str | None) -> None:
    """Note what the arm forgets to: that it draws, for `render_mode` "rgb_array", and how many steps are a second."""
    environment.unwrapped.render_mode = render_mode
    environment.unwrapped.metadata = {"render_modes": ["rgb_array"], "render_fps": 20}


def copies(environment: gymnasium.Env, number: int) -> Iterator[gymnasium.Env]:
    """`number` environments like `environment`, each with random numbers of its own, to be reset before they step.

    Those of cubes and puzzles share the colours that show what is in place, so that only the arm stepped last shows
    its own.
    """
    mujoco: Any = importlib.import_module("mujoco")
    arm: Any = environment.unwrapped
    _ = arm.observation_space  # compiles the model
    for _ in range(number):
        model = arm.model if type(arm).__name__ in COLOURS_ONLY else copy.copy(arm.model)
        memo = {id(value): value for value in vars(arm).values() if _is_fixed(value)}
        memo |= {id(arm.model): model, id(arm.data): mujoco.MjData(model)}
        made: Any = copy.deepcopy(environment, memo)
        made.unwrapped._np_random = made.unwrapped._np_random_seed = None
        yield made


def _is_fixed(value: Any) -> bool:
    if isinstance(value, (list, tuple)):
        return any(_is_fixed(item) for item in value)
    return type(value).__module__.startswith(FIXED)
