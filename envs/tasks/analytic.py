"""Small environments in pure JAX: probes, each of one ability, a random walk, and a pendulum.

    rljax/Constant     whether a value is learned at all
    rljax/Delay        discounting
    rljax/Endless      bootstrapping at truncation
    rljax/Finite       no bootstrapping at termination
    rljax/Observation  values that depend on the observation
    rljax/Action       a policy
    rljax/Both         one that depends on the observation, at its bounds
    rljax/Follow       the same, inside its bounds
    rljax/Memory       credit for the past

With the suffix `-discrete`, actions are indices of `GRID`.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import StepResult

# The continuous actions that the discrete actions 0 to 4 stand for.
GRID = (-1.0, -0.5, 0.0, 0.5, 1.0)


@struct.dataclass
class AnalyticState:
    """The state of an episode."""

    observation: Array  # [O] float32
    time: Array  # [] int32, steps done


class Analytic:
    """A probe of known answers. An episode terminates after `steps` steps; an `endless` one is
    truncated there.
    """

    steps = 1
    endless = False
    signed = False  # the observation is -1 or 1 with equal probability, else 0
    observation_size = 1
    params = None

    def __init__(self, name: str) -> None:
        discrete = name.endswith("-discrete")
        self.spec = EnvSpec(
            name=name,
            observation_shape=(self.observation_size,),
            action_size=len(GRID) if discrete else 1,
            discrete=discrete,
            max_episode_steps=self.steps if self.endless else None,
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, AnalyticState]:
        """Begin an episode."""
        observation = self.first(key)
        return observation, AnalyticState(observation, jnp.zeros((), jnp.int32))

    def step(
        self, key: Array, state: AnalyticState, action: Array, params: Any = None
    ) -> StepResult:
        """Apply one action."""
        choice = jnp.asarray(GRID)[action] if self.spec.discrete else action[0]
        reward = self.reward(state.observation, choice)
        observation, time = self.after(state.observation, choice), state.time + 1
        terminated = jnp.logical_and(not self.endless, time >= self.steps)
        never, state = jnp.zeros((), jnp.bool_), AnalyticState(observation, time)
        return observation, state, reward, terminated, never, {}

    def first(self, key: Array) -> Array:
        """An episode's first observation, [O]."""
        if self.signed:
            return jax.random.rademacher(key, (1,), jnp.float32)
        return jnp.zeros(self.observation_size)

    def after(self, observation: Array, choice: Array) -> Array:
        """The next observation [O] after a choice []."""
        return observation

    def reward(self, observation: Array, choice: Array) -> Array:
        """The reward [] for a choice []."""
        return jnp.ones(())

    def value(self, observation: Any, discount: Any) -> Array:
        """The optimal value [...] of observations [..., O]."""
        raise NotImplementedError

    def best_choice(self, observation: Array) -> Array:
        """The best choice [...] for observations [..., O]; 0 where all are equally good."""
        return jnp.zeros(observation.shape[:-1])

    def optimal_action(self, observation: Any) -> Array:
        """The optimal action, [..., 1] float32 or [...] int32, for observations [..., O]."""
        choice = self.best_choice(jnp.asarray(observation))
        if self.spec.discrete:
            return jnp.abs(jnp.asarray(GRID) - choice[..., None]).argmin(axis=-1).astype(jnp.int32)
        return choice[..., None]


class Constant(Analytic):
    """One step with reward 1: V = 1."""

    def value(self, observation: Any, discount: Any) -> Array:
        return jnp.ones(jnp.shape(observation)[:-1])


class Delay(Analytic):
    """Reward 1 on the second of two steps: V(o) = discount^(1 - o), o the steps done."""

    steps = 2

    def after(self, observation: Array, choice: Array) -> Array:
        return observation + 1

    def reward(self, observation: Array, choice: Array) -> Array:
        return jnp.where(observation[0] == 1, 1.0, 0.0)

    def value(self, observation: Any, discount: Any) -> Array:
        return discount ** (1 - jnp.asarray(observation)[..., 0])


class Endless(Analytic):
    """Reward 1 for ever, cut off after 5 steps: V = 1 / (1 - discount)."""

    steps, endless = 5, True

    def value(self, observation: Any, discount: Any) -> Array:
        return jnp.ones(jnp.shape(observation)[:-1]) / (1 - discount)


class Finite(Analytic):
    """Reward 1 for 5 steps: V(o) = (1 - discount^(5 (1 - o))) / (1 - discount), 5 o the steps
    done.
    """

    steps = 5

    def after(self, observation: Array, choice: Array) -> Array:
        return observation + 1 / self.steps

    def value(self, observation: Any, discount: Any) -> Array:
        left = self.steps * (1 - jnp.asarray(observation)[..., 0])
        return (1 - discount**left) / (1 - discount)


class Observation(Analytic):
    """One step, with the observation as the reward: V(o) = o."""

    signed = True

    def reward(self, observation: Array, choice: Array) -> Array:
        return observation[0]

    def value(self, observation: Any, discount: Any) -> Array:
        return jnp.asarray(observation)[..., 0]


class Action(Analytic):
    """One step with reward -(a - 0.5)^2: V = 0, a* = 0.5."""

    def reward(self, observation: Array, choice: Array) -> Array:
        return -jnp.square(choice - 0.5)

    def value(self, observation: Any, discount: Any) -> Array:
        return jnp.zeros(jnp.shape(observation)[:-1])

    def best_choice(self, observation: Array) -> Array:
        return jnp.full(observation.shape[:-1], 0.5)


class ObservationTimesAction(Analytic):
    """One step with reward o a: V(o) = |o|, a*(o) = sign(o)."""

    signed = True

    def reward(self, observation: Array, choice: Array) -> Array:
        return observation[0] * choice

    def value(self, observation: Any, discount: Any) -> Array:
        return jnp.abs(jnp.asarray(observation)[..., 0])

    def best_choice(self, observation: Array) -> Array:
        return jnp.sign(observation[..., 0])


class Follow(Analytic):
    """One step with reward -(a - o / 2)^2: V = 0, a*(o) = o / 2."""

    signed = True

    def reward(self, observation: Array, choice: Array) -> Array:
        return -jnp.square(choice - 0.5 * observation[0])

    def value(self, observation: Any, discount: Any) -> Array:
        return jnp.zeros(jnp.shape(observation)[:-1])

    def best_choice(self, observation: Array) -> Array:
        return 0.5 * observation[..., 0]


class Memory(Analytic):
    """Two steps. The second observes the first's action m; its reward is 1 - (m - 0.5)^2.

    V(0, 0) = discount, a* = 0.5; V(1, m) = 1 - (m - 0.5)^2.
    """

    steps, observation_size = 2, 2

    def after(self, observation: Array, choice: Array) -> Array:
        return jnp.stack([jnp.ones(()), jnp.where(observation[0] == 0, choice, observation[1])])

    def reward(self, observation: Array, choice: Array) -> Array:
        return jnp.where(observation[0] == 1, 1 - jnp.square(observation[1] - 0.5), 0.0)

    def value(self, observation: Any, discount: Any) -> Array:
        time, memory = jnp.moveaxis(jnp.asarray(observation), -1, 0)
        return jnp.where(time == 0, discount, 1 - jnp.square(memory - 0.5))

    def best_choice(self, observation: Array) -> Array:
        return jnp.where(observation[..., 0] == 0, 0.5, 0.0)


class RandomWalk:
    """Sutton and Barto's random walk (2nd edition, example 6.2): 5 states, one-hot, from the middle
    to beyond either end.

    The actions are 0 (left) and 1 (right). The right end gives 1.
    """

    params = None
    length = 5

    def __init__(self, name: str) -> None:
        self.spec = EnvSpec(
            name=name, observation_shape=(self.length,), action_size=2, discrete=True
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, Array]:
        """Begin in the middle."""
        state = jnp.asarray(self.length // 2, jnp.int32)
        return self._observe(state), state

    def step(self, key: Array, state: Array, action: Array, params: Any = None) -> StepResult:
        """Go one state to the left or right."""
        state = state + 2 * action.astype(jnp.int32) - 1
        ended = (state < 0) | (state >= self.length)
        reward = jnp.where(state >= self.length, 1.0, 0.0)
        return self._observe(state), state, reward, ended, jnp.zeros((), jnp.bool_), {}

    def value(self, observation: Any) -> Array:
        """V [...] of observations [..., 5] under uniform actions."""
        return (jnp.asarray(observation).argmax(axis=-1) + 1) / (self.length + 1)

    def _observe(self, state: Array) -> Array:
        return jax.nn.one_hot(state, self.length)  # zeros at the ends


@struct.dataclass
class PendulumState:
    """The state of a pendulum."""

    angle: Array  # [] radians, 0 upright
    velocity: Array  # [] radians a second


class Pendulum:
    """Swing a pendulum up and hold it: Gymnasium's Pendulum-v1.

    The observation is [cos(angle), sin(angle), velocity]. The action is the torque, from -2 to 2
    Nm. With g = 10, and mass and length 1:

        reward   = -(angle^2 + 0.1 velocity^2 + 0.001 torque^2),  the angle in [-pi, pi)
        velocity = clip(velocity + (15 sin(angle) + 3 torque) 0.05, -8, 8)
        angle    = angle + 0.05 velocity
    """

    params = None

    def __init__(self, name: str) -> None:
        self.spec = EnvSpec(name=name, observation_shape=(3,), action_size=1, max_episode_steps=200)

    def reset(self, key: Array, params: Any = None) -> tuple[Array, PendulumState]:
        """Begin at an angle uniform in [-pi, pi) with a velocity uniform in [-1, 1)."""
        high = jnp.array([jnp.pi, 1.0])
        angle, velocity = jax.random.uniform(key, (2,), minval=-high, maxval=high)
        state = PendulumState(angle, velocity)
        return self._observe(state), state

    def step(
        self, key: Array, state: PendulumState, action: Array, params: Any = None
    ) -> StepResult:
        """Apply one torque for 0.05 seconds."""
        torque = 2 * jnp.clip(action[0], -1, 1)
        angle = (state.angle + jnp.pi) % (2 * jnp.pi) - jnp.pi
        reward = -(
            jnp.square(angle) + 0.1 * jnp.square(state.velocity) + 0.001 * jnp.square(torque)
        )
        velocity = jnp.clip(state.velocity + (15 * jnp.sin(state.angle) + 3 * torque) * 0.05, -8, 8)
        state = PendulumState(state.angle + 0.05 * velocity, velocity)
        never = jnp.zeros((), jnp.bool_)
        return self._observe(state), state, reward, never, never, {}

    def _observe(self, state: PendulumState) -> Array:
        return jnp.stack([jnp.cos(state.angle), jnp.sin(state.angle), state.velocity])


_BOTH_KINDS: dict[str, type[Analytic]] = {
    "rljax/Constant": Constant,
    "rljax/Delay": Delay,
    "rljax/Endless": Endless,
    "rljax/Finite": Finite,
    "rljax/Observation": Observation,
    "rljax/Action": Action,
    "rljax/Both": ObservationTimesAction,
    "rljax/Follow": Follow,
    "rljax/Memory": Memory,
}
# For tests: their values are known in closed form.
PROBES = _BOTH_KINDS | {f"{name}-discrete": probe for name, probe in _BOTH_KINDS.items()}
ENVIRONMENTS: dict[str, Any] = {
    **PROBES,
    "rljax/Pendulum": Pendulum,
    "rljax/RandomWalk": RandomWalk,
}
