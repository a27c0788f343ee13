"""Sweeps: a search for settings on tuning seeds, then training with the result on test seeds.

The protocol is of Eimer et al., arXiv:2306.01324.
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
from rljax.learning import configuration, population
from rljax.learning.named_code import named_code
from rljax.learning.plan import Experiment
from rljax.learning.settings import settings_of
from rljax.runs import arguments, experiments, folders, json_files, records
from rljax.runs.display import console
from rljax.runs.statistics import summaries
from rljax.system import hardware
from rljax.system.lock import Lock
from rljax.trust import Folder, seals
from rljax.tuning import grids, search_spaces, trials
from rljax.tuning.population_based import PopulationBasedSearch
from rljax.tuning.trials import SearchResult, SearchTask, Trials

SWEEP, RESULT = "sweep.json", "result.json"
NEEDED = {  # in sweep.json
    "settings": json_files.OBJECT,
    "config": json_files.SETTINGS,
    "protocol": json_files.object_of(tuning_seeds=grids.SEEDS, test_seeds=grids.SEEDS),
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
    """Search `space`, test the result, and return the folder.

    `experiment` has the other settings but seeds. Raises `ValueError` for settings that cannot
    work, before any training; `FileExistsError` where `out` exists.
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
    shortest = dataclasses.replace(settings, steps=method.fewest_steps)
    (first, *_) = grids.plan(
        dataclasses.replace(experiment, settings=shortest),
        [space.corner(0), space.corner(-1)],
        most,
    ).launches
    programs = f"A program for each value of {', '.join(shapes)}"
    task.say(
        f"{method.plan()}: {method.steps:,} steps in all. Then the best, and the settings as they "
        f"are, with seeds {search_spaces.listed(protocol.test_seeds)}.\n"
        f"{programs if shapes else 'All trials are one program'}; "
        f"a learner takes {first.bytes_needed / len(first.seeds) / 1e6:,.1f} MB."
    )
    config = configuration.as_json(experiment.config)
    described = {
        "settings": dataclasses.asdict(settings),
        "config": config,
        "protocol": dataclasses.asdict(protocol),
        "space": space.entries,
        "learners_per_launch": most,
        "command": command,
        "seals": seals(named_code(settings, config, space.entries)),
        **hardware.provenance(),
    }
    trials.require_storage(protocol.storage)
    try:
        made = folders.make_folder(folder)
    except FileExistsError:
        raise FileExistsError(
            f"'{folder}' exists. Choose another --out, or continue that sweep: rljax "
            f"resume {folder}"
        ) from None
    with made:
        records.write_json(folder / SWEEP, described)
        return _go_on(task)


def _require_signals(env: str, limits: Mapping[str, float]) -> None:
    if not limits:
        return
    if envs.is_compiled(env):
        spec = envs.make(env).spec
    else:
        hosted = envs.make_hosted(envs.evaluated(env), 1)
        spec = hosted.spec
        hosted.close()
    names = signals.names(spec.signals)
    for name in limits:
        if name not in names:
            has = f"only {', '.join(names)}" if names else "none"
            raise ValueError(
                f"--limits has '{name}', and '{env}' gives {has}: name a signal of the environment."
            )


def is_sweep(folder: Path) -> bool:
    """Whether `folder` is that of a sweep."""
    return (folder / SWEEP).exists()


def resume(
    out: str | Path | Folder,
    steps: int | None = None,
    *,
    quiet: bool = True,
    workers: ray_cluster.RayCluster | None = None,
) -> Path:
    """Continue the sweep in `out`. Trust in its folder is not trust in those of its launches.

    Raises `ValueError` where it is complete or this folder may not run its code.
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
    folder = source.path
    try:
        described = json_files.read_fitting(folder / SWEEP, NEEDED, NEEDED)
    except ValueError as error:
        raise ValueError(f"'{folder}' is not a sweep: its {error}.") from None
    settings, config = settings_of(described["settings"]), described["config"]
    source.require_code(SWEEP, named_code(settings, described["space"]), described.get("seals"))
    experiment = experiments.restored(settings, config, source, SWEEP, described.get("seals"))
    listed = described["protocol"]
    for name in ("tuning_seeds", "test_seeds", "limits"):
        listed[name] = tuple(listed.get(name, ()))
    space = search_spaces.Space(described["space"], experiment.config)
    protocol, most = search_spaces.Protocol(**listed), described["learners_per_launch"]
    return SearchTask(
        folder, experiment, protocol, space, described["command"], quiet, workers, most
    )


def _go_on(task: SearchTask) -> Path:
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
    settings = dataclasses.replace(task.experiment.settings, seeds=task.protocol.test_seeds)
    untuned = task.space.untuned()
    if result.schedule is None:
        points = [untuned] if result.settings == untuned else [untuned, result.settings]
        tests = {"test": (settings, points)}  # one program, where possible
    else:
        scheduled = dataclasses.replace(settings, schedule={"schedule": result.schedule})
        tests = {
            "test/untuned": (settings, [untuned]),
            "test/tuned": (scheduled, [result.settings]),
        }
    for name, (tested, points) in tests.items():
        if not grids.is_grid(task.folder / name):
            experiment = dataclasses.replace(task.experiment, settings=tested)
            grids.write(grids.plan(experiment, points, task.most), task.folder / name, task.command)
    return [task.folder / name for name in tests]


def _conclude(task: SearchTask, search: SearchResult, places: list[Path]) -> None:
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
        of_point = [p for p, settings in enumerate(learners) if settings == point]
        of_lines = [line for line in lines if line["learner"] in of_point]
        final = summaries.summarise(of_lines)["final"]
        tested[name] = {"settings": population.label(point), "final": final}
        interval = final["interval"]
        bounds = "" if interval is None else " [{:,.1f}, {:,.1f}]".format(*interval)
        task.say(
            f"{name}: IQM {final['iqm']:,.1f}{bounds}{summaries.signals_text(final)} over "
            f"{len(of_point)} test seeds, at {final['step']:,} steps"
        )
    flags = " ".join(_flag(name, value) for name, value in search.settings.items())
    when = "" if search.schedule is None else ", at the beginning"
    task.say(f"the settings found{when}: {flags}")
    incumbent = {"of": search.origin, "value": search.value, "flags": flags}
    result = {
        "incumbent": incumbent | {"schedule": search.schedule},
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
