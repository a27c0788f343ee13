"""What tasks on a grid share."""

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import EnvSpec
from rljax.envs.tasks import gridworld


def test_the_lowest_are_those_that_come_first_in_a_sort() -> None:
    numbers = jax.random.bits(jax.random.key(0), (500, 25), jnp.uint32)
    clear = np.asarray(numbers) >> 5  # without the bits that the index replaces
    for count in (0, 1, 7, 24, 25):
        chosen = np.asarray(jax.vmap(lambda row: gridworld.lowest(row, count))(numbers))  # noqa: B023
        assert (chosen.sum(axis=1) == count).all()
        highest = np.where(chosen, clear, 0).max(axis=1)
        assert (highest <= np.where(chosen, 2**27, clear).min(axis=1)).all()


def test_equal_numbers_are_chosen_by_their_index() -> None:
    equal = jnp.full(7, 2**32 - 1, jnp.uint32)
    np.testing.assert_array_equal(gridworld.lowest(equal, jnp.int32(3)), np.arange(7) < 3)
    assert gridworld.lowest(jnp.full(8, 2**32 - 1, jnp.uint32), 8).all()


class Chequered(gridworld.Grid):
    """A cell in two colours beside a column of plain ones."""

    spec = EnvSpec("chequered", (1,), 1)

    def boards(self, state: None) -> tuple[gridworld.Board, ...]:
        left = np.array([[[[255, 255, 255]], [[0, 0, 0]]], [[[0, 0, 255]], [[0, 0, 0]]]], np.uint8)
        right = np.full((1, 2, 1, 3), 9, np.uint8)
        texts = np.array([["a"], ["b"]]), np.array([["c"], ["d"]])
        return gridworld.Board(texts[0], left), gridworld.Board(texts[1], right)


def test_pictures_have_smaller_squares_on_larger_ones() -> None:
    picture = Chequered().render(None)
    cell = gridworld.CELL
    assert picture.shape == (2 * cell, 2 * cell + gridworld.GAP, 3)
    assert picture.dtype == np.uint8
    middle, edge = cell // 2, gridworld.BORDER + 1
    np.testing.assert_array_equal(picture[middle, middle], [0, 0, 255])
    np.testing.assert_array_equal(picture[edge, edge], [255, 255, 255])
    np.testing.assert_array_equal(picture[0, 0], gridworld.LINES)
    np.testing.assert_array_equal(picture[middle, cell + gridworld.GAP // 2], gridworld.LINES)
    np.testing.assert_array_equal(picture[middle, -middle], [9, 9, 9])


def test_text_is_plain_or_coloured() -> None:
    assert Chequered().text(None) == "a   c\nb   d"
    lines = Chequered().text(None, colours=True).split("\n")
    assert lines[0] == "\x1b[30;48;2;255;255;255m a \x1b[0m   \x1b[97;48;2;9;9;9m c \x1b[0m"
    assert lines[1].startswith("\x1b[97;48;2;0;0;0m b ")
