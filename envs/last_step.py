"""Environments that show their last action and reward; docs/memory.md has the layout.

A single picture becomes the part `observation`. On the host: `Hosted.observe_last_step`.

After Wang et al., arXiv:1611.05763, and Kapturowski et al., R2D2, ICLR 2019.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec, Part
from rljax.envs.environment import Environment, StepResult

PREFIX = "with-last-step/"
ACTION, REWARD, OBSERVATION = "last_action", "last_reward", "observation"  # parts of dictionaries


def spec_with_last_step(spec: EnvSpec) -> EnvSpec:
    """`spec` with the last action and reward in the observation."""
    name = PREFIX + spec.name
    if spec.is_vector:
        size = spec.observation_shape[0] + spec.action_size + 1
        return dataclasses.replace(spec, name=name, observation_shape=(size,))
    parts = spec.parts or (Part(OBSERVATION, spec.observation_shape, spec.observation_dtype),)
    parts = (*parts, Part(ACTION, (spec.action_size,), "float32"), Part(REWARD, (1,), "float32"))
    ordered = tuple(sorted(parts, key=lambda part: part.name))
    return dataclasses.replace(
        spec, name=name, observation_shape=(), observation_dtype="float32", parts=ordered, stack=1
    )


def with_last_step(observation: Any, action: Any, reward: Any, spec: EnvSpec, xp: Any = jnp) -> Any:
    """Observations [..., O...] under `spec`, with the action and reward before them.

    `action` is [..., A] or [...], and `reward` [...]. `xp` is NumPy or its twin in JAX.
    """
    number = spec.numbers
    shown = [xp.clip(action[..., :number], -1.0, 1.0)] if number else []
    for index, choices in enumerate(spec.choices or ((spec.action_size,) if spec.discrete else ())):
        choice = action[..., number + index] if spec.choices else action
        shown.append(xp.asarray(choice)[..., None] == xp.arange(choices))
    shown = [xp.asarray(x, np.float32) for x in (*shown, xp.asarray(reward)[..., None])]
    return _joined(observation, xp.concatenate(shown, axis=-1), spec, xp)


def first(observation: Any, spec: EnvSpec, leading: tuple[int, ...] = (), xp: Any = jnp) -> Any:
    """First observations [..., O...] of episodes, with these `leading` axes."""
    return _joined(observation, xp.zeros((*leading, spec.action_size + 1), np.float32), spec, xp)


def _joined(observation: Any, step: Any, spec: EnvSpec, xp: Any) -> Any:
    if spec.is_vector:
        return xp.concatenate([observation, step], axis=-1)
    parts = observation if spec.parts else {OBSERVATION: observation}
    return {**parts, ACTION: step[..., :-1], REWARD: step[..., -1:]}


class WithLastStep:
    """A compiled environment that shows its last action and reward."""

    def __init__(self, environment: Environment) -> None:
        self.environment, self.params = environment, environment.params
        self.spec = spec_with_last_step(environment.spec)

    def reset(self, key: Array, params: Any) -> tuple[Any, Any]:
        """Begin an episode."""
        observation, state = self.environment.reset(key, params)
        spec = self.environment.spec
        return first(spec.cast(observation), spec), state

    def step(self, key: Array, state: Any, action: Array, params: Any) -> StepResult:
        """Apply one action."""
        after = self.environment.step(key, state, action, params)
        spec = self.environment.spec
        return with_last_step(spec.cast(after[0]), action, after[2], spec), *after[1:]
