"""Grids: all combinations of some settings and seeds.

Combinations of traced settings, `float` in a Config, and seeds are one population, or several
launches where the device cannot hold it; each of other settings is a launch.
"""

from __future__ import annotations

import contextlib
import dataclasses
import platform
import shlex
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import agent as contract
from rljax.agent import float_fields
from rljax.distributed import ray_cluster
from rljax.learning import configuration, population
from rljax.learning.loop import Training, prefer_devices
from rljax.learning.named_code import named_code
from rljax.learning.plan import Experiment
from rljax.learning.settings import settings_of
from rljax.runs import (
    active,
    arguments,
    checkpoints,
    experiments,
    failures,
    folders,
    json_files,
    records,
)
from rljax.runs.display import console
from rljax.system import hardware, lock
from rljax.system.lock import Lock
from rljax.trust import Folder, seals

PLAN = "plan.json"
SEEDS = json_files.list_of(json_files.WHOLE, least=1)
LAUNCH = json_files.object_of(folder=json_files.NAME, seeds=SEEDS, config=json_files.SETTINGS)
NEEDED = {  # in plan.json
    "settings": json_files.OBJECT,
    "points": json_files.list_of(json_files.SETTINGS, least=1),
    "launches": json_files.list_of(LAUNCH, least=1),
    "command": json_files.TEXT,
}
# Seconds that a task waits for a machine that may be lost.
LOST_AFTER = 2 * lock.STALE_AFTER
SHARE = 0.8  # of the memory: a program needs more than its state


@dataclasses.dataclass(frozen=True)
class Launch:
    """One program, with a learner for each of `seeds`."""

    config: Any
    seeds: tuple[int, ...]
    shape: Mapping[str, Any]  # the settings of the grid that shape the program
    bytes_needed: int = 0


@dataclasses.dataclass(frozen=True)
class GridPlan:
    """Launches to run one after the other."""

    experiment: Experiment
    points: Sequence[Mapping[str, Any]]
    launches: Sequence[Launch]
    bytes_available: int | None

    def __str__(self) -> str:
        learners = sum(len(launch.seeds) for launch in self.launches)
        order = " one after the other" if len(self.launches) > 1 else ""
        programs = _count(len(self.launches), "program")
        lines = [f"{_count(learners, 'learner')} in {programs}{order}:"]
        for name in self.points[0]:
            values = list(dict.fromkeys(point[name] for point in self.points))
            traced = name in float_fields(type(self.experiment.config)) and None not in values
            how = "an axis of the program" if traced else "a program for each value"
            more = ", ..." if len(values) > 8 else ""
            shown = ", ".join(map(population.shown, values[:8])) + more
            lines.append(f"config.{name.replace('_', '-')} = {shown}: {how}")
        for number, launch in enumerate(self.launches):
            shape = f", {population.label(launch.shape)}" if launch.shape else ""
            lines.append(
                f"program {number}: {_count(len(launch.seeds), 'learner')}, "
                f"{launch.bytes_needed / 1e9:.2f} GB of state{shape}"
            )
        if self.bytes_available is not None:
            free = f"{self.bytes_available / 1e9:.1f} GB of memory are free"
            lines.append(f"{free}; plans use {SHARE:.0%} of it")
        return "\n  ".join(lines)


def launches(
    config: Any, points: Sequence[Mapping[str, Any]], seeds: Sequence[int]
) -> list[Launch]:
    """One learner for each point and seed, in one launch for each program.

    A point's settings replace those of `config`. Raises `ValueError` or `TypeError` for wrong names
    and values.
    """
    traced = float_fields(type(config))
    groups: dict[tuple[Any, ...], list[Mapping[str, Any]]] = {}
    for point in points:
        shape = [(name, x) for name, x in point.items() if name not in traced or x is None]
        groups.setdefault(tuple(shape), []).append(point)
    made = []
    for key, members in groups.items():
        shape = dict(key)
        changes = dict(shape)
        for name in members[0]:
            if name not in shape:
                values = tuple(float(m[name]) for m in members for _ in seeds)
                changes[name] = values[0] if len(set(values)) == 1 else values
        changed = configuration.replace(config, changes, "grid")
        made.append(Launch(changed, tuple(seeds) * len(members), shape))
    return made


def plan(
    experiment: Experiment, points: Sequence[Mapping[str, Any]], most: int | None = None
) -> GridPlan:
    """Plan and check `experiment` at all `points`, in launches of at most `most` learners.

    Nothing is written or compiled. Raises `ValueError` or `TypeError`.
    """
    if most is not None and most < 1:
        raise ValueError(f"--learners-per-launch is {most}, it must be at least 1.")
    prefer_devices(experiment, len(points) * len(experiment.settings.seeds))
    available = hardware.device_memory()
    split: list[Launch] = []
    for launch in launches(experiment.config, points, experiment.settings.seeds):
        population.members(launch.config, launch.seeds)
        shared, each = _measure(experiment, launch)
        number = len(launch.seeds)
        size = min(number, most or number)
        if available is not None:
            size = min(size, max(1, int((SHARE * available - shared) / max(1, each))))
        size = -(-number // -(-number // size))
        for first in range(0, number, size):
            seeds = launch.seeds[first : first + size]
            config = population.of_learners(launch.config, range(first, first + len(seeds)))
            split.append(Launch(config, seeds, launch.shape, shared + each * len(seeds)))
    return GridPlan(experiment, points, split, available)


def train(
    experiment: Experiment,
    points: Sequence[Mapping[str, Any]],
    *,
    out: str | Path | None = None,
    quiet: bool = True,
    command: str | None = None,
    most: int | None = None,
    workers: ray_cluster.RayCluster | None = None,
) -> Path:
    """Train at each of the `points` with every seed, and return the folder, of one run or of runs
    launch-000 and so on.

    Raises the errors of `plan` and `rljax.train`. Diverged launches stop no other.
    """
    made = plan(experiment, points, most)
    folder = Path(out) if out is not None else folders.default_folder(experiment.settings)
    if not quiet:
        console.create(quiet).say(str(made))
    command = command or shlex.join(sys.argv)
    if len(made.launches) == 1 and workers is None:
        return active.ActiveRun.begin(
            _of(experiment, made.launches[0]), folder, console.create(quiet), command
        ).execute()
    folder.mkdir(parents=True, exist_ok=True)
    with Lock(folder):
        write(made, folder, command)
        return _finish(Folder(folder, trusted=True), None, quiet, workers)


def write(plan: GridPlan, folder: Path, command: str) -> None:
    """Write the plan into a new `folder`.

    Raises `FileExistsError` where it is not empty.
    """
    if folder.exists() and any(path.name != lock.FILE for path in folder.iterdir()):
        raise FileExistsError(
            f"'{folder}' exists. Choose another --out, or continue that grid: rljax resume {folder}"
        )
    folder.mkdir(parents=True, exist_ok=True)
    launched = [configuration.as_json(launch.config) for launch in plan.launches]
    described = {
        "settings": dataclasses.asdict(plan.experiment.settings),
        "points": plan.points,
        "launches": [
            {
                "folder": f"launch-{i:03d}",
                "seeds": launch.seeds,
                "config": config,
            }
            for i, (launch, config) in enumerate(zip(plan.launches, launched, strict=True))
        ],
        "command": command,
        "seals": seals(named_code(plan.experiment.settings, *launched)),
    }
    records.write_json(folder / PLAN, described)


def is_grid(folder: Path) -> bool:
    """Whether `folder` holds the launches of a grid."""
    return (folder / PLAN).exists()


def runs(folder: Path) -> list[Path]:
    """The folders of the launches of the grid in `folder`."""
    return [folder / entry["folder"] for entry in read(folder)["launches"]]


def read(folder: Path) -> dict[str, Any]:
    """The plan of the grid in `folder`. Raises `ValueError` where the file is damaged."""
    try:
        described = json_files.read_fitting(folder / PLAN, NEEDED, NEEDED)
    except ValueError as error:
        raise ValueError(f"'{folder}' is not a grid: its {error}.") from None
    names = [entry["folder"] for entry in described["launches"]]
    if any(Path(name).name != name for name in names):
        raise ValueError(f"'{folder}' is not a grid: its {PLAN} names launches outside of it.")
    return described


def resume(
    out: str | Path | Folder,
    steps: int | None = None,
    *,
    quiet: bool = True,
    workers: ray_cluster.RayCluster | None = None,
) -> Path:
    """Continue the launches of the grid in `out`, to `steps` if given.

    Raises `ValueError` if all are done, another process trains them, or this folder may not run
    their code, and at the end `RunError` if all learners of a launch diverged.
    """
    folder = arguments.run_folder(out)
    with Lock(folder.path):
        return _finish(folder, steps, quiet, workers)


def _finish(
    source: Folder, steps: int | None, quiet: bool, workers: ray_cluster.RayCluster | None
) -> Path:
    folder = source.path
    if all(state(inside, steps) in ("complete", "diverged") for inside in runs(folder)):
        raise ValueError(
            f"the grid in '{folder}' is complete. To go on: rljax resume {folder} --steps N"
        )
    if not _execute(source, steps, quiet, workers):
        console.create(quiet).say(f"To go on with all of the grid: rljax resume {folder}")
        return folder
    lost = [inside.name for inside in runs(folder) if state(inside, steps) == "diverged"]
    if lost:
        raise failures.RunError(
            f"all learners of {', '.join(lost)} in '{folder}' have diverged; the other "
            "launches are done."
        )
    return folder


def execute(
    folder: Path,
    steps: int | None = None,
    *,
    quiet: bool = True,
    workers: ray_cluster.RayCluster | None = None,
) -> bool:
    """Train the unfinished launches in `folder`, to `steps` if given; False if interrupted.

    They run in turn, or on `workers`, which see the folder under its name. Raises `ValueError`
    where another process trains them.
    """
    with Lock(folder):
        return _execute(Folder(folder), steps, quiet, workers)


def _execute(
    folder: Folder, steps: int | None, quiet: bool, workers: ray_cluster.RayCluster | None
) -> bool:
    paths = [path for path in runs(folder.path) if state(path, steps) in ("new", "begun")]
    names = [path.name for path in paths]
    if workers is not None and names:
        _require_code(folder, names)  # here, because other machines have no key of this user
        checked = Folder(folder.path.resolve(), trusted=True)
        return workers.run(launch, [(checked, name, steps, True, LOST_AFTER) for name in names])
    return all(launch(folder, name, steps, quiet) for name in names)


def _require_code(folder: Folder, names: Sequence[str]) -> None:
    plan = read(folder.path)
    settings = settings_of({**plan["settings"], "seeds": ()})
    launched = [entry["config"] for entry in plan["launches"]]
    folder.require_code(PLAN, named_code(settings, *launched), plan.get("seals"))
    for name in names:
        inside = folder.other(folder.path / name)
        if (inside.path / "config.json").exists():
            described = records.read_config(inside.path)
            code = named_code(settings_of(described), described["config"])
            inside.require_code("config.json", code, described.get("seals"))


def launch(
    out: Path | Folder,
    name: str,
    steps: int | None = None,
    quiet: bool = True,
    wait: float = 0.0,
) -> bool:
    """Train or continue one launch of the grid in `out`; False if interrupted.

    Waits up to `wait` seconds for another machine that had it and may be lost. If all learners
    diverge, only the launch's summary says so.
    """
    folder = arguments.run_folder(out)
    if not is_grid(folder.path):
        raise failures.RunError(
            f"there is no grid in '{folder.path}' on '{platform.node()}': the machines of a "
            "cluster must share the folder."
        )
    described = read(folder.path)
    inside = folder.other(folder.path / name)
    view = console.create(quiet)
    if (inside.path / "config.json").exists():
        going = active.ActiveRun.continued(inside, view, steps, shlex.join(sys.argv), wait=wait)
    else:
        (entry,) = [entry for entry in described["launches"] if entry["folder"] == name]
        settings = settings_of({**described["settings"], "seeds": entry["seeds"]})
        settings = settings if steps is None else dataclasses.replace(settings, steps=steps)
        experiment = experiments.restored(
            settings, entry["config"], folder, PLAN, described.get("seals")
        )
        going = active.ActiveRun.begin(experiment, inside.path, view, described["command"])
    with contextlib.suppress(failures.Diverged):
        going.execute()
        return going.training.complete
    return True


def state(folder: Path, steps: int | None = None) -> str:
    """A launch is "new", "begun", "complete" (to `steps`, if given), or "diverged" (all of it)."""
    summary = records.read_summary(folder)
    if summary and len(summary.get("diverged", [])) == len(summary.get("seeds", [])) > 0:
        return "diverged"
    if not checkpoints.steps(folder / "checkpoints"):
        return "new"
    return "complete" if records.is_summarised(folder, steps or 0) else "begun"


def _of(experiment: Experiment, launch: Launch) -> Experiment:
    settings = dataclasses.replace(experiment.settings, seeds=launch.seeds)
    return dataclasses.replace(experiment, settings=settings, config=launch.config)


def _measure(experiment: Experiment, launch: Launch) -> tuple[int, int]:
    """The bytes that learners share, and those of each."""
    first = Launch(population.of_learners(launch.config, [0]), launch.seeds[:1], launch.shape)
    trial = Training(_of(experiment, first))
    try:
        contract.check(trial.module, trial.spec, launch.config)
        trial.check_memory()
        return trial.shared_bytes, trial.needed_bytes - trial.shared_bytes
    finally:
        trial.close()


def _count(number: int, unit: str) -> str:
    return f"{number} {unit}" if number == 1 else f"{number} {unit}s"
