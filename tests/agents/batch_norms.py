"""Networks with batch normalisation in plain float64, written from the papers, for autodiff."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.agents import reference


def norm(x: Any, part: Any, moments: Any, train: bool) -> tuple[Any, Any]:
    """arXiv:1502.03167, algorithms 1 and 2, and the running moments after it."""
    mean, variance = moments["mean"], moments["variance"]
    if train:
        batch = x.mean(axis=0), ((x - x.mean(axis=0)) ** 2).mean(axis=0)
        moments = {
            "mean": 0.99 * mean + 0.01 * batch[0],
            "variance": 0.99 * variance + 0.01 * batch[1],
        }
        mean, variance = batch
    y = part["scale"] * (x - mean) / jnp.sqrt(variance + 1e-3) + part["shift"]
    return y, moments


def forward(params: Any, moments: Any, x: Any, train: bool, before: bool) -> tuple[Any, Any]:
    """One network's outputs, and its running moments after them."""
    after = {}
    x, after["norm_input"] = norm(x, params["norm_input"], moments["norm_input"], train)
    for i in range(2):
        layer, name = params[f"hidden_{i}"], f"norm_{i}"
        x = x @ layer["kernel"] + layer.get("bias", 0.0)
        x = x if before else jnp.maximum(x, 0.0)
        x, after[name] = norm(x, params[name], moments[name], train)
        x = jnp.maximum(x, 0.0) if before else x
    return x @ params["output"]["kernel"] + params["output"]["bias"], after


def policy(output: Any, key: Any, low: float) -> tuple[Any, Any]:
    """a = tanh u and log pi(a|s)."""
    mean, log_std = jnp.split(output, 2, axis=-1)
    log_std = jnp.clip(log_std, low, 2.0)
    noise = jnp.asarray(reference.noise(key, mean.shape))
    u = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    return jnp.tanh(u), (gaussian - jnp.log(1.0 - jnp.tanh(u) ** 2)).sum(axis=-1)


def members(tree: Any) -> list[Any]:
    """The parts of both critics."""
    return [jax.tree.map(lambda x, c=c: x[c], tree["member"]) for c in range(2)]


def exact(tree: Any) -> Any:
    """A tree whose float32 are float64."""
    return jax.tree.map(
        lambda x: jnp.asarray(x, jnp.float64) if jnp.asarray(x).dtype == jnp.float32 else x, tree
    )


def without_passes(moments: Any) -> Any:
    """Running moments, without the number of passes that they are of."""
    return {name: {x: part[x] for x in ("mean", "variance")} for name, part in moments.items()}
