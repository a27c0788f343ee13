"""Learners of a population as a new run."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from rljax import trust
from rljax.learning import configuration, population
from rljax.learning.drivers.driver import environment_rows
from rljax.learning.loop import checkpoint_state
from rljax.runs import active, arguments, checkpoints, records, resumption
from rljax.runs.display import console
from rljax.runs.statistics import summaries
from rljax.system import outputs


def extract(
    folder: str | Path | trust.Folder, learners: Sequence[int], out: str | Path | None = None
) -> Path:
    """Extract some learners of the run in `folder` into a new run in `out`, and return its folder.

    By default `out` is the folder's name and the learners' numbers.

    Raises `ValueError` for unknown learners, for all of them, and for code or a pickle without
    trust; `FileExistsError`; `CheckpointError` without a usable checkpoint.
    """
    source_folder, learners = arguments.run_folder(folder), list(learners)
    folder = source_folder.path
    source = active.ActiveRun.open(source_folder, console.View())
    number = len(source.training.members)
    if not learners or sorted(set(learners) & set(range(number))) != sorted(learners):
        raise ValueError(
            f"learners {learners}: the run in '{folder}' has {number}, 0 to {number - 1}, "
            "name each once."
        )
    if len(learners) == number:
        raise ValueError(
            f"these are all the learners of '{folder}': copy the folder, or name fewer."
        )
    target = Path(out or folder.with_name(f"{folder.name}-{'-'.join(map(str, learners))}"))
    if target.exists():
        raise FileExistsError(f"'{target}' exists. Choose another --out.")
    outputs.require_makeable(target, folder=True)
    settings, config = source.experiment.settings, source.experiment.config
    seeds = tuple(settings.seeds[p] for p in learners)
    settings = dataclasses.replace(settings, seeds=seeds, schedule=None)
    if source.training.schedule is not None:
        values = checkpoints.notes(checkpoints.newest(folder / "checkpoints"))["values"]
        config = dataclasses.replace(config, **{name: tuple(x) for name, x in values.items()})
    config = population.of_learners(config, learners)
    # So that a folder with the final name is always complete.
    partial = target.with_name(f".partial-{target.name}")
    shutil.rmtree(partial, ignore_errors=True)
    experiment = dataclasses.replace(source.experiment, settings=settings, config=config)
    base = source.training.base
    if base is not None:
        of_part = population.bases_of(base, learners)
        experiment = dataclasses.replace(experiment, load_base=lambda spec, spaces: of_part)
    part = active.ActiveRun(experiment, partial, console.View())
    try:
        _write(source, source_folder, part, learners)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        source.close()
        part.close()
    return target


def _write(
    source: active.ActiveRun,
    folder: trust.Folder,
    target: active.ActiveRun,
    learners: Sequence[int],
) -> None:
    path = checkpoints.newest(source.folder / "checkpoints")
    notes = resumption.notes_of(source.training, path)
    resumption.notes_of(target.training, path)
    whole, part = source.training, target.training
    many = whole.driver.template(whole.settings.seeds)
    few = part.driver.template(part.settings.seeds)
    many["best"], few["best"] = many["agent"], few["agent"]
    arrays = {name: checkpoints.restore(path, name, many[name]) for name in many}
    items = {
        name: _of_learners(arrays[name], many[name], few[name], len(whole.members), learners)
        for name in many
    }
    blobs = {}
    environments = checkpoints.environments(folder, path, notes)
    if environments is not None:
        whole.driver.restore(arrays, environments)
        state = whole.driver.environments(learners)
        assert state is not None, "what was saved can be saved again"
        blobs["environments"] = state
        notes["seal"] = trust.state_seal(state)

    place = {learner: number for number, learner in enumerate(learners)}

    def of_part(lines: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
        return [
            {**line, "learner": place[line["learner"]]}
            for line in lines
            if line["learner"] in place
        ]

    diverged = of_part(notes["diverged"])
    notes |= {
        "structure": checkpoint_state.structure(part),
        "protocol": checkpoint_state.protocol(part),
        "values": None,
        "diverged": diverged,
        "best_return": _entries(notes["best_return"], learners),
    }
    described = records.read_config(source.folder)
    described |= {
        "schedule": None,
        "seeds": part.settings.seeds,
        "config": configuration.as_json(target.experiment.config),
        "learners": [dataclasses.asdict(member) for member in part.members],
        "base_digests": _entries(described.get("base_digests"), learners),
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
            line
            for line in of_part(records.read(source.folder, "evaluations"))
            if line["step"] <= notes["step"]
        ]
        for line in sorted(lines, key=lambda line: (line["step"], line["learner"])):
            recorder.evaluation(line)
        blobs[checkpoints.NOTES] = records.dumps(notes | {"records": recorder.marks()}).encode()
    summary = records.read_summary(source.folder)
    if summary:
        summary.pop("settings", None)
        settings = population.settings(part.members)
        summary |= {"seeds": part.settings.seeds, "diverged": diverged}
        summary |= summaries.results(lines, settings, part.dataset is not None)
        records.write_json(target.folder / records.SUMMARY, summary)
    checkpoints.save(target.folder / "checkpoints", notes["step"], items, blobs)


def _of_learners(tree: Any, many: Any, few: Any, number: int, learners: Sequence[int]) -> Any:
    """The rows of `learners` in `tree`, with shapes `many` for all `number`, `few` for these."""

    def take(leaf: Any, whole: Any, part: Any) -> Any:
        sizes = zip(whole.shape, part.shape, strict=True)
        axes = [axis for axis, (before, after) in enumerate(sizes) if before != after]
        if not axes:
            return leaf  # a counter, which all learners share
        (axis,) = axes
        rows = environment_rows(learners, whole.shape[axis] // number)
        return leaf[(slice(None),) * axis + (jax.numpy.asarray(rows),)]

    return jax.tree.map(take, tree, many, few)


def _entries(value: Any, learners: Sequence[int]) -> Any:
    return [value[learner] for learner in learners] if isinstance(value, list) else value
