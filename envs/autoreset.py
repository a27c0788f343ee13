"""Batches of compiled environments that reset themselves."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Step, choose
from rljax.envs import signals
from rljax.envs.environment import Environment
from rljax.trust import nearest

LONGEST = 2**31 - 1  # number of steps that is counted

# Environments that are reset at a time: CHUNK, or the batch divided by SHARE if that is more: few
# ends do not reset a whole large batch, and many do so in few parts.
CHUNK, SHARE = 64, 16


@struct.dataclass
class AutoResetState:
    """N environments and their running episodes."""

    environment: Any  # the environments' states, [N, ...]
    episode_return: Array  # [N] float32, undiscounted
    episode_length: Array  # [N] int32, environment steps
    episode_signals: dict[str, Array]  # [N, K...] float32: sums of each signal


class AutoReset:
    """N environments that reset themselves and return the true final observation.

    Never `vmap` `reset` or `step`: the loop would then reset all environments in every step.
    Flatten populations instead, [P, E] to [N]. An environment's trajectory depends only on its own
    keys and actions.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment, self.params = environment, environment.params
        self.spec = environment.spec
        signals.check(self.spec.signals, self.spec.name)

    def with_params(self, values: Mapping[str, Any]) -> AutoReset:
        """The same with other `values` of fields of its `params`.

        Raises `ValueError` for fields that they lack.
        """
        params: Any = self.params
        is_dataclass = dataclasses.is_dataclass(params)
        names = [field.name for field in dataclasses.fields(params)] if is_dataclass else []
        for name in values:
            if name not in names:
                raise ValueError(
                    f"the params of '{self.spec.name}' have no field '{name}'."
                    f"{nearest(name, names)} Their fields: {', '.join(names) or 'none'}"
                )
        changed = AutoReset(self.environment)
        changed.params = dataclasses.replace(params, **values)
        return changed

    def reset(self, keys: Array) -> tuple[Any, AutoResetState]:
        """Begin an episode in each environment, from N typed keys.

        Returns the observations, [N, O...] in the dtypes of the spec, and the state.
        """
        observation, environment = jax.vmap(self._reset)(keys)
        number = keys.shape[0]
        return observation, AutoResetState(
            environment=environment,
            episode_return=jnp.zeros(number),
            episode_length=jnp.zeros(number, jnp.int32),
            episode_signals=signals.zeros(self.spec.signals, number),
        )

    def step(
        self, keys: Array, state: AutoResetState, action: Array
    ) -> tuple[Step, AutoResetState]:
        """Apply one action to each environment. Where an episode ends, the next one begins.

        `keys` are N typed keys, new in every step. `action` is [N, A] in [-1, 1], or [N] int32. At
        the end of an episode, `Step.observation` [N, O...] is the first of the new one, and
        `Step.next_observation` the last of the old one.
        """
        next_observation, environment, reward, terminated, truncated, success, step_signals = (
            jax.vmap(self._step)(_half(keys, 0), state.environment, action)
        )
        sums = {name: total + step_signals[name] for name, total in state.episode_signals.items()}
        episode_return = state.episode_return + reward
        episode_length = jnp.minimum(state.episode_length, LONGEST - 1) + 1
        if self.spec.max_episode_steps is not None:
            truncated = truncated | (episode_length >= self.spec.max_episode_steps)
        ended = terminated | truncated
        observation, environment = self._begin_again(ended, keys, next_observation, environment)
        step = Step(
            observation=observation,
            next_observation=next_observation,
            reward=reward,
            terminated=terminated,
            truncated=truncated,
            episode_return=episode_return,
            episode_length=episode_length,
            success=success,
            signals=step_signals,
            episode_signals=sums,
        )
        state = AutoResetState(
            environment=environment,
            episode_return=jnp.where(ended, 0, episode_return),
            episode_length=jnp.where(ended, 0, episode_length),
            episode_signals=choose(ended, jax.tree.map(jnp.zeros_like, sums), sums),
        )
        return step, state

    def _reset(self, key: Array) -> tuple[Any, Any]:
        observation, state = self.environment.reset(key, self.params)
        return self.spec.cast(observation), jax.tree.map(_strong, state)

    def _step(
        self, key: Array, state: Any, action: Array
    ) -> tuple[Any, Any, Array, Array, Array, Array | None, Any]:
        kinds = jax.tree.map(lambda leaf: leaf.dtype, state)
        observation, state, reward, terminated, truncated, info = self.environment.step(
            key, state, action, self.params
        )
        return (
            self.spec.cast(observation),
            jax.tree.map(jnp.asarray, state, kinds),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, jnp.bool_),
            jnp.asarray(truncated, jnp.bool_),
            jnp.asarray(info["success"], jnp.bool_) if "success" in info else None,
            signals.of_info(info, self.spec.signals, self.spec.name),
        )

    def _begin_again(
        self, ended: Array, keys: Array, observation: Any, state: Any
    ) -> tuple[Any, Any]:
        number = ended.shape[0]
        chunk = min(number, max(CHUNK, number // SHARE))

        def replace(carry: tuple[Array, tuple[Any, Any]]) -> tuple[Array, tuple[Any, Any]]:
            waiting, rows = carry
            # Writes past the end are dropped.
            (index,) = jnp.nonzero(waiting, size=chunk, fill_value=number)
            fresh = jax.vmap(self._reset)(_half(keys[index], 1))
            rows = jax.tree.map(lambda row, new: row.at[index].set(new, mode="drop"), rows, fresh)
            return waiting.at[index].set(False, mode="drop"), rows

        return jax.lax.while_loop(
            lambda carry: carry[0].any(), replace, (ended, (observation, state))
        )[1]


def _half(keys: Array, which: int) -> Array:
    """The first or the second half of each of `keys` [N], split in two."""
    return jax.vmap(jax.random.split)(keys)[:, which]


def _strong(leaf: Any) -> Array:
    leaf = jnp.asarray(leaf)
    return jnp.asarray(leaf, leaf.dtype)
