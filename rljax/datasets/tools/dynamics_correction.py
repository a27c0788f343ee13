"""Selective transition correction (STC) of data of other dynamics [1].

Models of the target's rows predict I(s, s') the action, R(s, a) the reward, F(s, a) the next state.
For a row (s, a, r, s') of the source:

  a^ = I(s, s')                                              clipped to the bounds
  r^ = r + clip(grad_a R(s, a) . (a^ - a), -c, c)            to first order
  (a^, r^) replaces (a, r) where |F(s, a^) - s'| < |F(s, a) - s'|   in standard deviations of the
                                                                    target's s' - s

Terminal rows stay as they are. docs/datasets.md says what is ours.

[1] Selective transition correction, arXiv:2602.05776
"""

from __future__ import annotations

import dataclasses
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import Array
from rljax.datasets.dataset import OfflineDataset
from rljax.datasets.tools import regression
from rljax.datasets.tools.preprocess import require_equal

ROWS = 65_536  # corrected at once


def correct(
    source: OfflineDataset,
    target: OfflineDataset,
    name: str,
    settings: regression.RegressionSettings = regression.RegressionSettings(),  # noqa: B008, it is frozen
    reward_limit: float = 1.0,
    seed: int = 0,
) -> OfflineDataset:
    """The corrected rows of `source`, called `name`.

    `reward_limit` is c in standard deviations of the target's rewards. Raises `ValueError` for data
    of other spaces, pictures, discrete actions, and too few rows.
    """
    if any(not data.is_plain or data.discrete for data in (source, target)):
        raise ValueError(
            "data are corrected where observations are vectors and actions are continuous."
        )
    require_equal(target, source)
    if not (np.isfinite(reward_limit) and reward_limit >= 0):
        raise ValueError(f"--reward-limit is {reward_limit:g}, it must be finite and at least 0.")
    rows = target.transitions
    whole = ~np.asarray(rows.terminated)
    observation, successor = np.asarray(rows.observation), np.asarray(rows.next_observation)
    state_and_action = np.concatenate([observation, rows.action], axis=1)
    state_and_change = np.concatenate([observation, successor - observation], axis=1)[whole]
    inverse = regression.fit(state_and_change, np.asarray(rows.action)[whole], settings, seed)
    reward = regression.fit(state_and_action, np.asarray(rows.reward)[:, None], settings, seed + 1)
    forward = regression.fit(
        state_and_action[whole], (successor - observation)[whole], settings, seed + 2
    )
    models = inverse.model, reward.model, forward.model
    limit = reward_limit * float(np.std(rows.reward))
    action, rewards, corrected = _corrected(source, models, limit)
    note = {
        "source": source.provenance | {"name": source.name},
        "target": target.provenance | {"name": target.name},
        "corrected": float(corrected.mean()),
        "errors": {"inverse": inverse.error, "reward": reward.error, "forward": forward.error},
        **{"reward_limit": reward_limit, "seed": seed, **dataclasses.asdict(settings)},
    }
    return dataclasses.replace(
        target,
        name=name,
        transitions=source.transitions.replace(action=action, reward=rewards),
        provenance={
            "reader": "correct",
            "max_episode_steps": target.max_episode_steps,
            "correction": note,
        },
        complete=source.complete,
    )


def _corrected(
    source: OfflineDataset, models: tuple[regression.Model, ...], limit: float
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    correct = jax.jit(jax.vmap(_row, in_axes=(None, None, 0, 0, 0, 0)))
    rows, pieces = source.transitions, []
    columns = [
        np.asarray(x) for x in (rows.observation, rows.action, rows.reward, rows.next_observation)
    ]
    for first in range(0, source.num, ROWS):
        part = [x[first : first + ROWS] for x in columns]
        pieces.append(jax.device_get(correct(models, limit, *part)))
    action, rewards, better = (np.concatenate(x) for x in zip(*pieces, strict=True))
    better &= ~np.asarray(rows.terminated)
    return (
        np.where(better[:, None], action, rows.action),
        np.where(better, rewards, rows.reward),
        better,
    )


def _row(
    models: Any, limit: Array, observation: Array, action: Array, paid: Array, after: Array
) -> tuple[Array, Array, Array]:
    """The corrected action [A] and reward [] of one row, and whether it fits the target better."""
    inverse, reward, forward = models
    change = after - observation
    other = jnp.clip(inverse(jnp.concatenate([observation, change])), -1.0, 1.0)

    def value(action: Array) -> Array:
        return reward(jnp.concatenate([observation, action]))[0]

    def distance(action: Array) -> Array:
        error = forward(jnp.concatenate([observation, action])) - change
        return jnp.square(error / forward.outputs.std).sum()

    slope = jax.grad(value)(action) @ (other - action)
    return other, paid + jnp.clip(slope, -limit, limit), distance(other) < distance(action)
