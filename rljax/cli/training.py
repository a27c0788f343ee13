"""Commands that train: rljax train | sweep | resume | extract."""

from __future__ import annotations

import dataclasses
import shlex
from typing import Any

from rljax.cli import parsing
from rljax.cli.training_options import Extract, Resume, Sweep, Train


def train(arguments: list[str]) -> None:
    """rljax train"""
    options, config = parsing.parse_with_agent(Train, arguments, "train")
    if options.seeds < 1:
        raise ValueError(f"--seeds is {options.seeds}, it must be at least 1.")
    what = {
        **parsing.run_settings(options),
        "seeds": range(options.seed, options.seed + options.seeds),
        "config": config,
        "online": parsing.assignments(options.online, config, "--online") or None,
        "trust": options.trust,
    }
    how: dict[str, Any] = {
        "out": options.out,
        "quiet": options.quiet,
        "command": shlex.join(["rljax", "train", *arguments]),
    }
    if options.grid and options.coordinator is not None:
        raise ValueError(
            "--coordinator joins hosts for one run; a grid's launches go to many machines "
            "with --ray."
        )
    options.join()
    from rljax.runs import run

    if not options.grid:
        if options.dry_run or options.learners_per_launch is not None or options.ray is not None:
            raise ValueError(
                "--dry-run, --learners-per-launch and --ray are for a grid: --grid "
                "config.actor-lr=1e-4,3e-4"
            )
        _print_once(run.train(**what, **how, callbacks=_callbacks(options)))
        return
    if _callbacks(options):
        raise ValueError("--stop-at-return and --film-every are for one run, and this is a grid.")
    from rljax.tuning import grid_axes, grids

    axes = grid_axes.parse(options.grid, config)
    for name in sorted(parsing.config_flags(arguments, config).intersection(axes)):
        flag = f"config.{name.replace('_', '-')}"
        raise ValueError(
            f"--{flag} and --grid {flag} both set {name}: leave out the flag, or list its value."
        )
    from rljax.runs import experiments

    points = grid_axes.points(axes)
    experiment = experiments.prepare(**what)
    if options.dry_run:
        print(grids.plan(experiment, points, options.learners_per_launch))
    else:
        how |= {"most": options.learners_per_launch, "workers": options.workers()}
        print(grids.train(experiment, points, **how))


def _callbacks(options: Train) -> list[Any]:
    from rljax.runs.events import callbacks

    stop = options.stop_at_return
    chosen: list[Any] = [] if stop is None else [callbacks.StopAtReturn(stop)]
    if options.film_every is not None:
        chosen.append(callbacks.FilmEvery(options.film_every))
    return chosen


def sweep(arguments: list[str]) -> None:
    """rljax sweep"""
    options, config = parsing.parse_with_agent(Sweep, arguments, "sweep")
    from rljax.runs import experiments
    from rljax.tuning import search_spaces, sweeps

    names = [field.name for field in dataclasses.fields(search_spaces.Protocol)]
    protocol = {name: getattr(options, name) for name in names}
    experiment = experiments.prepare(
        **parsing.run_settings(options), seeds=options.tuning_seeds, config=config
    )
    print(
        sweeps.begin(
            experiment,
            search_spaces.Protocol(**protocol),
            search_spaces.space(options.agent, config, options.space),
            out=options.out,
            quiet=options.quiet,
            command=shlex.join(["rljax", "sweep", *arguments]),
            workers=options.workers(),
            most=options.learners_per_launch,
        )
    )


def resume(arguments: list[str]) -> None:
    """rljax resume"""
    options = parsing.parse(Resume, arguments, "resume")
    from rljax.runs import run
    from rljax.tuning import grids, sweeps

    many = grids if grids.is_grid(options.run) else sweeps if sweeps.is_sweep(options.run) else None
    online = {"then_online": options.then_online, "offline_share": options.offline_share}
    changes = [*online.values(), options.accept_changed_records or None]
    if many is not None and any(value is not None for value in changes):
        raise ValueError(
            f"--then-online and --accept-changed-records are for one run, '{options.run}' holds "
            "many: resume one of those in it."
        )
    if many is not None and options.coordinator is not None:
        raise ValueError(
            f"--coordinator joins hosts for one run, '{options.run}' holds many: --ray "
            "spreads them."
        )
    if many is not None:
        how = {"quiet": options.quiet, "workers": options.workers()}
        print(many.resume(options.folder(options.run), options.steps, **how))
    elif options.ray is not None:
        raise ValueError(f"--ray is for a grid or a sweep, '{options.run}' is a run.")
    else:
        options.join()
        command = shlex.join(["rljax", "resume", *arguments])
        how = {**online, "quiet": options.quiet, "command": command}
        how["accept_changed_records"] = options.accept_changed_records
        _print_once(run.resume(options.folder(options.run), options.steps, **how))


def extract(arguments: list[str]) -> None:
    """rljax extract"""
    options = parsing.parse(Extract, arguments, "extract")
    from rljax.runs import extract

    print(extract.extract(options.folder(options.run), options.learners, options.out))


def _print_once(text: Any) -> None:
    from rljax.distributed import processes

    if processes.is_first():  # of several
        print(text)
