"""Networks on the unit sphere and their policy in plain float64, written from the papers, for
autodiff: SimbaV2, arXiv:2502.15280, section 4.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from tests.agents import reference


def unit(x: Any) -> Any:
    return x / jnp.sqrt((x**2).sum(axis=-1, keepdims=True))


def forward(params: Any, x: Any, blocks: int, heads: int) -> Any:
    """The outputs [B, K] of all heads behind each other."""
    width = params["input"]["kernel"].shape[-1]
    x = unit(jnp.concatenate([x, 3.0 * jnp.ones((len(x), 1))], axis=1))  # eq. 9 and 10
    x = unit(params["input_scaler"]["factors"] * (x @ params["input"]["kernel"]))
    for i in range(blocks):
        y = params[f"inner_{i}_scaler"]["factors"] * (x @ params[f"inner_{i}"]["kernel"])
        y = unit((jnp.maximum(y, 0.0) + 1e-8) @ params[f"outer_{i}"]["kernel"])
        # They begin at 1 / (L + 1) and are stored as 1 / sqrt(H).
        rates = params[f"step_{i}"]["factors"] * np.sqrt(width) / (blocks + 1)
        x = unit(x + rates * (y - x))
    outputs = []
    for i in range(heads):
        y = params[f"head_{i}_scaler"]["factors"] * (x @ params[f"head_{i}"]["kernel"])
        outputs.append(y @ params[f"output_{i}"]["kernel"] + params[f"bias_{i}"])
    return jnp.concatenate(outputs, axis=1)


def policy(output: Any, key: Any, low: float = -10.0, high: float = 2.0) -> tuple[Any, Any]:
    """a = tanh u and log pi(a|s), where tanh bounds the log std."""
    mean, raw = jnp.split(output, 2, axis=-1)
    log_std = low + (high - low) * (1.0 + jnp.tanh(raw)) / 2.0
    noise = jnp.asarray(reference.noise(key, mean.shape))
    u = mean + jnp.exp(log_std) * noise
    gaussian = -0.5 * noise**2 - log_std - 0.5 * np.log(2.0 * np.pi)
    log_cosh = jnp.abs(u) + jnp.log1p(jnp.exp(-2.0 * jnp.abs(u))) - jnp.log(2.0)
    return jnp.tanh(u), (gaussian + 2.0 * log_cosh).sum(axis=-1)  # 1 - tanh^2 = cosh^-2


def projected(params: Any) -> Any:
    """Weights into each unit of length 1."""
    return jax.tree_util.tree_map_with_path(
        lambda path, x: x / np.sqrt((x**2).sum(axis=0)) if path[-1].key == "kernel" else x, params
    )
