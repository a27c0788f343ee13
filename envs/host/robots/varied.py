"""Gymnasium's robots with other dynamics: 'varied/HalfCheetah-v5?{"gravity": 2, "friction": 0.3}'.

Gravity and friction are factors. Gravity 2 and friction 0.3 are the shifted dynamics of H2O (Niu et
al., arXiv:2206.13464).
"""

from __future__ import annotations

import functools
from typing import Any

import gymnasium
from gymnasium.envs.registration import load_env_creator

ROBOTS = ("Ant", "HalfCheetah", "Hopper", "Humanoid", "Swimmer", "Walker2d")


def make(
    entry_point: Any, gravity: float = 1.0, friction: float = 1.0, **settings: Any
) -> gymnasium.Env:
    """A robot with other gravity and friction of all parts.

    Raises `ValueError` for a factor that is not finite and at least 0.
    """
    for name, factor in (("gravity", gravity), ("friction", friction)):
        is_number = isinstance(factor, (int, float)) and not isinstance(factor, bool)
        if not is_number or not 0 <= factor < float("inf"):
            raise ValueError(
                f"{name} is {factor!r}, it must be a number of at least 0: a factor on that of "
                "the task."
            )
    environment: Any = load_env_creator(entry_point)(**settings)
    environment.model.opt.gravity[:] *= gravity
    environment.model.geom_friction[:] *= friction
    return environment


def register() -> None:
    """Register the tasks in Gymnasium. A second call does nothing."""
    for robot in ROBOTS:
        name, made = f"varied/{robot}-v5", gymnasium.spec(f"{robot}-v5")
        if name not in gymnasium.registry:
            entry: Any = functools.partial(make, made.entry_point)
            limit = made.max_episode_steps
            gymnasium.register(name, entry, max_episode_steps=limit, kwargs=made.kwargs)
