"""Auto-reset: batches of environments inside the program that begin again where an episode has ended."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Step
from rljax.envs.environment import Environment

# Environments that begin again in one go: a large batch does not reset wholly for the few that ended in a step, nor in
# many small parts where all did.
CHUNK = 64  # at least
SHARE = 16  # a part of all, if that is more


@struct.dataclass
class AutoResetState:
    """N environments and their running episodes."""

    environment: Any  # the environments' states, [N, ...]
    episode_return: Array  # [N] float32, undiscounted
    episode_length: Array  # [N] int32, environment steps


class AutoReset:
    """N environments side by side that reset themselves, with the true final observation.

    The batch axis is part of the interface: flatten populations of environments, [P, E] to [N], and never `vmap`
    `reset` or `step`. The loop that resets runs only in steps in which an episode ended, and only over the
    environments whose did; under `vmap` it would run over all, in every step.

    An environment's trajectory depends on its own keys and actions only, never on N or on its neighbours.
    """

    def __init__(self, environment: Environment) -> None:
        self.environment = environment
        self.spec = environment.spec

    def reset(self, keys: Array) -> tuple[Array, AutoResetState]:
        """Begin an episode in each environment.

        `keys` are N typed keys; returns observations [N, O...] float32 and the state.
        """
        observation, environment = jax.vmap(self._reset)(keys)
        number = keys.shape[0]
        return observation, AutoResetState(environment, jnp.zeros(number), jnp.zeros(number, jnp.int32))

    def step(self, keys: Array, state: AutoResetState, action: Array) -> tuple[Step, AutoResetState]:
        """Apply one action to each environment; where that ends an episode, begin the next.

        `keys` are N typed keys, fresh in every step; `action` is [N, A] in [-1, 1], or [N] int32. An episode ends
        where the environment says so, and is truncated after `spec.max_episode_steps` steps. Where it ends,
        `Step.observation` [N, O...] is the new episode's first and `Step.next_observation` the old one's last.
        """
        next_observation, environment, reward, terminated, truncated, success = jax.vmap(self._step)(
            _half(keys, 0), state.environment, action
        )
        episode_return = state.episode_return + reward
        episode_length = state.episode_length + 1
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
        )
        state = AutoResetState(
            environment=environment,
            episode_return=jnp.where(ended, 0, episode_return),
            episode_length=jnp.where(ended, 0, episode_length),
        )
        return step, state

    def _reset(self, key: Array) -> tuple[Array, Any]:
        observation, state = self.environment.reset(key, self.environment.params)
        return jnp.asarray(observation, jnp.float32), jax.tree.map(_strong, state)

    def _step(self, key: Array, state: Any, action: Array) -> tuple[Array, Any, Array, Array, Array, Array | None]:
        kinds = jax.tree.map(lambda leaf: leaf.dtype, state)
        observation, state, reward, terminated, truncated, info = self.environment.step(
            key, state, action, self.environment.params
        )
        return (
            jnp.asarray(observation, jnp.float32),
            jax.tree.map(jnp.asarray, state, kinds),
            jnp.asarray(reward, jnp.float32),
            jnp.asarray(terminated, jnp.bool_),
            jnp.asarray(truncated, jnp.bool_),
            jnp.asarray(info["success"], jnp.bool_) if "success" in info else None,
        )

    def _begin_again(self, ended: Array, keys: Array, observation: Array, state: Any) -> tuple[Array, Any]:
        """Replace the rows where `ended` by fresh episodes."""
        number = ended.shape[0]
        chunk = min(number, max(CHUNK, number // SHARE))

        def replace(carry: tuple[Array, tuple[Array, Any]]) -> tuple[Array, tuple[Array, Any]]:
            waiting, rows = carry
            # Rows beyond the number of those waiting point past the end: they read any key and write nowhere.
            (index,) = jnp.nonzero(waiting, size=chunk, fill_value=number)
            fresh = jax.vmap(self._reset)(_half(keys[index], 1))
            rows = jax.tree.map(lambda row, new: row.at[index].set(new, mode="drop"), rows, fresh)
            return waiting.at[index].set(False, mode="drop"), rows

        return jax.lax.while_loop(lambda carry: carry[0].any(), replace, (ended, (observation, state)))[1]


def _half(keys: Array, which: int) -> Array:
    """The first or second of the two keys that each of `keys` [N] splits into.

    Split where they are used: of environments whose steps are not random, only the keys of those that begin again are.
    """
    return jax.vmap(jax.random.split)(keys)[:, which]


def _strong(leaf: Any) -> Array:
    """Without a weak type, which `step` might not keep."""
    leaf = jnp.asarray(leaf)
    return jnp.asarray(leaf, leaf.dtype)
