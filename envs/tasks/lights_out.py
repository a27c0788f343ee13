"""Lights out: press cells until the lights equal the goal.

docs/environments.md has the task. The goal is k distinct presses away, k uniform:

    training  1 <= k < floor(M N / 2)            -test  floor(M N / 2) <= k < M N

With `-dense`, reward = n_before - n_after + solved for the number n of presses needed.

Rules: Ghugare et al., arXiv:2602.05999, except for n where the matrix of presses is singular, as at
4x4: it counts the smallest set with the same effect. The k presses may then cancel out: the episode
ends when a press leads back to the goal's lights.
"""

from __future__ import annotations

import functools
import re
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec
from rljax.envs.environment import Environment, StepResult
from rljax.envs.tasks.gridworld import Board, Grid, lowest, require_size

BEGINNING = "rljax/LightsOut-"
SIZES = (2, 20)  # rows and columns
NULLITY = 8  # the matrix's greatest for which n is computed: every step compares 2^8 sets
WORD = 32  # cells in a word of bits
COLOURS = np.array([(70, 70, 78), (250, 210, 70)], np.uint8)  # off, on


class LightsOutState(struct.PyTreeNode):
    """A problem. Cells are bits of W words, in reading order from the first word's lowest bit."""

    lights: Array  # [W] uint32
    goal: Array  # [W] uint32
    presses: Array  # [W] uint32: a press of each leads from the lights to the goal


class LightsOut(Grid):
    """Lights out of one size, reward and split."""

    params = None

    def __init__(
        self, name: str, rows: int, columns: int, dense: bool = False, test: bool = False
    ) -> None:
        """Raises `ValueError` for sizes out of range."""
        require_size(name, rows, columns, SIZES)
        self.rows, self.columns, self.cells = rows, columns, rows * columns
        self.spec = EnvSpec(
            name, (2 * self.cells,), self.cells, discrete=True, max_episode_steps=self.cells
        )
        middle = self.cells // 2
        self.presses = (middle, self.cells) if test else (1, middle)  # least k <= k < most
        # [M N, W]
        self.toggles = _words(_toggles(rows, columns), self.cells)
        self.bits = _words([1 << cell for cell in range(self.cells)], self.cells)  # [M N, W]
        # [2^nullity, W]
        self.quiet = _words(quiet_presses(rows, columns), self.cells) if dense else None

    def reset(self, key: Array, params: Any = None) -> tuple[Array, LightsOutState]:
        """Draw a problem."""
        words = self.bits.shape[1]
        drawn = jax.random.bits(key, (words + 1 + self.cells,), jnp.uint32)
        lights = drawn[:words] & self._pack(jnp.ones(self.cells, bool))
        low, high = self.presses
        number = low + (drawn[words] % np.uint32(high - low)).astype(jnp.int32)
        pressed = lowest(drawn[words + 1 :], number)
        changes = jnp.where(pressed[:, None], self.toggles, 0)
        changes = jax.lax.reduce(changes, np.uint32(0), jax.lax.bitwise_xor, (0,))
        state = LightsOutState(lights, lights ^ changes, self._pack(pressed))
        return self._observe(state), state

    def step(
        self, key: Array, state: LightsOutState, action: Array, params: Any = None
    ) -> StepResult:
        """Press one cell."""
        after = LightsOutState(
            lights=state.lights ^ jnp.asarray(self.toggles)[action],
            goal=state.goal,
            presses=state.presses ^ jnp.asarray(self.bits)[action],
        )
        solved = (after.lights == after.goal).all()
        if self.quiet is None:
            reward = solved - 0.1
        else:
            reward = self.presses_needed(state) - self.presses_needed(after) + solved
        reward, never = jnp.float32(reward), jnp.zeros((), jnp.bool_)
        return self._observe(after), after, reward, solved, never, {"success": solved}

    def presses_needed(self, state: LightsOutState) -> Array:
        """n [] int32, the fewest presses that lead to the goal; for dense rewards only."""
        assert self.quiet is not None
        equal = state.presses ^ jnp.asarray(self.quiet)
        return jax.lax.population_count(equal).astype(jnp.int32).sum(axis=-1).min()

    def optimal_action(self, observation: Any) -> int:
        """A cell of the smallest set of presses from an observation [2 M N]; any if it is empty."""
        return int(solve(self._difference(observation)).argmax())

    def optimal_return(self, observation: Any) -> float:
        """The undiscounted return of the shortest episode from a first observation [2 M N]."""
        needed = int(solve(self._difference(observation)).sum())
        return 1 - 0.1 * (needed or 2) if self.quiet is None else needed + 1.0

    def boards(self, state: LightsOutState) -> tuple[Board, ...]:
        """The lights, and the lights of the goal."""
        lit = np.asarray(self._observe(state)).reshape(2, self.rows, self.columns).astype(int)
        return tuple(Board(np.array([".", "#"])[board], COLOURS[board][None]) for board in lit)

    def _observe(self, state: LightsOutState) -> Array:
        words = jnp.stack([state.lights, state.goal])
        bits = (words[:, :, None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
        return bits.reshape(2, -1)[:, : self.cells].reshape(-1).astype(jnp.float32)

    def _pack(self, cells: Array) -> Array:
        words = jnp.pad(cells, (0, -self.cells % WORD)).reshape(-1, WORD)
        bits = words.astype(jnp.uint32) << jnp.arange(WORD, dtype=jnp.uint32)
        return bits.sum(axis=1, dtype=jnp.uint32)

    def _difference(self, observation: Any) -> np.ndarray:
        lights, goal = np.asarray(observation).reshape(2, self.rows, self.columns) > 0
        return lights ^ goal


def solve(difference: Any) -> np.ndarray:
    """The smallest set of presses, [M, N] bool, that changes the lights in `difference` [M, N].

    Raises `ValueError` for no solution, and for more than 2^NULLITY.
    """
    difference = np.asarray(difference, bool)
    rows, columns = difference.shape
    left, solution = sum(1 << int(cell) for cell in np.flatnonzero(difference)), 0
    for highest, (changes, presses) in _eliminate(rows, columns)[0].items():
        if left >> highest & 1:
            left, solution = left ^ changes, solution ^ presses
    if left:
        raise ValueError(
            f"no presses on {rows} x {columns} cells make this difference: its matrix is singular."
        )
    smallest = min((solution ^ quiet for quiet in quiet_presses(rows, columns)), key=int.bit_count)
    cells = [smallest >> cell & 1 for cell in range(rows * columns)]
    return np.array(cells, bool).reshape(rows, columns)


def quiet_presses(rows: int, columns: int) -> list[int]:
    """All sets of presses, as bits, that change no light: the null space over GF(2), the empty set
    first.

    Raises `ValueError` for more than 2^NULLITY.
    """
    basis = _eliminate(rows, columns)[1]
    if len(basis) > NULLITY:
        raise ValueError(
            f"on {rows} x {columns} cells 2^{len(basis)} sets of presses have the same effect, too "
            f"many to find the smallest (at most 2^{NULLITY}). Choose another size, or the reward "
            "that is not dense."
        )
    sets = [0]
    for presses in basis:
        sets += [presses ^ other for other in sets]
    return sets


@functools.cache
def _eliminate(rows: int, columns: int) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """The matrix of presses in echelon form, and a basis of its null space, as bits.

    The form maps the highest light that changes to all that change and their presses.
    """
    pivots: dict[int, tuple[int, int]] = {}
    basis = []
    for cell, changes in enumerate(_toggles(rows, columns)):
        presses = 1 << cell
        while changes and (highest := changes.bit_length() - 1) in pivots:
            changes, presses = changes ^ pivots[highest][0], presses ^ pivots[highest][1]
        if changes:
            pivots[highest] = changes, presses
        else:
            basis.append(presses)
    return dict(sorted(pivots.items(), reverse=True)), basis


def _toggles(rows: int, columns: int) -> list[int]:
    """For each cell, the lights that it toggles, as bits."""
    return [
        sum(
            1 << (row + down) * columns + column + right
            for down, right in ((0, 0), (-1, 0), (1, 0), (0, -1), (0, 1))
            if 0 <= row + down < rows and 0 <= column + right < columns
        )
        for row in range(rows)
        for column in range(columns)
    ]


def _words(sets: list[int], cells: int) -> np.ndarray:
    shifts = range(0, cells, WORD)
    return np.array([[bits >> shift & 0xFFFFFFFF for shift in shifts] for bits in sets], np.uint32)


def names() -> list[str]:
    """A few sizes with their variants."""
    sizes, suffixes = ("2x2", "3x3", "4x4", "5x5"), ("", "-test", "-dense", "-dense-test")
    return [f"{BEGINNING}{size}{suffix}" for size in sizes for suffix in suffixes]


def make(name: str) -> Environment:
    """Make an environment such as "rljax/LightsOut-5x5-test".

    Raises `ValueError` for other names and sizes.
    """
    parts = re.fullmatch(r"(\d+)x(\d+)(-dense)?(-test)?", name.removeprefix(BEGINNING))
    if parts is None:
        raise ValueError(
            f"'{name}' names no size of lights out: the form is {BEGINNING}MxN, then -dense, "
            f"-test, -dense-test or nothing. For example: {BEGINNING}5x5-test"
        )
    rows, columns, dense, test = parts.groups()
    return LightsOut(name, int(rows), int(columns), dense is not None, test is not None)
