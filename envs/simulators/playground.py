"""Adapter: MuJoCo Playground's environments, as `playground/<name>`, without wrappers.

Reference: Zakka et al., MuJoCo Playground, arXiv:2502.08844.
"""

from __future__ import annotations

from typing import Any

import jax

from rljax.envs.environment import Environment, foreign, import_package, unknown
from rljax.envs.simulators.brax import Brax
from rljax.system.packages import install_command


def names() -> list[str]:
    """The names of Playground's environments. Raises `MissingPackageError`."""
    return [f"playground/{name}" for name in _registry().ALL_ENVS]


def make(name: str) -> Environment:
    """Make an environment such as "playground/CheetahRun".

    Raises `ValueError` where there is none.
    """
    if name not in names():
        raise unknown(name, "MuJoCo Playground", names())
    task = name.removeprefix("playground/")
    with foreign(name):
        config = _registry().get_default_config(task)
        overrides = {"impl": "jax"} if "impl" in config and jax.default_backend() == "cpu" else {}
        simulator = _registry().load(task, config_overrides=overrides)
    return Brax(name, simulator, int(config.episode_length))


def _registry() -> Any:
    command = install_command("playground")
    return import_package("playground", "mujoco_playground", command).registry
