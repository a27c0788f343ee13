"""All tasks of this suite by name, `rljax/<name>`.

Analytic tasks, tasks of MuJoCo and NeoRL-2, job shops, a point among hazards, a pendulum in
pictures, combination locks, and problems on grids.
"""

from __future__ import annotations

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
)

# With a fixed list of names.
MODULES = (analytic, mjx, neorl2, job_shop, point_hazards, pendulum_pictures)
# With names of any size: they begin with the module's `BEGINNING`.
SIZED = (lights_out, box_pick, combination_lock)


def names() -> list[str]:
    """The names of all tasks. Of the tasks that have sizes, only a few sizes."""
    return [name for module in (*MODULES, *SIZED) for name in module.names()]


def make(name: str) -> Environment:
    """Make the environment called `name`, such as "rljax/Pendulum".

    Raises `ValueError` where there is none.
    """
    for module in MODULES:
        if name in module.names():
            return module.make(name)
    for module in SIZED:
        if name.startswith(module.BEGINNING):
            return module.make(name)
    raise unknown(name, "rljax", names())
