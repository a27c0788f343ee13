"""The command rljax data record."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated, Any

import tyro

from rljax.cli import options as shared
from rljax.cli import parsing


@dataclasses.dataclass
class Record(shared.Trust, shared.LearnerOptions):
    """Record a data set: with a run's policies, from its replay, or with scripted experts.

    Scripted experts are OGBench's, and those of tasks that have some: combination locks,
    the point maze, and tasks that are learnt in context.
    """

    # folder of the run, or rljax/PointMaze, rljax/DarkRoom-10x10 and the like, or
    # ogbench/cube-single-play-v0 and the like
    source: Annotated[tyro.conf.Positional[str], tyro.conf.arg(metavar="RUN")]
    # file.npz or .hdf5; of OGBench: .npz, default: where it is found
    output: Annotated[tyro.conf.Positional[Path | None], tyro.conf.arg(metavar="FILE")] = None
    # transitions; default: 1,000,000, of OGBench as published; of a replay: the first at most
    steps: int | None = None
    # of a run: policy, exploring, random or replay; inside the program only replay; of a task that
    # is learnt in context: policy, for optimal actions, or learning
    acting: Annotated[str, tyro.conf.arg(name="from")] = "policy"
    # environments side by side, default: 10; of OGBench: processes, default: 1
    envs: int | None = None
    seed: int = 0  # seed of the environments and of exploration
    # of tasks that are learnt in context: rows of a lifetime with optimal actions, default: 101;
    # episodes in which a learner learns, default: 100
    length: int | None = None


def main(arguments: list[str]) -> None:
    """Record a data set. Raises `ValueError` for a user's mistake."""
    options = parsing.parse(Record, arguments, "data record")
    if options.source.startswith("ogbench/"):
        _record_ogbench(options)
        return
    if options.output is None:
        raise ValueError(
            f"which file? rljax data record {options.source} FILE, a .npz or .hdf5 file."
        )
    parsing.require_new(options.output)
    from rljax import datasets
    from rljax.runs.policies import collect

    steps = 1_000_000 if options.steps is None else options.steps
    common: dict[str, Any] = {"steps": steps, "seed": options.seed, "name": str(options.output)}
    if options.source.startswith("rljax/"):
        _require_plain(options)
        dataset = collect.demonstrated(
            options.source, source=options.acting, length=options.length, **common
        )
    else:
        _require_no_length(options)
        dataset = collect.record(
            options.folder(options.source),
            source=options.acting,
            learner=options.learner,
            best=options.best,
            num_envs=10 if options.envs is None else options.envs,
            **common,
        )
    path = datasets.write(dataset, options.output)
    returns = dataset.returns()
    outcome = "no whole episode"
    if len(returns):
        outcome = f"return {returns.mean():,.1f} over {len(returns)} complete episodes"
    print(f"{path}: {dataset.num:,} transitions, {outcome}")


def _require_no_length(options: Record) -> None:
    if options.length is not None:
        raise ValueError(
            "--length is for tasks that are learnt in context, such as rljax/DarkRoom-10x10."
        )


def _require_plain(options: Record) -> None:
    acting = "policy" if options.source.startswith("rljax/") else options.acting
    if (acting, options.learner, options.best) != ("policy", 0, False):
        raise ValueError(
            f"--from, --learner and --best are of runs; '{options.source}' is recorded by "
            "its oracles."
        )


def _record_ogbench(options: Record) -> None:
    _require_plain(options)
    _require_no_length(options)
    from rljax.datasets.formats import opened
    from rljax.datasets.recording import scripted_experts

    processes = 1 if options.envs is None else options.envs
    path = scripted_experts.record(
        options.source, options.output, steps=options.steps, seed=options.seed, processes=processes
    )
    with opened(path) as file:
        ends = file["terminals"]
    print(f"{path}: {(~ends).sum():,} transitions in {ends.sum():,} trajectories")
