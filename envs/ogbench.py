"""OGBench's arms side by side, without their 150 MB and their second of compiling each, and its tasks with goals.

An arm with its cubes holds meshes, textures and XML which no episode changes. Copies of one that was made share them
and have a simulator of their own; they step as others that are made each by itself, bit for bit.

Source: Park et al., OGBench: Benchmarking Offline Goal-Conditioned RL, arXiv:2410.20092; ogbench 1.2.2.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Sequence
from typing import Any

import gymnasium
import numpy as np

COLOURS_ONLY = ("CubeEnv", "PuzzleEnv")  # all that these change of their model; a scene locks its drawer by it
FIXED = ("dm_control", "mujoco", "ogbench.manipspace.controllers")  # modules of what is not copied


class WithGoal(gymnasium.Wrapper):
    """An environment that has tasks with goals, whose observations are [state; goal], [2 O] for states [O].

    A goal is a state in which the task is done. The episode that a seeded reset begins is of task `first` (from 1), the
    next one of the task after it, and so on.
    """

    def __init__(self, environment: gymnasium.Env, first: int) -> None:
        super().__init__(environment)
        space: Any = environment.observation_space
        low, high = (np.tile(bound, 2) for bound in (space.low, space.high))
        self.observation_space = gymnasium.spaces.Box(low, high, dtype=space.dtype)
        self.num_tasks = _number_of_tasks(environment)
        self.first = self.task = first
        self.goal: Any = None

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> tuple[Any, dict[str, Any]]:
        """Begin an episode of the next task, or with a seed of the first one."""
        self.task = self.first if seed is not None else self.task % self.num_tasks + 1
        observation, info = self.env.reset(seed=seed, options={**(options or {}), "task_id": self.task})
        self.goal = np.array(info["goal"])
        return np.concatenate([observation, self.goal]), info

    def step(self, action: Any) -> tuple[Any, Any, bool, bool, dict[str, Any]]:
        """Apply one action."""
        observation, *rest = self.env.step(action)
        return (np.concatenate([observation, self.goal]), *rest)  # pyright: ignore[reportReturnType]


def with_goals(environments: Sequence[gymnasium.Env], name: str) -> list[gymnasium.Env]:
    """The environments with their goals: of task 1, 2, ..., round and round.

    Raises `ValueError` for environments called `name` that have none.
    """
    number, space = _number_of_tasks(environments[0]), environments[0].observation_space
    if not number or not isinstance(space, gymnasium.spaces.Box) or len(space.shape) != 1:
        raise ValueError(
            f"'{name}' has no tasks with goals, which are states, as ogbench:cube-single-v0 has. Name an environment "
            "that has some with --env, or none to train without evaluations."
        )
    return [WithGoal(environment, index % number + 1) for index, environment in enumerate(environments)]


def _number_of_tasks(environment: gymnasium.Env) -> int:
    return len(getattr(environment.unwrapped, "task_infos", ()))


def is_arm(environment: gymnasium.Env) -> bool:
    """Whether `copies` can copy it: a cube, scene or puzzle environment of OGBench."""
    return type(environment.unwrapped).__module__.startswith("ogbench.manipspace.")


def let_draw(environment: gymnasium.Env, render_mode: str | None) -> None:
    """Note what the arm forgets to: that it draws, for `render_mode` "rgb_array", and how many steps are a second."""
    environment.unwrapped.render_mode = render_mode
    environment.unwrapped.metadata = {"render_modes": ["rgb_array"], "render_fps": 20}


def seed_actions(environment: gymnasium.Env) -> None:
    """Let an arm's random actions follow from its seed: `reset` takes two as it makes a goal's observation.

    They come from numbers of their own, so that all else is as it would be without.
    """
    kind: Any = type(environment.unwrapped)

    class Seeded(kind):
        @property
        def action_space(self) -> gymnasium.Space:
            """Made anew at each access."""
            space = super().action_space
            space._np_random = self.np_random.spawn(1)[0]
            return space

    Seeded.__name__, Seeded.__module__ = kind.__name__, kind.__module__
    environment.unwrapped.__class__ = Seeded


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
