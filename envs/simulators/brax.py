"""Adapter: Brax's environments, as `brax/<name>`, without wrappers.

Reference: Freeman et al., Brax, arXiv:2106.13281.
"""

from __future__ import annotations

import copy
import dataclasses
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, EnvSpec, Part
from rljax.envs.environment import (
    Environment,
    StepResult,
    foreign,
    import_package,
    silent_mujoco,
    unknown,
)

STEPS = 1000  # `episode_length` of brax.envs.create


class Brax:
    """An environment of Brax, or of another package with Brax's interface.

    Its state is that package's `State`. Of an observation that is a dictionary, agents see the
    entry "state", and all entries in `whole`.
    """

    params = None
    shows_all = False  # entries of observations

    def __init__(self, name: str, simulator: Any, max_episode_steps: int) -> None:
        self.simulator = simulator  # without wrappers
        with foreign(name):
            shown = jax.eval_shape(
                lambda key: self._observation(simulator.reset(key)), jax.random.key(0)
            )
        self.spec = EnvSpec(
            name=name,
            observation_shape=shown.shape,
            action_size=simulator.action_size,
            max_episode_steps=max_episode_steps,
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, Any]:
        """Begin an episode."""
        with foreign(self.spec.name):
            state = self.simulator.reset(key)
        return self._observation(state), state

    def step(self, key: Array, state: Any, action: Array, params: Any = None) -> StepResult:
        """Apply one action."""
        # A copy of the state, because step writes into its dictionaries.
        with foreign(self.spec.name):
            state = self.simulator.step(jax.tree.map(lambda leaf: leaf, state), action)
        observation = self._observation(state)
        reward, info = jnp.asarray(state.reward, jnp.float32), {**state.info, **state.metrics}
        return observation, state, reward, state.done > 0, jnp.zeros((), jnp.bool_), info

    def whole(self) -> Brax | None:
        """The same environment with all entries of its observations as parts; None with one."""
        with foreign(self.spec.name):
            shown = jax.eval_shape(self.simulator.reset, jax.random.key(0)).obs
        if not isinstance(shown, dict) or len(shown) < 2:
            return None
        result = copy.copy(self)
        result.shows_all = True
        parts = tuple(Part(name, shown[name].shape) for name in sorted(shown))
        result.spec = dataclasses.replace(self.spec, observation_shape=(), parts=parts)
        return result

    def with_goals(self) -> Environment | None:
        """The same robot with goals: `rljax.envs.simulators.brax_goals`; None without any."""
        from rljax.envs.simulators import brax_goals

        return brax_goals.with_goals(self)

    def _observation(self, state: Any) -> Any:
        shown = state.obs
        if isinstance(shown, dict) and not self.shows_all:
            shown = shown["state"]
        return jax.tree.map(lambda x: jnp.asarray(x, jnp.float32), shown)


def names() -> list[str]:
    """The names of Brax's environments. Raises `MissingPackageError`."""
    return [f"brax/{name}" for name in _brax()._envs]


def make(name: str) -> Environment:
    """Make an environment such as "brax/ant". Raises `ValueError` where there is none."""
    if name not in names():
        raise unknown(name, "Brax", names())
    with silent_mujoco(), foreign(name):
        simulator = _brax().get_environment(name.removeprefix("brax/"))
    return Brax(name, simulator, STEPS)


def _brax() -> Any:
    return import_package("brax", "brax.envs", "pip install brax")
