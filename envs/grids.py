"""What environments on a grid share: random sets of cells, pictures of boards, and boards as text."""

from __future__ import annotations

from typing import Any, NamedTuple

import jax.numpy as jnp
import numpy as np

from rljax.agent import Array, EnvSpec

CELL = 32  # pixels along a cell's side
BORDER = 1  # of them between cells
INSET = 4  # by which each layer of colours is smaller than the one beneath, on every side
GAP = 16  # pixels between boards
LINES = np.full(3, 40, np.uint8)  # what is between cells and boards


class Board(NamedTuple):
    """M x N cells to be looked at."""

    symbols: np.ndarray  # [M, N] str, all of one length
    layers: np.ndarray  # [L, M, N, 3] uint8: colours of squares in each cell, the largest first


class Grid:
    """What makes boards visible; a subclass says which in `boards`."""

    spec: EnvSpec
    frames_per_second = 4.0

    def boards(self, state: Any) -> tuple[Board, ...]:
        """What one state shows, from left to right; all boards have M rows."""
        raise NotImplementedError

    def render(self, state: Any, params: Any = None) -> np.ndarray:
        """A picture [H, W, 3] uint8 of one state; see `rljax.envs.environment.Drawable`."""
        pictures = [_picture(board) for board in self.boards(state)]
        gap = np.broadcast_to(LINES, (len(pictures[0]), GAP, 3))
        return np.concatenate([part for picture in pictures for part in (gap, picture)][1:], axis=1)

    def text(self, state: Any, params: Any = None, colours: bool = False) -> str:
        """One state in M lines; see `rljax.envs.environment.Drawable`."""
        rows = zip(*[_lines(board, colours) for board in self.boards(state)], strict=True)
        return "\n".join("   ".join(row) for row in rows)


def lowest(numbers: Array, count: Any) -> Array:
    """Which of K random numbers, uint32 [K], are the `count` [] lowest, 0 to K: [K] bool.

    Their last bits give way to their index, so that no two are equal and it is neither more nor fewer. Comparing each
    with each is faster than sorting for as many as a grid has cells, in batches on the CPU.
    """
    size = len(numbers)
    numbers = (numbers & ~np.uint32(2 ** size.bit_length() - 1)) | jnp.arange(size, dtype=jnp.uint32)
    return (numbers < numbers[:, None]).sum(axis=1, dtype=jnp.int32) < count


def _picture(board: Board) -> np.ndarray:
    """[M CELL, N CELL, 3] uint8."""
    _, rows, columns, _ = board.layers.shape
    cells = np.empty((rows, CELL, columns, CELL, 3), np.uint8)
    cells[:] = LINES
    for number, layer in enumerate(board.layers):
        inside = slice(BORDER + number * INSET, CELL - BORDER - number * INSET)
        cells[:, inside, :, inside] = layer[:, None, :, None]
    return cells.reshape(rows * CELL, columns * CELL, 3)


def _lines(board: Board, colours: bool) -> list[str]:
    """A line per row; with `colours` on the largest square's, by the escape codes of terminals with 24-bit colours."""
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
