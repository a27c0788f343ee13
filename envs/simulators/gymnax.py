"""Adapter: gymnax's environments, as `gymnax/<name>`, for gymnax 1.0 and newer, and 0.0.9.

Before gymnax 1.0, `done` is also true at the time limit: the adapter steps with and without the
limit, and an end that only the limit causes is a truncation.

Reference: Lange, gymnax, 2022.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import (
    Environment,
    StepResult,
    foreign,
    import_package,
    parsed,
    rescale,
    unknown,
)
from rljax.system.packages import install_command

NO_LIMIT = np.iinfo(np.int32).max


class Gymnax:
    """An environment of gymnax. Its state is gymnax's `EnvState`.

    A discrete observation becomes a one-hot vector. Arguments replace gymnax's parameters; unknown
    ones raise `ValueError`.
    """

    def __init__(self, name: str) -> None:
        bare, arguments = parsed(name)
        with foreign(name):
            self.gymnax, self.params = _gymnax().make(bare.removeprefix("gymnax/"))
        if arguments:
            self._set(bare, arguments)
        with foreign(name):
            observation = jax.eval_shape(
                lambda key: self.gymnax.reset_env(key, self.params)[0], jax.random.key(0)
            )
        if not isinstance(observation, jax.ShapeDtypeStruct):
            raise ValueError(
                f"'{name}' observes a structure, agents need one array. Choose another environment."
            )
        self._categories = getattr(self.gymnax.observation_space(self.params), "n", None)
        shape = tuple(observation.shape) if self._categories is None else (self._categories,)
        self._action = self.gymnax.action_space(self.params)
        discrete = hasattr(self._action, "n")
        if not discrete:
            self._require_bounds(name)
        self.spec = EnvSpec(
            name=name,
            observation_shape=shape,
            action_size=int(self._action.n if discrete else np.prod(self._action.shape)),
            discrete=discrete,
            max_episode_steps=int(self.params.max_steps_in_episode),
        )

    def _set(self, bare: str, arguments: dict[str, Any]) -> None:
        known = {field.name for field in dataclasses.fields(self.params)}
        for name, value in arguments.items():
            if name not in known or not isinstance(value, int | float):
                numbers = [
                    key for key, x in vars(self.params).items() if isinstance(x, int | float)
                ]
                raise ValueError(
                    f"'{bare}' has no number '{name}' to set to {value!r}. "
                    f"It has: {', '.join(numbers)}."
                )
        self.params = self.params.replace(**arguments)

    def _require_bounds(self, name: str) -> None:
        if not (np.isfinite(self._action.low).all() and np.isfinite(self._action.high).all()):
            raise ValueError(
                f"the actions of '{name}' have no bounds (low {self._action.low}, high "
                f"{self._action.high}), so agents' actions in [-1, 1] cannot be scaled to them. "
                "Choose another environment."
            )

    def reset(self, key: Array, params: Any) -> tuple[Array, Any]:
        """Begin an episode."""
        with foreign(self.spec.name):
            observation, state = self.gymnax.reset_env(key, params)
        return self._observe(observation), state

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        if not self.spec.discrete:
            action = action.reshape(self._action.shape)
            action = rescale(action, self._action.low, self._action.high)
        with foreign(self.spec.name):
            observation, after, reward, terminated, info = self.gymnax.step_env(
                key, state, action, params
            )
            if hasattr(self.gymnax, "is_truncated"):
                truncated = self.gymnax.is_truncated(after, params)
            else:
                done, unlimited = terminated, params.replace(max_steps_in_episode=NO_LIMIT)
                # The compiler merges both steps.
                terminated = self.gymnax.step_env(key, state, action, unlimited)[3]
                truncated = done & ~terminated
        reward = jnp.asarray(reward, jnp.float32)
        return self._observe(observation), after, reward, terminated, truncated, info

    def _observe(self, observation: Array) -> Array:
        if self._categories is not None:
            return jax.nn.one_hot(observation, self._categories)
        return jnp.asarray(observation, jnp.float32)


def names() -> list[str]:
    """The names of gymnax's environments. Raises `MissingPackageError`."""
    return [f"gymnax/{name}" for name in _gymnax().registered_envs]


def make(name: str) -> Environment:
    """Make an environment such as "gymnax/CartPole-v1". Raises `ValueError` where there is none."""
    bare = parsed(name)[0]
    if bare not in names():
        raise unknown(bare, "gymnax", names())
    return Gymnax(name)


def _gymnax() -> Any:
    return import_package("gymnax", "gymnax", install_command("gymnax"))
