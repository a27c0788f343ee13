"""A run that trains: the loop around `Training`, with the folder that it writes."""

from __future__ import annotations

import contextlib
import functools
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.distributed import processes
from rljax.envs.environment import EnvironmentFailed
from rljax.learning import configuration
from rljax.learning.loop import NoLearnerLeft, Training, checkpoint_state, entries
from rljax.learning.named_code import digests, named_code
from rljax.learning.plan import Experiment
from rljax.learning.settings import settings_of
from rljax.runs import (
    checkpoints,
    endings,
    experiments,
    failures,
    folders,
    json_files,
    records,
    resumption,
    saving,
    schema,
)
from rljax.runs.display import console
from rljax.runs.events import (
    BeginEvent,
    BestEvent,
    CheckpointEvent,
    EndEvent,
    Event,
    MetricsEvent,
    callbacks,
    loggers,
)
from rljax.runs.events.callbacks import Callback
from rljax.runs.events.controls import Controls
from rljax.runs.events.loggers import Logger
from rljax.runs.events.types import of_evaluation
from rljax.runs.records import read_config
from rljax.system import hardware
from rljax.system.interruption import Interrupt
from rljax.system.lock import Lock
from rljax.trust import Folder, seals


class ActiveRun:
    """A training in a folder: `begin` or `continued`, then `events` or `execute`. `open` is for
    readers.
    """

    def __init__(
        self,
        experiment: Experiment,
        folder: Path,
        view: console.View,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
    ) -> None:
        """Nothing is written or compiled yet."""
        self.experiment, self.folder, self.view = experiment, folder, view
        self.callbacks, self.loggers = callbacks, loggers
        self.made = time.perf_counter()  # from here on compiling is counted, and all time
        self.training = Training(experiment, on_compile=lambda: view.status("compiling"))
        self.wall = 0.0
        self._place = folder.absolute()  # an environment may change the working directory
        self.saver = saving.Saver(self.training, self._place, view)
        self.lock: Lock | None = None  # in the first process of a run that writes
        self.recorder = records.Recorder(None)
        self.controls = Controls(self.training, self._place)
        self.controls.seconds = lambda: time.perf_counter() - self.began
        self.resumes = False  # it goes on from a checkpoint
        self._unwritten: list[Callable[[], None]] = []  # writes of the last chunk's records
        self._has_ended = False  # its summary is written, and its end told

    @classmethod
    def begin(
        cls,
        experiment: Experiment,
        folder: Path,
        view: console.View,
        command: str,
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
    ) -> ActiveRun:
        """Begin a run with fresh learners in a new folder, and write config.json there."""
        processes.require_same(lambda: experiments.shared(experiment) | {"out": str(folder)})
        run = processes.on_all(lambda: cls(experiment, folder, view, callbacks, loggers))
        try:
            run._begin(command)
        except BaseException:
            run.close()
            raise
        return run

    def _begin(self, command: str) -> None:
        training, settings = self.training, self.training.settings
        processes.on_all(training.check_memory)
        processes.on_first(lambda: loggers.check(loggers.chosen(settings)))
        described = {
            "format": schema.FORMAT,
            **experiments.described(self.experiment),
            **entries.config(training),
            **self._parts,
            "seals": seals(named_code(settings, configuration.as_json(self.experiment.config))),
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

    @property
    def _parts(self) -> dict[str, list[dict[str, Any]]]:
        return {
            "callbacks": callbacks.described(self.callbacks, callbacks.READY),
            "loggers": callbacks.described(self.loggers, loggers.READY),
        }

    def _conditions(self) -> dict[str, Any]:
        used = [stage.driver.spread.num_devices for stage in self.training.stages]
        code = digests(self.training.settings, configuration.as_json(self.experiment.config))
        return {**hardware.provenance(), "devices_used": used, "code": code}

    def _make_folder(self, described: Mapping[str, Any]) -> None:
        self.lock = folders.make_folder(self.folder)
        records.write_json(self.folder / "config.json", described)

    @classmethod
    def open(
        cls, folder: Folder, view: console.View, online: Mapping[str, Any] | None = None
    ) -> ActiveRun:
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
        callbacks: Sequence[Callback] = (),
        loggers: Sequence[Logger] = (),
    ) -> ActiveRun:
        """Continue the run in `folder` to its end, or to `steps`. config.json records `command`.

        Waits up to `wait` seconds for a lost host's lock. Without `callbacks` and `loggers`, those
        of the run that can be made again are.
        """
        with contextlib.ExitStack() as undo:
            folder_lock = folders.lock_run(folder.path, wait)
            if folder_lock is not None:
                undo.callback(folder_lock.release)
            run = processes.on_all(lambda: cls.open(folder, view, online))
            run.lock = folder_lock
            processes.on_all(lambda: run._take(callbacks, loggers))
            undo.callback(run.close)
            command_line = {"run": str(folder.path), "--steps": steps}
            processes.require_same(lambda: experiments.shared(run.experiment) | command_line)
            run._resume(folder, steps, command, accept_changed_records)
            undo.pop_all()
        return run

    def _take(self, all_callbacks: Sequence[Callback], all_loggers: Sequence[Logger]) -> None:
        described = read_config(self.folder)
        entries = described.get("callbacks") or []
        self.callbacks = callbacks.made_again(entries, all_callbacks, callbacks.READY, "callbacks")
        entries = described.get("loggers") or []
        self.loggers = callbacks.made_again(entries, all_loggers, loggers.READY, "loggers")

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
        callbacks.restore(self.callbacks, notes.get("callbacks", ()))
        self.resumes, self.controls.may_change = True, False
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
        for _ in self.events():
            pass
        return self.folder

    def events(self) -> Iterator[Event]:
        """Train to the end or an interruption, and tell what happens between chunks.

        To close the iterator, as `break` does, saves and stops.
        """
        self.began = self.made - self.wall
        self.saver.start()
        training = self.training
        try:
            yield from self._told(BeginEvent(training.step, self.controls, self.resumes))
            self.controls.may_change = True
            with Interrupt(self.view.say) as interrupt:
                yield from self._first_evaluation()
                while not training.complete and self.controls.reason is None:
                    yield from self._chunk()
                    if processes.any_process(interrupt.requested):
                        self.controls.stop("interrupted")
                    ends = training.complete or self.controls.reason is not None
                    if self.saver.is_due() or self.controls.saves or ends:
                        yield from self._save()
            yield from self._end(self.controls.reason)
        except GeneratorExit:
            self._end_at_once()
            raise
        except Exception as error:
            if isinstance(error, NoLearnerLeft):
                processes.on_first(self._summarise)
            if (failure := failures.of_training(error, training, self.folder)) is None:
                raise
            raise failure from error
        finally:
            self._close(after_error=sys.exc_info()[0] is not None)
        self._say_how_to_go_on()

    def _told(self, *events: Event) -> Iterator[Event]:
        """The events. Callbacks get all of them first, since a `break` may leave out the last."""
        for event in events:
            for callback in self.callbacks:
                callback(event)
        yield from events

    def _first_evaluation(self) -> Iterator[Event]:
        """That of a run whose end has none yet, or of policies that learners begin with."""
        training = self.training
        inherits = training.step == 0 and training.inherited is not None
        if (
            (training.complete or inherits)
            and training.evaluator is not None
            and not processes.on_first(lambda: records.is_evaluated(self._place, training.step))
        ):
            yield from self._told(*self._evaluate())
            yield from self._save()

    def _end(self, reason: str | None) -> Iterator[Event]:
        summary = processes.on_first(self._summarise)
        self.view.finished(summary)
        self.controls.may_change, self._has_ended = False, True
        step, complete = self.training.step, self.training.complete
        reason = None if complete else reason
        yield from self._told(EndEvent(step, self.controls, complete, reason, summary))

    def _end_at_once(self) -> None:
        """End a run whose iterator is closed, as after Ctrl-C."""
        if self._has_ended:
            return
        if self.training.step != self.saver.step:
            self._save_now()
        self.controls.stop("its loop ended")
        for _ in self._end(self.controls.reason):
            pass
        self._say_how_to_go_on()

    def _say_how_to_go_on(self) -> None:
        if self.controls.reason is None or self.training.complete:
            return
        how = resumption.call(self.folder, self.training.settings, self.view.is_python, self._parts)
        self.view.say(
            f"stopped at {self.training.step} steps ({self.controls.reason}), all saved. To go on: "
            f"{how}"
        )

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

    def _chunk(self) -> Iterator[Event]:
        training, controls = self.training, self.controls
        line = training.chunk()
        if self.lock is not None:
            self.lock.require()
        self._warn()
        self.wall = time.perf_counter() - self.began
        record = line | {"wall_seconds": self.wall}
        self._unwritten = [lambda: self.recorder.metrics(record | controls.metrics)]
        speed = line["steps_per_second"]
        self.view.update(training.step, speed / len(training.settings.seeds), training.latest)
        metrics = {name: values for name, values in line.items() if isinstance(values, list)}
        arrays = {name: np.array(values, np.float64) for name, values in metrics.items()}
        events: list[Event] = [MetricsEvent(training.step, controls, arrays, speed)]
        try:
            if training.evaluation_is_due:
                events += self._evaluate()
            change = training.change_settings()
            if change is not None:
                self._unwritten.append(lambda: self.recorder.change(change))
            yield from self._told(*events)
        finally:  # also where an evaluation fails, or the loop over events ends
            self._write()

    def _write(self) -> None:
        """Write the records of the last chunk, and what callbacks have added and changed."""
        while self._unwritten:
            self._unwritten.pop(0)()
        self.controls.metrics = {}
        while self.controls.films:
            self.recorder.film(*self.controls.films.pop(0))
        while self.controls.changes:
            self.recorder.change(self.controls.changes.pop(0))

    def _warn(self) -> None:
        while self.training.warnings:
            self.view.warn(self.training.warnings.pop(0))

    def _evaluate(self) -> list[Event]:
        self.view.status("evaluating")
        training, controls = self.training, self.controls
        best, is_first = training.best_return, training.random_return is None
        lines = training.evaluate()
        self.wall = time.perf_counter() - self.began
        for line in lines:
            record = line | {"wall_seconds": self.wall}
            self._unwritten.append(functools.partial(self.recorder.evaluation, record))
        random = training.random_return if is_first else None
        means = (training.last_return, training.last_signals, training.last_success)
        self.view.evaluated(training.step, *means, random)
        self._warn()
        events: list[Event] = [of_evaluation(lines, training.step, controls)]
        better = training.best_return > best
        if better.any():
            events.append(BestEvent(training.step, controls, better, training.best_return))
        return events

    def _save(self) -> Iterator[Event]:
        folder = self._save_now()
        self.controls.may_change = False
        yield from self._told(CheckpointEvent(self.training.step, self.controls, folder))
        self.controls.may_change = True

    def _save_now(self) -> Path:
        self._write()
        if self.lock is not None:
            self.lock.require()
        self.controls.saves = False
        states = callbacks.states(self.callbacks)
        return self.saver.save(self.recorder, self.began, states)

    def _summarise(self) -> dict[str, Any]:
        wall_seconds = time.perf_counter() - self.began
        summary = endings.summary(self.training, self._place, wall_seconds)
        self.recorder.summary(summary)
        return summary

    def _record(self) -> records.Recorder:
        settings = self.training.settings
        out = self._place if processes.is_first() else None
        return records.Recorder(out, [*loggers.chosen(settings), *self.loggers])
