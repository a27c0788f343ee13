"""Job shop scheduling: place the operations of J jobs on M machines so that the last one ends
early.

docs/environments.md has the task. Schedules are semi-active; actions of finished jobs change
nothing.

Instances: Fisher and Thompson, 1963 (ft06, ft10); Lawrence, 1984 (la01), in Beasley's OR-Library,
J. Oper. Res. Soc. 41, 1990; ft10's optimum: Carlier and Pinson, Management Science 35, 1989.
Actions and rewards after Zhang et al., arXiv:2010.12367, whose bound counts the work left too.
"""

from __future__ import annotations

import json
from importlib import resources
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from flax import struct

from rljax.agent import MASK, Array, EnvSpec, Part
from rljax.envs.environment import StepResult

# `optimum` is the smallest makespan; `jobs` has machines, from 0, and durations of operations.
INSTANCES = json.loads(
    resources.files(__package__ or "").joinpath("job_shop.json").read_text(encoding="utf-8")
)
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
    """One instance; `machines` and `durations` [J, M] are of each job's operations in order."""

    params = None
    frames_per_second = 8.0

    def __init__(self, name: str) -> None:
        instance = INSTANCES[name.removeprefix("rljax/JobShop-")]
        table = np.array(instance["jobs"], np.int32)
        self.machines, self.durations = table[:, ::2], table[:, 1::2]
        self.optimum = instance["optimum"]
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
