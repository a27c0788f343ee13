"""Acme's networks in plain float64, for autodiff."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp


def forward(params: Any, x: Any) -> Any:
    """The first layer is normalised, then tanh; elu after the second."""
    x = x @ params["hidden_0_kernel"] + params["hidden_0_bias"]
    centred = x - x.mean(axis=-1, keepdims=True)
    x = centred / jnp.sqrt((centred**2).mean(axis=-1, keepdims=True) + 1e-5)
    x = jnp.tanh(x * params["norm_0"]["scale"] + params["norm_0"]["bias"])
    x = x @ params["hidden_1_kernel"] + params["hidden_1_bias"]
    x = jnp.where(x > 0, x, jnp.exp(jnp.minimum(x, 0.0)) - 1.0)
    return x @ params["output_kernel"] + params["output_bias"]


def members(tree: Any) -> list[Any]:
    """The parameters of each critic."""
    number = len(jax.tree.leaves(tree)[0])
    return [jax.tree.map(lambda x, c=c: x[c], tree["members"]) for c in range(number)]
