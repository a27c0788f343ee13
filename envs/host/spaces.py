"""What agents need of Gymnasium's spaces: the shape of an observation, and finite bounds of actions."""

from __future__ import annotations

import warnings

import numpy as np
from gymnasium import spaces


def observation_shape(space: spaces.Space, name: str) -> tuple[bool, tuple[int, ...]]:
    """Whether observations of the environment `name` must be flattened, and their shape afterwards.

    Vectors and pictures of uint8 stay as they are. Other spaces are flattened, with a warning. Raises `TypeError` for
    spaces that have no vector of fixed size.
    """
    wrap = "Wrap the environment in gymnasium.wrappers.FlattenObservation, register that, and name it 'module:Name-v0'."
    if isinstance(space, spaces.Box):
        if len(space.shape) == 1 or (len(space.shape) == 3 and space.dtype == np.uint8):
            return False, space.shape
    elif isinstance(space, (spaces.Discrete, spaces.MultiDiscrete, spaces.MultiBinary)):
        raise TypeError(f"'{name}' observes {space}, agents need a vector of numbers (one-hot, for example). {wrap}")
    flat = spaces.flatten_space(space) if space.is_np_flattenable else None
    if not isinstance(flat, spaces.Box):
        raise TypeError(f"'{name}' observes {space}, agents need a vector of fixed size. Wrap the environment in one.")
    shape = f"a Box of shape {space.shape}" if isinstance(space, spaces.Box) else f"a {type(space).__name__}"
    # The level of the caller of `make_hosted`.
    warnings.warn(f"'{name}' observes {shape}: it is flattened to {flat.shape[0]} numbers.", stacklevel=4)
    return True, flat.shape


def action_bounds(space: spaces.Space, name: str) -> tuple[np.ndarray, np.ndarray]:
    """The lowest and the highest action of the environment `name`, [A] each.

    Raises `TypeError` where actions are not a Box of floats, and `ValueError` where they have no finite bounds.
    """
    if not isinstance(space, spaces.Box) or not np.issubdtype(space.dtype, np.floating):
        raise TypeError(
            f"'{name}' acts in {space}, agents act in a Box of floats or in a Discrete space. "
            "Wrap the environment in a gymnasium.ActionWrapper that offers one of them."
        )
    low, high = space.low.ravel(), space.high.ravel()
    unbounded = np.flatnonzero(~(np.isfinite(low) & np.isfinite(high)))
    if unbounded.size:
        dim = unbounded[0]
        raise ValueError(
            f"'{name}' acts within [{low[dim]}, {high[dim]}] in dimension {dim}, agents need finite bounds, because "
            "[-1, 1] is rescaled to them. Give its action_space bounds. If the environment needs it, wrap it in "
            "gymnasium.wrappers.RescaleAction or ClipAction."
        )
    return low, high
