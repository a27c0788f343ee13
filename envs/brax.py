"""Adapter: Brax's environments, as `brax/<name>`.

They are taken without Brax's own wrappers, whose auto-reset returns to the same first state for ever and whose
episodes report their time limit as an end like any other: here `done` is termination, and the limit truncates.

Reference: Freeman et al., Brax - A Differentiable Physics Engine for Large Scale Rigid Body Simulation,
arXiv:2106.13281.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import Environment, MissingPackageError, foreign, unknown

MAX_EPISODE_STEPS = 1000  # `episode_length` of brax.envs.create


class Brax:
    """One of Brax's environments, or of another package's with Brax's interface; its state is that one's `State`.

    Actions go through as they are: Brax's own lie in [-1, 1] too, and it rescales to each actuator's range. Of
    observations that are a dictionary, "state" is what the policy sees.
    """

    params = None

    def __init__(self, name: str, simulator: Any, max_episode_steps: int = MAX_EPISODE_STEPS) -> None:
        self.simulator = simulator  # without wrappers
        with foreign(name):
            state = jax.eval_shape(simulator.reset, jax.random.key(0))
        self.spec = EnvSpec(
            name=name,
            observation_shape=_observation(state).shape,
            action_size=simulator.action_size,
            max_episode_steps=max_episode_steps,
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, Any]:
        """Begin an episode."""
        with foreign(self.spec.name):
            state = self.simulator.reset(key)
        return jnp.asarray(_observation(state), jnp.float32), state

    def step(
        self, key: Array, state: Any, action: Array, params: Any = None
    ) -> tuple[Array, Any, Array, Array, Array, dict[str, Any]]:
        """Apply one action; see `rljax.envs.environment.Environment`."""
        with foreign(self.spec.name):  # a copy of the state, since it writes into the dictionaries
            state = self.simulator.step(jax.tree.map(lambda leaf: leaf, state), action)
        observation = jnp.asarray(_observation(state), jnp.float32)
        reward = jnp.asarray(state.reward, jnp.float32)
        return observation, state, reward, state.done > 0, jnp.zeros((), jnp.bool_), {**state.info, **state.metrics}


def names() -> list[str]:
    """All of Brax's environments; raises `MissingPackageError` without Brax."""
    return [f"brax/{name}" for name in _brax()._envs]


def make(name: str) -> Environment:
    """The environment called `name`, such as "brax/ant"; raises `ValueError` where there is none."""
    if name not in names():
        raise unknown(name, "Brax", names())
    return Brax(name, _make(name))


def _observation(state: Any) -> Any:
    return state.obs["state"] if isinstance(state.obs, dict) else state.obs


def _brax() -> Any:
    try:
        with foreign("brax/"):
            return importlib.import_module("brax.envs")
    except ModuleNotFoundError as error:
        if (error.name or "").partition(".")[0] != "brax":
            raise
        raise MissingPackageError("brax", "pip install brax") from error


def _make(name: str) -> Any:
    package = _brax()
    mujoco: Any = importlib.import_module("mujoco")
    # MuJoCo's warnings about Brax's model files would go to a log file in the current folder.
    warn = mujoco.get_mju_user_warning()
    mujoco.set_mju_user_warning(lambda message: None)
    try:
        with foreign(name):
            return package.get_environment(name.removeprefix("brax/"))
    finally:
        mujoco.set_mju_user_warning(warn)
