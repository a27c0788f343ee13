"""Actors that are more than a network."""

from __future__ import annotations

from flax import struct

from rljax.agent import Array
from rljax.networks.layers import Network


class Actor(struct.PyTreeNode):
    """The parameters that the optimiser of an actor moves, for continuous and discrete actions.

    Agents share this class. JAX holds two dataclasses with equal fields for equal pytrees: a function that is compiled
    for one may return the other (`jax.tree.structure`, JAX 0.10).
    """

    mean: Network  # [O] -> [A]: before tanh, or the logits of discrete actions
    log_std: Array | None  # [A]; None for a deterministic policy and for discrete actions
    discrete: bool = struct.field(default=False, pytree_node=False)
    choices: tuple[int, ...] = struct.field(default=(), pytree_node=False)  # of several discrete actions
