"""A user's own networks, some of which do not work."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
from flax import linen as nn


class Encoder(nn.Module):
    """Flattens pictures and dictionaries."""

    @nn.compact
    def __call__(self, observation: Any) -> Any:
        parts = [x.reshape(x.shape[0], -1) for x in jax.tree.leaves(observation)]
        return nn.tanh(nn.Dense(5)(jnp.concatenate(parts, axis=-1)))


class Torso(nn.Module):
    hidden: tuple[int, ...]

    @nn.compact
    def __call__(self, x: Any) -> Any:
        for width in self.hidden:
            x = jnp.concatenate([x, nn.silu(nn.Dense(width)(x))], axis=-1)
        return x


class Needy(nn.Module):
    size: int


class Mute(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        raise RuntimeError("not today")


class Normal(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.BatchNorm(use_running_average=False)(x)


class Counter(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return x + self.param("count", lambda key: jnp.zeros(1, jnp.int32))


class Mean(nn.Module):
    def __call__(self, x: Any) -> Any:
        return x.mean(axis=0)


class Half(nn.Module):
    def __call__(self, x: Any) -> Any:
        return x.astype(jnp.bfloat16)


class Pair(nn.Module):
    def __call__(self, x: Any) -> Any:
        return x, x


class Noisy(nn.Module):
    @nn.compact
    def __call__(self, x: Any) -> Any:
        return nn.Dropout(0.5, deterministic=False)(x)


WIDTH = 5
