"""OGBench's robot arms on the host: cheap copies, seeds and pictures.

Copies of an arm share its meshes, textures and XML, which no episode changes, and step bit for bit
like it.

Source: Park et al., OGBench, arXiv:2410.20092; ogbench 1.2.2.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator
from typing import Any

import gymnasium

# Change only the colours of their model, so that copies can share it. A scene locks its drawer.
COLOURS_ONLY = ("CubeEnv", "PuzzleEnv")
FIXED = ("dm_control", "mujoco", "ogbench.manipspace.controllers")  # not copied


def is_arm(environment: gymnasium.Env) -> bool:
    """Whether it is one of OGBench's cube, scene or puzzle environments."""
    return type(environment.unwrapped).__module__.startswith("ogbench.manipspace.")


def shows_pictures(environment: gymnasium.Env) -> bool:
    """Whether an arm observes pictures of itself. Its copies would share their colours."""
    return getattr(environment.unwrapped, "_ob_type", "states") == "pixels"


def declare_rendering(environment: gymnasium.Env, render_mode: str | None) -> None:
    """Set what OGBench leaves out of an arm: its render mode, and 20 pictures per second."""
    environment.unwrapped.render_mode = render_mode
    environment.unwrapped.metadata = {"render_modes": ["rgb_array"], "render_fps": 20}


def seed_actions(environment: gymnasium.Env) -> None:
    """Derive the arm's random actions, which `reset` takes for the goal's observation, from its
    seed, in a random stream of their own.
    """
    kind: Any = type(environment.unwrapped)

    class Seeded(kind):
        @property
        def action_space(self) -> gymnasium.Space:
            """A new space at each access."""
            space = super().action_space
            space._np_random = self.np_random.spawn(1)[0]
            return space

    Seeded.__name__, Seeded.__module__ = kind.__name__, kind.__module__
    environment.unwrapped.__class__ = Seeded


def copies(environment: gymnasium.Env, number: int) -> Iterator[gymnasium.Env]:
    """Copies of `environment` with their own random numbers; reset them before their first step.

    Copies of cubes and puzzles share the colours that show what is in place: pictures show those of
    the arm stepped last.
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
