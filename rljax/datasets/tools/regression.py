"""Regression between columns of data by an MLP.

Axes: `N` rows, `I` inputs, `J` outputs, `B` rows of a batch.
"""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
import optax
from flax import struct

from rljax import networks
from rljax.agent import Array

LEAST = 20  # rows
EVALUATIONS = 20  # on held-out rows, during learning


class Scale(struct.PyTreeNode):
    """Mean and standard deviation of each column."""

    mean: Array  # [...]
    std: Array  # [...], at least 1e-3

    @classmethod
    def of(cls, columns: np.ndarray) -> Scale:
        """The scale of columns [N, ...], computed in float64."""
        wide = np.asarray(columns, np.float64)
        mean, std = wide.mean(axis=0), np.maximum(wide.std(axis=0), 1e-3)
        return cls(jnp.asarray(mean, jnp.float32), jnp.asarray(std, jnp.float32))

    def standardised(self, x: Any) -> Array:
        """`x` in standard deviations from the mean."""
        return (x - self.mean) / self.std

    def restored(self, x: Array) -> Array:
        """The inverse of `standardised`."""
        return x * self.std + self.mean


class Model(struct.PyTreeNode):
    """A learnt function from inputs [..., I] to outputs [..., J]."""

    network: networks.Network
    inputs: Scale
    outputs: Scale

    def __call__(self, x: Any) -> Array:
        return self.outputs.restored(self.network(self.inputs.standardised(x)))


@dataclasses.dataclass(frozen=True)
class RegressionSettings:
    """The settings of a regression."""

    hidden: tuple[int, ...] = (256, 256)
    updates: int = 10_000
    batch_size: int = 256
    learning_rate: float = 1e-3  # of Adam; it falls to 0
    held_out: float = 0.1  # share of the rows


class Fitted(NamedTuple):
    """A model, and its root mean squared error on held-out rows."""

    model: Model
    error: float  # in standard deviations of the outputs


def fit(inputs: np.ndarray, outputs: np.ndarray, settings: RegressionSettings, seed: int) -> Fitted:
    """Regress `outputs` [N, J] on `inputs` [N, I] by squared errors of standardised columns.

    Raises `ValueError` for fewer than `LEAST` rows.
    """
    number = len(inputs)
    if number < LEAST:
        raise ValueError(f"a model needs {LEAST} rows to learn from, there are {number}.")
    order = np.random.default_rng(seed).permutation(number)
    held_out, learning = np.split(order, [max(1, int(settings.held_out * number))])
    scales = Scale.of(inputs[learning]), Scale.of(outputs[learning])
    x, y = (
        scale.standardised(jnp.asarray(columns))
        for scale, columns in zip(scales, (inputs, outputs), strict=True)
    )
    module = networks.MLP(settings.hidden, outputs.shape[1], "relu", "torch")
    key_init, key_learn = jax.random.split(jax.random.key(seed))
    network = networks.create(module, key_init, x[0])
    columns = x[learning], y[learning], x[held_out], y[held_out]
    updates = -(-settings.updates // EVALUATIONS)
    best, error = _learn(
        network, *columns, key_learn, settings.learning_rate, updates, settings.batch_size
    )
    return Fitted(Model(best, *scales), float(error))


@partial(jax.jit, static_argnames=("updates", "batch_size"))
def _learn(
    network: Any,
    x: Array,
    y: Array,
    held_x: Array,
    held_y: Array,
    key: Array,
    rate: Array,
    updates: int,
    batch_size: int,
) -> tuple[networks.Network, Array]:
    adam = optax.adam(optax.linear_schedule(1.0, 0.0, updates * EVALUATIONS))

    def loss(network: Any, x: Array, y: Array) -> Array:
        return jnp.square(network(x) - y).mean()

    def update(carry: Any, key: Array) -> tuple[Any, None]:
        network, moments = carry
        rows = jax.random.randint(key, (batch_size,), 0, len(x))
        changes, moments = adam.update(jax.grad(loss)(network, x[rows], y[rows]), moments)
        changes = jax.tree.map(lambda change: rate * change, changes)
        return (optax.apply_updates(network, changes), moments), None

    def evaluate(carry: Any, key: Array) -> tuple[Any, None]:
        learning, best, least = carry
        learning, _ = jax.lax.scan(update, learning, jax.random.split(key, updates))
        error = jnp.sqrt(loss(learning[0], held_x, held_y))
        best = jax.tree.map(lambda new, old: jnp.where(error < least, new, old), learning[0], best)
        return (learning, best, jnp.minimum(error, least)), None

    carry = ((network, adam.init(network)), network, jnp.asarray(jnp.inf))
    (_, best, error), _ = jax.lax.scan(evaluate, carry, jax.random.split(key, EVALUATIONS))
    return best, error
