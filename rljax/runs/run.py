"""A run: one training in a folder, which holds its settings, records, checkpoints and summary."""

from __future__ import annotations

import dataclasses
import json
import shlex
import shutil
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax

from rljax.distributed import hardware, processes
from rljax.runs import checkpoints, console, experiments, records, statistics
from rljax.runs.interruption import Interrupt
from rljax.runs.records import read_config
from rljax.training import population
from rljax.training.loop import NoLearnerLeft, Training
from rljax.training.plan import Experiment
from rljax.training.settings import settings_of


class RunError(Exception):
    """A run cannot go on. The message says why, and what is saved."""


class Diverged(RunError):
    """A metric or an observation is not finite."""


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
    **settings: Any,
) -> Path:
    """Train one learner per seed and return the run's folder.

    Args:
        agent: a name, such as "sac", or the path of an agent's file.
        env: an environment; None is the one that matches `data`.
        steps: environment steps of each learner; for an agent that learns from data alone, updates.
        data: a data set's name or file. Agents that declare a `Dataset` learn from it alone. Agents that declare a
            `Replay` mix it with their own experience.
        seeds: a number of learners (with seeds 0, 1, ...) or their seeds.
        config: an agent's Config, a mapping of changes to the preset, or None. Its floats may be sequences, one value
            per learner.
        out: the run's folder; None is a new one in runs/.
        settings: further fields of `rljax.training.settings.Settings`.

    Raises `ValueError` or `TypeError` for arguments that cannot work, before anything compiles; `FileExistsError` if
    `out` exists; `Diverged` for values that are not finite.

    After `rljax.distributed.processes.join`, every process must call this function with the same arguments. The first
    process writes the files and shows the progress.
    """
    experiment = processes.on_all(
        lambda: experiments.prepare(agent, env, steps, data=data, seeds=seeds, config=config, **settings)
    )
    folder = (
        Path(out) if out is not None else processes.on_first(lambda: experiments.default_folder(experiment.settings))
    )
    return Run.begin(experiment, folder, console.create(quiet), command or shlex.join(sys.argv)).execute()


def resume(
    out: str | Path,
    steps: int | None = None,
    *,
    then_online: int | None = None,
    offline_share: float | str | None = None,
    quiet: bool = True,
    command: str | None = None,
) -> Path:
    """Continue the run in folder `out` to its end, or to `steps`. The result equals that of a run without a stop.

    With `then_online`, a run from a data set goes on in its environment for so many steps after its updates, with
    `offline_share`. The result is the same as if it had begun with these settings.

    Raises `ValueError` where `out` is not a run, is complete, or cannot continue in this way; `CheckpointError` without
    a usable checkpoint.
    """
    given = {"then_online": then_online, "offline_share": offline_share}
    online = {name: value for name, value in given.items() if value is not None}
    if online and (then_online is None or then_online < 1 or steps is not None):
        raise ValueError(
            "to go on in an environment, give --then-online N of at least 1, with or without --offline-share; the "
            "updates before it stay as planned, so without --steps."
        )
    run = processes.on_all(lambda: Run.open(Path(out), console.create(quiet), online))
    processes.require_same(lambda: experiments.shared(run.experiment) | {"run": str(out), "--steps": steps})
    run.resume(steps, command or shlex.join(sys.argv))
    return run.execute()


class Run:
    """A training in a folder. First call `begin`, or `open` and `resume`; then call `execute`."""

    def __init__(self, experiment: Experiment, folder: Path, view: console.View) -> None:
        """Check everything that can be wrong. Nothing is written or compiled yet."""
        self.experiment, self.folder, self.view = experiment, folder, view
        self.training = Training(experiment, on_compile=lambda: view.status("compiling"))
        self.wall = 0.0

    @classmethod
    def begin(cls, experiment: Experiment, folder: Path, view: console.View, command: str) -> Run:
        """Begin a run with fresh learners in a new folder, and write its settings, versions and hardware there."""
        processes.require_same(lambda: experiments.shared(experiment) | {"out": str(folder)})
        run = processes.on_all(lambda: cls(experiment, folder, view))
        training = run.training
        needed = training.needed_bytes
        processes.on_all(training.check_memory)
        described = {
            **experiments.described(experiment),
            **training.described(),
            "command": command,
            **hardware.provenance(),
        }
        processes.on_first(lambda: run._make_folder(described))
        try:
            processes.on_all(run._require_folder)
        except ValueError:
            processes.on_first(lambda: shutil.rmtree(folder))
            raise
        run.recorder = processes.on_all(run._record)
        view.start(folder, training.total, training.settings, needed)
        run._warn()
        training.start()
        return run

    def _make_folder(self, described: Mapping[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise FileExistsError(
                f"'{self.folder}' exists. Choose another --out, or continue that run: rljax resume {self.folder}"
            ) from None
        records.write_json(self.folder / "config.json", described)

    def _require_folder(self) -> None:
        """Raise `ValueError` where this process does not see the folder that the first process has made."""
        for _ in range(10):  # on network disks a new folder appears with a delay
            if (self.folder / "config.json").exists():
                return
            time.sleep(0.5)
        raise ValueError(
            f"process 0 has made '{self.folder}', and this process does not see it. The processes of a run write its "
            "checkpoints together: give --out a folder on a disk that all hosts share."
        )

    @classmethod
    def open(cls, folder: Path, view: console.View, online: Mapping[str, Any] | None = None) -> Run:
        """The run in `folder` with the settings in its config.json, and with an added online stage for `online`."""
        described = read_config(folder)
        settings = dataclasses.replace(settings_of(described), **(online or {}))
        if online and described.get("then_online"):
            raise ValueError(f"'{folder}' goes on online already. For another number of steps in all: --steps N")
        if online:
            changes = experiments.preset_online(settings.agent, settings.env, settings.data)
            settings = dataclasses.replace(settings, online=changes)
        experiment = experiments.restored(settings, described["config"], folder / "config.json")
        then, now = described["dataset"], experiments.described_data(experiment.dataset)
        if now is not None and now != then:
            raise ValueError(
                f"data set '{settings.data}' is not what the run in '{folder}' began with: its files have "
                f"changed. Then: {then}; now: {now}."
            )
        run = cls(experiment, folder, view)
        if experiment.base is not None and experiment.base.digest() != described["base_digest"]:
            run.close()
            raise ValueError(
                f"the policy in '{settings.base}' is not the one that the run in '{folder}' began with: it has changed "
                "since, as when it is trained on. Restore that folder, or start a new run."
            )
        if online:
            run.training.warn_of_schedule(settings_of(described))
            run.training.check_memory()
        return run

    def resume(self, steps: int | None, command: str) -> None:
        """Continue from the newest undamaged checkpoint, to `steps` where given. config.json records `command`."""
        path = processes.on_first(lambda: checkpoints.newest(self.folder / "checkpoints"))
        notes = processes.on_all(lambda: self._continued(path, steps))
        processes.on_first(lambda: self._note_resumption(notes["step"], command))
        self.recorder = processes.on_all(self._record)
        self.recorder.truncate(notes["step"])
        training = self.training
        self.view.start(self.folder, training.total, training.settings, read_config(self.folder)["state_bytes"])
        self._warn()
        with training.clock.counting():
            template = training.driver.template(training.settings.seeds)
            arrays = {name: checkpoints.restore(path, name, template[name]) for name in template}
            best = checkpoints.restore(path, "best", template["agent"])
        environments = (path / "environments").read_bytes() if notes["environments"] == "saved" else None
        training.restore(arrays, best, notes, environments)
        self.wall = notes["wall_seconds"]
        if notes["environments"] == "lost":
            self.view.warn(
                f"the state of '{training.settings.env}' cannot be saved ({notes['reason']}): its episodes start anew, "
                "so this run will differ from one that was never stopped."
            )

    def _continued(self, path: Path, steps: int | None) -> dict[str, Any]:
        """Check that the run can go on from checkpoint `path`, to `steps` where given; return the checkpoint's notes.

        Raises `ValueError` where it cannot continue, and where the run is complete.
        """
        notes, training = self.notes_of(path), self.training
        if steps is not None:
            training.extend(steps)
        if notes["step"] >= training.total and self._is_summarised():
            raise ValueError(
                f"'{self.folder}' is complete at {notes['step']} steps. To go on: "
                f"rljax resume {self.folder} --steps {2 * notes['step']}"
            )
        for name, value in training.structure().items():
            if notes["structure"].get(name, value if name.startswith("online.") else None) != value:
                raise ValueError(
                    f"'{self.folder / 'config.json'}' says {name} = {value}, the checkpoint was made with "
                    f"{notes['structure'].get(name)}. Structural settings cannot change in a resumed run: restore the "
                    "value, or start a new run."
                )
        return notes

    def notes_of(self, path: Path) -> dict[str, Any]:
        """Read the notes of checkpoint `path`, and enter the stage in which it was saved."""
        notes = json.loads((path / "run.json").read_text())
        self.training.enter_stage(notes)
        return notes

    def _is_summarised(self) -> bool:
        """Whether summary.json describes the run's end. A run that was killed shortly before the end lacks it."""
        path = self.folder / "summary.json"
        summary = json.loads(path.read_text()) if path.exists() else {}
        return bool(summary.get("complete")) and summary["steps"] >= self.training.total

    def _is_evaluated(self) -> bool:
        """Whether this step has its evaluation, or needs none."""
        if self.training.evaluator is None:
            return True
        return any(line["step"] == self.training.step for line in records.read(self.folder, "evaluations"))

    def _note_resumption(self, step: int, command: str) -> None:
        """Record in config.json the command that resumed the run at `step`, and the new plan."""
        described, settings = read_config(self.folder), self.training.settings
        if settings.then_online and not described.get("then_online"):
            described["state_bytes"] = self.training.needed_bytes
        described |= {name: getattr(settings, name) for name in ("steps", "then_online", "offline_share", "online")}
        described["resumed"] = [*described.get("resumed", []), {"step": step, "command": command}]
        records.write_json(self.folder / "config.json", described)

    def execute(self) -> Path:
        """Train to the end or to an interruption. In both cases the folder holds everything."""
        self.began = time.perf_counter() - self.wall
        training, interrupted = self.training, False
        try:
            if training.complete and not processes.on_first(
                self._is_evaluated
            ):  # the run was stopped at the step that is now its end
                self._evaluate()
                self._save()
            with Interrupt(self.view.say) as interrupt:
                while not training.complete and not interrupted:
                    self._chunk()
                    interrupted = processes.any_process(interrupt.requested)
                    if training.step % training.checkpoint_every == 0 or interrupted or training.complete:
                        self._save()
            self.view.finished(processes.on_first(self._summarise))
        except NoLearnerLeft as error:
            processes.on_first(self._summarise)
            cause, remedy = error.args
            left = "No other learner is left. " if len(training.members) > 1 else ""
            raise Diverged(
                f"{cause}. Training has stopped and nothing was saved after it. {left}{self._how_to_resume()} {remedy}"
            ) from error
        except FloatingPointError as error:
            raise Diverged(f"{error} {self._how_to_resume()}") from error
        except (OSError, checkpoints.CheckpointError, processes.ProcessError) as error:
            raise RunError(f"{error} {self._how_to_resume()}") from error
        except jax.errors.JaxRuntimeError as error:
            if not processes.is_distributed():
                raise
            cause = str(error).partition("\n")[0]
            raise RunError(
                f"this process has lost the others, or failed itself ({cause}). {self._how_to_resume()}"
            ) from error
        finally:
            self.recorder.close()
            self.close()
        if interrupted and not training.complete:
            self.view.say(f"stopped at {training.step} steps, all saved. To go on: rljax resume {self.folder}")
        return self.folder

    def close(self) -> None:
        """Release data, environments and the terminal."""
        self.training.close()
        self.view.stop()

    def _chunk(self) -> None:
        training = self.training
        line = training.chunk()
        self._warn()
        self.wall = time.perf_counter() - self.began
        self.recorder.metrics(line | {"wall_seconds": self.wall})
        self.view.update(training.step, line["steps_per_second"] / len(training.settings.seeds), training.latest)
        if training.evaluation_is_due:
            self._evaluate()
        change = training.change_settings()
        if change is not None:
            self.recorder.change(change)

    def _warn(self) -> None:
        """Show the training's warnings once."""
        while self.training.warnings:
            self.view.warn(self.training.warnings.pop(0))

    def _evaluate(self) -> None:
        self.view.status("evaluating")
        lines = self.training.evaluate()
        self.wall = time.perf_counter() - self.began
        for line in lines:
            self.recorder.evaluation(line | {"wall_seconds": self.wall})
        self.view.evaluated(self.training.step, self.training.last_return)

    def _how_to_resume(self) -> str:
        saved = checkpoints.steps(self.folder / "checkpoints")
        if not saved:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is of step {saved[-1]}: rljax resume {self.folder}"

    def _save(self) -> None:
        self.view.status("saving")
        self.recorder.sync()
        training, blobs = self.training, {}
        environments = training.driver.environments()
        if environments is not None:
            blobs["environments"] = environments
        notes = training.notes(environments) | {"wall_seconds": time.perf_counter() - self.began}
        blobs["run.json"] = json.dumps(notes).encode()
        keep = training.settings.keep_checkpoints
        checkpoints.save(self.folder / "checkpoints", training.step, training.arrays(), blobs, keep=keep)

    def _summarise(self) -> dict[str, Any]:
        training = self.training
        evaluations = records.read(self.folder, "evaluations")
        summary = {
            "agent": training.settings.agent,
            "environment": training.settings.env,
            "data": training.settings.data,
            "seeds": list(training.settings.seeds),
            **results(evaluations, training.members, training.dataset is not None),
            "diverged": list(training.frozen.found.values()),
            "steps": training.step,
            "complete": training.complete,
            "wall_seconds": time.perf_counter() - self.began,
            "compile_seconds": training.clock.seconds,
            "steps_per_second": training.steps_per_second,
            "devices_used": training.driver.spread.num_devices,
            "processes": processes.process_count(),
            "peak_memory_bytes": hardware.peak_memory(),
        }
        self.recorder.summary(summary)
        return summary

    def _record(self) -> records.Recorder | records.Nowhere:
        if not processes.is_first():
            return records.Nowhere()
        settings = self.training.settings
        return records.Recorder(self.folder, tensorboard=settings.tensorboard, wandb=settings.wandb)


def results(evaluations: list[dict[str, Any]], members: Sequence[population.Member], offline: bool) -> dict[str, Any]:
    """Summarise evaluations: over all learners, or for each setting where learners differ in settings."""

    def of(learners: Sequence[int]) -> dict[str, Any]:
        own = [line for line in evaluations if line["learner"] in learners]
        found = statistics.summarise(own) if own else {"final": None, "best": None}
        found = found | {"last_three": statistics.last_three(own)}
        return found | _after_evaluations(own) if offline else found

    settings = population.settings(members)
    if len(settings) == 1:
        return of(settings[0][1])
    each = [{"values": dict(values), "learners": own, **of(own)} for values, own in settings]
    return {"final": None, "best": None, "settings": each}


def _after_evaluations(evaluations: list[dict[str, Any]]) -> dict[str, Any]:
    """The expected best return and score where n policies are evaluated online and the best of them is chosen."""
    found = {name: statistics.expected_best(evaluations, field) for name, field in statistics.FIELDS.items()}
    return {"expected_best": {name: {str(n): x for n, x in values.items()} for name, values in found.items() if values}}
