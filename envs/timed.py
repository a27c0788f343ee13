"""The time in the episode as a last observation: -0.5 at the beginning, 0.5 at the time limit.

After Pardo et al., arXiv:1712.00378. On the host: `Hosted.observe_time`.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec, shown
from rljax.envs.environment import Environment, StepResult


def spec_with_time(spec: EnvSpec) -> EnvSpec:
    """`spec` with the time in the observation.

    Raises `ValueError` without a time limit, and if observations are not vectors.
    """
    if spec.max_episode_steps is None or not spec.is_vector:
        why = "has no time limit" if spec.max_episode_steps is None else f"shows {shown(spec)}"
        raise ValueError(
            f"'{spec.name}' {why}, so no time can be observed with it: --config.no-time-feature"
        )
    return dataclasses.replace(spec, observation_shape=(spec.observation_shape[0] + 1,))


def share_of_time(steps: Any, spec: EnvSpec) -> Any:
    """The time that is observed after `steps` steps of an episode."""
    assert spec.max_episode_steps is not None
    return steps / spec.max_episode_steps - 0.5


@struct.dataclass
class TimedState:
    """An environment's state, and the steps of its episode."""

    environment: Any
    steps: Array  # [] int32


class Timed:
    """An environment whose last observation is the time."""

    def __init__(self, environment: Environment) -> None:
        self.environment, self.params = environment, environment.params
        self.spec = spec_with_time(environment.spec)

    def reset(self, key: Array, params: Any) -> tuple[Array, TimedState]:
        """Begin an episode."""
        observation, state = self.environment.reset(key, params)
        timed = TimedState(state, jnp.zeros((), jnp.int32))
        return self._observe(observation, timed), timed

    def step(self, key: Array, state: TimedState, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        after = self.environment.step(key, state.environment, action, params)
        timed = TimedState(after[1], state.steps + 1)
        return (self._observe(after[0], timed), timed, *after[2:])

    def _observe(self, observation: Array, state: TimedState) -> Array:
        observation = jnp.asarray(observation, jnp.float32)
        return jnp.append(observation, share_of_time(state.steps, self.spec))
