"""Sum trees: rows drawn in proportion to their mass, in time O(log N).

A tree is an array float32 [2 N] for N rows, N a power of two. Node 1 is the root, node i has the
children 2 i and 2 i + 1, and node N + i is row i. Every change adds children anew, so that rounding
errors do not grow. Functions are of one tree.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

from rljax.agent import Array


def size(rows: int) -> int:
    """The number of nodes of a tree for `rows` rows: 2 N, with N the next power of two."""
    return 2 << max(rows - 1, 1).bit_length()


def ones(rows: int) -> Array:
    """The tree in which each of `rows` rows has mass 1."""
    level = (jnp.arange(size(rows) // 2) < rows).astype(jnp.float32)
    parts = [level]
    while len(level) > 1:
        level = level.reshape(-1, 2).sum(axis=1)
        parts.append(level)
    return jnp.concatenate([jnp.zeros(1), *reversed(parts)])


def write(sums: Array, rows: Array, mass: Array) -> Array:
    """The tree with the `mass` [M] of `rows` [M]; the last of equal rows counts, negative ones do
    not.
    """
    order = jnp.argsort(rows, stable=True)
    ordered = rows[order]
    is_last = jnp.append(ordered[1:] != ordered[:-1], True) & (ordered >= 0)
    return write_apart(sums, jnp.where(is_last, ordered, -1), mass[order])


def write_apart(sums: Array, rows: Array, mass: Array) -> Array:
    """The same for rows that all differ, without sorting."""
    nodes, beyond = len(sums), jnp.full(rows.shape, len(sums))  # beyond the end nothing is written
    place = jnp.where(rows >= 0, rows + nodes // 2, beyond)

    def up(_: Array, kept: tuple[Array, Array]) -> tuple[Array, Array]:
        sums, place = kept
        place = jnp.where(rows >= 0, place // 2, beyond)
        return sums.at[place].set(sums[2 * place] + sums[2 * place + 1], mode="drop"), place

    # Loops over levels compile and run faster than unrolled levels.
    return jax.lax.fori_loop(0, levels(sums), up, (sums.at[place].set(mass, mode="drop"), place))[0]


def draw(
    sums: Array, key: Array, shape: tuple[int, ...], window: tuple[Array, Array] | None = None
) -> Array:
    """Independent draws [*shape] of rows, with replacement: P(row) = mass / total mass.

    `window` has the first and the last row [] that may be drawn, and wraps where the first is
    behind the last. Rows without mass are never drawn.

    At each node from the root down, a new random number u in [0, 1) decides: left where u (left +
    right) < left. One number for all would be less precise.
    """
    random = jax.random.uniform(key, (levels(sums), *shape))
    edges = None if window is None else _edges(sums, *window)

    def down(place: Array, level: tuple[Array, Edge | None]) -> tuple[Array, None]:
        u, edge = level
        left, right = 2 * place, 2 * place + 1
        one, other = (
            sums[node] if edge is None else _inside(sums, node, edge) for node in (left, right)
        )
        return jnp.where(u * (one + other) < one, left, right), None

    return jax.lax.scan(down, jnp.ones(shape, jnp.int32), (random, edges))[0] - len(sums) // 2


def levels(sums: Array) -> int:
    """The number of levels below the root."""
    return len(sums).bit_length() - 2


Edge = tuple[Array, Array, Array, Array, Array]


def _edges(sums: Array, first: Array, last: Array) -> Edge:
    """[levels] each, from the root's children down: the nodes above the window's first and last
    row, their masses inside it, and whether it wraps.
    """

    def up(edge: Edge, _: None) -> tuple[Edge, Edge]:
        start, stop, behind, before, wraps = edge
        behind = behind + jnp.where(start % 2 == 0, sums[start + 1], 0.0)
        before = before + jnp.where(stop % 2 == 1, sums[stop - 1], 0.0)
        return (start // 2, stop // 2, behind, before, wraps), edge

    start, stop = first + len(sums) // 2, last + len(sums) // 2
    edge = (start, stop, sums[start], sums[stop], first > last)
    return jax.lax.scan(up, edge, None, length=levels(sums), reverse=True)[1]


def _inside(sums: Array, node: Array, edge: Edge) -> Array:
    """The mass of nodes [...] inside the window.

    Of a node that holds the whole window it is only known to be positive, which is enough: its
    sibling has nothing.
    """
    start, stop, behind, before, wraps = edge
    whole = jnp.where(wraps, (node > start) | (node < stop), (node > start) & (node < stop))
    mass = jnp.where(whole, sums[node], 0.0)
    return mass + jnp.where(node == start, behind, 0.0) + jnp.where(node == stop, before, 0.0)
