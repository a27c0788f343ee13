"""Sweeps: a search for settings on tuning seeds, then new training with the result on seeds that
the search never saw.

The protocol is that of Eimer et al., Hyperparameters in Reinforcement Learning and How To Tune
Them, arXiv:2306.01324: tuning and test seeds are disjoint, only test seeds are reported, and
budgets, space and seeds are written out.
"""

from __future__ import annotations

import dataclasses
import shlex
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax import envs
from rljax.distributed import ray_cluster
from rljax.envs import signals
from rljax.runs import arguments, console, experiments, folders, json_files, records
from rljax.runs.statistics import summaries
from rljax.system import hardware
from rljax.system.lock import Lock
from rljax.training import configuration, population
from rljax.training.named_code import named_code
from rljax.training.plan import Experiment
from rljax.training.settings import settings_of
from rljax.trust import Folder, seals
from rljax.tuning import grids, search_spaces
from rljax.tuning.population_based import PopulationBasedSearch
from rljax.tuning.trials import SearchResult, SearchTask, Trials

SWEEP, RESULT = "sweep.json", "result.json"
SEEDS = json_files.list_of(json_files.WHOLE, least=1)
NEEDED = {  # in sweep.json
    "settings": json_files.OBJECT,
    "config": json_files.SETTINGS,
    "protocol": json_files.object_of(tuning_seeds=SEEDS, test_seeds=SEEDS),
    "space": json_files.SETTINGS,
    "learners_per_launch": json_files.WHOLE | json_files.NULL,
    "command": json_files.TEXT,
}


def begin(
    experiment: Experiment,
    protocol: search_spaces.Protocol,
    space: search_spaces.Space,
    *,
    out: str | Path | None = None,
    quiet: bool = True,
    command: str | None = None,
    workers: ray_cluster.RayCluster | None = None,
    most: int | None = None,
) -> Path:
    """Search `space` with the other settings of `experiment`, test the result,
    and return the folder.

    The protocol's seeds replace those of `experiment`. Raises `ValueError` for settings that cannot
    work, before anything is trained; `FileExistsError` where `out` exists.
    """
    search_spaces.check(protocol)
    _require_signals(experiment.settings.evaluated_in, search_spaces.limits(protocol))
    settings = dataclasses.replace(experiment.settings, seeds=protocol.tuning_seeds)
    experiment = dataclasses.replace(experiment, settings=settings)
    folder = Path(out) if out is not None else folders.default_folder(settings)
    command = command or shlex.join(sys.argv)
    task = SearchTask(folder, experiment, protocol, space, command, quiet, workers, most)
    method = _method(task)
    shapes = [name.replace("_", "-") for name in space.entries if not space.is_traced(name)]
    (first, *_) = grids.plan(experiment, [space.corner(0), space.corner(-1)], most).launches
    task.say(
        (
            f"{method.plan()}: {method.steps:,} steps in all. Then the best, and the settings as "
            f"they are, with seeds {search_spaces.listed(protocol.test_seeds)}.\n"
        )
        + (
            f"A program for each value of {', '.join(shapes)}; "
            if shapes
            else "All trials are one program; "
        )
        + f"a learner takes {first.bytes_needed / len(first.seeds) / 1e6:,.1f} MB."
    )
    described = {
        "settings": dataclasses.asdict(settings),
        "config": configuration.as_json(experiment.config),
        "protocol": dataclasses.asdict(protocol),
        "space": space.entries,
        "learners_per_launch": most,
        "command": command,
        "seals": seals(named_code(settings)),
        **hardware.provenance(),
    }
    with _made(folder):
        records.write_json(folder / SWEEP, described)
        return _go_on(task)


def _require_signals(env: str, limits: Mapping[str, float]) -> None:
    """Raise `ValueError` for limits on signals that the environment does not give."""
    if not limits:
        return
    if envs.is_compiled(env):
        declared = envs.make(env).spec.signals
    else:
        hosted = envs.make_hosted(envs.evaluated(env), 1)
        declared = hosted.spec.signals
        hosted.close()
    names = signals.names(declared)
    for name in limits:
        if name not in names:
            has = f"only {', '.join(names)}" if names else "none"
            raise ValueError(
                f"--limits has '{name}', and '{env}' gives {has}: name a signal of the environment."
            )


def _made(folder: Path) -> Lock:
    """Make the folder of a sweep and lock it.

    Raises `FileExistsError` if it exists and is not empty.
    """
    try:
        return folders.make_folder(folder)
    except FileExistsError:
        raise FileExistsError(
            f"'{folder}' exists. Choose another --out, or continue that sweep: rljax "
            f"resume {folder}"
        ) from None


def is_sweep(folder: Path) -> bool:
    """Whether `folder` is the folder of a sweep."""
    return (folder / SWEEP).exists()


def resume(
    out: str | Path | Folder,
    steps: int | None = None,
    *,
    quiet: bool = True,
    workers: ray_cluster.RayCluster | None = None,
) -> Path:
    """Continue the sweep in `out`. Trust in its folder is not trust in those of its launches.

    Raises `ValueError` where the sweep is complete, and for code that this folder may not run.
    """
    source = arguments.run_folder(out)
    folder = source.path
    if steps is not None:
        raise ValueError(
            "a sweep cannot have more steps: its trials would not compare. Begin another: "
            "rljax sweep"
        )
    if (folder / RESULT).exists():
        raise ValueError(f"the sweep in '{folder}' is complete: its result is {folder / RESULT}.")
    with Lock(folder):
        return _go_on(_task_in(source, quiet, workers))


def _task_in(source: Folder, quiet: bool, workers: ray_cluster.RayCluster | None) -> SearchTask:
    """The task that a folder's sweep.json describes. Raises `ValueError` for a damaged file."""
    folder = source.path
    try:
        described = json_files.read_fitting(folder / SWEEP, NEEDED, NEEDED)
    except ValueError as error:
        raise ValueError(f"'{folder}' is not a sweep: its {error}.") from None
    settings = settings_of(described["settings"])
    experiment = experiments.restored(
        settings, described["config"], source, SWEEP, described.get("seals")
    )
    listed = described["protocol"]
    listed |= {
        name: tuple(listed.get(name, ())) for name in ("tuning_seeds", "test_seeds", "limits")
    }
    space = search_spaces.Space(described["space"], experiment.config)
    protocol, most = search_spaces.Protocol(**listed), described["learners_per_launch"]
    return SearchTask(
        folder, experiment, protocol, space, described["command"], quiet, workers, most
    )


def _go_on(task: SearchTask) -> Path:
    """Search and test, from the beginning or from where it was interrupted.

    The folder holds all results.
    """
    result = _method(task).search()
    places = [] if result is None else _tests(task, result)
    how = {"quiet": task.quiet, "workers": task.workers}
    if result is not None and all(grids.execute(place, **how) for place in places):
        _conclude(task, result, places)
    else:
        console.create(task.quiet).say(f"To go on with the sweep: rljax resume {task.folder}")
    return task.folder


def _method(task: SearchTask) -> Any:
    return PopulationBasedSearch(task) if task.protocol.method == "pbt" else Trials(task)


def _tests(task: SearchTask, result: SearchResult) -> list[Path]:
    """The grids that train on the test seeds, with the settings of the search and with those
    without a search.
    """
    settings = dataclasses.replace(task.experiment.settings, seeds=task.protocol.test_seeds)
    experiment = dataclasses.replace(task.experiment, settings=settings)
    untuned = task.space.untuned()
    if result.schedule is None:
        points = [untuned] if result.settings == untuned else [untuned, result.settings]
        tests = {"test": (experiment, points)}  # one program, where possible
    else:
        changed = dataclasses.replace(settings, schedule={"schedule": result.schedule})
        scheduled = dataclasses.replace(experiment, settings=changed)
        tests = {
            "test/untuned": (experiment, [untuned]),
            "test/tuned": (scheduled, [result.settings]),
        }
    for name, (tested, points) in tests.items():
        if not grids.is_grid(task.folder / name):
            grids.write(grids.plan(tested, points, task.most), task.folder / name, task.command)
    return [task.folder / name for name in tests]


def _conclude(task: SearchTask, search: SearchResult, places: list[Path]) -> None:
    """Write the result and show it."""
    lines, learners = [], []
    for inside in (inside for place in places for inside in grids.runs(place)):
        first = len(learners)
        learners += task.learners(inside)
        lines += [
            line | {"learner": first + line["learner"]}
            for line in records.read(inside, "evaluations")
        ]
    tested = {}
    for name, point in (("untuned", task.space.untuned()), ("tuned", search.settings)):
        of_point = [p for p, (_, settings) in enumerate(learners) if settings == point]
        final = summaries.summarise([line for line in lines if line["learner"] in of_point])[
            "final"
        ]
        tested[name] = {"settings": population.label(point), "final": final}
        between = (
            "" if final["interval"] is None else " [{:,.1f}, {:,.1f}]".format(*final["interval"])
        )
        between += "".join(
            f", {name} {summaries.shown(sum)}" for name, sum in final.get("signals", {}).items()
        )
        task.say(
            f"{name}: IQM {final['iqm']:,.1f}{between} over {len(of_point)} test seeds, "
            f"at {final['step']:,} steps"
        )
    flags = " ".join(_flag(name, value) for name, value in search.settings.items())
    task.say(
        f"the settings found{'' if search.schedule is None else ', at the beginning'}: {flags}"
    )
    result = {
        "incumbent": {
            "of": search.origin,
            "value": search.value,
            "flags": flags,
            "schedule": search.schedule,
        },
        "test": tested,
        "trials": search.counts,
        "steps": _method(task).steps,
        "protocol": dataclasses.asdict(task.protocol),
        "space": task.space.entries,
    }
    records.write_json(task.folder / RESULT, result)


def _flag(name: str, value: Any) -> str:
    flag = name.replace("_", "-")
    if isinstance(value, bool):
        return f"--config.{flag}" if value else f"--config.no-{flag}"
    return f"--config.{flag} {' '.join(map(str, value)) if isinstance(value, tuple) else value}"
