"""A combination lock, `rljax/CombinationLock-H`: one of 10 actions is right in each of H steps.

An episode begins in state A or B, each with probability 1/2, and terminates after H steps. The
right actions in A and B differ. They lead to A or B, each with probability 1/2, others to C for
good:

    reward = 1       for the right action in the last step
             0.1     with probability 1/2 where an action leads from A or B to C: a decoy
             0       else

An observation is the one-hot vectors of state and time (0 to H), with Gaussian noise of std 0.1 on
the first H + 3 numbers, padded to the next power of 2 above H + 3 and turned by a Hadamard matrix.
Without `-discrete`, an action is drawn from the softmax of 10 numbers in [-1, 1], divided by 0.2.
The combination depends on H alone.

After Zhou et al., arXiv:2311.08384, whose code pays a decoy in the last step alone, and Zhang et
al., arXiv:2202.00063.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec, Transition
from rljax.envs.environment import Environment, StepResult

BEGINNING = "rljax/CombinationLock-"
HORIZONS = (1, 500)  # the shortest and the longest
ACTIONS, PLACES = 10, 3
NOISE, TEMPERATURE, DECOY = 0.1, 0.2, 0.1


@struct.dataclass
class LockState:
    """The state of an episode."""

    place: Array  # [] int32: 0 and 1 are good, 2 is bad
    time: Array  # [] int32, steps done


class CombinationLock:
    """The task of one horizon H."""

    params = None

    def __init__(self, name: str, horizon: int, discrete: bool = False) -> None:
        """Raises `ValueError` for a horizon out of range."""
        low, high = HORIZONS
        if not low <= horizon <= high:
            raise ValueError(f"'{name}' has a horizon of {horizon}: it must be {low} to {high}.")
        self.horizon, self.size = horizon, 2 ** (horizon + PLACES).bit_length()
        self.spec = EnvSpec(
            name, (self.size,), ACTIONS, discrete=discrete, max_episode_steps=horizon
        )
        generator = np.random.default_rng(horizon)
        first = generator.integers(ACTIONS, size=horizon)
        second = (first + generator.integers(1, ACTIONS, size=horizon)) % ACTIONS
        # [2, H]: the right actions in A and in B
        self.combination = np.stack([first, second]).astype(np.int32)
        self.rotation = _hadamard(self.size)

    def reset(self, key: Array, params: Any = None) -> tuple[Array, LockState]:
        """Begin in A or B."""
        key_place, key_noise = jax.random.split(key)
        state = LockState(jax.random.randint(key_place, (), 0, 2), jnp.zeros((), jnp.int32))
        return self._observe(key_noise, state), state

    def step(self, key: Array, state: LockState, action: Array, params: Any = None) -> StepResult:
        """Apply one action."""
        key_action, key_place, key_decoy, key_noise = jax.random.split(key, 4)
        if not self.spec.discrete:
            action = jax.random.categorical(key_action, action / TEMPERATURE)
        good = state.place < 2
        opens = good & (action == self._right(state.place, state.time))
        place = jnp.where(opens, jax.random.randint(key_place, (), 0, 2), 2)
        last = state.time == self.horizon - 1
        decoy = DECOY * (good & ~opens & jax.random.bernoulli(key_decoy))
        after = LockState(place, state.time + 1)
        success = opens & last
        reward, never = jnp.where(success, 1.0, decoy), jnp.zeros((), bool)
        return self._observe(key_noise, after), after, reward, last, never, {"success": success}

    @property
    def optimum(self) -> float:
        """The largest expected return of an episode, without discounting."""
        return float(self.value(0))

    def value(self, time: Any, place: Any = 0, discount: float = 1.0) -> np.ndarray:
        """The optimal value [...] of places [...] at times [...], both whole numbers."""
        others = 0.0 if self.spec.discrete else (ACTIONS - 1) * np.exp(-2.0 / TEMPERATURE)
        sure, values = 1.0 / (1.0 + others), [0.0]  # with no step left, with one, and so on
        for left in range(self.horizon):
            after = discount * values[-1] if left else 1.0
            values.append(sure * after + (1.0 - sure) * DECOY / 2)
        good = np.asarray(values)[self.horizon - np.asarray(time)]
        return np.where(np.asarray(place) < 2, good, 0.0)

    def decoded(self, observation: Any) -> tuple[Array, Array]:
        """The places [...] and times [...] that observations [..., O] show, without noise."""
        plain = jnp.asarray(observation) @ self.rotation / self.size
        places, times = plain[..., :PLACES], plain[..., PLACES : PLACES + self.horizon + 1]
        return places.argmax(axis=-1), times.argmax(axis=-1)

    def optimal_action(self, observation: Any) -> Array:
        """The optimal action, [..., 10] float32 or [...] int32, for observations [..., O]; in C,
        B's.
        """
        right = self._right(*self.decoded(observation))
        return right if self.spec.discrete else 2.0 * jax.nn.one_hot(right, ACTIONS) - 1.0

    def _right(self, place: Array, time: Array) -> Array:
        time = jnp.minimum(time, self.horizon - 1)
        return jnp.asarray(self.combination)[jnp.minimum(place, 1), time]

    def demonstrations(self, key: Array, episodes: int, exploration: Any = None) -> Transition:
        """Episodes by the optimal policy, one after another: [episodes H, ...].

        With probability `exploration`, by default the paper's 1 / H, a uniform action replaces
        each.
        """
        share = 1.0 / self.horizon if exploration is None else exploration

        def step(
            carry: tuple[Array, LockState], key: Array
        ) -> tuple[tuple[Array, LockState], Transition]:
            observation, state = carry
            key_step, key_explore, key_uniform = jax.random.split(key, 3)
            action, shape = self.optimal_action(observation), self.spec.action_shape
            uniform = jax.random.uniform(key_uniform, shape, minval=-1.0, maxval=1.0)
            if self.spec.discrete:
                uniform = jax.random.randint(key_uniform, shape, 0, ACTIONS)
            action = jnp.where(jax.random.bernoulli(key_explore, share), uniform, action)
            successor, state, reward, terminated, truncated, _ = self.step(key_step, state, action)
            row = Transition(observation, action, reward, terminated, truncated, successor)
            return (successor, state), row

        def episode(key: Array) -> Transition:
            key_reset, key_steps = jax.random.split(key)
            return jax.lax.scan(
                step, self.reset(key_reset), jax.random.split(key_steps, self.horizon)
            )[1]

        rows = jax.vmap(episode)(jax.random.split(key, episodes))
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)

    def _observe(self, key: Array, state: LockState) -> Array:
        places = jax.nn.one_hot(state.place, PLACES)
        times = jax.nn.one_hot(state.time, self.size - PLACES)
        noise = NOISE * jax.random.normal(key, (self.horizon + PLACES,))
        plain = jnp.concatenate([places, times]).at[: self.horizon + PLACES].add(noise)
        return jnp.asarray(self.rotation) @ plain


def _hadamard(size: int) -> np.ndarray:
    """Sylvester's symmetric matrix [size, size] float32 of -1 and 1; `size` is a power of 2."""
    matrix = np.ones((1, 1), np.float32)
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix


def names() -> list[str]:
    """A few horizons. `make` accepts all others too."""
    horizons, suffixes = (5, 10, 20, 50), ("", "-discrete")
    return [f"{BEGINNING}{horizon}{suffix}" for horizon in horizons for suffix in suffixes]


def make(name: str) -> Environment:
    """Make an environment such as "rljax/CombinationLock-10".

    Raises `ValueError` for other names and sizes.
    """
    parts = re.fullmatch(r"(\d{1,9})(-discrete)?", name.removeprefix(BEGINNING))
    if parts is None:
        raise ValueError(
            f"'{name}' names no combination lock: the form is {BEGINNING}H with a horizon H, then "
            f"-discrete or nothing. For example: {BEGINNING}10"
        )
    horizon, discrete = parts.groups()
    return CombinationLock(name, int(horizon), discrete is not None)
