"""Energies of goals: how near features of states and actions are to those of goals.

x = f(s, a) and y = k(g) features in K dimensions

  distance  d = -sqrt(|x - y|^2 + 1e-6)
  square    d = -|x - y|^2
  product   d = x . y

Bortkiewicz et al., JaxGCRL, arXiv:2408.11052, its code: "norm", "l2" and "dot".
"""

from __future__ import annotations

from typing import Literal

import jax.numpy as jnp
from flax import struct

from rljax.agent import Array
from rljax.networks.layers import Network

Kind = Literal["distance", "square", "product"]
LEAST = 1e-6  # of a squared distance, so that its root has a slope


class Energy(struct.PyTreeNode):
    """An energy d(s, a, g) of states and actions with goals."""

    of_actions: Network  # f: [O], [A] -> [K]
    of_goals: Network  # k: [O] -> [K]
    kind: Kind = struct.field(pytree_node=False)

    def __call__(self, state: Array, action: Array, goal: Array) -> Array:
        """d [...] of states and goals [..., O] and actions [..., A]."""
        return energy(self.of_actions(state, action), self.of_goals(goal), self.kind)

    def pairs(self, state: Array, action: Array, goal: Array) -> Array:
        """d_ij [B, B] of the states and actions in rows i with the goals in rows j."""
        x, y = self.of_actions(state, action), self.of_goals(goal)  # [B, K]
        return energy(x[:, None], y, self.kind)


def energy(x: Array, y: Array, kind: Kind) -> Array:
    """d [...] of features [..., K]."""
    if kind == "product":
        return (x * y).sum(axis=-1)
    square = jnp.square(x - y).sum(axis=-1)
    return -square if kind == "square" else -jnp.sqrt(square + LEAST)


def separated(observation: Array, is_goal: Array) -> tuple[Array, Array]:
    """States and goals [..., O] of observations [..., O] that hold both: each is 0 where the other
    is. `is_goal` [..., O] is 1 where an observation holds its goal, else 0.
    """
    return observation * (1.0 - is_goal), observation * is_goal
