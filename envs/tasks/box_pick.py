"""Box pick: carry boxes over a grid to where the goal shows them.

docs/environments.md has the task. `rljax/BoxPick-MxN` has M rows, N columns and 4 boxes; a split
and `-test` may follow:

    split        training                                  -test
    (none)       1 box is not on its target                none of the 4 is
    -quarter     boxes in one quarter, targets in a        targets in the opposite quarter
                 neighbour; the agent stays in the two
    -horizontal  none of the 4 is on its target; the       the agent goes anywhere
                 agent stays in its upper or lower half
    -vertical    the same in the left or right half        the agent goes anywhere

A step out of the agent's region truncates the episode. With `-quarter`, the agent begins in the
quarter of the boxes. The goal shows the boxes on their targets, and the agent where it began. With
`-horizontal` and `-vertical`, boxes and targets of training can be in the other half.

Rules: Ghugare et al., arXiv:2602.05999, and the code of Bortkiewicz et al., Is Temporal Difference
Learning the Gold Standard for Stitching in RL? 4 boxes in other splits are our choice.
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
from rljax.envs.tasks.gridworld import Board, Grid, lowest, require_size

BEGINNING = "rljax/BoxPick-"
SIZES = (2, 10)  # rows and columns
BOXES = 4
STEPS = 100  # the least time limit of an episode
UP, DOWN, LEFT, RIGHT, PICK, PUT = range(6)

# The authors' codes of cells. Rows: no agent, the agent, the agent with a box in hand. Columns:
# empty floor, a box, a target, a box on a target. Observations have no targets.
CODES = np.array([[0, 1, 2, 10], [3, 5, 6, 8], [4, 11, 7, 9]], np.int32)
SYMBOLS = np.array([[f"{agent}{floor}" for floor in ".bt*"] for agent in " AC"])
COLOURS = {
    "floor": (225, 225, 220),
    "target": (240, 150, 150),
    "box": (150, 105, 60),
    "agent": (50, 110, 200),
}


class BoxPickState(struct.PyTreeNode):
    """The state of a problem."""

    boxes: Array  # [M N] bool: cells with a box on the floor
    targets: Array  # [M N] bool: cells where the boxes are to be
    allowed: Array  # [M N] bool: cells where the agent may be
    agent: Array  # [] int32: its cell
    start: Array  # [] int32: its first cell
    carrying: Array  # [] bool: a box is in hand


class BoxPick(Grid):
    """Box pick of one size and split."""

    params = None

    def __init__(
        self, name: str, rows: int, columns: int, split: str = "", test: bool = False
    ) -> None:
        """`split` is "", "quarter", "horizontal" or "vertical". Raises `ValueError` for other
        sizes.
        """
        require_size(name, rows, columns, SIZES)
        self.rows, self.columns, self.cells = rows, columns, rows * columns
        if self.cells < 2 * BOXES:
            raise ValueError(
                f"'{name}' has {self.cells} cells: {BOXES} boxes and their targets "
                f"need {2 * BOXES}."
            )
        odd_rows, odd_columns = rows % 2, columns % 2
        cannot = {
            "": False,
            "quarter": odd_rows or odd_columns or self.cells < 4 * BOXES,
            "horizontal": odd_rows,
            "vertical": odd_columns,
        }[split]
        if cannot:
            raise ValueError(
                f"'{name}' cannot be split: a side that is halved must be even, and a quarter must "
                f"hold {BOXES} boxes. For example: {BEGINNING}6x6-{split}"
            )
        self.split, self.test = split, test
        self.moving = BOXES if split or test else 1
        farthest = rows - 1 + columns - 1
        self.spec = EnvSpec(
            name, (2 * self.cells,), len((UP, DOWN, LEFT, RIGHT, PICK, PUT)), discrete=True,
            max_episode_steps=max(STEPS, BOXES * 2 * (farthest + 1)),
        )  # fmt: skip
        row, column = np.divmod(np.arange(self.cells), columns)
        self.below, self.right = row >= rows // 2, column >= columns // 2  # [M N] bool
        self.quarter = 2 * self.below + self.right  # [M N]: 0 and 1 above, 2 and 3 below

    def reset(self, key: Array, params: Any = None) -> tuple[Array, BoxPickState]:
        """Draw a problem."""
        drawn = jax.random.bits(key, (self.cells + 2,), jnp.uint32)
        begin = self._quarters if self.split == "quarter" else self._anywhere
        state = begin(drawn[:-2], *(drawn[-2:] >> 1).astype(jnp.int32))
        if self.test:
            state = state.replace(allowed=jnp.ones_like(state.allowed))
        return self._observe(state), state

    def step(
        self, key: Array, state: BoxPickState, action: Array, params: Any = None
    ) -> StepResult:
        """Walk, pick or put."""
        row, column = state.agent // self.columns, state.agent % self.columns
        row = jnp.clip(row + (action == DOWN) - (action == UP), 0, self.rows - 1)
        column = jnp.clip(column + (action == RIGHT) - (action == LEFT), 0, self.columns - 1)
        here = self._at(state.agent)
        box = (here & state.boxes).any()
        picks, puts = box & ~state.carrying, ~box & state.carrying
        changes = ((action == PICK) & picks) | ((action == PUT) & puts)
        state = state.replace(
            boxes=state.boxes ^ (here & changes),
            agent=row * self.columns + column,
            carrying=state.carrying ^ changes,
        )
        reward = (state.boxes == state.targets).all().astype(jnp.float32)
        left = ~(self._at(state.agent) & state.allowed).any()
        never, info = jnp.zeros((), jnp.bool_), {"success": reward > 0}
        return self._observe(state), state, reward, never, left, info

    def achieved(self, observation: Array) -> Array:
        """The grid [..., M N] in observations [..., 2 M N]."""
        return observation[..., : self.cells]

    def desired(self, observation: Array) -> Array:
        """The goal [..., M N] in observations [..., 2 M N]."""
        return observation[..., self.cells :]

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations [..., 2 M N] with another `goal` [..., M N]."""
        return jnp.concatenate([self.achieved(observation), goal], axis=-1)

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """1 if `achieved` [..., M N] has its boxes where `goal` has them, else 0: [...]."""
        return (_has_box(achieved) == _has_box(goal)).all(axis=-1).astype(jnp.float32)

    def boards(self, state: BoxPickState) -> tuple[Board, ...]:
        """The grid with its targets, and the goal."""
        boxes, targets = np.asarray(state.boxes), np.asarray(state.targets)
        start, agent = (np.arange(self.cells) == int(cell) for cell in (state.start, state.agent))
        now = self._board(agent * (1 + int(state.carrying)), boxes, targets)
        return now, self._board(start.astype(int), targets, np.zeros(self.cells, bool))

    def _board(self, agent: np.ndarray, boxes: np.ndarray, targets: np.ndarray) -> Board:
        floor = np.where(targets[:, None], COLOURS["target"], COLOURS["floor"])
        box = np.where(boxes[:, None], COLOURS["box"], floor)
        body = np.where(agent[:, None] > 0, COLOURS["agent"], box)
        hand = np.where(agent[:, None] > 1, COLOURS["box"], body)
        shape = (self.rows, self.columns)
        layers = np.stack([floor, box, body, hand]).astype(np.uint8).reshape(-1, *shape, 3)
        return Board(SYMBOLS[agent, boxes + 2 * targets].reshape(shape), layers)

    def _anywhere(self, order: Array, agent: Array, _: Array) -> BoxPickState:
        agent = agent % self.cells
        half = {"": jnp.ones(self.cells, bool), "horizontal": self.below, "vertical": self.right}
        half = half[self.split]
        allowed = half == (self._at(agent) & half).any()
        # In random order: boxes on their targets, boxes to move, the targets of these.
        boxes = lowest(order, BOXES)
        targets = lowest(order, BOXES - self.moving) | (lowest(order, BOXES + self.moving) & ~boxes)
        return self._first(boxes, targets, allowed, agent)

    def _quarters(self, order: Array, agent: Array, pair: Array) -> BoxPickState:
        source = pair % 4
        # Neighbouring quarters differ in one bit, opposite ones in both.
        target = source ^ (3 if self.test else 1 + pair // 4 % 2)
        size, order = self.cells // 4, order >> 2 | self.quarter.astype(np.uint32) << 30
        boxes, targets = (
            (self.quarter == quarter) & lowest(order, quarter * size + BOXES)
            for quarter in (source, target)
        )
        width = self.columns // 2
        agent = agent % size
        row = agent // width + source // 2 * (self.rows // 2)
        column = agent % width + source % 2 * width
        allowed = (self.quarter == source) | (self.quarter == target)
        return self._first(boxes, targets, allowed, row * self.columns + column)

    def _first(self, boxes: Array, targets: Array, allowed: Array, agent: Array) -> BoxPickState:
        return BoxPickState(boxes, targets, allowed, agent, agent, jnp.zeros((), jnp.bool_))

    def _at(self, cell: Array) -> Array:
        return jnp.arange(self.cells) == cell

    def _observe(self, state: BoxPickState) -> Array:
        here, start = self._at(state.agent), self._at(state.start)
        agents = jnp.where(state.carrying, _code(2, state.boxes), _code(1, state.boxes))
        grid = jnp.where(here, agents, _code(0, state.boxes))
        goal = jnp.where(start, _code(1, state.targets), _code(0, state.targets))
        return jnp.concatenate([grid, goal])


def _code(agent: int, boxes: Array) -> Array:
    empty, box = CODES[agent, :2].astype(np.float32)
    return jnp.where(boxes, box, empty)


def _has_box(codes: Any) -> Any:
    return (codes == 1) | (codes == 5) | (codes == 11)


class Solver:
    """The shortest solutions of all problems with the same targets, in NumPy."""

    def __init__(self, targets: Any) -> None:
        """`targets` [M, N] bool, one per box. Raises `ValueError` for more than 49 cells."""
        targets = np.asarray(targets, bool)
        self.rows, self.columns = targets.shape
        self.cells = targets.size
        if self.cells > 49:
            raise ValueError(
                f"{self.rows} x {self.columns} cells have too many states: search at most 7 x 7 "
                "of them."
            )
        # Each change can be undone: distances from the solved states equal those to them.
        before = np.empty(0, np.int64)
        front = np.sort(self._pack(targets.ravel(), np.arange(self.cells), False))
        fronts = [front]
        while len(front):
            reached = np.unique(np.concatenate([self._after(front, action) for action in range(6)]))
            nearer = np.concatenate([before, front])
            before = front
            front = np.setdiff1d(reached, nearer, assume_unique=True)
            fronts.append(front)
        states = np.concatenate(fronts)
        steps = np.repeat(np.arange(len(fronts)), [len(front) for front in fronts])
        order = np.argsort(states)
        self._states, self._steps = states[order], steps[order]

    def steps(self, observation: Any) -> int:
        """The fewest steps from an observation [2 M N] to the boxes on their targets."""
        return int(self._distance(self._read(observation)))

    def action(self, observation: Any) -> int:
        """The next action of a shortest solution from an observation [2 M N]; if solved, one that
        keeps it.
        """
        state = self._read(observation)
        if self._distance(state) == 0:
            return PUT  # with nothing in hand
        return int(np.argmin([self._distance(self._after(state, action)) for action in range(6)]))

    def _distance(self, state: np.ndarray) -> np.ndarray:
        return self._steps[np.searchsorted(self._states, state)]

    def _read(self, observation: Any) -> np.ndarray:
        codes = np.asarray(observation)[: self.cells]
        agent = np.flatnonzero(codes >= CODES[1, 0])[0]
        return self._pack(_has_box(codes), agent, codes[agent] in CODES[2, :2])

    def _pack(self, boxes: np.ndarray, agent: Any, carrying: bool) -> np.ndarray:
        """States as int64."""
        floor = sum(1 << int(cell) for cell in np.flatnonzero(boxes))
        agent, hand = np.asarray(agent, np.int64), np.int64(carrying)
        return np.int64(floor) | agent << self.cells | hand << self.cells + 6

    def _after(self, states: np.ndarray, action: int) -> np.ndarray:
        agent = states >> self.cells & 63
        if action in (PICK, PUT):
            box, carrying = states >> agent & 1, states >> self.cells + 6 & 1
            changes = (box & ~carrying) if action == PICK else (~box & carrying)
            return states ^ (changes & 1) << agent ^ (changes & 1) << self.cells + 6
        row, column = agent // self.columns, agent % self.columns
        row = np.clip(row + (action == DOWN) - (action == UP), 0, self.rows - 1)
        column = np.clip(column + (action == RIGHT) - (action == LEFT), 0, self.columns - 1)
        return states ^ (agent ^ (row * self.columns + column)) << self.cells


def names() -> list[str]:
    """A few sizes with their splits."""
    splits = ("", "-quarter", "-horizontal", "-vertical")
    kinds = [f"{split}{test}" for split in splits for test in ("", "-test")]
    return [f"{BEGINNING}{size}{kind}" for size in ("4x4", "6x6") for kind in kinds]


def make(name: str) -> Environment:
    """Make an environment such as "rljax/BoxPick-6x6-quarter-test".

    Raises `ValueError` for other names and sizes.
    """
    form = r"(\d+)x(\d+)(?:-(quarter|horizontal|vertical))?(-test)?"
    parts = re.fullmatch(form, name.removeprefix(BEGINNING))
    if parts is None:
        raise ValueError(
            f"'{name}' names no size of box pick: the form is {BEGINNING}MxN, then -quarter, "
            "-horizontal, -vertical or nothing, then -test or nothing. For example: "
            f"{BEGINNING}6x6-quarter-test"
        )
    rows, columns, split, test = parts.groups()
    return BoxPick(name, int(rows), int(columns), split or "", test is not None)
