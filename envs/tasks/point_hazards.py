"""A point among hazards, `rljax/PointHazards`.

The point moves in the square [-1, 1]^2. The reward is the distance gained towards the goal, in
units of 0.08, and 10 more within 0.15 of it, where a new goal appears. The signal "cost" is 1 in a
step that ends within 0.3 of a hazard, else 0. The observation [12] is the position and, relative to
it, the goal and the hazards, the nearest first.

After the goal tasks of Safety Gym, Ray et al., 2019.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec, Part
from rljax.envs.environment import StepResult

NAME = "rljax/PointHazards"
HAZARDS, RADIUS = 4, 0.3
GOAL_RADIUS, BONUS = 0.15, 10.0
SPEED = 0.08  # per step
CANDIDATES = 16  # random places for `_outside`
PIXELS, ROWS, COLUMNS = 256, 20, 40  # of a picture, and of text


@struct.dataclass
class PointState:
    """The state of an episode."""

    position: Array  # [2]
    goal: Array  # [2]
    hazards: Array  # [HAZARDS, 2]


class PointHazards:
    """The task. Pictures show goals green, hazards red, the point blue; text shows G, x and O."""

    params = None
    frames_per_second = 20.0

    def __init__(self, name: str = NAME) -> None:
        size = 2 * (2 + HAZARDS)
        self.spec = EnvSpec(name, (size,), 2, max_episode_steps=200, signals=(Part("cost", ()),))

    def reset(self, key: Array, params: Any = None) -> tuple[Array, PointState]:
        """Begin an episode."""
        key_hazards, key_position, key_goal = jax.random.split(key, 3)
        hazards = jax.random.uniform(key_hazards, (HAZARDS, 2), minval=-1.0, maxval=1.0)
        state = PointState(_outside(key_position, hazards), _outside(key_goal, hazards), hazards)
        return _observation(state), state

    def step(self, key: Array, state: PointState, action: Array, params: Any = None) -> StepResult:
        """Apply one action."""
        position = jnp.clip(state.position + SPEED * jnp.clip(action, -1.0, 1.0), -1.0, 1.0)
        before, after = (jnp.linalg.norm(state.goal - x) for x in (state.position, position))
        reached = after < GOAL_RADIUS
        reward = (before - after) / SPEED + BONUS * reached
        cost = (_distances(position, state.hazards) < RADIUS).any().astype(jnp.float32)
        goal = jnp.where(reached, _outside(key, state.hazards), state.goal)
        state = PointState(position, goal, state.hazards)
        never = jnp.zeros((), jnp.bool_)
        return _observation(state), state, reward, never, never, {"cost": cost}

    def render(self, state: PointState, params: Any = None) -> np.ndarray:
        """A picture [H, W, 3] uint8."""
        picture = np.full((PIXELS, PIXELS, 3), 245, np.uint8)
        for places, radius, colour in _shapes(state):
            for place in places:
                picture[_disc(place, radius, PIXELS, PIXELS)] = colour
        return picture

    def text(self, state: PointState, params: Any = None, colours: bool = False) -> str:
        """Lines of text; see `rljax.envs.environment.Drawable`."""
        board = np.full((ROWS, COLUMNS), ".")
        for (places, radius, _), symbol in zip(_shapes(state), "xGO", strict=True):
            for place in places:
                board[_disc(place, radius, ROWS, COLUMNS)] = symbol
        inks = {"x": 31, "G": 32, "O": 34} if colours else {}
        cells = {symbol: f"\x1b[{ink}m{symbol}\x1b[0m" for symbol, ink in inks.items()}
        return "\n".join("".join(cells.get(cell, cell) for cell in map(str, row)) for row in board)


def _observation(state: PointState) -> Array:
    order = jnp.argsort(_distances(state.position, state.hazards))
    relative = jnp.concatenate([state.goal[None], state.hazards[order]]) - state.position
    return jnp.concatenate([state.position, relative.ravel()])


def _distances(place: Array, hazards: Array) -> Array:
    return jnp.linalg.norm(hazards - place[..., None, :], axis=-1)


def _outside(key: Array, hazards: Array) -> Array:
    """The first random place [2] outside of all hazards, or the farthest."""
    places = jax.random.uniform(key, (CANDIDATES, 2), minval=-1.0, maxval=1.0)
    clearance = _distances(places, hazards).min(axis=-1) - RADIUS
    return places[jnp.argmax(jnp.minimum(clearance, 0.0))]


def _shapes(state: PointState) -> list[tuple[np.ndarray, float, tuple[int, int, int]]]:
    return [
        (np.asarray(state.hazards), RADIUS, (230, 110, 100)),
        (np.asarray(state.goal)[None], GOAL_RADIUS, (90, 180, 90)),
        (np.asarray(state.position)[None], 0.05, (50, 80, 200)),
    ]


def _disc(place: np.ndarray, radius: float, rows: int, columns: int) -> np.ndarray:
    """The cells [rows, columns] of the square, y upwards, with middles within a disc; at least the
    nearest.
    """
    y, x = 1 - 2 * (np.arange(rows) + 0.5) / rows, 2 * (np.arange(columns) + 0.5) / columns - 1
    distances = np.hypot(y[:, None] - place[1], x - place[0])
    return (distances < radius) | (distances == distances.min())


ENVIRONMENTS = {NAME: PointHazards}
