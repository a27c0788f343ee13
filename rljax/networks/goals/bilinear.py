"""Critics of goals that are products of features.

s a state, g a goal, a an action, f_c and k_c features of critic c in K dimensions

  Q_c(s, a, g) = f_c(s, a) . k_c(g) / sqrt(K)

Eysenbach et al., Contrastive Learning as Goal-Conditioned RL, arXiv:2206.07568.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.networks import torsos
from rljax.networks.layers import Network, create
from rljax.networks.torsos import TorsoSettings


class Bilinear(struct.PyTreeNode):
    """Critics of states with goals that are products of features."""

    state_features: Network  # [O], [A] -> [C, K]
    goal_features: Network  # [O] -> [C, K]

    @classmethod
    def create(
        cls,
        key: Array,
        spec: EnvSpec,
        settings: TorsoSettings,
        size: int,
        hidden: tuple[int, ...],
        features: int,
        *actions: Array,
    ) -> Bilinear:
        """`size` fresh critics for a spec whose vectors end with goals, and an example of actions
        [A] if they see any.
        """
        key_state, key_goal = jax.random.split(key)
        state, goal = jnp.split(spec.example(), 2, axis=-1)
        net = torsos.ensemble(spec, settings, size, hidden, features)
        of_state = create(net, key_state, state, *actions)
        return cls(of_state, create(net, key_goal, goal))

    def features(self, observation: Array, *actions: Array) -> tuple[Array, Array]:
        """f(s, a) and k(g) [C, ..., K] of [s; g] [..., 2 O]."""
        state, goal = jnp.split(observation, 2, axis=-1)
        return self.state_features(state, *actions), self.goal_features(goal)

    def __call__(self, observation: Array, *actions: Array) -> Array:
        """Q_c(s, a, g) [C, ...] of [s; g] [..., 2 O] and actions [..., A]."""
        left, right = self.features(observation, *actions)
        return (left * right).sum(axis=-1) / jnp.sqrt(left.shape[-1])

    def pairs(self, observation: Array, *actions: Array) -> Array:
        """Q_c(s_i, a_i, g_j) [C, B, B] of all pairs of rows, for [s; g] [B, 2 O]."""
        left, right = self.features(observation, *actions)
        return left @ right.swapaxes(-1, -2) / jnp.sqrt(left.shape[-1])
