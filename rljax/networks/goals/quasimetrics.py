"""Quasimetrics: distances d(s, g) of states to goals, which may be others on the way back.

x = f(s) and y = f(g) features in K dimensions, by the same network f

  iqe  K numbers in groups of 8: l_j = length of the union of [x_i, max(x_i, y_i)], i in group j
       d = m mean_j l_j + (1 - m) max_j l_j,  m = sigmoid of a parameter      [1], "maxmean"
  mrn  K numbers in halves: d = |x_1 - y_1| + max(0, max_i (x_2 - y_2)_i)     [2]

d(s, s) = 0, and d(s, g) <= d(s, u) + d(u, g) for all u.

[1] Wang and Isola, Improved Representation of Asymmetrical Distances, arXiv:2211.15120
[2] Liu et al., Metric Residual Networks, arXiv:2208.08133
"""

from __future__ import annotations

from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.networks import torsos
from rljax.networks.ensembles import largest
from rljax.networks.layers import Network, create
from rljax.networks.torsos import TorsoSettings

Kind = Literal["iqe", "mrn"]
GROUP = 8  # numbers of a component of iqe
LEAST = 1e-12  # of a squared length of mrn, so that its root has a slope


class Quasimetric(struct.PyTreeNode):
    """A distance of states to goals."""

    embedding: Network  # [O] -> [K]
    mixing: Array | None  # [] logit of m of iqe
    kind: Kind = struct.field(pytree_node=False)

    @classmethod
    def create(
        cls,
        key: Array,
        spec: EnvSpec,
        settings: TorsoSettings,
        hidden: tuple[int, ...],
        features: int,
        kind: Kind,
    ) -> Quasimetric:
        """A fresh one for a spec whose vectors end with goals; m is 1 / 2."""
        state, _ = jnp.split(spec.example(), 2, axis=-1)
        net = torsos.network(spec, settings, hidden, features)
        embedding = create(net, key, state)
        return cls(embedding, jnp.zeros(()) if kind == "iqe" else None, kind)

    def embedded(self, observation: Array) -> tuple[Array, Array]:
        """f(s) and f(g) [..., K] of [s; g] [..., 2 O], in one pass."""
        pair = jnp.stack(jnp.split(observation, 2, axis=-1))
        start, end = self.embedding(pair)
        return start, end

    def between(self, start: Array, end: Array) -> Array:
        """d [...] from features to features [..., K]."""
        if self.mixing is None:
            return mrn(start, end)
        return iqe(start, end, jax.nn.sigmoid(self.mixing))

    def __call__(self, observation: Array) -> Array:
        """d(s, g) [...] of [s; g] [..., 2 O]."""
        return self.between(*self.embedded(observation))


def iqe(start: Array, end: Array, mean_share: Any) -> Array:
    """d [...] of features [..., K] for m []; [1]."""
    x, y = (z.reshape(*z.shape[:-1], -1, GROUP) for z in (start, end))  # [..., J, 8]
    length = union(x, jnp.maximum(x, y))
    return mean_share * length.mean(axis=-1) + (1.0 - mean_share) * largest(length, axis=-1)


def union(left: Array, right: Array) -> Array:
    """The length [...] of the union of intervals [left_i, right_i] [..., I].

    It is the sum of right ends minus that of left ends which no other interval covers. Of equal
    ends the first one counts, and empty intervals neither count nor cover.
    """
    is_real = ~(right <= left)  # also for NaN, so that the length is NaN
    left = jnp.where(is_real, left, jnp.inf)
    order = jnp.arange(left.shape[-1])
    is_first = order < order[:, None]  # [I, I] of another before this one
    this_left, this_right = left[..., None], right[..., None]
    other_left, other_right = left[..., None, :], right[..., None, :]
    begins_before = (other_left < this_left) | ((other_left == this_left) & is_first)
    left_covered = (begins_before & (this_left <= other_right)).any(axis=-1)
    ends_after = (other_right > this_right) | ((other_right == this_right) & is_first)
    right_covered = (ends_after & (other_left <= this_right)).any(axis=-1)
    right_ends = jnp.where(is_real & ~right_covered, right, 0.0).sum(axis=-1)
    return right_ends - jnp.where(is_real & ~left_covered, left, 0.0).sum(axis=-1)


def mrn(start: Array, end: Array) -> Array:
    """d [...] of features [..., K]; [2]."""
    symmetric, rest = jnp.split(start - end, 2, axis=-1)
    length = jnp.sqrt(jnp.maximum(jnp.square(symmetric).sum(axis=-1), LEAST))
    return length + jax.nn.relu(largest(rest, axis=-1))


def check(features: int, kind: Kind) -> None:
    """Raise `ValueError` for a number of features without equal parts."""
    parts = {"iqe": GROUP, "mrn": 2}[kind]
    if features % parts:
        raise ValueError(
            f"--config.latent-size is {features}, it must be a multiple of {parts} for "
            f"--config.quasimetric {kind}."
        )
