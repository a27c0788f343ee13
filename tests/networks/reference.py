"""Layers in float64 NumPy."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax import networks

apply = jax.jit(lambda network, *inputs: network(*inputs))


def drawn(module: Any, *inputs: Any, std: float = 0.4) -> networks.Network:
    """Drawing them in JAX takes seconds to compile."""
    return redrawn(jax.eval_shape(lambda: networks.create(module, jax.random.key(0), *inputs)), std)


def redrawn(shapes: Any, std: float) -> Any:
    """Normal numbers of these shapes."""
    generator = np.random.default_rng(0)
    return jax.tree.map(lambda x: jnp.asarray(generator.normal(0, std, x.shape), x.dtype), shapes)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def doubles(tree: Any) -> Any:
    return jax.tree.map(lambda x: np.asarray(x, np.float64), tree)


def dense(x: np.ndarray, p: Any) -> np.ndarray:
    return x @ p["kernel"] + p["bias"]


def normed(x: np.ndarray, p: Any = None, epsilon: float = 1e-6) -> np.ndarray:
    """Layer normalisation, arXiv:1607.06450, with Flax's epsilon."""
    x = (x - x.mean(-1, keepdims=True)) / np.sqrt(x.var(-1, keepdims=True) + epsilon)
    return x * p["scale"] + p["bias"] if p else x


def sigmoid(x: np.ndarray) -> np.ndarray:
    return 1.0 / (1.0 + np.exp(-x))


def silu(x: np.ndarray) -> np.ndarray:
    return x * sigmoid(x)


def relu(x: np.ndarray) -> np.ndarray:
    return np.maximum(x, 0.0)


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The approximation of arXiv:1606.08415."""
    return 0.5 * x * (1.0 + np.tanh(np.sqrt(2.0 / np.pi) * (x + 0.044715 * x**3)))


def softmax(x: np.ndarray) -> np.ndarray:
    x = np.exp(x - x.max(axis=-1, keepdims=True))
    return x / x.sum(axis=-1, keepdims=True)


def assert_close(actual: Any, expected: Any, rtol: float = 1e-5, atol: float = 1e-6) -> None:
    """Two pytrees agree but for float32's rounding."""
    close = functools.partial(np.testing.assert_allclose, rtol=rtol, atol=atol)
    jax.tree.map(close, actual, expected)


def standardised(rows: Any, observation: Any) -> np.ndarray:
    """By the mean of a data set's rows, and by their std plus 1e-3."""
    rows = doubles(rows)
    return (doubles(observation) - rows.mean(axis=0)) / (rows.std(axis=0) + 1e-3)
