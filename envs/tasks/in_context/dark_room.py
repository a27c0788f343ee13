"""A dark room, `rljax/DarkRoom-MxN`: find a goal that is not shown.

A room has M x N cells. An episode begins in the first row and column. An agent sees its row and
column and goes down, up, right, left, or stays. A step that ends on the goal has the reward 1,
others 0. The goal is one of 80 % of the cells, or with `-test` one of the others. An episode has
100 steps; `rljax/DarkRoom-MxN-T` has T.

Source: Lee et al., arXiv:2306.14892, section 5, whose goals of training and test these are;
introduced by Laskin et al., arXiv:2210.14215.
"""

from __future__ import annotations

import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import Environment, StepResult
from rljax.envs.tasks.gridworld import Board, Grid, require_size

BEGINNING = "rljax/DarkRoom-"
SIZES = (2, 50)  # rows and columns
STEPS = 100
TRAINING = 0.8  # share of cells with goals of training
MOVES = np.array([[1, 0], [-1, 0], [0, 1], [0, -1], [0, 0]], np.int32)
STAY = len(MOVES) - 1
COLOURS = {"floor": (225, 225, 220), "goal": (90, 180, 90), "agent": (50, 110, 200)}


@struct.dataclass
class DarkRoomState:
    """The state of an episode."""

    cell: Array  # [2] int32: row and column
    goal: Array  # [2] int32


class DarkRoom(Grid):
    """Dark rooms of one size."""

    params = None

    def __init__(
        self, name: str, rows: int, columns: int, steps: int = STEPS, test: bool = False
    ) -> None:
        """Raises `ValueError` for a size or a number of steps out of range."""
        require_size(name, rows, columns, SIZES)
        if steps < 1:
            raise ValueError(f"'{name}' has episodes of {steps} steps: at least 1 is needed.")
        self.size = np.array([rows, columns], np.int32)
        self.num_places = rows * columns  # of `place`
        goals = np.argwhere(np.ones((rows, columns))).astype(np.int32)
        np.random.RandomState(0).shuffle(goals)
        first = int(TRAINING * len(goals))
        self.goals = goals[first:] if test else goals[:first]
        self.spec = EnvSpec(name, (2,), len(MOVES), discrete=True, max_episode_steps=steps)

    def reset(self, key: Array, params: Any = None) -> tuple[Array, DarkRoomState]:
        """Draw a goal."""
        goal = jnp.asarray(self.goals)[jax.random.randint(key, (), 0, len(self.goals))]
        state = DarkRoomState(jnp.zeros(2, jnp.int32), goal)
        return self.observe(state), state

    def restart(
        self, key: Array, state: DarkRoomState, params: Any = None
    ) -> tuple[Array, DarkRoomState]:
        """Begin another episode with the same goal."""
        state = DarkRoomState(jnp.zeros(2, jnp.int32), state.goal)
        return self.observe(state), state

    def step(
        self, key: Array, state: DarkRoomState, action: Array, params: Any = None
    ) -> StepResult:
        """Go to another cell, or stay."""
        cell = jnp.clip(state.cell + jnp.asarray(MOVES)[action], 0, self.size - 1)
        state, never = DarkRoomState(cell, state.goal), jnp.zeros((), jnp.bool_)
        reached = (cell == state.goal).all()
        reward = reached.astype(jnp.float32)
        return self.observe(state), state, reward, never, never, {"success": reached}

    def observe(self, state: DarkRoomState) -> Array:
        """The observation [2] of a state."""
        return state.cell.astype(jnp.float32)

    def place(self, state: DarkRoomState) -> Array:
        """The number [] of the agent's cell."""
        return state.cell[0] * self.size[1] + state.cell[1]

    def number(self, state: DarkRoomState) -> Array:
        """A number [] that tells tasks apart: that of the goal's cell."""
        return (state.goal[0] * self.size[1] + state.goal[1]).astype(jnp.float32)

    def anywhere(self, key: Array, state: DarkRoomState) -> DarkRoomState:
        """A random state of the same task."""
        return DarkRoomState(jax.random.randint(key, (2,), 0, self.size), state.goal)

    def optimal_action(self, state: DarkRoomState) -> Array:
        """A shortest way's action []: along the rows first."""
        down, right = state.goal - state.cell
        conditions = jnp.stack([down > 0, down < 0, right > 0, right < 0, down == 0])
        return jnp.argmax(conditions)  # the first that holds

    def behaviour(self, key: Array) -> Array:
        """Probabilities [A] of actions: uniform ones."""
        return jnp.full(len(MOVES), 1.0 / len(MOVES))

    def boards(self, state: DarkRoomState) -> tuple[Board, ...]:
        """The agent "A" and the goal "g"."""
        symbols = np.full(tuple(self.size), ".")
        layers = np.empty((2, *self.size, 3), np.uint8)
        layers[:] = COLOURS["floor"]
        goal, cell = tuple(np.asarray(state.goal)), tuple(np.asarray(state.cell))
        symbols[goal], symbols[cell] = "g", "A"
        layers[:, *goal] = COLOURS["goal"]
        layers[1, *cell] = COLOURS["agent"]
        return (Board(symbols, layers),)


def names() -> list[str]:
    """A few sizes. `make` accepts all others too."""
    return [f"{BEGINNING}10x10", f"{BEGINNING}10x10-test", f"{BEGINNING}9x9-20"]


def make(name: str) -> Environment:
    """Make an environment such as "rljax/DarkRoom-10x10". Raises `ValueError` for other names."""
    form = r"(\d{1,4})x(\d{1,4})(?:-(\d{1,9}))?(-test)?"
    match = re.fullmatch(form, name.removeprefix(BEGINNING))
    if match is None:
        raise ValueError(
            f"'{name}' names no dark room: the form is {BEGINNING}MxN with M rows and N columns, "
            f"then -T or nothing with T steps of an episode, then -test or nothing. For example: "
            f"{BEGINNING}10x10"
        )
    rows, columns, steps, test = match.groups()
    return DarkRoom(name, int(rows), int(columns), int(steps or STEPS), test is not None)
