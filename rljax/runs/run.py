"""A run: one training in a folder."""

from __future__ import annotations

import contextlib
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax.distributed import processes
from rljax.envs.environment import EnvironmentFailed
from rljax.runs import (
    arguments,
    checkpoints,
    console,
    experiments,
    failures,
    folders,
    json_files,
    loggers,
    records,
    resumption,
    saving,
    schema,
)
from rljax.runs.records import read_config
from rljax.runs.statistics import summaries
from rljax.system import hardware
from rljax.system.interruption import Interrupt
from rljax.system.lock import Lock
from rljax.training import configuration, population
from rljax.training.loop import NoLearnerLeft, Training, checkpoint_state, entries
from rljax.training.named_code import named_code
from rljax.training.plan import Experiment
from rljax.training.settings import LARGEST, settings_of
from rljax.trust import Folder, seals


def train(
    agent: str,
    env: str | None = None,
    steps: int = 1_000_000,
    *,
    data: str | None = None,
    seeds: int | Sequence[int] = 1,
    config: Any = None,
    out: str | Path | None = None,
    quiet: bool = True,
    command: str | None = None,
    trust: bool = False,
    **settings: Any,
) -> Path:
    """Train one learner per seed and return the run's folder.

    Args:
        agent: a name, such as "sac", or an agent's file.
        env: a name, a registered Gymnasium environment or a function that makes one; None is that
            of `data`.
        steps: environment steps of each learner; for an agent that learns from data alone, updates.
        data: a data set's name or file, learnt from alone, or mixed into a `Replay`.
        seeds: a number of learners (with seeds 0, 1, ...) or their seeds.
        config: a Config, or a mapping of changes to the preset; floats may be sequences, one value
            per learner.
        out: the run's folder; None is a new one in runs/.
        trust: whether code of other users' `base` or `from_run` may run.
        settings: further fields of `rljax.training.settings.Settings`.

    Raises `ValueError` or `TypeError` for arguments that cannot work, before anything compiles;
    `FileExistsError` if `out` exists and is not empty; `failures.Diverged` for values that are not
    finite.

    After `rljax.distributed.processes.join`, every process must make the same call.
    """
    experiment = processes.on_all(
        lambda: experiments.prepare(
            agent, env, steps, data=data, seeds=seeds, config=config, trust=trust, **settings
        )
    )
    default = processes.on_first(lambda: folders.default_folder(experiment.settings))
    folder = default if out is None else arguments.folder(out)
    return Run.begin(
        experiment, folder, console.create(quiet), command or shlex.join(sys.argv)
    ).execute()


def resume(
    out: str | Path | Folder,
    steps: int | None = None,
    *,
    then_online: int | None = None,
    offline_share: float | str | None = None,
    accept_changed_records: bool = False,
    quiet: bool = True,
    command: str | None = None,
    trust: bool = False,
) -> Path:
    """Continue the run in folder `out` to its end, or to `steps`, as if it had not been stopped.

    A run without a checkpoint begins anew. A run from data goes on in its environment for
    `then_online` steps, with `offline_share`. `accept_changed_records` allows records that changed
    since the last checkpoint. `trust` is for other users' code and pickles.

    Raises `ValueError` where the run cannot continue in this way; its subclasses `RecordsChanged`
    and `FolderInUse`; `CheckpointError` where no checkpoint is usable.
    """
    folder = arguments.run_folder(out, trust)
    steps = None if steps is None else configuration.integer(steps, "steps", LARGEST)
    online = arguments.online_stage(then_online, offline_share, steps)
    return Run.continued(
        folder,
        console.create(quiet),
        steps,
        command or shlex.join(sys.argv),
        online=online,
        accept_changed_records=accept_changed_records,
    ).execute()


class Run:
    """A training in a folder: `begin` or `continued`, then `execute`. `open` is for readers."""

    def __init__(self, experiment: Experiment, folder: Path, view: console.View) -> None:
        """Nothing is written or compiled yet."""
        self.experiment, self.folder, self.view = experiment, folder, view
        self.made = time.perf_counter()  # from here on compiling is counted, and all time
        self.training = Training(experiment, on_compile=lambda: view.status("compiling"))
        self.wall = 0.0
        self._place = folder.absolute()  # an environment may change the working directory
        self.saver = saving.Saver(self.training, self._place, view)
        self.lock: Lock | None = None  # in the first process of a run that writes
        self.recorder = records.Recorder(None)

    @classmethod
    def begin(cls, experiment: Experiment, folder: Path, view: console.View, command: str) -> Run:
        """Begin a run with fresh learners in a new folder, and write config.json there."""
        processes.require_same(lambda: experiments.shared(experiment) | {"out": str(folder)})
        run = processes.on_all(lambda: cls(experiment, folder, view))
        try:
            run._begin(command)
        except BaseException:
            run.close()
            raise
        return run

    def _begin(self, command: str) -> None:
        training, settings = self.training, self.training.settings
        processes.on_all(training.check_memory)
        processes.on_first(lambda: loggers.require_loggers(settings.tensorboard, settings.wandb))
        described = {
            "format": schema.FORMAT,
            **experiments.described(self.experiment),
            **entries.config(training),
            "seals": seals(named_code(settings)),
            "command": command,
            **self._conditions(),
        }
        json_files.dumps(described)  # raises its errors before anything is written
        processes.on_first(lambda: self._make_folder(described))
        try:
            processes.on_all(lambda: folders.require_visible(self.folder))
            self.recorder = processes.on_all(self._record)
        except (ValueError, OSError):
            processes.on_first(lambda: shutil.rmtree(self.folder))
            raise
        self.view.start(self.folder, training.total, settings, training.needed_bytes)
        self._warn()
        training.start()

    def _conditions(self) -> dict[str, Any]:
        used = [stage.driver.spread.num_devices for stage in self.training.stages]
        return {**hardware.provenance(), "devices_used": used}

    def _make_folder(self, described: Mapping[str, Any]) -> None:
        self.lock = folders.make_folder(self.folder)
        records.write_json(self.folder / "config.json", described)

    @classmethod
    def open(
        cls, folder: Folder, view: console.View, online: Mapping[str, Any] | None = None
    ) -> Run:
        """The run in `folder`, with an added stage for the settings `online`."""
        described = read_config(folder.path)
        run = cls(experiments.reopened(folder, described, online), folder.path, view)
        if online:
            run.training.warn_of_schedule(settings_of(described))
            run.training.check_memory()
        return run

    @classmethod
    def continued(
        cls,
        folder: Folder,
        view: console.View,
        steps: int | None,
        command: str,
        *,
        online: Mapping[str, Any] | None = None,
        accept_changed_records: bool = False,
        wait: float = 0.0,
    ) -> Run:
        """Continue the run in `folder` to its end, or to `steps`. config.json records `command`.

        Waits up to `wait` seconds for a lost host's lock.
        """
        with contextlib.ExitStack() as undo:
            folder_lock = folders.lock_run(folder.path, wait)
            if folder_lock is not None:
                undo.callback(folder_lock.release)
            run = processes.on_all(lambda: cls.open(folder, view, online))
            run.lock = folder_lock
            undo.callback(run.close)
            command_line = {"run": str(folder.path), "--steps": steps}
            processes.require_same(lambda: experiments.shared(run.experiment) | command_line)
            run._resume(folder, steps, command, accept_changed_records)
            undo.pop_all()
        return run

    def _resume(
        self, folder: Folder, steps: int | None, command: str, accept_changed_records: bool
    ) -> None:
        path = processes.on_first(lambda: checkpoints.last(self.folder))
        if path is None:
            self._begin_anew(steps, command)
            return
        notes = processes.on_all(
            lambda: resumption.continued(self.training, self.folder, path, steps)
        )
        environments = processes.on_all(lambda: checkpoints.environments(folder, path, notes))
        changed = processes.on_first(
            lambda: records.require_unchanged(self.folder, notes, accept_changed_records)
        )
        if changed:
            self.view.warn(f"the records have changed since the checkpoint: {'; '.join(changed)}.")
        self._go_on(command, notes["step"], None if changed else notes["records"], changed)
        training = self.training
        with training.clock.counting():
            template = training.driver.template(training.settings.seeds)
            arrays = {name: checkpoints.restore(path, name, template[name]) for name in template}
            best = checkpoints.restore(path, "best", template["agent"])
        checkpoint_state.restore(training, arrays, best, notes, environments)
        self.wall = notes["wall_seconds"]
        if notes["environments"] == "lost":
            self.view.warn(
                f"the state of '{training.settings.env}' cannot be saved ({notes['reason']}): its "
                "episodes start anew, so this run will differ from one without a stop."
            )

    def _begin_anew(self, steps: int | None, command: str) -> None:
        if steps is not None:
            self.training.extend(steps)
        processes.on_all(self.training.check_memory)
        processes.on_first(lambda: records.discard(self.folder))
        self._go_on(command)
        processes.on_all(
            lambda: resumption.require_same_beginning(self.folder, self.training.inherited)
        )
        self.view.say(f"'{self.folder}' has no checkpoint yet: the run begins anew.")
        self.training.start()

    def _go_on(
        self,
        command: str,
        step: int = 0,
        marks: Mapping[str, Sequence[int]] | None = None,
        changed_records: Sequence[str] = (),
    ) -> None:
        training, entry = self.training, {"step": step, "command": command}
        if changed_records:
            entry["changed_records"] = changed_records
        self.recorder = processes.on_all(self._record)  # refuses damaged records
        training.warnings += processes.on_first(
            lambda: resumption.note_resumption(self.folder, training, entry, self._conditions())
        )
        self.recorder.truncate(step, marks)
        needed = read_config(self.folder)["state_bytes"]
        self.view.start(self.folder, training.total, training.settings, needed)
        self._warn()

    def execute(self) -> Path:
        """Train to the end or an interruption."""
        self.began = self.made - self.wall
        self.saver.start()
        training, interrupted = self.training, False
        try:
            inherits = training.step == 0 and training.inherited is not None
            if (
                (training.complete or inherits)
                and training.evaluator is not None
                and not processes.on_first(lambda: records.is_evaluated(self._place, training.step))
            ):
                self._evaluate()
                self._save()
            with Interrupt(self.view.say) as interrupt:
                while not training.complete and not interrupted:
                    self._chunk()
                    interrupted = processes.any_process(interrupt.requested)
                    if self.saver.is_due() or interrupted or training.complete:
                        self._save()
            self.view.finished(processes.on_first(self._summarise))
        except Exception as error:
            if isinstance(error, NoLearnerLeft):
                processes.on_first(self._summarise)
            if (failure := failures.of_training(error, training, self.folder)) is None:
                raise
            raise failure from error
        finally:
            self._close(after_error=sys.exc_info()[0] is not None)
        if interrupted and not training.complete:
            self.view.say(
                f"stopped at {training.step} steps, all saved. To go on: rljax resume {self.folder}"
            )
        return self.folder

    def close(self) -> None:
        """Release data, environments, terminal and folder."""
        try:
            self.recorder.close()
            self.training.close()
            self.view.stop()
        finally:
            if self.lock is not None:
                self.lock.release()

    def _close(self, after_error: bool) -> None:
        """An environment's error does not hide an earlier one."""
        try:
            self.close()
        except EnvironmentFailed as error:
            if not after_error:
                raise error.with_advice(
                    f"Training has ended at step {self.training.step:,}, and all of it is saved "
                    f"in '{self.folder}'."
                ) from error

    def _chunk(self) -> None:
        training = self.training
        line = training.chunk()
        if self.lock is not None:
            self.lock.require()
        self._warn()
        self.wall = time.perf_counter() - self.began
        self.recorder.metrics(line | {"wall_seconds": self.wall})
        self.view.update(
            training.step, line["steps_per_second"] / len(training.settings.seeds), training.latest
        )
        if training.evaluation_is_due:
            self._evaluate()
        change = training.change_settings()
        if change is not None:
            self.recorder.change(change)

    def _warn(self) -> None:
        while self.training.warnings:
            self.view.warn(self.training.warnings.pop(0))

    def _evaluate(self) -> None:
        self.view.status("evaluating")
        is_first = self.training.random_return is None
        lines = self.training.evaluate()
        self.wall = time.perf_counter() - self.began
        for line in lines:
            self.recorder.evaluation(line | {"wall_seconds": self.wall})
        training = self.training
        self.view.evaluated(
            training.step,
            training.last_return,
            training.last_signals,
            training.random_return if is_first else None,
        )
        self._warn()

    def _save(self) -> None:
        if self.lock is not None:
            self.lock.require()
        self.saver.save(self.recorder, self.began)

    def _summarise(self) -> dict[str, Any]:
        training = self.training
        evaluations = records.read(self._place, "evaluations")
        summary = {
            **entries.summary(training),
            **summaries.results(
                evaluations, population.settings(training.members), training.dataset is not None
            ),
            "cut": sum(line.get("cut", 0) for line in evaluations),
            "wall_seconds": time.perf_counter() - self.began,
            "processes": processes.process_count(),
            "peak_memory_bytes": hardware.peak_memory(),
        }
        estimate = summaries.estimate(records.read(self._place, "metrics"))
        if estimate is not None:
            summary["estimate"] = estimate
        self.recorder.summary(summary)
        return summary

    def _record(self) -> records.Recorder:
        settings = self.training.settings
        out = self._place if processes.is_first() else None
        return records.Recorder(out, tensorboard=settings.tensorboard, wandb=settings.wandb)
