"""Runs from Python: `rljax.training`, `rljax.train` and `rljax.resume`."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.distributed import processes
from rljax.learning import configuration
from rljax.learning.settings import LARGEST
from rljax.runs import arguments, experiments, folders
from rljax.runs.active import ActiveRun
from rljax.runs.display import console
from rljax.runs.events import Event, callbacks, loggers
from rljax.runs.events.callbacks import Callback
from rljax.runs.events.loggers import Logger
from rljax.trust import Folder


class TrainingLoop:
    """A run as a loop over its events: `for event in rljax.training(...)`.

    `break` ends the run as Ctrl-C does: saved, to be resumed. A loop can be run once.
    """

    def __init__(self, folder: Path, begin: Callable[[], ActiveRun]) -> None:
        self.folder, self._begin = folder, begin
        self._has_begun = False

    def __iter__(self) -> Iterator[Event]:
        """Begin, or go on, and tell what happens, event by event."""
        if self._has_begun:
            raise ValueError(
                f"this loop over '{self.folder}' has ended. To go on: "
                f"rljax.resuming('{self.folder}')"
            )
        self._has_begun = True
        return self._begin().events()

    def execute(self) -> Path:
        """Train to the end, and return the run's folder."""
        for _ in self:
            pass
        return self.folder


def training(
    agent: str,
    env: Any = None,
    steps: int = 1_000_000,
    *,
    data: str | None = None,
    seeds: int | Sequence[int] = 1,
    config: Any = None,
    out: str | Path | None = None,
    quiet: bool | None = None,
    command: str | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
    **settings: Any,
) -> TrainingLoop:
    """A new run as a loop over its events, see `rljax.events`: one learner per seed.

    Args:
        agent: a name, such as "sac", or an agent's file.
        env: a name, or a class, an instance, a function that makes one, or a vector environment of
            Gymnasium; None is that of `data`.
        steps: environment steps of each learner; for an agent that learns from data alone, updates.
        data: a data set's name or file, learnt from alone, or mixed into a `Replay`.
        seeds: a number of learners (with seeds 0, 1, ...) or their seeds.
        config: a Config, or a mapping of changes to the preset; floats may be sequences, one value
            per learner.
        out: the run's folder; None is a new one in runs/.
        quiet: False shows progress, None in a notebook alone.
        trust: whether code of other users' `base` or `from_run` may run.
        callbacks: functions of an event, called in this order before the loop gets it.
        loggers: where records go beside the run's files, see `rljax.loggers`.
        settings: further fields of `rljax.learning.settings.Settings`.

    Raises `ValueError` or `TypeError` for arguments that cannot work, before anything compiles;
    while it runs `FileExistsError` if `out` exists and is not empty, and `failures.Diverged` for
    values that are not finite.

    After `rljax.distributed.processes.join`, every process must make the same call.
    """
    check(callbacks, loggers)
    experiment = processes.on_all(
        lambda: experiments.prepare(
            agent, env, steps, data=data, seeds=seeds, config=config, trust=trust, **settings
        )
    )
    default = processes.on_first(lambda: folders.default_folder(experiment.settings))
    folder = default if out is None else arguments.folder(out)
    command = command or shlex.join(sys.argv)
    return TrainingLoop(
        folder,
        lambda: ActiveRun.begin(
            experiment, folder, console.create(quiet), command, callbacks, loggers
        ),
    )


def train(agent: str, env: Any = None, steps: int = 1_000_000, **options: Any) -> Path:
    """Train one learner per seed and return the run's folder. See `training` for all arguments."""
    return training(agent, env, steps, **options).execute()


def resuming(
    out: str | Path | Folder,
    steps: int | None = None,
    *,
    env: Any = None,
    config: Mapping[str, Any] | None = None,
    then_online: int | None = None,
    offline_share: float | str | None = None,
    accept_changed_records: bool = False,
    quiet: bool | None = None,
    command: str | None = None,
    trust: bool = False,
    callbacks: Sequence[Callback] = (),
    loggers: Sequence[Logger] = (),
) -> TrainingLoop:
    """The run in folder `out` as a loop over what is left to its end, or to `steps`.

    A run without a checkpoint begins anew. A run from data goes on in its environment for
    `then_online` steps, with `offline_share`. `accept_changed_records` allows records that changed
    since the last checkpoint. `trust` is for other users' code and pickles.

    `env` is the environment, and `config` holds the classes of networks, where the run began with
    ones that only Python knows. `callbacks` and
    `loggers` are those that the run began with; without them, those that can be made again are.

    Raises `ValueError` where the run cannot continue in this way; its subclasses `RecordsChanged`
    and `FolderInUse`; `CheckpointError` where no checkpoint is usable.
    """
    check(callbacks, loggers)
    folder = arguments.run_folder(out, trust)
    steps = None if steps is None else configuration.integer(steps, "steps", LARGEST)
    online = arguments.online_stage(then_online, offline_share, steps)
    arguments.environment_again(folder, env)
    others = arguments.classes_again(folder, config)
    if others:
        raise ValueError(
            f"a resumed run keeps its settings: '{next(iter(others))}' cannot change. `config` has "
            "classes of networks alone."
        )

    def begin() -> ActiveRun:
        return ActiveRun.continued(
            folder,
            console.create(quiet),
            steps,
            command or shlex.join(sys.argv),
            online=online,
            accept_changed_records=accept_changed_records,
            callbacks=callbacks,
            loggers=loggers,
        )

    return TrainingLoop(folder.path, begin)


def resume(out: str | Path | Folder, steps: int | None = None, **options: Any) -> Path:
    """Continue the run in folder `out` to its end, or to `steps`, as if it had not been stopped.

    See `resuming` for all arguments.
    """
    return resuming(out, steps, **options).execute()


def check(all_callbacks: Sequence[Any], all_loggers: Sequence[Any]) -> None:
    """Raise what `callbacks.check` and `loggers.check` raise."""
    callbacks.check(all_callbacks)
    loggers.check(all_loggers)
