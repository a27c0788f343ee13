"""Adapter: MuJoCo Playground's environments, as `playground/<name>`.

They have Brax's interface. The wrappers that hide their last observations and time limits are left
out. On the CPU, MJX simulates them in JAX. Elsewhere Warp does, as their configuration says.

Reference: Zakka et al., MuJoCo Playground, arXiv:2502.08844.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax

from rljax.envs.environment import Environment, MissingPackageError, foreign, unknown
from rljax.envs.simulators.brax import Brax


def names() -> list[str]:
    """The names of all of Playground's environments.

    Raises `MissingPackageError` without Playground.
    """
    return [f"playground/{name}" for name in _registry().ALL_ENVS]


def make(name: str) -> Environment:
    """Make the environment called `name`, such as "playground/CheetahRun".

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
    try:
        with foreign("playground/"):
            return importlib.import_module("mujoco_playground").registry
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "mujoco_playground":
            raise
        raise MissingPackageError("playground", "pip install 'rljax[playground]'") from error
