"""Scripted experts that record OGBench's arm data, by the published protocol:

    trajectory  1000 transitions from a random scene, in which random tasks follow each other
    play        key frames at random times, with noise of 0.1, smoothed over half a step
    noisy       a closed loop whose actions have Gaussian noise of [1, 1, 1, 3, 10] x, with x
                uniform in [0, 0.1] per trajectory. The share `RANDOM` of actions is uniform.
    stacking    a share of cube tasks, uniform in `STACKING` per trajectory, stacks cubes
    scene       trajectories in which the cube leaves the camera's view are recorded again
    number      `EPISODES` trajectories, and a tenth as many for validation

Departs from it: each trajectory has random numbers of its own, and actions are rounded to float32
before the environment takes them.

Source: Park et al., arXiv:2410.20092; seohongpark/ogbench, data_gen_scripts/generate_manipspace.py
and commands.sh.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import functools
import importlib
import json
import math
import multiprocessing
import shutil
import signal
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor, as_completed
from pathlib import Path
from typing import Any

import numpy as np

from rljax.datasets import dataset as base
from rljax.datasets.formats import opened, text
from rljax.datasets.formats.fingerprints import fingerprint
from rljax.datasets.publishers import download as files
from rljax.datasets.publishers import ogbench
from rljax.system.outputs import atomic

LENGTH = 1000  # transitions of a trajectory
# All others have 1000.
EPISODES = {"cube-triple": 3000, "cube-quadruple": 5000, "puzzle-4x5": 3000, "puzzle-4x6": 5000}
# The oracles of each family.
PARTS = {"cube": ("cube",), "scene": ("cube", "button", "drawer", "window"), "puzzle": ("button",)}
STACKING = {
    "cube-single": (0.0, 0.0),
    "cube-double": (0.0, 0.25),
    "cube-triple": (0.05, 0.35),
    "cube-quadruple": (0.1, 0.5),
    "cube-octuple": (0.0, 0.35),
}
NOISE, SPREAD = 0.1, np.array([1.0, 1.0, 1.0, 3.0, 10.0])
RANDOM = {"cube": 0.1, "scene": 0.1, "puzzle": 0.2}  # share of random actions in noisy data
TYPES = {"terminals": np.bool_, "button_states": np.int64}  # others: float32, pictures uint8

Progress = Callable[[int, int], None]  # trajectories so far, trajectories in all


@dataclasses.dataclass(frozen=True)
class RecordingTask:
    """What determines trajectories, except for their numbers."""

    environment: str  # "cube-single"
    kind: str  # "play" or "noisy"
    split: str  # "train" or "val"
    length: int  # transitions
    seed: int
    visual: bool = False  # observations are pictures [64, 64, 3]

    def seeds(self, number: int) -> list[int]:
        """Three seeds of trajectory `number`: of the environment, the oracle, and this module."""
        entropy = (self.seed, int(self.split == "val"), number)
        return [int(word) for word in np.random.SeedSequence(entropy).generate_state(3)]


def record(
    name: str,
    path: str | Path | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    processes: int = 1,
    length: int = LENGTH,
    progress: Progress | None = None,
) -> Path:
    """Record a dataset such as "ogbench/cube-single-play-v0" to the .npz file `path`; return it.

    The folder `path.parts` keeps finished trajectories until the end: the same call continues.

    Args:
        path: by default that of the published file.
        steps: transitions, rounded up to whole trajectories.
        seed: with their number, determines trajectories.
        processes: how many record in parallel.
        length: transitions of a trajectory.
        progress: called with the trajectories so far and in all.

    Raises:
        ValueError: a name without an oracle, an existing file, or parts with other settings.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"--steps is {steps}, it must be at least 1.")
    if processes < 1 or length < 1 or seed < 0:
        raise ValueError(
            f"{processes} processes, {length} transitions and seed {seed}: at least 1, 1 and 0 "
            "are needed."
        )
    parts = _parse(name)
    task = RecordingTask(parts.environment, parts.kind, parts.split, length, seed, parts.visual)
    path = files.root() / "ogbench" / parts.file if path is None else Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"the file is '{path.name}', its suffix must be .npz.")
    if path.exists():
        raise ValueError(f"there is a file '{path}' already. Delete it first, or name another.")
    identity = name.removeprefix("ogbench/")
    settings = {"id": identity, "length": length, "seed": seed, "versions": _versions(name)}
    total = EPISODES.get(task.environment, 1000) // (10 if task.split == "val" else 1)
    total = total if steps is None else math.ceil(steps / length)
    folder = path.with_name(path.name + ".parts")
    _continue(folder, settings)
    pieces = [folder / f"{number:05d}.npz" for number in range(total)]
    _collect(task, pieces, processes, progress)
    whole = folder / "whole.npz"
    arrays: Any = _joined(pieces)
    with whole.open("wb") as stream:
        np.savez_compressed(stream, **arrays)
    files.place(whole, path, {"recorded": settings | {"trajectories": total}} | fingerprint(whole))
    shutil.rmtree(folder)
    return path


class Collector:
    """An environment, and its scripted experts, OGBench's oracles."""

    def __init__(self, task: RecordingTask) -> None:
        """Raises `ImportError` if the package is missing."""
        importlib.import_module("ogbench")  # registers the environments
        import gymnasium

        self.task, self.family = task, task.environment.partition("-")[0]
        self.environment: Any = gymnasium.make(
            f"{'visual-' if task.visual else ''}{task.environment}-v0",
            terminate_at_goal=False,
            mode="data_collection",
            max_episode_steps=task.length + 1,
            disable_env_checker=True,
        )
        self.oracles = {part: self._oracle(part) for part in PARTS[self.family]}

    def trajectory(self, number: int) -> dict[str, np.ndarray]:
        """The arrays of trajectory `number`, M = length + 1 rows each.

        They are `observations` [M, O], `actions` [M, 5], `qpos` and `qvel` [M, ...] float32,
        `terminals` [M] bool, and perhaps `button_states` [M, buttons] int64.
        """
        seed, oracle_seed, own_seed = self.task.seeds(number)
        before = np.random.get_state()  # read by the oracles
        np.random.seed(oracle_seed)
        generator = np.random.default_rng(own_seed)
        try:
            rows = self._rows(generator, seed)
            while self.family == "scene" and _out_of_view(np.stack(rows["qpos"])):
                rows = self._rows(generator)
        finally:
            np.random.set_state(before)
        types = TYPES | ({"observations": np.uint8} if self.task.visual else {})
        return {key: np.asarray(values, types.get(key, np.float32)) for key, values in rows.items()}

    def _rows(
        self, generator: np.random.Generator, seed: int | None = None
    ) -> dict[str, list[Any]]:
        noisy = self.task.kind == "noisy"
        stacking = generator.uniform(*STACKING.get(self.task.environment, (0.5, 0.5)))
        noise = generator.uniform(0, NOISE) * SPREAD
        observation, info = self.environment.reset(seed=seed)
        oracle = self.oracles[info["privileged/target_task"]]
        oracle.reset(observation, info)
        rows = collections.defaultdict(list)
        ended = False
        while not ended:
            if noisy and generator.random() < RANDOM[self.family]:
                action = generator.uniform(-1, 1, 5)
            else:
                action = np.asarray(oracle.select_action(observation, info))
                if noisy:
                    action = action + noise * generator.normal(size=5)
            action = np.clip(action, -1, 1).astype(np.float32)
            successor, _, terminated, truncated, info = self.environment.step(action)
            ended = bool(terminated or truncated)
            if oracle.done:
                # The oracle acts next on the step's `info`, which still names the finished task.
                new_target = self.environment.unwrapped.set_new_target(p_stack=stacking)
                oracle = self.oracles[new_target[1]["privileged/target_task"]]
                oracle.reset(*new_target)
            row = {"observations": observation, "actions": action, "terminals": ended}
            for key in ("qpos", "qvel", "button_states"):
                if f"prev_{key}" in info:
                    row[key] = info[f"prev_{key}"]
            for key, value in row.items():
                rows[key].append(value)
            observation = successor
        return rows

    def _oracle(self, part: str) -> Any:
        form, options = "plan", {"noise": NOISE, "noise_smoothing": 0.5}
        if self.task.kind == "noisy":
            form, options = "markov", {"min_norm": 0.4}
        if self.family == "puzzle":
            options["gripper_always_closed"] = True
        if (form, self.family, part) == ("markov", "scene", "cube"):
            options["max_step"] = 100
        module = importlib.import_module(f"ogbench.manipspace.oracles.{form}.{part}_{form}")
        oracle = getattr(module, f"{part.title()}{form.title()}Oracle")
        return oracle(env=self.environment, **options)


def _parse(name: str) -> ogbench.Name:
    parts = ogbench.parse(name)
    if parts.kind not in ("play", "noisy"):
        raise ValueError(
            f"'{name}' needs trained policies: only data of cube, scene and puzzle are recorded "
            "here."
        )
    if parts.task is not None:
        plain = f"ogbench/{parts.file.removesuffix('.npz')}"
        raise ValueError(
            f"a file holds no task, it is added when '{name}' is loaded: rljax data record {plain}"
        )
    return parts


def _versions(name: str) -> dict[str, str]:
    try:
        importlib.import_module("ogbench")
    except ImportError as error:
        raise ValueError(
            f"'{name}' is recorded by OGBench's package: pip install ogbench ({error})."
        ) from error
    return base.versions("ogbench", "mujoco")


def _out_of_view(qpos: np.ndarray) -> bool:
    """Whether the cube was ever outside the picture, and not in the drawer; `qpos` is [M, ...]."""
    _, side, height = qpos[:, ogbench.CUBES : ogbench.CUBES + 3].T
    drawer = (height >= 0.06) & (height <= 0.08)
    return bool(((side >= 0.29) | ((side <= -0.3) & ~drawer)).any())


def _continue(folder: Path, settings: dict[str, Any]) -> None:
    note = folder / "settings.json"
    if not note.is_file():
        with atomic(note) as temporary:
            temporary.write_text(json.dumps(settings, indent=1), encoding="utf-8")
        return
    earlier = text.read_json(note)
    if earlier != settings:
        raise ValueError(
            f"'{folder}' holds trajectories of {earlier}, not of {settings}. Finish it with those "
            "settings, or delete it."
        )


def _collect(
    task: RecordingTask, pieces: list[Path], processes: int, progress: Progress | None
) -> None:
    missing = [number for number, piece in enumerate(pieces) if not piece.is_file()]
    done, total = len(pieces) - len(missing), len(pieces)
    with contextlib.ExitStack() as stack:
        progress = progress or stack.enter_context(_shown(task))
        progress(done, total)
        if processes == 1:
            for number in missing:
                _write(task, number, pieces[number])
                progress(done := done + 1, total)
            return
        context = multiprocessing.get_context("spawn")
        workers = min(processes, max(len(missing), 1))
        ignored = (signal.SIGINT, signal.SIG_IGN)  # interrupts reach all processes
        pool = ProcessPoolExecutor(workers, context, signal.signal, ignored)
        try:
            futures = [pool.submit(_write, task, number, pieces[number]) for number in missing]
            for future in as_completed(futures):
                future.result()
                progress(done := done + 1, total)
        finally:
            pool.shutdown(cancel_futures=True)


def _write(task: RecordingTask, number: int, piece: Path) -> None:
    arrays: Any = _collector(task).trajectory(number)
    with atomic(piece) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


@functools.lru_cache(maxsize=1)
def _collector(task: RecordingTask) -> Collector:
    return Collector(task)  # it takes seconds


def _joined(pieces: list[Path]) -> dict[str, np.ndarray]:
    columns = collections.defaultdict(list)
    for piece in pieces:
        with opened(piece) as arrays:
            for key in arrays:
                columns[key].append(arrays[key])
    return {key: np.concatenate(values) for key, values in columns.items()}


@contextlib.contextmanager
def _shown(task: RecordingTask) -> Iterator[Progress]:
    from rich import progress
    from rich.console import Console

    title = f"{task.environment}-{task.kind}"
    console = Console(stderr=True)
    if not console.is_terminal:

        def lines(done: int, total: int) -> None:
            if done * 20 // total != (done - 1) * 20 // total:
                print(f"{title}: {done:,} of {total:,} trajectories", file=sys.stderr, flush=True)

        yield lines
        return
    columns = (
        "{task.description}",
        progress.BarColumn(),
        progress.MofNCompleteColumn(),
        "trajectories",
        progress.TimeElapsedColumn(),
        "left",
        progress.TimeRemainingColumn(),
    )
    with progress.Progress(*columns, console=console) as bars:
        bar = bars.add_task(title, total=None)
        yield lambda done, total: bars.update(bar, completed=done, total=total)
