"""Scripted experts record OGBench's data, by the published protocol: the arm's and point mazes'.

Departs from it: each trajectory has random numbers of its own, and actions are rounded to float32
before the environment takes them.

Source: Park et al., arXiv:2410.20092; seohongpark/ogbench, data_gen_scripts.
"""

from __future__ import annotations

import collections
import contextlib
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
from rljax.datasets.recording import arms, mazes
from rljax.datasets.recording.experts import Expert, RecordingTask
from rljax.system.outputs import atomic

EXPERTS: dict[str, type[Expert]] = {
    **dict.fromkeys(("cube", "scene", "puzzle"), arms.Arm),
    "pointmaze": mazes.MazeWalker,
}

Progress = Callable[[int, int], None]  # trajectories so far, trajectories in all


def record(
    name: str,
    path: str | Path | None = None,
    *,
    steps: int | None = None,
    seed: int = 0,
    processes: int = 1,
    length: int | None = None,
    progress: Progress | None = None,
) -> Path:
    """Record a dataset such as "ogbench/cube-single-play-v0" to the .npz file `path`; return it.

    The folder `path.parts` keeps finished trajectories until the end: the same call continues.

    Args:
        path: by default that of the published file.
        steps: transitions, rounded up to whole trajectories.
        seed: with their number, determines trajectories.
        processes: how many record in parallel.
        length: transitions of a trajectory, by default as published.
        progress: called with the trajectories so far and in all.

    Raises:
        ValueError: a name without an oracle, an existing file, or parts with other settings.
    """
    if steps is not None and steps < 1:
        raise ValueError(f"--steps is {steps}, it must be at least 1.")
    parts = _parse(name)
    published, total = EXPERTS[parts.family].published(parts.environment, parts.kind)
    length = published if length is None else length
    if processes < 1 or length < 1 or seed < 0:
        raise ValueError(
            f"{processes} processes, {length} transitions and seed {seed}: at least 1, 1 and 0 "
            "are needed."
        )
    task = RecordingTask(parts.environment, parts.kind, parts.split, length, seed, parts.visual)
    path = files.root() / "ogbench" / parts.file if path is None else Path(path)
    if path.suffix != ".npz":
        raise ValueError(f"the file is '{path.name}', its suffix must be .npz.")
    if path.exists():
        raise ValueError(f"there is a file '{path}' already. Delete it first, or name another.")
    identity = name.removeprefix("ogbench/")
    settings = {"id": identity, "length": length, "seed": seed, "versions": _versions(name)}
    total = total // (10 if task.split == "val" else 1)
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


def _parse(name: str) -> ogbench.Name:
    parts = ogbench.parse(name)
    if parts.family not in EXPERTS:
        raise ValueError(
            f"'{name}' needs trained policies: only data of {', '.join(EXPERTS)} are recorded here."
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
    arrays: Any = _expert(task).trajectory(number)
    with atomic(piece) as temporary, temporary.open("wb") as stream:
        np.savez(stream, **arrays)


@functools.lru_cache(maxsize=1)
def _expert(task: RecordingTask) -> Expert:
    return EXPERTS[task.family](task)  # it takes seconds


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
