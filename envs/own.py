"""The environments of our own, as `rljax/<name>`: the analytic ones, and MuJoCo's tasks on MJX."""

from __future__ import annotations

from rljax.envs import analytic, mjx
from rljax.envs.environment import Environment, unknown

MODULES = (analytic, mjx)


def names() -> list[str]:
    """All of them."""
    return [name for module in MODULES for name in module.names()]


def make(name: str) -> Environment:
    """The environment called `name`, such as "rljax/Pendulum"; raises `ValueError` where there is none."""
    for module in MODULES:
        if name in module.names():
            return module.make(name)
    raise unknown(name, "rljax", names())
