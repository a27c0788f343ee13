"""Adapter: Craftax-Classic with symbolic observations [1345], as `craftax/Classic-Symbolic`.

Achievements give 1 when an episode first reaches them, each point of health gained or lost 0.1 or
-0.1.

Reference: Matthews et al., Craftax, arXiv:2402.16801.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import Environment, StepResult, foreign, import_package, unknown
from rljax.system.packages import install_command

NO_LIMIT = np.iinfo(np.int32).max
TASKS = {"Classic-Symbolic": "Craftax-Classic-Symbolic-v1"}  # our name -> the package's


class Craftax:
    """An environment of Craftax. Its state is Craftax's `EnvState`."""

    def __init__(self, name: str, task: str) -> None:
        module = _craftax()
        with foreign(name):
            self.craftax = module.make_craftax_env_from_name(task, auto_reset=False)
            made = self.craftax.default_params
            self.params = made.replace(max_timesteps=NO_LIMIT)
            observation = jax.eval_shape(
                lambda key: self.craftax.reset_env(key, self.params)[0], jax.random.key(0)
            )
        self.spec = EnvSpec(
            name=name,
            observation_shape=tuple(observation.shape),
            action_size=int(self.craftax.num_actions),
            discrete=True,
            max_episode_steps=int(made.max_timesteps),
        )

    def reset(self, key: Array, params: Any) -> tuple[Array, Any]:
        """Begin an episode in a new world."""
        with foreign(self.spec.name):
            observation, state = self.craftax.reset_env(key, params)
        return jnp.asarray(observation, jnp.float32), state

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        with foreign(self.spec.name):
            result = self.craftax.step_env(key, state, action, params)
        observation, state, reward, terminated, _ = result
        observation, reward = (jnp.asarray(x, jnp.float32) for x in (observation, reward))
        return observation, state, reward, terminated, jnp.zeros((), jnp.bool_), {}


def names() -> list[str]:
    """The names of Craftax's environments. Raises `MissingPackageError`."""
    _craftax()
    return [f"craftax/{task}" for task in TASKS]


def make(name: str) -> Environment:
    """Make an environment such as "craftax/Classic-Symbolic". Raises `ValueError` where there is
    none.
    """
    if name not in names():
        raise unknown(name, "craftax", names())
    return Craftax(name, TASKS[name.removeprefix("craftax/")])


def _craftax() -> Any:
    return import_package("craftax", "craftax.craftax_env", install_command("craftax"))
