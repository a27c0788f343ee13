"""The initialisations of layers that papers use."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from typing import Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import Array

Initialisation = Literal[
    "torch",
    "torch_small",
    "torch_zero",
    "orthogonal",
    "orthogonal_small",
    "orthogonal_relu",
    "lecun_uniform",
    "fan_in_uniform",
    "lecun_normal",
    "glorot_uniform",
    "edac",
    "sparse",
]

SPARSITY = 0.9  # the share of a unit's weights that "sparse" sets to 0


def initialisers(
    name: Initialisation, fan_in: int, scale: float, last: bool = False
) -> tuple[Callable, Callable]:
    """Kernel and bias initialisers of a dense layer, perhaps the `last` of its network.

    - torch: U(+-1/sqrt(fan_in)) for both, PyTorch's default since 0.4;
    - torch_small: N(0, 0.01^2) and biases zero in the last layer (FastTD3);
    - torch_zero: all zero in the last layer (FastSAC);
    - orthogonal: gain `scale`, biases zero (the PPO of OpenAI Baselines);
    - orthogonal_small: gain 0.01 in the last layer (Cal-QL, the critics of CORL's CQL);
    - orthogonal_relu: gain sqrt 2 in the last layer too (WSRL, CORL's Cal-QL);
    - lecun_uniform: U(+-sqrt(3/fan_in)), biases zero (Brax);
    - fan_in_uniform: U(+-1/sqrt(fan_in)), biases zero (JaxGCRL);
    - lecun_normal: N(0, 1/fan_in) cut at 2 std, biases zero (Flax's default);
    - glorot_uniform: U(+-sqrt(6/(fan_in + fan_out))), biases zero (the original SAC);
    - edac: kernels U(+-1/sqrt(fan_out)) and biases 0.1, U(+-3e-3) for both in the last layer
      (CORL's SAC-N and EDAC, RIQL);
    - sparse: U(+-1/sqrt(fan_in)), each unit's ceil(0.9 fan_in) at random set to 0, biases zero
      (arXiv:2410.14606).
    """
    zeros = nn.initializers.zeros_init()
    match name:
        case "torch_small" if last:
            return nn.initializers.normal(0.01), zeros
        case "torch_zero" if last:
            return zeros, zeros
        case "torch" | "torch_small" | "torch_zero":
            uniform = functools.partial(_uniform, 1.0 / math.sqrt(fan_in))
            return uniform, uniform
        case "edac" if last:
            uniform = functools.partial(_uniform, 3e-3)
            return uniform, uniform
        case "edac":

            def by_fan_out(key: Array, shape: Sequence[int]) -> Array:
                return _uniform(1.0 / math.sqrt(shape[-1]), key, shape)

            return by_fan_out, nn.initializers.constant(0.1)
        case "sparse":
            return functools.partial(_sparse, 1.0 / math.sqrt(fan_in)), zeros
        case "orthogonal" | "orthogonal_small" | "orthogonal_relu":
            if last:
                gains = {"orthogonal_small": 0.01, "orthogonal_relu": math.sqrt(2.0)}
                scale = gains.get(name, scale)
            return functools.partial(_orthogonal, scale), zeros
        case "lecun_uniform":
            return nn.initializers.lecun_uniform(), zeros
        case "fan_in_uniform":
            return functools.partial(_uniform, 1.0 / math.sqrt(fan_in)), zeros
        case "lecun_normal":
            return nn.initializers.lecun_normal(), zeros
        case "glorot_uniform":
            return nn.initializers.glorot_uniform(), zeros


def _uniform(bound: float, key: Array, shape: Sequence[int]) -> Array:
    return jax.random.uniform(key, tuple(shape), minval=-bound, maxval=bound)


def _sparse(bound: float, key: Array, shape: Sequence[int]) -> Array:
    """U(-bound, bound) for a few weights of each unit, 0 for others; `shape` ends with units."""
    key_weights, key_zeros = jax.random.split(key)
    fan_in = math.prod(shape[:-1])
    order = jnp.tile(jnp.arange(fan_in)[:, None], shape[-1])
    order = jax.random.permutation(key_zeros, order, independent=True)
    mask = order >= math.ceil(SPARSITY * fan_in)
    return jnp.where(mask.reshape(shape), _uniform(bound, key_weights, shape), 0.0)


def _orthogonal(scale: float, key: Array, shape: Sequence[int]) -> Array:
    """As `nn.initializers.orthogonal`, times `scale`, by Gram-Schmidt.

    jaxlib's QR (0.10.2) can deadlock on a CPU where as many batched QRs run at once as there are
    threads.
    """
    return scale * _orthonormal(key, tuple(shape))


@functools.partial(jax.jit, static_argnums=1, inline=True)  # traced once for each shape
def _orthonormal(key: Array, shape: tuple[int, ...]) -> Array:
    rows, units = math.prod(shape[:-1]), shape[-1]  # units of a convolution are its channels
    columns = min(rows, units)

    def normalise(i: Array, q: Array) -> Array:
        column = q[:, i]
        for _ in range(2):  # the second removes rounding errors
            column = column - q @ jnp.where(jnp.arange(columns) < i, q.T @ column, 0.0)
        return q.at[:, i].set(column / jnp.sqrt(jnp.square(column).sum()))

    q = jax.random.normal(key, (max(rows, units), columns))
    q = jax.lax.fori_loop(0, columns, normalise, q)
    return (q if rows >= units else q.T).reshape(shape)
