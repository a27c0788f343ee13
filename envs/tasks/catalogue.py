"""All tasks of this suite by name, `rljax/<name>`."""

from __future__ import annotations

from typing import Any

from rljax.envs.environment import Environment, unknown
from rljax.envs.tasks import (
    analytic,
    box_pick,
    combination_lock,
    job_shop,
    lights_out,
    mjx,
    neorl2,
    pendulum_pictures,
    point_hazards,
    point_maze,
)
from rljax.envs.tasks.in_context import bandit, dark_room

MODULES = (analytic, mjx, neorl2, job_shop, point_hazards, point_maze, pendulum_pictures)
ENVIRONMENTS: dict[str, Any] = {
    name: made_by for module in MODULES for name, made_by in module.ENVIRONMENTS.items()
}
# With tasks of any size.
SIZED = (lights_out, box_pick, combination_lock, bandit, dark_room)


def names() -> list[str]:
    """The names of all tasks, with few sizes, without those that are there for tests."""
    return [name for name in all_names() if name not in analytic.PROBES]


def all_names() -> list[str]:
    """The names of all tasks, with few sizes."""
    return [*ENVIRONMENTS, *(name for module in SIZED for name in module.names())]


def make(name: str) -> Environment:
    """Make an environment such as "rljax/Pendulum". Raises `ValueError` where there is none."""
    if name in ENVIRONMENTS:
        return ENVIRONMENTS[name](name)
    for module in SIZED:
        if name.startswith(module.BEGINNING):
            return module.make(name)
    raise unknown(name, "rljax", all_names())
