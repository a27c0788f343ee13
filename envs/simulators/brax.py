"""Adapter: Brax's environments, as `brax/<name>`.

Brax's own wrappers are left out: their auto-reset always returns to the same first state, and they
report the time limit as an ordinary end. Here `done` means termination, and the time limit
truncates.

Reference: Freeman et al., Brax - A Differentiable Physics Engine for Large Scale Rigid Body
Simulation, arXiv:2106.13281.
"""

from __future__ import annotations

import importlib
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import Environment, MissingPackageError, foreign, silent_mujoco, unknown

MAX_EPISODE_STEPS = 1000  # `episode_length` of brax.envs.create


class Brax:
    """An environment of Brax, or of another package with Brax's interface.

    Its state is that package's `State`.

    Actions pass unchanged: Brax's own actions are in [-1, 1] too, and Brax rescales them to each
    actuator's range. If the observation is a dictionary, the policy sees its entry "state".
    """

    params = None

    def __init__(
        self, name: str, simulator: Any, max_episode_steps: int = MAX_EPISODE_STEPS
    ) -> None:
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
        # A copy of the state, because step writes into its dictionaries.
        with foreign(self.spec.name):
            state = self.simulator.step(jax.tree.map(lambda leaf: leaf, state), action)
        observation = jnp.asarray(_observation(state), jnp.float32)
        reward = jnp.asarray(state.reward, jnp.float32)
        return (
            observation,
            state,
            reward,
            state.done > 0,
            jnp.zeros((), jnp.bool_),
            {**state.info, **state.metrics},
        )


def names() -> list[str]:
    """The names of all of Brax's environments. Raises `MissingPackageError` without Brax."""
    return [f"brax/{name}" for name in _brax()._envs]


def make(name: str) -> Environment:
    """Make the environment called `name`, such as "brax/ant".

    Raises `ValueError` where there is none.
    """
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
    with silent_mujoco(), foreign(name):
        return package.get_environment(name.removeprefix("brax/"))
