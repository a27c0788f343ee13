"""The tally of metrics, and counters of steps and updates."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import struct

from rljax.agent import Array, Weighted

LARGEST = 2**31 - 1  # of int32
CYCLE = 2**30  # a counter that would pass LARGEST goes back by this


def counted(counter: Any, by: Any = 1) -> Any:
    """`counter` + `by` for a non-negative int32 or int, with `by` at most 2^30.

    Beyond 2^31 - 1 a counter goes back by 2^30. Comparisons with numbers up to 2^30 still hold;
    random keys repeat.
    """
    return counter - CYCLE * (counter > LARGEST - by) + by


def environment_steps(steps: Any, num_envs: int) -> Any:
    """Each learner's environment steps after `steps` of each environment; at most 2^31 - 1."""
    most = LARGEST // num_envs
    return (min(steps, most) if isinstance(steps, int) else jnp.minimum(steps, most)) * num_envs


class Tally(struct.PyTreeNode):
    """Metrics summed over the updates since the last report.

    XLA:CPU would reduce stacked arrays in a serial loop.
    """

    total: dict[str, Array]  # [P] sums of the metric
    weight: dict[str, Array]  # [P] number of values summed
    # [P] int32: the first update that is not finite; -1 for none
    first_bad: dict[str, Array]


def empty_tally(names: tuple[str, ...], num_learners: int) -> Tally:
    """A tally without any values."""
    zeros = {name: jnp.zeros(num_learners) for name in names}
    none = {name: jnp.full(num_learners, -1, jnp.int32) for name in names}
    return Tally(total=zeros, weight=jax.tree.map(jnp.copy, zeros), first_bad=none)


def add_to_tally(tally: Tally, metrics: dict[str, Any], update: Array) -> Tally:
    """Add an update's metrics [P] to the tally; `update` [] is its number."""
    total, weight, first_bad = dict(tally.total), dict(tally.weight), dict(tally.first_bad)
    for name, metric in metrics.items():
        is_weighted = isinstance(metric, Weighted)
        value, count = (metric.value, metric.weight) if is_weighted else (metric, 1.0)
        total[name] = tally.total[name] + value
        weight[name] = tally.weight[name] + count
        bad = (tally.first_bad[name] < 0) & ~jnp.isfinite(value)
        first_bad[name] = jnp.where(bad, update, tally.first_bad[name])
    return Tally(total, weight, first_bad)
