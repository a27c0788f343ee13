"""What policies remember that learn a task in context: the transitions of its past episodes.

Lee et al., arXiv:2306.14892.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec, choose
from rljax.networks.recurrent.returns_to_go import split


class Transitions(struct.PyTreeNode):
    """The last K transitions, the oldest first: the first `number` rows, others have no meaning."""

    rows: Array  # [..., K, 2 O + A + 1], each `packed`
    number: Array  # [...] int32

    def added(self, row: Array, wanted: Array) -> Transitions:
        """With one more `row` [..., D] where it is `wanted` [...]."""
        length = self.rows.shape[-2]
        full = self.number == length
        rows = jnp.where(full[..., None, None], jnp.roll(self.rows, -1, axis=-2), self.rows)
        place = jnp.minimum(self.number, length - 1)[..., None] == jnp.arange(length)
        rows = jnp.where(place[..., None], row[..., None, :], rows)
        number = jnp.minimum(self.number + 1, length)
        return choose(wanted, Transitions(rows, number), self)


class Context(struct.PyTreeNode):
    """A lifetime so far."""

    recent: Transitions  # the last ones
    seen: Transitions  # those of the episodes that have ended
    state: Array  # [..., O]: the newest observation
    steps: Array  # [...] int32: of the lifetime so far

    def after(self, observation: Array, episode_length: int) -> Context:
        """The lifetime with `observation` [..., O + A + 1], which shows the last action and reward.

        Where an episode has ended, after each `episode_length` steps, the observation is the next
        one's first: the last transition's successor is not known, and it is left out.
        """
        number = observation.shape[-1] - self.state.shape[-1] - 1
        state, action, reward = split(observation, number)
        row = packed(self.state, action, state, reward)
        begins = self.steps % episode_length == 0
        known = (self.steps > 0) & (~begins if episode_length > 1 else True)
        recent = self.recent.added(row, known)
        seen = choose(begins, recent, self.seen)
        return Context(recent, seen, state, self.steps + 1)


def packed(state: Array, action: Array, successor: Array, reward: Array) -> Array:
    """Transitions [..., 2 O + A + 1] from states [..., O], vectors of actions [..., A], successors
    and rewards [...].
    """
    return jnp.concatenate([state, action, successor, reward[..., None]], axis=-1)


def query(state: Array, action_size: int) -> Array:
    """A state [..., O] as a transition [..., 2 O + A + 1] without its rest."""
    missing = action_size + state.shape[-1] + 1
    return jnp.concatenate([state, jnp.zeros((*state.shape[:-1], missing))], axis=-1)


def context(spec: EnvSpec, length: int) -> Context:
    """Before the first step of a lifetime, where observations show the last action and reward."""
    size = spec.observation_shape[0] - spec.action_size - 1
    rows = jnp.zeros((length, 2 * size + spec.action_size + 1))
    nothing = Transitions(rows, jnp.zeros((), jnp.int32))
    return Context(
        recent=nothing,
        seen=jax.tree.map(jnp.copy, nothing),
        state=jnp.zeros(size),
        steps=jnp.zeros((), jnp.int32),
    )
