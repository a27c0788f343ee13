"""Learners of a population as a run of their own, which goes on where they stood."""

from __future__ import annotations

import dataclasses
import json
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax

from rljax.runs import checkpoints, console, records, run
from rljax.training import configuration, population
from rljax.training.drivers.driver import environment_rows


def extract(folder: str | Path, learners: Sequence[int], out: str | Path | None = None) -> Path:
    """Make some learners of the run in `folder` a run of their own in `out`, and return it.

    It has their records, and a checkpoint with all that they are: agents, storage, random numbers, environments. It can
    be resumed, evaluated, filmed, plotted. Settings that changed in the course of the run stay as they are now. `out`
    is by default the folder's name and the learners' numbers.

    Raises `ValueError` for learners that the run does not have, or all that it has; `FileExistsError` where `out`
    exists; `CheckpointError` without a usable checkpoint.
    """
    folder, learners = Path(folder), list(learners)
    source = run.Run.open(folder, console.View())
    number = len(source.members)
    if not learners or len(set(learners)) < len(learners) or not set(learners) <= set(range(number)):
        raise ValueError(f"learners {learners}: the run in '{folder}' has {number}, 0 to {number - 1}, name each once.")
    if len(learners) == number:
        raise ValueError(f"these are all the learners of '{folder}': copy the folder, or name fewer.")
    target = Path(out) if out is not None else folder.with_name(f"{folder.name}-{'-'.join(map(str, learners))}")
    if target.exists():
        raise FileExistsError(f"'{target}' exists. Choose another --out.")
    settings = dataclasses.replace(source.settings, seeds=tuple(source.settings.seeds[p] for p in learners))
    if source.course is not None:
        settings = dataclasses.replace(settings, course=None)
        source.set(json.loads((checkpoints.newest(folder / "checkpoints") / "run.json").read_text())["values"])
    config = population.of_learners(source.config, learners)
    partial = target.with_name(f".partial-{target.name}")  # a folder with the final name is whole
    shutil.rmtree(partial, ignore_errors=True)
    own = run.Run(settings, source.module, config, partial, console.View(), source.dataset)
    try:
        _write(source, own, learners)
        partial.rename(target)
    finally:
        shutil.rmtree(partial, ignore_errors=True)
        source.close()
        own.close()
    return target


def _write(source: run.Run, own: run.Run, learners: Sequence[int]) -> None:
    path = checkpoints.newest(source.folder / "checkpoints")
    notes = source.at(path)
    own.at(path)
    many, few = source.driver.template(source.settings.seeds), own.driver.template(own.settings.seeds)
    arrays = {name: checkpoints.restore(path, name, many[name]) for name in many}
    items = {name: _taken(arrays[name], many[name], few[name], len(source.members), learners) for name in many}
    best = checkpoints.restore(path, "best", many["agent"])
    items["best"] = _taken(best, many["agent"], few["agent"], len(source.members), learners)
    blobs = {}
    if notes["environments"] == "saved":
        source.driver.restore(arrays, (path / "environments").read_bytes())
        state = source.driver.environments(learners)
        assert state is not None, "what was saved can be saved again"
        blobs["environments"] = state

    place = {learner: number for number, learner in enumerate(learners)}
    diverged = [x | {"learner": place[x["learner"]]} for x in notes.get("diverged", []) if x["learner"] in place]
    best_return = [notes["best_return"][learner] for learner in learners]
    notes |= {"structure": own.structure(), "values": None, "diverged": diverged, "best_return": best_return}
    blobs["run.json"] = json.dumps(notes).encode()

    described = run.read_config(source.folder) | {
        "course": None,
        "seeds": own.settings.seeds,
        "config": configuration.as_json(own.config),
        "learners": [dataclasses.asdict(member) for member in own.members],
        "state_bytes": own.needed(),
        "extracted": {"run": source.folder, "learners": learners, "step": notes["step"]},
    }
    own.folder.mkdir(parents=True)
    records.write_json(own.folder / "config.json", described)
    with records.Recorder(own.folder) as recorder:
        for line in records.read(source.folder, "metrics"):
            if line["step"] <= notes["step"]:
                recorder.metrics({name: _own(value, learners) for name, value in line.items()})
        lines = [line for line in records.read(source.folder, "evaluations") if line["learner"] in place]
        lines = [line | {"learner": place[line["learner"]]} for line in lines if line["step"] <= notes["step"]]
        for line in sorted(lines, key=lambda line: (line["step"], line["learner"])):
            recorder.evaluation(line)
    summary = source.folder / "summary.json"
    if summary.exists():
        results = run.results(lines, own.members, own.dataset is not None)
        kept = {name: value for name, value in json.loads(summary.read_text()).items() if name != "settings"}
        changed = {"seeds": own.settings.seeds, "diverged": diverged, **results}
        records.write_json(own.folder / "summary.json", kept | changed)
    checkpoints.save(own.folder / "checkpoints", notes["step"], items, blobs)


def _taken(tree: Any, many: Any, few: Any, number: int, learners: Sequence[int]) -> Any:
    """The rows of `learners` in every array of `tree`, whose shapes with all `number` and with theirs are given."""

    def take(leaf: Any, whole: Any, part: Any) -> Any:
        axes = [axis for axis, sizes in enumerate(zip(whole.shape, part.shape, strict=True)) if len(set(sizes)) > 1]
        if not axes:
            return leaf  # a counter, which all learners share
        (axis,) = axes
        each = whole.shape[axis] // number
        rows = environment_rows(learners, each)
        return leaf[(slice(None),) * axis + (jax.numpy.asarray(rows),)]

    return jax.tree.map(take, tree, many, few)


def _own(value: Any, learners: Sequence[int]) -> Any:
    return [value[learner] for learner in learners] if isinstance(value, list) else value
