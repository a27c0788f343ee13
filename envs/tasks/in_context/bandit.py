"""Bandits, `rljax/Bandit-A`: in each step an agent pulls one of A arms.

The mean rewards of an episode's arms are drawn uniformly from [0, 1]. A reward has normal noise of
std 0.3, and an observation is always 1. The signal "regret" is the largest mean less that of the
arm. An episode has 500 steps.

Source: Lee et al., arXiv:2306.14892, section 5.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec, Part
from rljax.envs.environment import Environment, StepResult

BEGINNING = "rljax/Bandit-"
ARMS = (2, 1000)  # the fewest and the most
NOISE, STEPS = 0.3, 500


@struct.dataclass
class BanditState:
    """The state of an episode."""

    means: Array  # [A]


class Bandit:
    """Bandits with one number of arms."""

    params = None
    num_places = 1  # of `place`

    def __init__(self, name: str, arms: int) -> None:
        """Raises `ValueError` for a number of arms out of range."""
        low, high = ARMS
        if not low <= arms <= high:
            raise ValueError(f"'{name}' has {arms} arms: there must be {low} to {high}.")
        self.spec = EnvSpec(
            name, (1,), arms, discrete=True, max_episode_steps=STEPS, signals=(Part("regret", ()),)
        )

    def reset(self, key: Array, params: Any = None) -> tuple[Array, BanditState]:
        """Draw the means of all arms."""
        state = BanditState(jax.random.uniform(key, (self.spec.action_size,)))
        return self.observe(state), state

    def restart(
        self, key: Array, state: BanditState, params: Any = None
    ) -> tuple[Array, BanditState]:
        """Begin another episode with the same arms."""
        return self.observe(state), state

    def step(self, key: Array, state: BanditState, action: Array, params: Any = None) -> StepResult:
        """Pull an arm."""
        mean, never = state.means[action], jnp.zeros((), jnp.bool_)
        reward = mean + NOISE * jax.random.normal(key)
        regret = state.means.max() - mean
        return self.observe(state), state, reward, never, never, {"regret": regret}

    def observe(self, state: BanditState) -> Array:
        """The observation [1] of a state."""
        return jnp.ones(1)

    def place(self, state: BanditState) -> Array:
        """The only place."""
        return jnp.zeros((), jnp.int32)

    def number(self, state: BanditState) -> Array:
        """A number [] that tells tasks apart."""
        return state.means.sum()

    def anywhere(self, key: Array, state: BanditState) -> BanditState:
        """A random state of the same task."""
        return state

    def optimal_action(self, state: BanditState) -> Array:
        """The arm [] with the largest mean."""
        return jnp.argmax(state.means)

    def behaviour(self, key: Array) -> Array:
        """Probabilities [A] of actions: a random mixture of random ones and a random arm."""
        key_all, key_arm, key_share = jax.random.split(key, 3)
        number = self.spec.action_size
        of_all = jax.random.dirichlet(key_all, jnp.ones(number))
        arm = jax.nn.one_hot(jax.random.randint(key_arm, (), 0, number), number)
        share = jax.random.randint(key_share, (), 0, 11) / 10
        return (1.0 - share) * of_all + share * arm


def names() -> list[str]:
    """A few numbers of arms. `make` accepts all others too."""
    return [f"{BEGINNING}{arms}" for arms in (5, 20)]


def make(name: str) -> Environment:
    """Make an environment such as "rljax/Bandit-5". Raises `ValueError` for other names."""
    match = re.fullmatch(r"\d{1,9}", name.removeprefix(BEGINNING))
    if match is None:
        raise ValueError(
            f"'{name}' names no bandit: the form is {BEGINNING}A with A arms. For example: "
            f"{BEGINNING}5"
        )
    return Bandit(name, int(match[0]))
