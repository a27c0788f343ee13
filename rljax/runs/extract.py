"""Extract learners of a population into a new run, which continues from their current state."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from rljax import trust
from rljax.runs import arguments, checkpoints, console, records, resumption, run
from rljax.runs.statistics import summaries
from rljax.training import configuration, population
from rljax.training.drivers.driver import environment_rows
from rljax.training.loop import checkpoint_state


def extract(
    folder: str | Path | trust.Folder, learners: Sequence[int], out: str | Path | None = None
) -> Path:
    """Extract some learners of the run in `folder` into a new run in `out`, and return its folder.

    The new run has their records and a checkpoint with their complete state: agents, storage,
    random numbers and environments. It can be resumed, evaluated, filmed and plotted. Settings that
    changed during the run keep their current values. By default `out` is the folder's name and the
    learners' numbers.

    Raises `ValueError` for learners that the run does not have, and for all of its learners, and
    where this folder may not run its code or load its pickle; `FileExistsError` where `out` exists;
    `CheckpointError` without a usable checkpoint.
    """
    source_folder, learners = arguments.run_folder(folder), list(learners)
    folder = source_folder.path
    source = run.Run.open(source_folder, console.View())
    number = len(source.training.members)
    if (
        not learners
        or len(set(learners)) < len(learners)
        or not set(learners) <= set(range(number))
    ):
        raise ValueError(
            f"learners {learners}: the run in '{folder}' has {number}, 0 to {number - 1}, "
            "name each once."
        )
    if len(learners) == number:
        raise ValueError(
            f"these are all the learners of '{folder}': copy the folder, or name fewer."
        )
    target = (
        Path(out)
        if out is not None
        else folder.with_name(f"{folder.name}-{'-'.join(map(str, learners))}")
    )
    if target.exists():
        raise FileExistsError(f"'{target}' exists. Choose another --out.")
    experiment, training = source.experiment, source.training
    settings = dataclasses.replace(
        experiment.settings, seeds=tuple(experiment.settings.seeds[p] for p in learners)
    )
    config = experiment.config
    if training.schedule is not None:
        settings = dataclasses.replace(settings, schedule=None)
        values = checkpoints.notes(checkpoints.newest(folder / "checkpoints"))["values"]
        config = dataclasses.replace(
            config, **{name: tuple(value) for name, value in values.items()}
        )
    config = population.of_learners(config, learners)
    # So that a folder with the final name is always complete.
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    part_experiment = dataclasses.replace(experiment, settings=settings, config=config)
    part = run.Run(part_experiment, partial, console.View())
    try:
        _write(source, source_folder, part, learners)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        source.close()
        part.close()
    return target


def _write(source: run.Run, folder: trust.Folder, target: run.Run, learners: Sequence[int]) -> None:
    path = checkpoints.newest(source.folder / "checkpoints")
    notes = resumption.notes_of(source.training, path)
    resumption.notes_of(target.training, path)
    whole, part = source.training, target.training
    many = whole.driver.template(whole.settings.seeds)
    few = part.driver.template(part.settings.seeds)
    arrays = {name: checkpoints.restore(path, name, many[name]) for name in many}
    items = {
        name: _of_learners(arrays[name], many[name], few[name], len(whole.members), learners)
        for name in many
    }
    best = checkpoints.restore(path, "best", many["agent"])
    items["best"] = _of_learners(best, many["agent"], few["agent"], len(whole.members), learners)
    blobs = {}
    environments = checkpoints.environments(folder, path, notes)
    if environments is not None:
        whole.driver.restore(arrays, environments)
        state = whole.driver.environments(learners)
        assert state is not None, "what was saved can be saved again"
        blobs["environments"] = state
        notes["seal"] = trust.state_seal(state)

    place = {learner: number for number, learner in enumerate(learners)}
    diverged = [
        x | {"learner": place[x["learner"]]} for x in notes["diverged"] if x["learner"] in place
    ]
    best_return = [notes["best_return"][learner] for learner in learners]
    notes |= {
        "structure": checkpoint_state.structure(part),
        "values": None,
        "diverged": diverged,
        "best_return": best_return,
    }

    described = records.read_config(source.folder) | {
        "schedule": None,
        "seeds": part.settings.seeds,
        "config": configuration.as_json(target.experiment.config),
        "learners": [dataclasses.asdict(member) for member in part.members],
        "state_bytes": part.needed_bytes,
        "extracted": {"run": source.folder, "learners": learners, "step": notes["step"]},
    }
    target.folder.mkdir(parents=True)
    records.write_json(target.folder / "config.json", described)
    with records.Recorder(target.folder) as recorder:
        for line in records.read(source.folder, "metrics"):
            if line["step"] <= notes["step"]:
                recorder.metrics({name: _entries(value, learners) for name, value in line.items()})
        lines = [
            line for line in records.read(source.folder, "evaluations") if line["learner"] in place
        ]
        lines = [
            line | {"learner": place[line["learner"]]}
            for line in lines
            if line["step"] <= notes["step"]
        ]
        for line in sorted(lines, key=lambda line: (line["step"], line["learner"])):
            recorder.evaluation(line)
        blobs["run.json"] = records.dumps(notes | {"records": recorder.marks()}).encode()
    summary = records.read_summary(source.folder)
    if summary:
        results = summaries.results(
            lines, population.settings(part.members), part.dataset is not None
        )
        unchanged = {name: value for name, value in summary.items() if name != "settings"}
        changed = {"seeds": part.settings.seeds, "diverged": diverged, **results}
        records.write_json(target.folder / records.SUMMARY, unchanged | changed)
    checkpoints.save(target.folder / "checkpoints", notes["step"], items, blobs)


def _of_learners(tree: Any, many: Any, few: Any, number: int, learners: Sequence[int]) -> Any:
    """The rows of `learners` in every array of `tree`.

    `many` has the shapes for all `number` learners, `few` those for `learners`.
    """

    def take(leaf: Any, whole: Any, part: Any) -> Any:
        axes = [
            axis
            for axis, sizes in enumerate(zip(whole.shape, part.shape, strict=True))
            if len(set(sizes)) > 1
        ]
        if not axes:
            return leaf  # a counter, which all learners share
        (axis,) = axes
        each = whole.shape[axis] // number
        rows = environment_rows(learners, each)
        return leaf[(slice(None),) * axis + (jax.numpy.asarray(rows),)]

    return jax.tree.map(take, tree, many, few)


def _entries(value: Any, learners: Sequence[int]) -> Any:
    return [value[learner] for learner in learners] if isinstance(value, list) else value
