"""Lifetimes, by the prefix `lifetime-N/`: N episodes of one task are one episode.

An agent can learn in the first episodes what helps in later ones. After the last step of an inner
episode, it sees the first observation of the next one. The signals "first_episode" and
"last_episode" sum to the returns of the first and the last inner episode.

After Duan et al., arXiv:1611.02779, whose trials these are.
"""

from __future__ import annotations

import dataclasses
from typing import Any, Protocol

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Part, choose
from rljax.envs.environment import Environment, StepResult

FIRST, LAST = "first_episode", "last_episode"


class Repeatable(Environment, Protocol):
    """A compiled environment whose task can be tried again."""

    def restart(self, key: Array, state: Any, params: Any) -> tuple[Any, Any]:
        """Begin another episode of the same task. Returns the first observation and the state."""
        ...


@struct.dataclass
class LifetimeState:
    """An environment's state, and where its lifetime is."""

    environment: Any
    episode: Array  # [] int32: inner episodes that have ended
    steps: Array  # [] int32: of the inner episode


class Lifetime:
    """A compiled environment that tries each task several times."""

    def __init__(self, environment: Any, prefix: str) -> None:
        """Raises `ValueError` for less than 2 episodes, and for an environment that cannot repeat a
        task, or has no time limit.
        """
        self.episodes = int(prefix.removeprefix("lifetime-").removesuffix("/"))
        spec = environment.spec
        if self.episodes < 2:
            raise ValueError(f"'{prefix}' has {self.episodes} episodes, it must have at least 2.")
        if not hasattr(environment, "restart") or spec.max_episode_steps is None:
            lacks = "has no time limit" if hasattr(environment, "restart") else "draws a new task"
            raise ValueError(
                f"'{spec.name}' {lacks}, so no lifetime of several episodes can be made of it. "
                "rljax/DarkRoom-10x10 has what is needed: `rljax.envs.lifetimes.Repeatable`."
            )
        self.environment, self.params = environment, environment.params
        signals = (*spec.signals, Part(FIRST, ()), Part(LAST, ()))
        self.spec = dataclasses.replace(
            spec,
            name=prefix + spec.name,
            max_episode_steps=self.episodes * spec.max_episode_steps,
            signals=tuple(sorted(signals, key=lambda part: part.name)),
        )

    def reset(self, key: Array, params: Any) -> tuple[Any, LifetimeState]:
        """Begin a lifetime with a new task."""
        observation, state = self.environment.reset(key, params)
        zero = jnp.zeros((), jnp.int32)
        return observation, LifetimeState(state, zero, zero)

    def step(self, key: Array, state: LifetimeState, action: Array, params: Any) -> StepResult:
        """Apply one action. After an inner episode the next one begins."""
        key_step, key_restart = jax.random.split(key)
        after = self.environment.step(key_step, state.environment, action, params)
        observation, inner, reward, terminated, truncated, info = after
        steps = state.steps + 1
        ended = terminated | truncated | (steps >= self.environment.spec.max_episode_steps)
        last = state.episode == self.episodes - 1
        fresh = self.environment.restart(key_restart, inner, params)
        observation, inner = choose(ended & ~last, fresh, (observation, inner))
        returns = {FIRST: reward * (state.episode == 0), LAST: reward * last}
        state = LifetimeState(inner, state.episode + ended, jnp.where(ended, 0, steps))
        terminated, truncated = terminated & last, ended & ~terminated & last
        return observation, state, reward, terminated, truncated, info | returns
