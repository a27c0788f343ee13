"""Job shop scheduling: place the operations of J jobs on M machines so that the last one ends
early.

docs/environments.md has the task. An action places a job's next operation behind all that its
machine already has (a semi-active schedule):

    start = max(ready time of the job, ready time of the machine),     end = start + duration

Actions of finished jobs are masked and change nothing.

Instances: Fisher and Thompson, 1963 (ft06, ft10); Lawrence, 1984 (la01), in Beasley's OR-Library,
J. Oper. Res. Soc. 41, 1990; ft10's optimum: Carlier and Pinson, Management Science 35, 1989.
Actions and rewards after Zhang et al., arXiv:2010.12367, whose bound counts the work left too.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import MASK, Array, EnvSpec, Part
from rljax.envs.environment import StepResult


class Instance(NamedTuple):
    """A published instance."""

    optimum: int  # the smallest makespan
    jobs: str  # a line for each job: machine, counted from 0, and duration of each operation


INSTANCES = {
    "ft06": Instance(
        55,
        """2 1 0 3 1 6 3 7 5 3 4 6
        1 8 2 5 4 10 5 10 0 10 3 4
        2 5 3 4 5 8 0 9 1 1 4 7
        1 5 0 5 2 5 3 3 4 8 5 9
        2 9 1 3 4 5 5 4 0 3 3 1
        1 3 3 3 5 9 0 10 4 4 2 1""",
    ),
    "ft10": Instance(
        930,
        """0 29 1 78 2 9 3 36 4 49 5 11 6 62 7 56 8 44 9 21
        0 43 2 90 4 75 9 11 3 69 1 28 6 46 5 46 7 72 8 30
        1 91 0 85 3 39 2 74 8 90 5 10 7 12 6 89 9 45 4 33
        1 81 2 95 0 71 4 99 6 9 8 52 7 85 3 98 9 22 5 43
        2 14 0 6 1 22 5 61 3 26 4 69 8 21 7 49 9 72 6 53
        2 84 1 2 5 52 3 95 8 48 9 72 0 47 6 65 4 6 7 25
        1 46 0 37 3 61 2 13 6 32 5 21 9 32 8 89 7 30 4 55
        2 31 0 86 1 46 5 74 4 32 6 88 8 19 9 48 7 36 3 79
        0 76 1 69 3 76 5 51 2 85 9 11 6 40 7 89 4 26 8 74
        1 85 0 13 2 61 6 7 8 64 9 76 5 47 3 52 4 90 7 45""",
    ),
    "la01": Instance(
        666,
        """1 21 0 53 4 95 3 55 2 34
        0 21 3 52 4 16 2 26 1 71
        3 39 4 98 1 42 2 31 0 12
        1 77 0 55 4 79 2 66 3 77
        0 83 3 34 2 64 1 19 4 37
        1 54 2 43 4 79 0 92 3 62
        3 69 4 77 1 87 2 87 0 93
        2 38 0 60 1 41 3 24 4 83
        3 17 1 49 4 25 0 44 2 98
        4 77 3 79 2 43 1 75 0 96""",
    ),
}
FEATURES = 5  # numbers for each job
PIXELS = 16  # height of a machine's row in pictures
WIDTH = 480  # pixels of a picture: twice the optimum
COLUMNS = 100  # of a text: twice the optimum, at most one per unit of time
COLOURS = np.array(
    [[230, 85, 70], [70, 130, 210], [90, 170, 90], [240, 170, 60], [150, 100, 190],
     [80, 190, 190], [220, 120, 170], [150, 115, 80], [160, 170, 60], [110, 120, 140]],
    np.uint8,
)  # fmt: skip


class JobShopState(struct.PyTreeNode):
    """A schedule of some of the operations, with times in the instance's units."""

    placed: Array  # [J] int32: placed operations of each job
    job_ready: Array  # [J] int32: end of each job's last operation
    machine_ready: Array  # [M] int32: end of each machine's last operation
    start: Array  # [J, M] int32: of each job's operations in order; -1 where not placed


class JobShop:
    """One instance.

    Attributes:
        machines, durations: of each job's operations in order, [J, M] int32.
        optimum: the smallest makespan.
    """

    params = None
    frames_per_second = 8.0

    def __init__(self, name: str) -> None:
        instance = INSTANCES[name.removeprefix("rljax/JobShop-")]
        table = np.array([line.split() for line in instance.jobs.splitlines()], np.int32)
        self.machines, self.durations = table[:, ::2], table[:, 1::2]
        self.optimum = instance.optimum
        self.jobs, self.operations = self.machines.shape
        # Work from each operation on.
        self.remaining = np.zeros((self.jobs, self.operations + 1), np.int32)
        self.remaining[:, :-1] = np.cumsum(self.durations[:, ::-1], axis=1)[:, ::-1]
        self.spec = EnvSpec(
            name, (), self.jobs, discrete=True, max_episode_steps=2 * self.jobs * self.operations,
            parts=(Part(MASK, (self.jobs,), "bool"), Part("vector", (FEATURES * self.jobs,))),
        )  # fmt: skip

    def reset(self, key: Array, params: Any = None) -> tuple[dict[str, Array], JobShopState]:
        """An empty schedule. All episodes begin alike."""
        none, free = jnp.zeros(self.jobs, jnp.int32), jnp.zeros(self.operations, jnp.int32)
        start = jnp.full((self.jobs, self.operations), -1, jnp.int32)
        state = JobShopState(none, none, free, start)
        return self._observe(state), state

    def step(
        self, key: Array, state: JobShopState, action: Array, params: Any = None
    ) -> StepResult:
        """Place the next operation of a job."""
        operation = jnp.minimum(state.placed[action], self.operations - 1)
        allowed = state.placed[action] < self.operations
        machine = jnp.asarray(self.machines)[action, operation]
        start = jnp.maximum(state.job_ready[action], state.machine_ready[machine])
        end = start + jnp.asarray(self.durations)[action, operation]
        after = JobShopState(
            placed=state.placed.at[action].add(1),
            job_ready=state.job_ready.at[action].set(end),
            machine_ready=state.machine_ready.at[machine].set(end),
            start=state.start.at[action, operation].set(start),
        )
        after = jax.tree.map(lambda new, old: jnp.where(allowed, new, old), after, state)
        makespan = after.job_ready.max()
        reward = (state.job_ready.max() - makespan) / self.optimum
        terminated, never = (after.placed == self.operations).all(), jnp.zeros((), jnp.bool_)
        info = {"success": terminated & (makespan == self.optimum)}
        return self._observe(after), after, reward, terminated, never, info

    def render(self, state: JobShopState, params: Any = None) -> np.ndarray:
        """A Gantt chart [M PIXELS, WIDTH, 3] uint8: a row per machine, a colour per job."""
        picture = np.full((self.operations, WIDTH, 3), 245, np.uint8)
        for machine, job, start, end in self._bars(state, WIDTH):
            picture[machine, start:end] = COLOURS[job % len(COLOURS)]
            picture[machine, start : start + 1] = 40
        rows = np.repeat(picture, PIXELS, axis=0)
        rows[PIXELS - 1 :: PIXELS] = 200
        return rows

    def text(self, state: JobShopState, params: Any = None, colours: bool = False) -> str:
        """A Gantt chart in M lines with a letter for each job, and the makespan."""
        columns = min(COLUMNS, 2 * self.optimum)
        lines = np.full((self.operations, columns), ".")
        for machine, job, start, end in self._bars(state, columns):
            lines[machine, start:end] = chr(ord("A") + job)
        cells = {".": "."}
        for job in range(self.jobs):
            letter, (r, g, b) = chr(ord("A") + job), COLOURS[job % len(COLOURS)]
            cells[letter] = f"\x1b[48;2;{r};{g};{b}m{letter}\x1b[0m" if colours else letter
        shown = ["".join(cells[cell] for cell in line) for line in lines]
        return "\n".join([*shown, f"makespan {state.job_ready.max()}, optimum {self.optimum}"])

    def _bars(self, state: JobShopState, columns: int) -> list[tuple[int, int, int, int]]:
        starts, bars = np.asarray(state.start), []
        for job, operation in np.argwhere(starts >= 0).tolist():
            first = int(starts[job, operation])
            both = (first, first + int(self.durations[job, operation]))
            start, end = (min(columns, time * columns // (2 * self.optimum)) for time in both)
            machine = int(self.machines[job, operation])
            bars.append((machine, job, start, max(end, min(start + 1, columns))))
        return bars

    def _observe(self, state: JobShopState) -> dict[str, Array]:
        job, operation = jnp.arange(self.jobs), jnp.minimum(state.placed, self.operations - 1)
        unfinished = state.placed < self.operations
        duration = jnp.asarray(self.durations)[job, operation]
        machine_ready = state.machine_ready[jnp.asarray(self.machines)[job, operation]]
        times = [
            jnp.asarray(self.remaining)[job, state.placed],
            state.job_ready,
            jnp.where(unfinished, duration, 0),
            jnp.where(unfinished, machine_ready, 0),
        ]
        share = state.placed / self.operations
        vector = jnp.stack([share, *(time / self.optimum for time in times)], axis=-1)  # [J, 5]
        return {MASK: unfinished, "vector": vector.astype(jnp.float32).reshape(-1)}


ENVIRONMENTS = {f"rljax/JobShop-{name}": JobShop for name in INSTANCES}
