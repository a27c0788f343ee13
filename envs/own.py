"""The environments of our own, as `rljax/<name>`: analytic ones, MuJoCo's tasks on MJX, and problems on grids."""

from __future__ import annotations

from rljax.envs import analytic, box_pick, lights_out, mjx
from rljax.envs.environment import Environment, unknown

MODULES = (analytic, mjx)  # whose names are these and no others
SIZED = (lights_out, box_pick)  # whose names begin with `BEGINNING`, and then tell a size


def names() -> list[str]:
    """All of them; of those with a size, a few."""
    return [name for module in (*MODULES, *SIZED) for name in module.names()]


def make(name: str) -> Environment:
    """The environment called `name`, such as "rljax/Pendulum"; raises `ValueError` where there is none."""
    for module in MODULES:
        if name in module.names():
            return module.make(name)
    for module in SIZED:
        if name.startswith(module.BEGINNING):
            return module.make(name)
    raise unknown(name, "rljax", names())
