"""Target networks."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Metrics, Number, every
from rljax.networks.optimisation.trained import parameters_of


def polyak(online: Any, target: Any, rate: Number) -> Any:
    """Targets moved towards `online`, perhaps `Trained`: (1 - rate) target + rate online, leaf by
    leaf, collections too.
    """
    online = parameters_of(online)
    return jax.tree.map(lambda new, old: old + rate * (new - old), online, target)


def polyak_every(period: int, step: Array, online: Any, target: Any, rate: Number) -> Any:
    """Targets after `polyak` on every `period`-th update; see `every`."""

    def move(target: Any) -> tuple[Any, Metrics]:
        return polyak(online, target, rate), {}

    return every(period, step, move, target)[0]


def copy(tree: Any) -> Any:
    """A copy of every leaf: shared buffers cannot be donated."""
    return jax.tree.map(jnp.copy, tree)
