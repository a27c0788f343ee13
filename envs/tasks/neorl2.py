"""NeoRL-2's DMSD and Pipeline in pure JAX: `rljax/DMSD` and `rljax/Pipeline`.

Source: Gao et al., NeoRL-2, arXiv:2503.19267; polixir/NeoRL2 at b50d91d, envs/dmsd.py,
envs/pipline.py and their rewards. DMSD is from Char et al., arXiv:2307.05891.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import StepResult


@struct.dataclass
class DMSDState:
    """Two masses between two walls."""

    position: Array  # [2] metres from rest
    velocity: Array  # [2] metres a second
    targets: Array  # [2, 2]: positions to hold in each half of the episode
    time: Array  # [] int32, steps done


class DMSD:
    """Hold two masses, in a row of springs and dampers between walls, at two targets.

    The observation [6] is position, velocity and target of both masses. With `mass` m in kg,
    `stiffness` k in N/m, `damping` d in Ns/m, and x and v from before the step of h seconds:

        acceleration = (k L x + d L v + 30 action) / m,   L = [[-2, 1], [1, -2]]
        x            = x + h v
        v            = v + h acceleration
        reward       = -sum(log(|x - target| + 0.01)),    x and target of the next observation

    Each mass draws its target in [-1.5, 1.5); with probability 1/2 it changes after 50 steps.
    """

    params = None
    steps, step_time = 100, 0.2
    mass, stiffness, damping, force = 20.0, 2.0, 4.0, 30.0

    def __init__(self, name: str) -> None:
        self.spec = EnvSpec(
            name=name, observation_shape=(6,), action_size=2, max_episode_steps=self.steps
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, DMSDState]:
        """Begin near the rest with new targets."""
        key_position, key_velocity, key_target, key_change = jax.random.split(key, 4)
        first, second = jax.random.uniform(key_target, (2, 2), minval=-1.5, maxval=1.5)
        changes = jax.random.bernoulli(key_change, 0.5, (2,))
        state = DMSDState(
            position=jax.random.uniform(key_position, (2,), minval=-0.25, maxval=0.25),
            velocity=jax.random.uniform(key_velocity, (2,), minval=-0.1, maxval=0.1),
            targets=jnp.stack([first, jnp.where(changes, second, first)]),
            time=jnp.zeros((), jnp.int32),
        )
        return self._observe(state), state

    def step(self, key: Array, state: DMSDState, action: Array, params: Any = None) -> StepResult:
        """Push both masses for 0.2 seconds."""
        position, velocity = state.position, state.velocity
        push = self.stiffness * self._coupled(position) + self.damping * self._coupled(velocity)
        acceleration = (push + self.force * jnp.clip(action, -1, 1)) / self.mass
        state = DMSDState(
            position=position + self.step_time * velocity,
            velocity=velocity + self.step_time * acceleration,
            targets=state.targets,
            time=state.time + 1,
        )
        reward = -jnp.log(jnp.abs(state.position - self._target(state)) + 0.01).sum()
        never = jnp.zeros((), jnp.bool_)
        return self._observe(state), state, reward, never, never, {}

    def _coupled(self, values: Array) -> Array:
        return values[::-1] - 2 * values

    def _target(self, state: DMSDState) -> Array:
        return jnp.where(state.time < self.steps // 2, state.targets[0], state.targets[1])

    def _observe(self, state: DMSDState) -> Array:
        return jnp.concatenate([state.position, state.velocity, self._target(state)])


@struct.dataclass
class PipelineState:
    """The water in a pipe."""

    flow: Array  # [20] flow rates from the gate to the outlet
    observation: Array  # [52]


class Pipeline:
    """Open and close a gate so that the flow rate at a pipe's other end follows a target.

    An action of 1 raises the gate's flow rate, from 0 to 200, by 1. The observation [52] holds the
    outlet's flow rate, the target, the outlet's 25 flow rates before, and the last 25 actions, each
    from the newest to the oldest. The reward of docs/environments.md is of the outlet and the
    target in the next observation.
    """

    params = None
    targets = (50.0, 80.0, 110.0, 140.0)
    delay, history, highest, change = 20, 25, 200.0, 0.003

    def __init__(self, name: str) -> None:
        size = 2 + 2 * self.history
        self.spec = EnvSpec(
            name=name, observation_shape=(size,), action_size=1, max_episode_steps=1000
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, PipelineState]:
        """Begin with one flow rate along the whole pipe, and without past actions."""
        key_flow, key_target = jax.random.split(key)
        start = jax.random.uniform(key_flow, (1,), minval=80.0, maxval=120.0)
        target = self._drawn(key_target)
        past, actions = jnp.repeat(start, self.history), jnp.zeros(self.history)
        observation = jnp.concatenate([start, target, past, actions])
        return observation, PipelineState(jnp.repeat(start, self.delay), observation)

    def step(
        self, key: Array, state: PipelineState, action: Array, params: Any = None
    ) -> StepResult:
        """Move the gate, and the water by one step."""
        key_change, key_target = jax.random.split(key)
        outlet, target, past, actions = jnp.split(state.observation, (1, 2, 2 + self.history))
        changes = jax.random.bernoulli(key_change, self.change)
        target = jnp.where(changes, self._drawn(key_target), target)
        action = jnp.clip(action, -1, 1)
        gate = jnp.clip(state.flow[:1] + action, 0, self.highest)
        flow = jnp.concatenate([gate, state.flow[:-1]])
        past = jnp.concatenate([outlet, past[:-1]])
        actions = jnp.concatenate([action, actions[:-1]])
        observation = jnp.concatenate([flow[-1:], target, past, actions])
        reward = jnp.square(0.01 * (200 - jnp.abs(flow[-1] - target[0]))) - 3
        never = jnp.zeros((), jnp.bool_)
        return observation, PipelineState(flow, observation), reward, never, never, {}

    def _drawn(self, key: Array) -> Array:
        return jax.random.choice(key, jnp.asarray(self.targets), (1,))


ENVIRONMENTS = {"rljax/DMSD": DMSD, "rljax/Pipeline": Pipeline}
