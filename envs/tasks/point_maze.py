"""A point in small mazes: `rljax/PointMaze`, whose short way no recorded episode takes, and
`rljax/GoalMaze`, with goals everywhere.

The first maze, S where episodes begin, G where the goal is, both up to 0.25 from the cell's middle:

    ######
    #.S###
    #...G#
    ######

A force moves the point, a sphere that slides along walls. The reward is exp(-|position - goal|) in
each of 200 steps; nothing ends an episode before. The observation [4] is position and velocity, not
the goal. `success` is 1 in a step that ends within 0.45 of the goal.

`demonstrations` are four equal parts, one after the other: two go down one cell and stay there; one
goes the long way round by the left cells to the goal; so does the last, which then acts at random.
The good beginning of the first two and the good end of the others make the short way.

After MBRCSL, Zhou et al., arXiv:2310.06268; github.com/zhaoyizhou1123/mbrcsl, envs/pointmaze. Their
point is MuJoCo's, of Gymnasium-Robotics' PointMaze. This one has its mass, force, damping and time
step, and differs in contacts: walls are rigid, and take what speed the point has towards them.

In `rljax/GoalMaze` the goal is anywhere in the maze but in the cell where episodes begin:

    #####
    #S..#
    ###.#
    #...#
    #####

Each of 100 steps holds one force for four of the point's. The reward is 1 in a step that ends
within 0.25 of the goal, else 0, and `success` says the same. The observation [6] is position,
velocity and goal; hindsight can replace the goal.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import Array, EnvSpec, Number, Transition
from rljax.envs.environment import StepResult


def walls_of(*rows: str) -> np.ndarray:
    """A maze [rows, columns] bool, True where a row has #."""
    return np.array([[symbol == "#" for symbol in row] for row in rows])


NAME = "rljax/PointMaze"
MAZE = walls_of("######", "#..###", "#....#", "######")
ROWS, COLUMNS = MAZE.shape
START, GOAL, SPREAD = (1, 2), (2, 4), 0.25
RADIUS, GOAL_RADIUS = 0.1, 0.45
SECONDS, FORCE, DAMPING, FASTEST = 0.01, 100.0, 1.0, 5.0  # a step; N; kg/s; m/s
MASS = 1000.0 * 4.0 / 3.0 * np.pi * RADIUS**3
PIXELS = 48  # of a cell

GOALS_NAME = "rljax/GoalMaze"
U_MAZE = walls_of("#####", "#...#", "###.#", "#...#", "#####")
FREE = np.argwhere(~U_MAZE)  # the first is where episodes begin
GOAL_SPREAD = 0.5 - RADIUS  # of goals, from the middles of cells
NEAR_GOAL = 0.25
HOLD = 4  # steps of the point for each of the task's

# The scripted controller
GAIN, BRAKE = 10.0, 1.0
NEAR, SHIFT = 0.1, 0.2  # of a middle that it goes through; the next one is shifted by up to this
ARRIVED, SLOW = 0.5, 0.5  # where it turns to its next goal
MOVES = ((0, 1), (0, -1), (-1, 0), (1, 0))  # the first of equally short ways
DOWN, ROUND = ((2, 2),) * 3, ((1, 1), (2, 1), (2, 4))
# The goals of each part, one after the other; one goal is repeated, which changes nothing.
PARTS = np.array([DOWN, DOWN, ROUND, ROUND])
LAST = np.array([0, 0, 2, 2])  # which goal is the last
RANDOM = np.array([False, False, False, True])  # whether random actions follow


@struct.dataclass
class MazeState:
    """The state of an episode."""

    position: Array  # [2] x and y; the maze's middle is 0
    velocity: Array  # [2]
    goal: Array  # [2]


class Draws(NamedTuple):
    """The random numbers of a scripted episode of T steps."""

    goals: Array  # [3, 2]: where in its cell each goal is, from the middle
    shifts: Array  # [T, 2] of the middles that it goes through
    actions: Array  # [T, 2]


class Guide(NamedTuple):
    """What the controller remembers."""

    number: Array  # [] int32: which goal
    new: Array  # [] bool: whether a way to it is to be found
    cell: Array  # [] int32: the next on the way
    aim: Array  # [2], in this cell
    done: Array  # [] bool: whether all goals are reached


class PointMaze:
    """The task. Pictures show walls grey, the goal green and the point blue; text #, G and O."""

    params = None
    horizon = 200
    frames_per_second = 50.0

    def __init__(self, name: str = NAME) -> None:
        self.spec = EnvSpec(name, (4,), 2, max_episode_steps=self.horizon)

    def reset(self, key: Array, params: Any = None) -> tuple[Array, MazeState]:
        """Begin an episode."""
        places = jnp.stack([middle(START), middle(GOAL)])
        noise = jax.random.uniform(key, (2, 2), minval=-SPREAD, maxval=SPREAD)
        position, goal = places + noise
        state = MazeState(position, jnp.zeros(2), goal)
        return _observation(state), state

    def step(self, key: Array, state: MazeState, action: Array, params: Any = None) -> StepResult:
        """Apply one force."""
        state = moved(state, action)
        distance = jnp.linalg.norm(state.position - state.goal)
        never, info = jnp.zeros((), jnp.bool_), {"success": distance <= GOAL_RADIUS}
        return _observation(state), state, jnp.exp(-distance), never, never, info

    def demonstrations(self, key: Array, episodes: int) -> Transition:
        """Episodes of the four parts, one after the other, [episodes T, ...]."""
        part = np.arange(episodes) * len(PARTS) // episodes
        return self._shown(key, PARTS[part], LAST[part], RANDOM[part])

    def short_way(self, key: Array, episodes: int) -> Transition:
        """Episodes of the same controller on the short way: to the middle of the goal's cell."""
        goals = np.broadcast_to(GOAL, (episodes, 3, 2))
        zeros = np.zeros(episodes, int)
        return self._shown(key, goals, zeros, zeros.astype(bool), spread=0.0)

    def _shown(
        self, key: Array, goals: Any, last: Any, random: Any, spread: float = SPREAD
    ) -> Transition:
        keys = jax.random.split(key, len(goals))
        episode = jax.vmap(self._episode, in_axes=(0, 0, 0, 0, None))
        rows = episode(keys, goals, last, random, spread)
        return jax.tree.map(lambda x: x.reshape(-1, *x.shape[2:]), rows)

    def _episode(
        self, key: Array, goals: Array, last: Array, random: Array, spread: Number
    ) -> Transition:
        key_reset, *keys = jax.random.split(key, 4)
        steps = (self.horizon, 2)
        draws = Draws(
            goals=spread * jax.random.uniform(keys[0], (3, 2), minval=-1.0),
            shifts=SHIFT * jax.random.uniform(keys[1], steps),
            actions=jax.random.uniform(keys[2], steps, minval=-1.0),
        )
        return self.played(self.reset(key_reset)[1], goals, last, random, draws)

    def played(
        self, state: MazeState, goals: Array, last: Array, random: Array, draws: Draws
    ) -> Transition:
        """The episode [T, ...] from `state`, given its random numbers: to the cells `goals` [3, 2]
        up to the one of number `last`, and then at random or not.
        """
        ends = jnp.arange(self.horizon) == self.horizon - 1

        def step(carry: tuple[MazeState, Guide], inputs: Any) -> tuple[Any, Transition]:
            state, guide = carry
            shift, uniform, end = inputs
            guide = _arrive(guide, state, middle(goals) + draws.goals, last, random)
            guide = _lead(guide, state, goals, draws.goals, shift)
            action = GAIN * (guide.aim - state.position) - BRAKE * state.velocity
            action = jnp.where(guide.done & random, uniform, jnp.clip(action, -1.0, 1.0))
            successor, after, reward, terminated, _, _ = self.step(key, state, action)
            row = Transition(_observation(state), action, reward, terminated, end, successor)
            return (after, guide), row

        key = jax.random.key(0)  # a step draws nothing
        number, never = jnp.zeros((), jnp.int32), jnp.zeros((), jnp.bool_)
        guide = Guide(number, ~never, number, jnp.zeros(2), never)
        return jax.lax.scan(step, (state, guide), (draws.shifts, draws.actions, ends))[1]

    def render(self, state: MazeState, params: Any = None) -> np.ndarray:
        """A picture [H, W, 3] uint8."""
        return _picture(state, MAZE, GOAL_RADIUS)

    def text(self, state: MazeState, params: Any = None, colours: bool = False) -> str:
        """Lines of text; see `rljax.envs.environment.Drawable`."""
        return _text(state, MAZE, colours)


class GoalMaze:
    """The task with goals, a `rljax.envs.goals.GoalConditioned`. Pictures and text are those of
    `PointMaze`.
    """

    params = None
    frames_per_second = 25.0

    def __init__(self, name: str = GOALS_NAME) -> None:
        self.spec = EnvSpec(name, (6,), 2, max_episode_steps=100)

    def reset(self, key: Array, params: Any = None) -> tuple[Array, MazeState]:
        """Begin an episode."""
        key_position, key_cell, key_goal = jax.random.split(key, 3)
        cell = jnp.asarray(FREE)[jax.random.randint(key_cell, (), 1, len(FREE))]
        position, goal = middle(FREE[0], U_MAZE), middle(cell, U_MAZE)
        position += jax.random.uniform(key_position, (2,), minval=-SPREAD, maxval=SPREAD)
        goal += jax.random.uniform(key_goal, (2,), minval=-GOAL_SPREAD, maxval=GOAL_SPREAD)
        state = MazeState(position, jnp.zeros(2), goal)
        return self._observation(state), state

    def step(self, key: Array, state: MazeState, action: Array, params: Any = None) -> StepResult:
        """Hold one force."""
        for _ in range(HOLD):
            state = moved(state, action, U_MAZE)
        reward = self.goal_reward(state.position, state.goal)
        never, info = jnp.zeros((), jnp.bool_), {"success": reward > 0.0}
        return self._observation(state), state, reward, never, never, info

    def achieved(self, observation: Array) -> Array:
        """The position [..., 2] in observations [..., 6]."""
        return observation[..., :2]

    def desired(self, observation: Array) -> Array:
        """The goal [..., 2] in observations [..., 6]."""
        return observation[..., 4:]

    def relabelled(self, observation: Array, goal: Array) -> Array:
        """The observations [..., 6] with another `goal` [..., 2]."""
        return jnp.concatenate([observation[..., :4], goal], axis=-1)

    def goal_reward(self, achieved: Array, goal: Array) -> Array:
        """1 if a position `achieved` [..., 2] is near the `goal` [..., 2], else 0: [...]."""
        distance = jnp.linalg.norm(achieved - goal, axis=-1)
        return (distance <= NEAR_GOAL).astype(jnp.float32)

    def render(self, state: MazeState, params: Any = None) -> np.ndarray:
        """A picture [H, W, 3] uint8."""
        return _picture(state, U_MAZE, NEAR_GOAL)

    def text(self, state: MazeState, params: Any = None, colours: bool = False) -> str:
        """Lines of text; see `rljax.envs.environment.Drawable`."""
        return _text(state, U_MAZE, colours)

    def _observation(self, state: MazeState) -> Array:
        return jnp.concatenate([state.position, state.velocity, state.goal])


def moved(state: MazeState, action: Array, maze: np.ndarray = MAZE) -> MazeState:
    """The state after one force for `SECONDS`."""
    force = FORCE * jnp.clip(action, -1.0, 1.0)
    velocity = jnp.clip(state.velocity, -FASTEST, FASTEST)
    velocity = (MASS * velocity + SECONDS * force) / (MASS + SECONDS * DAMPING)
    position = state.position + SECONDS * velocity
    for _ in range(2):  # in a corner are two walls
        position, velocity = _pushed_out(position, velocity, maze)
    return MazeState(position, velocity, state.goal)


def middle(cell: Any, maze: np.ndarray = MAZE) -> Array:
    """The middles [..., 2], x and y, of cells [..., 2], rows and columns."""
    cell, (rows, columns) = jnp.asarray(cell), maze.shape
    return jnp.stack([cell[..., 1] + 0.5 - columns / 2, rows / 2 - cell[..., 0] - 0.5], axis=-1)


def _rows_and_columns(place: Any, maze: np.ndarray = MAZE) -> Any:
    """Where [2] of the maze's rows and columns a place [2] is; whole numbers are edges."""
    return np.array(maze.shape) / 2 + place[::-1] * np.array([-1, 1])


def _picture(state: MazeState, maze: np.ndarray, goal_radius: float) -> np.ndarray:
    walls = np.kron(maze, np.ones((PIXELS, PIXELS), bool))
    picture = np.where(walls[..., None], 150, 245).astype(np.uint8).repeat(3, axis=-1)
    y, x = ((np.indices(walls.shape) + 0.5).T / PIXELS).T
    for place, radius, colour in (
        (state.goal, goal_radius, (90, 180, 90)),
        (state.position, RADIUS, (50, 80, 200)),
    ):
        i, j = _rows_and_columns(np.asarray(place), maze)
        picture[(np.hypot(y - i, x - j) < radius) & ~walls] = colour
    return picture


def _text(state: MazeState, maze: np.ndarray, colours: bool) -> str:
    board = np.where(maze, "#", ".").astype("<U20")
    for place, symbol, ink in ((state.goal, "G", 32), (state.position, "O", 34)):
        i, j = _rows_and_columns(np.asarray(place), maze).astype(int)
        board[i, j] = f"\x1b[{ink}m{symbol}\x1b[0m" if colours else symbol
    return "\n".join("".join(row) for row in board)


def _observation(state: MazeState) -> Array:
    return jnp.concatenate([state.position, state.velocity])


def _pushed_out(position: Array, velocity: Array, maze: np.ndarray) -> tuple[Array, Array]:
    """Out of the wall that the point is in most, without speed towards it."""
    walls = middle(np.argwhere(maze), maze)  # [W, 2]
    offsets = position - jnp.clip(position, walls - 0.5, walls + 0.5)
    distances = jnp.linalg.norm(offsets, axis=-1)
    nearest = jnp.argmin(distances)
    depth = RADIUS - distances[nearest]
    normal = offsets[nearest] / jnp.maximum(distances[nearest], 1e-6)
    towards = jnp.minimum(velocity @ normal, 0.0)
    inside = depth > 0.0
    position = position + jnp.where(inside, depth, 0.0) * normal
    return position, velocity - jnp.where(inside, towards, 0.0) * normal


def _ways() -> np.ndarray:
    """The number of the next cell [goal, cell] on a shortest way; from a goal, one beside it."""
    cells = [tuple(cell) for cell in np.argwhere(~MAZE)]
    around = {c: [n for m in MOVES if (n := (c[0] + m[0], c[1] + m[1])) in cells] for c in cells}
    ways = np.zeros((MAZE.size, MAZE.size), np.int32)
    for goal in cells:
        steps, frontier = {goal: 0}, [goal]
        for cell in frontier:
            for other in around[cell]:
                if other not in steps:
                    steps[other] = steps[cell] + 1
                    frontier.append(other)
        for cell in cells:
            following = min(around[cell], key=steps.__getitem__)
            ways[_number(goal), _number(cell)] = _number(following)
    return ways


def _number(cell: Any) -> Any:
    return cell[0] * COLUMNS + cell[1]


def _arrive(guide: Guide, state: MazeState, goals: Array, last: Array, random: Array) -> Guide:
    """Turn to the next of the goals [3, 2], or note that there is none."""
    final = guide.number == last
    close = jnp.linalg.norm(state.position - goals[guide.number]) <= ARRIVED
    slow = (jnp.abs(state.velocity) <= SLOW).all() | (final & random)
    arrived = close & slow & ~guide.done
    turns = arrived & ~final
    return guide._replace(
        number=guide.number + turns, new=guide.new | turns, done=guide.done | (arrived & final)
    )


def _lead(guide: Guide, state: MazeState, goals: Array, offsets: Array, shift: Array) -> Guide:
    """Aim at the next cell's middle: of a new way, or when the last one is near."""
    ways = jnp.asarray(WAYS)
    goal = goals[guide.number]
    way = ways[_number(goal)]
    place = jnp.floor(_rows_and_columns(state.position)).astype(jnp.int32)
    cell = jnp.where(guide.new, way[_number(place)], guide.cell)
    aim = jnp.where(guide.new, middle(jnp.stack(jnp.divmod(cell, COLUMNS))), guide.aim)
    near = (jnp.linalg.norm(aim - state.position) <= NEAR) & (cell != _number(goal))
    following = way[cell]
    there = middle(jnp.stack(jnp.divmod(following, COLUMNS))) - shift
    there = jnp.where(following == _number(goal), middle(goal) + offsets[guide.number], there)
    return guide._replace(
        new=jnp.zeros((), jnp.bool_),
        cell=jnp.where(near, following, cell),
        aim=jnp.where(near, there, aim),
    )


WAYS = _ways()
ENVIRONMENTS = {NAME: PointMaze, GOALS_NAME: GoalMaze}
