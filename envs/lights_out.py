"""Lights out: press cells, each of which toggles its own light and its neighbours', until the lights are the goal's.

`rljax/LightsOut-MxN` has M rows and N columns. After it come, in this order, `-dense` for the other reward and `-test`
for the longer problems, such as `rljax/LightsOut-5x5-test` or `rljax/LightsOut-5x5-dense-test`.

An episode begins with random lights, and with a goal that k distinct presses lead to, k uniform:

    training  1 <= k < floor(M N / 2)            -test  floor(M N / 2) <= k < M N

Observation [2 M N]: the lights, then the goal's, row by row, 1 where a light is on. Action: the cell to press. An
episode terminates where the lights are the goal's, and is truncated after M N steps. With n the number of presses
needed,

    reward = solved - 0.1                        -dense  reward = n_before - n_after + solved

These are the rules of Ghugare et al., On (the Role of Iterative) Computation and RL, arXiv:2602.05999, and of their
code, but for n where the presses' matrix is singular, as at 4x4 and 5x5: several sets of presses then have the same
effect, and n is the size of the smallest, where their code reads one off a matrix that has no inverse. At such sizes,
as in theirs, the presses of a problem may cancel out. It then begins with the goal's lights, and ends when a press
leads back to them.
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
from rljax.envs.environment import Environment
from rljax.envs.grids import Board, Grid, lowest

BEGINNING = "rljax/LightsOut-"
SIZES = (2, 20)  # rows and columns, at least and at most
NULLITY = 8  # of the presses' matrix at most where n is computed: 2^8 sets of presses are compared in every step
WORD = 32  # cells in a word of bits
COLOURS = np.array([(70, 70, 78), (250, 210, 70)], np.uint8)  # off, on


class LightsOutState(struct.PyTreeNode):
    """A problem. Cells are bits of W words, in reading order from the lowest bit of the first word."""

    lights: Array  # [W] uint32
    goal: Array  # [W] uint32
    presses: Array  # [W] uint32: cells that, pressed once each, lead from the lights to the goal


class LightsOut(Grid):
    """One size of lights out with one reward and one split of the problems."""

    params = None

    def __init__(self, name: str, rows: int, columns: int, dense: bool = False, test: bool = False) -> None:
        """Raises `ValueError` for sizes out of range, and what `quiet_presses` raises where rewards are dense."""
        low, high = SIZES
        if not (low <= rows <= high and low <= columns <= high):
            raise ValueError(f"'{name}' has {rows} x {columns} cells: rows and columns must be {low} to {high}.")
        self.rows, self.columns, self.cells = rows, columns, rows * columns
        self.spec = EnvSpec(name, (2 * self.cells,), self.cells, discrete=True, max_episode_steps=self.cells)
        middle = self.cells // 2
        self.presses = (middle, self.cells) if test else (1, middle)  # k: at least, and below
        self.toggles = _words(_toggles(rows, columns), self.cells)  # [M N, W], what each press changes
        self.bits = _words([1 << cell for cell in range(self.cells)], self.cells)  # [M N, W]
        self.quiet = _words(quiet_presses(rows, columns), self.cells) if dense else None  # [2^nullity, W]

    def reset(self, key: Array, params: Any = None) -> tuple[Array, LightsOutState]:
        """Draw a problem."""
        words = self.bits.shape[1]
        # One draw for everything: splitting the key would cost as much as the draw.
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
    ) -> tuple[Array, LightsOutState, Array, Array, Array, dict[str, Any]]:
        """Press one cell; see `rljax.envs.environment.Environment`."""
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
        info = {"success": solved}
        return self._observe(after), after, jnp.float32(reward), solved, jnp.zeros((), jnp.bool_), info

    def presses_needed(self, state: LightsOutState) -> Array:
        """n [] int32: the size of the smallest set of presses that leads to the goal; of dense environments only."""
        assert self.quiet is not None, "what it compares is computed for dense rewards"
        equal = state.presses ^ jnp.asarray(self.quiet)
        return jax.lax.population_count(equal).astype(jnp.int32).sum(axis=-1).min()

    def optimal_action(self, observation: Any) -> int:
        """A cell of the smallest set of presses from an observation [2 M N] to its goal; any cell where it is empty."""
        return int(solve(self._difference(observation)).argmax())

    def optimal_return(self, observation: Any) -> float:
        """The undiscounted return of the shortest episode from its first observation [2 M N].

        Where the lights are the goal's already, the shortest episode presses a cell twice.
        """
        needed = int(solve(self._difference(observation)).sum())
        return 1 - 0.1 * (needed or 2) if self.quiet is None else needed + 1.0

    def boards(self, state: LightsOutState) -> tuple[Board, ...]:
        """The lights, and the goal's."""
        lit = np.asarray(self._observe(state)).reshape(2, self.rows, self.columns).astype(int)
        return tuple(Board(np.array([".", "#"])[board], COLOURS[board][None]) for board in lit)

    def _observe(self, state: LightsOutState) -> Array:
        words = jnp.stack([state.lights, state.goal])
        bits = (words[:, :, None] >> jnp.arange(WORD, dtype=jnp.uint32)) & 1
        return bits.reshape(2, -1)[:, : self.cells].reshape(-1).astype(jnp.float32)

    def _pack(self, cells: Array) -> Array:
        """Cells [M N] bool as words [W] uint32."""
        words = jnp.pad(cells, (0, -self.cells % WORD)).reshape(-1, WORD)
        return (words.astype(jnp.uint32) << jnp.arange(WORD, dtype=jnp.uint32)).sum(axis=1, dtype=jnp.uint32)

    def _difference(self, observation: Any) -> np.ndarray:
        lights, goal = np.asarray(observation).reshape(2, self.rows, self.columns) > 0
        return lights ^ goal


def solve(difference: Any) -> np.ndarray:
    """The smallest set of presses [M, N] bool that changes the lights where `difference` [M, N] says so.

    By elimination over GF(2), and a comparison of all solutions. Raises `ValueError` where there is no solution, and
    where there are more than 2^NULLITY.
    """
    difference = np.asarray(difference, bool)
    rows, columns = difference.shape
    left, found = sum(1 << int(cell) for cell in np.flatnonzero(difference)), 0
    for highest, (changes, presses) in _eliminate(rows, columns)[0].items():
        if left >> highest & 1:
            left, found = left ^ changes, found ^ presses
    if left:
        raise ValueError(f"no presses on {rows} x {columns} cells make this difference: its matrix is singular.")
    smallest = min((found ^ quiet for quiet in quiet_presses(rows, columns)), key=int.bit_count)
    return np.array([smallest >> cell & 1 for cell in range(rows * columns)], bool).reshape(rows, columns)


def quiet_presses(rows: int, columns: int) -> list[int]:
    """All sets of presses, as bits, that change no light: the presses' null space over GF(2), the empty set first.

    Raises `ValueError` where there are more than 2^NULLITY.
    """
    basis = _eliminate(rows, columns)[1]
    if len(basis) > NULLITY:
        raise ValueError(
            f"on {rows} x {columns} cells 2^{len(basis)} sets of presses have the same effect, too many to find the "
            f"smallest of (at most 2^{NULLITY}). Choose another size, or the reward that is not dense."
        )
    sets = [0]
    for presses in basis:
        sets += [presses ^ other for other in sets]
    return sets


@functools.cache
def _eliminate(rows: int, columns: int) -> tuple[dict[int, tuple[int, int]], list[int]]:
    """The presses' matrix in echelon form, and a basis of its null space.

    The first is, by the highest light that changes and from high to low, the lights that change and the presses that
    change them; all as bits.
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
    """The lights that each cell's press changes, as bits."""
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
    """Bits as words, [K, W] uint32."""
    shifts = range(0, cells, WORD)
    return np.array([[bits >> shift & 0xFFFFFFFF for shift in shifts] for bits in sets], np.uint32)


def names() -> list[str]:
    """A few sizes with their variants; all others are made too."""
    sizes = ("2x2", "3x3", "4x4", "5x5")
    return [f"{BEGINNING}{size}{suffix}" for size in sizes for suffix in ("", "-test", "-dense", "-dense-test")]


def make(name: str) -> Environment:
    """The environment called `name`, such as "rljax/LightsOut-5x5-test".

    Raises `ValueError` for a name that is not of this form, and what `LightsOut` raises.
    """
    parts = re.fullmatch(re.escape(BEGINNING) + r"(\d+)x(\d+)(-dense)?(-test)?", name)
    if parts is None:
        raise ValueError(
            f"'{name}' names no size of lights out: it is {BEGINNING}MxN, with -dense, -test or -dense-test after it. "
            f"For example: {BEGINNING}5x5-test"
        )
    rows, columns, dense, test = parts.groups()
    return LightsOut(name, int(rows), int(columns), dense is not None, test is not None)
