"""Shared parts of tasks on a grid."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec

CELL = 32  # pixels along a cell's side
BORDER = 1  # pixels around a cell
INSET = 4  # pixels by which each layer is smaller on every side
GAP = 16  # pixels between boards
LINES = np.full(3, 40, np.uint8)  # the colour between cells and between boards


class Board(NamedTuple):
    """M x N cells to show."""

    symbols: np.ndarray  # [M, N] str, all of the same length
    layers: np.ndarray  # [L, M, N, 3] uint8: colours of squares in each cell, the largest first


class Grid:
    """Renders boards as pictures and text. A subclass defines `boards`."""

    spec: EnvSpec
    frames_per_second = 4.0

    def boards(self, state: Any) -> tuple[Board, ...]:
        """The boards of one state, from left to right, all with M rows."""
        raise NotImplementedError

    def render(self, state: Any, params: Any = None) -> np.ndarray:
        """A picture [H, W, 3] uint8 of one state."""
        pictures = [_picture(board) for board in self.boards(state)]
        gap = np.broadcast_to(LINES, (len(pictures[0]), GAP, 3))
        return np.concatenate([part for picture in pictures for part in (gap, picture)][1:], axis=1)

    def text(self, state: Any, params: Any = None, colours: bool = False) -> str:
        """One state in M lines; see `rljax.envs.environment.Drawable`."""
        rows = zip(*[_lines(board, colours) for board in self.boards(state)], strict=True)
        return "\n".join("   ".join(row) for row in rows)


def require_size(name: str, rows: int, columns: int, sizes: tuple[int, int]) -> None:
    """Raise `ValueError` for a grid with fewer or more rows or columns than `sizes` allow."""
    low, high = sizes
    if not (low <= rows <= high and low <= columns <= high):
        raise ValueError(
            f"'{name}' has {rows} x {columns} cells: rows and columns must be {low} to {high}."
        )


def lowest(numbers: Array, count: Any) -> Array:
    """The mask [K] of the `count` [] lowest of K random numbers, uint32 [K]; `count` is 0 to K.

    Indices replace the last bits, so that no two are equal.
    """
    size = len(numbers)
    last_bits = np.uint32(2 ** size.bit_length() - 1)
    numbers = (numbers & ~last_bits) | jnp.arange(size, dtype=jnp.uint32)
    return (numbers < numbers[:, None]).sum(axis=1, dtype=jnp.int32) < count


def _picture(board: Board) -> np.ndarray:
    """The picture of a board, [M CELL, N CELL, 3] uint8."""
    _, rows, columns, _ = board.layers.shape
    cells = np.empty((rows, CELL, columns, CELL, 3), np.uint8)
    cells[:] = LINES
    for number, layer in enumerate(board.layers):
        inside = slice(BORDER + number * INSET, CELL - BORDER - number * INSET)
        cells[:, inside, :, inside] = layer[:, None, :, None]
    return cells.reshape(rows * CELL, columns * CELL, 3)


def _lines(board: Board, colours: bool) -> list[str]:
    """A board as lines of text, one per row.

    With `colours`, escape codes give each cell the colour of its largest square.
    """
    if not colours:
        return [" ".join(row) for row in board.symbols]
    lines = []
    for symbols, backgrounds in zip(board.symbols, board.layers[0].tolist(), strict=True):
        cells = []
        for symbol, (red, green, blue) in zip(symbols, backgrounds, strict=True):
            ink = 30 if red + green + blue > 3 * 127 else 97  # black on light, white on dark
            cells.append(f"\x1b[{ink};48;2;{red};{green};{blue}m {symbol} ")
        lines.append("".join(cells) + "\x1b[0m")
    return lines
