"""Random shifts of pictures, drawn anew for each batch.

Reference: Yarats et al., Image Augmentation Is All You Need (DrQ), arXiv:2004.13649.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import Array, Transition

SHIFT = 0x5417  # folded into a draw's keys: rows and shifts are independent


def shifted(batches: Transition, keys: Array, most: int) -> Transition:
    """Batches [P, U, B, ...] with pictures moved by up to `most` pixels, for `keys` [P].

    Each observation and each successor has one uniform shift, for all its pictures and frames. The
    edge's pixels are repeated.
    """

    def of_learner(batches: Transition, key: Array) -> Transition:
        key_now, key_next = jax.random.split(jax.random.fold_in(key, SHIFT))
        return batches.replace(
            observation=_moved(batches.observation, key_now, batches.reward.shape, most),
            next_observation=_moved(batches.next_observation, key_next, batches.reward.shape, most),
        )

    return jax.vmap(of_learner)(batches, keys)


def has_pictures(observation: Any, leading: int) -> bool:
    """Whether observations with so many leading axes are pictures."""
    return any(x.ndim == leading + 3 for x in jax.tree.leaves(observation))


def _moved(observation: Any, key: Array, shape: tuple[int, ...], most: int) -> Any:
    shifts = jax.random.randint(key, (*shape, 2), -most, most + 1)

    def move(picture: Array, shift: Array) -> Array:
        rows, columns = (
            jnp.clip(jnp.arange(size) + by, 0, size - 1)
            for size, by in zip(picture.shape[:2], shift, strict=True)
        )
        return picture[rows][:, columns]

    def of_part(part: Array) -> Array:
        return jax.vmap(jax.vmap(move))(part, shifts) if part.ndim == len(shape) + 3 else part

    return jax.tree.map(of_part, observation)
