"""Noisy layers: dense layers whose weights are Gaussian, with means and standard deviations that learning changes.

    W = mu_W + sigma_W * f(e_out) f(e_in)^T,  b = mu_b + sigma_b * f(e_out),   f(x) = sgn(x) sqrt|x|,  e ~ N(0, 1)

The noise is factorised: a layer of I inputs and O outputs draws I + O numbers. sigma starts at sigma_0 / sqrt(I). A
network of noisy layers is an ordinary one whose parameters hold, beside each dense layer's `kernel` and `bias`, their
standard deviations. Called as it is, it uses the means; `sampled` puts noise into it.

Fortunato et al., Noisy Networks for Exploration, arXiv:1706.10295, section 3, equations 10 and 11. Its means start at
U(+-1 / sqrt(I)), which is the initialisation "torch".
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array
from rljax.networks.layers import Network

DEVIATION = "_deviation"  # ending of the names of standard deviations


def noisy(network: Network, deviation: Array | float) -> Network:
    """A network whose dense layers are noisy. `deviation` is sigma_0, 0.5 in the paper."""

    def extended(layer: Any) -> Any:
        if not isinstance(layer, dict):
            return layer
        layer = {name: extended(part) for name, part in layer.items()}
        if "kernel" in layer and "bias" in layer:
            start = deviation / jnp.sqrt(layer["kernel"].shape[-2])
            layer |= {name + DEVIATION: jnp.full_like(layer[name], start) for name in ("kernel", "bias")}
        return layer

    return network.replace(params=extended(network.params))


def sampled(networks: Any, key: Array) -> Any:
    """A tree of networks, in which those with noisy layers have one draw of noise each; others are as they were."""
    found, structure = jax.tree.flatten(networks, is_leaf=lambda x: isinstance(x, Network))
    return structure.unflatten([_sampled(network, jax.random.fold_in(key, i)) for i, network in enumerate(found)])


def _sampled(network: Any, key: Array) -> Any:
    if not isinstance(network, Network):  # a function, in tests
        return network
    number = 0

    def perturbed(layer: Any) -> Any:
        nonlocal number
        if not isinstance(layer, dict):
            return layer
        layer = {name: perturbed(part) for name, part in layer.items()}
        if "kernel" + DEVIATION not in layer:
            return layer
        number += 1
        kernel, kernel_deviation = layer["kernel"], layer.pop("kernel" + DEVIATION)
        bias, bias_deviation = layer["bias"], layer.pop("bias" + DEVIATION)
        key_in, key_out = jax.random.split(jax.random.fold_in(key, number))
        inside, outside = _factor(key_in, kernel.shape[:-1]), _factor(key_out, bias.shape)
        kernel = kernel + kernel_deviation * inside[..., :, None] * outside[..., None, :]
        return layer | {"kernel": kernel, "bias": bias + bias_deviation * outside}

    return network.replace(params=perturbed(network.params))


def _factor(key: Array, shape: tuple[int, ...]) -> Array:
    """f(e) with this shape."""
    noise = jax.random.normal(key, shape)
    return jnp.sign(noise) * jnp.sqrt(jnp.abs(noise))
