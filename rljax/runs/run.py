"""One training: phases, chunks, evaluation, checkpoints, interruption, summary."""

from __future__ import annotations

import dataclasses
import functools
import json
import shlex
import shutil
import sys
import time
import zlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import jax
import numpy as np

from rljax import datasets, envs
from rljax.agent import float_fields
from rljax.distributed import devices, hardware, processes
from rljax.runs import checkpoints, console, interruption, records, statistics
from rljax.runs.records import read_config
from rljax.training import action_cost, configuration, evaluation, plan, population, schedules
from rljax.training.drivers.driver import EVALUATE, Driver, Report, environment_seeds
from rljax.training.learner import TRANSITION
from rljax.training.plan import round_up
from rljax.training.settings import Settings, check_settings, settings_of


class RunError(Exception):
    """A run cannot go on; the message says why, and what is saved."""


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

    `agent` is a name or a file; `env` an environment, None for the one that matches `data`; `data` a data set's name
    or file, from which agents with storage "dataset" learn, and which those with storage "replay" have beside their
    own experience; `seeds` a number of learners (0, 1, ...) or their seeds; `config` an agent's Config, a mapping of
    changes to the preset, or None; its floats may be sequences, one value per learner. `settings` are further fields of
    `Settings`.

    Raises `ValueError` or `TypeError` for what cannot work, before anything compiles; `FileExistsError` if `out`
    exists; `Diverged` for values that are not finite.

    After `rljax.distributed.processes.join`, every process must call it alike; the first one writes and shows.
    """
    order = processes.together(lambda: prepare(agent, env, steps, data=data, seeds=seeds, config=config, **settings))
    folder = Path(out) if out is not None else processes.first(lambda: default_folder(order.settings))
    return order.begin(folder, console.create(quiet), command or shlex.join(sys.argv)).execute()


@dataclasses.dataclass(frozen=True)
class Order:
    """A training that can begin: everything that `Run` needs but a folder."""

    settings: Settings
    module: Any
    config: Any
    dataset: datasets.Dataset | None

    def begin(self, folder: Path, view: console.View, command: str) -> Run:
        """The run, made in `folder` and ready to `execute`."""
        processes.require_same(lambda: self.described() | {"out": str(folder)})
        run = processes.together(lambda: Run(self.settings, self.module, self.config, folder, view, self.dataset))
        run.create(command)
        return run

    def described(self) -> dict[str, Any]:
        """What all processes that share it must agree upon, versions too."""
        return {
            **dataclasses.asdict(self.settings),
            **{f"config.{name}": value for name, value in configuration.as_json(self.config).items()},
            "agent's file": zlib.crc32(Path(str(self.module.__file__)).read_bytes()),
            "dataset": None if self.dataset is None else _described(self.dataset),
            **hardware.versions(),
        }


def prepare(
    agent: str,
    env: str | None = None,
    steps: int = 1_000_000,
    *,
    data: str | None = None,
    seeds: int | Sequence[int] = 1,
    config: Any = None,
    **settings: Any,
) -> Order:
    """Find the agent, its settings and its data; see `train`, whose arguments these are, for what it raises."""
    seeds = tuple(range(seeds)) if isinstance(seeds, int) else tuple(seeds)
    module = configuration.load_agent(agent)
    dataset = None if data is None else datasets.load(data)
    chosen = Settings(agent, plan.environment(agent, env, dataset), steps, seeds, data, **settings)
    if config is None or isinstance(config, Mapping):
        config = configuration.replace(plan.configured(agent, module, env, data), config or {}, "config")
    _require_mixing(chosen, module)
    return Order(chosen, module, config, dataset)


def order_of(settings: Settings, config: Mapping[str, Any], file: Path) -> Order:
    """The training with these settings, and the Config that `file` holds as JSON."""
    module = configuration.load_agent(settings.agent)
    own = configuration.replace(module.Config(), config, f"'{file}'")
    return Order(settings, module, own, None if settings.data is None else datasets.load(settings.data))


def resume(
    out: str | Path,
    steps: int | None = None,
    *,
    then_online: int | None = None,
    offline_share: float | str | None = None,
    quiet: bool = True,
    command: str | None = None,
) -> Path:
    """Continue the run in folder `out` to its end, or to `steps`; the result is that of a run never stopped.

    A run from a data set goes on in its environment for `then_online` steps after its updates, with `offline_share`, as
    if it had begun with them.

    Raises `ValueError` where `out` is no run, has nothing left to do or cannot do this, `CheckpointError` without a
    usable checkpoint.
    """
    given = {"then_online": then_online, "offline_share": offline_share}
    online = {name: value for name, value in given.items() if value is not None}
    if online and (then_online is None or then_online < 1 or steps is not None):
        raise ValueError(
            "to go on in an environment, give --then-online N of at least 1, with or without --offline-share; the "
            "updates before it stay as planned, so without --steps."
        )
    run = processes.together(lambda: Run.open(Path(out), console.create(quiet), online))
    order = Order(run.settings, run.module, run.config, run.dataset)
    processes.require_same(lambda: order.described() | {"run": str(out), "--steps": steps})
    run.resume(steps, command or shlex.join(sys.argv))
    return run.execute()


def prefer(module: Any, settings: Settings, num_learners: int) -> None:
    """Let JAX compute with the threads and devices that suit the learners on a CPU. Before it computes anything."""
    if module.storage == "stream":
        configuration.prefer_one_thread()
    elif num_learners > 1 and (module.storage == "dataset" or envs.is_compiled(settings.env)):
        devices.prefer_cores()


def default_folder(settings: Settings) -> Path:
    """runs/<agent>/<environment or data set>/<time>, as yet unused."""
    stamp = time.strftime("%Y%m%d-%H%M%S")
    task = envs.short(settings.env) if settings.data is None else datasets.short(settings.data)
    parent = Path("runs", configuration.agent_name(settings.agent), task)
    folder, number = parent / stamp, 1
    while folder.exists():
        folder, number = parent / f"{stamp}-{number}", number + 1
    return folder


class Run:
    """A training in a folder. Create or resume it, then execute."""

    def __init__(
        self,
        settings: Settings,
        module: Any,
        config: Any,
        folder: Path,
        view: console.View,
        dataset: datasets.Dataset | None = None,
    ) -> None:
        """Check everything that can be wrong; nothing is written or compiled yet."""
        check_settings(settings)
        configuration.persist_compilations()
        prefer(module, settings, len(settings.seeds))
        self.settings, self.module, self.config, self.folder, self.view = settings, module, config, folder, view
        self.clock = interruption.Clock(view)
        seeds = settings.seeds
        self.stacked = configuration.stack(config, len(seeds))
        self.members = population.members(config, seeds)
        self.course = schedules.course(settings.course)
        if self.course is not None:  # what a learner began with says little of it
            self.members = [population.Member(member.seed, {}) for member in self.members]
        _check_sizes(config)
        self.dataset = dataset
        planned = plan.plan(settings, module, config, self.stacked, dataset)
        self.phases, self.phase = planned.phases, planned.phases[0]
        self.evaluator, self.spec = planned.evaluator, planned.spec
        self.warnings = [] if planned.warning is None else [planned.warning]
        often = min(settings.log_every, settings.eval_every, settings.checkpoint_every)
        self.log_every = round_up(often, planned.multiple)
        self.eval_every = round_up(settings.eval_every, self.log_every)
        self.checkpoint_every = round_up(settings.checkpoint_every, self.log_every)
        for name in ("eval_every", "checkpoint_every"):
            asked, kept = getattr(settings, name), getattr(self, name)
            if kept > round_up(asked, planned.multiple):
                flag = f"--{name.replace('_', '-')}"
                self.warnings.append(
                    f"{flag} {asked:,} is {kept:,} here, a multiple of --log-every {self.log_every:,}."
                )
        self.total = planned.phases[-1].end
        if isinstance(self.course, schedules.PopulationBased):
            _check_course(self.course, self.config)
            # Learners are ranked by an evaluation of the same step.
            self.course = dataclasses.replace(self.course, every=round_up(self.course.every, self.eval_every))
        self.step, self.wall, self.loop_seconds, self.loop_steps = 0, 0.0, 0.0, 0
        self.best: Any = None
        self.best_return = np.full(len(seeds), -np.inf)
        self.last_return = np.full(len(seeds), np.nan)
        self.frozen = population.Frozen(len(seeds))
        self.latest = float("nan")

    @property
    def driver(self) -> Driver:
        """What moves the learners just now."""
        return self.phase.driver

    def create(self, command: str) -> None:
        """Make the folder, note all there is to know of the run, and start from fresh learners."""
        needed = self.needed()
        processes.together(self._check_memory)
        described = {
            **dataclasses.asdict(self.settings),
            "environment": self.settings.env,
            "storage": self.module.storage,
            "config": configuration.as_json(self.config),
            "learners": [dataclasses.asdict(member) for member in self.members],
            "spec": dataclasses.asdict(self.spec),
            "command": command,
            "state_bytes": needed,
            **action_cost.of_action(self.module, self.templates[0]["agent"], self.spec, self.stacked),
            "dataset": None if self.dataset is None else _described(self.dataset),
            "reference": None if self.dataset is None else self.dataset.reference,
            **hardware.provenance(),
        }
        processes.first(lambda: self._make_folder(described))
        try:
            processes.together(self._require_folder)
        except ValueError:
            processes.first(lambda: shutil.rmtree(self.folder))
            raise
        self.recorder = processes.together(self._record)
        self.view.start(self.folder, self.total, self.settings, needed)
        for warning in self.warnings:
            self.view.warn(warning)
        with self.clock.compiling():
            self.driver.start(self.settings.seeds)

    def _make_folder(self, described: Mapping[str, Any]) -> None:
        try:
            self.folder.mkdir(parents=True, exist_ok=False)
        except FileExistsError:
            raise FileExistsError(
                f"'{self.folder}' exists. Choose another --out, or continue that run: rljax resume {self.folder}"
            ) from None
        records.write_json(self.folder / "config.json", described)

    def _require_folder(self) -> None:
        """Raise `ValueError` where the first process has made the folder on a disk that this one does not see."""
        for _ in range(10):  # network disks show what is new after a while
            if (self.folder / "config.json").exists():
                return
            time.sleep(0.5)
        raise ValueError(
            f"'{self.folder}', made by process 0, is not to be seen from here. The processes of a run write its "
            "checkpoints together: give --out a folder on a disk that all hosts share."
        )

    @classmethod
    def open(cls, folder: Path, view: console.View, online: Mapping[str, Any] | None = None) -> Run:
        """The run in `folder`, with the settings that its config.json holds, and those of a phase `online` to come."""
        described = read_config(folder)
        settings = dataclasses.replace(settings_of(described), **(online or {}))
        if online and described.get("then_online"):
            raise ValueError(f"'{folder}' goes on online already. For another number of steps in all: --steps N")
        order = order_of(settings, described["config"], folder / "config.json")
        if order.dataset is not None:
            then, now = described["dataset"], _described(order.dataset)
            if now != then:
                raise ValueError(
                    f"data set '{order.settings.data}' is not what the run in '{folder}' began with: its files have "
                    f"changed. Then: {then}; now: {now}."
                )
        run = cls(order.settings, order.module, order.config, folder, view, order.dataset)
        if online:
            run._check_memory()
        return run

    def _check_memory(self) -> None:
        shared = self.shared()
        own = shared + (self.needed() - shared) // processes.number()
        _check_memory(own, None if self.settings.data_on_host else self.dataset)

    def needed(self) -> int:
        """Bytes of the largest state, and of the data set."""
        return max(map(checkpoints.nbytes, self.templates)) + self.shared()

    @functools.cached_property
    def templates(self) -> list[dict[str, Any]]:
        """The structure, shapes and dtypes of each phase's arrays: traced once, which takes a while."""
        return [phase.driver.template(self.settings.seeds) for phase in self.phases]

    def shared(self) -> int:
        """Those of them that do not grow with the number of learners."""
        return 0 if self.dataset is None or self.settings.data_on_host else self.dataset.nbytes

    def resume(self, steps: int | None, command: str) -> None:
        """Continue from the newest whole checkpoint, to `steps` where given; `command` is noted."""
        path = processes.first(lambda: checkpoints.newest(self.folder / "checkpoints"))
        notes = processes.together(lambda: self._continued(path, steps))
        processes.first(lambda: self._note_resumption(notes["step"], command))
        self.recorder = processes.together(self._record)
        self.recorder.truncate(notes["step"])
        self.view.start(self.folder, self.total, self.settings, read_config(self.folder)["state_bytes"])
        with self.clock.compiling():
            template = self.driver.template(self.settings.seeds)
            arrays = {name: checkpoints.restore(path, name, template[name]) for name in template}
            self.best = self.driver.spread.learners(checkpoints.restore(path, "best", template["agent"]))
            blob = (path / "environments").read_bytes() if notes["environments"] == "saved" else None
            self.driver.restore(arrays, blob)
        if notes["environments"] == "lost":
            self.view.warn(
                f"the state of '{self.settings.env}' cannot be saved ({notes['reason']}): its episodes start anew, "
                "so this run will differ from one that was never stopped."
            )
        self.step, self.wall = notes["step"], notes["wall_seconds"]
        self.loop_seconds, self.loop_steps = notes["loop_seconds"], notes["loop_steps"]
        self.clock.compile_seconds += notes["compile_seconds"]
        self.best_return = np.array([-np.inf if x is None else x for x in notes["best_return"]])
        self.frozen.found = {found["learner"]: found for found in notes.get("diverged", [])}
        if notes.get("values"):
            self.set(notes["values"])

    def _continued(self, path: Path, steps: int | None) -> dict[str, Any]:
        """What checkpoint `path` notes, from which this run goes on, to `steps` where given.

        Raises `ValueError` where it cannot, or has nothing left to do.
        """
        notes = self.at(path)
        if steps is not None:
            self._extend(steps)
        if notes["step"] >= self.total and self._is_summarised():
            raise ValueError(
                f"'{self.folder}' is complete at {notes['step']} steps. To go on: "
                f"rljax resume {self.folder} --steps {2 * notes['step']}"
            )
        for name, value in self.structure().items():
            if notes["structure"].get(name) != value:
                raise ValueError(
                    f"'{self.folder / 'config.json'}' says {name} = {value}, the checkpoint was made with "
                    f"{notes['structure'].get(name)}. Structural settings cannot change in a resumed run: restore the "
                    "value, or start a new run."
                )
        return notes

    def _is_summarised(self) -> bool:
        """Whether summary.json is of the end; a run that is killed just before has no such one."""
        path = self.folder / "summary.json"
        summary = json.loads(path.read_text()) if path.exists() else {}
        return bool(summary.get("complete")) and summary["steps"] >= self.total

    def _is_evaluated(self) -> bool:
        """Whether this step has its evaluation, or can have none."""
        if self.evaluator is None:
            return True
        return any(line["step"] == self.step for line in records.read(self.folder, "evaluations"))

    def structure(self) -> dict[str, Any]:
        """What a checkpoint's arrays depend on, ready for JSON."""
        traced = float_fields(type(self.config))
        settings = configuration.as_json(self.config)
        return {f"config.{name}": value for name, value in settings.items() if name not in traced} | {
            "seeds": list(self.settings.seeds),
            "observation_shape": list(self.spec.observation_shape),
            "action_size": self.spec.action_size,
        }

    def at(self, path: Path) -> dict[str, Any]:
        """What checkpoint `path` notes of the run, which from here on is in the phase that the checkpoint is of."""
        notes = json.loads((path / "run.json").read_text())
        self.phase = self.phases[notes.get("phase", 0)]
        return notes

    def _extend(self, steps: int) -> None:
        """Let the last phase end when the whole run has had `steps`."""
        last, before = self.phases[-1], self.phases[-2].end if len(self.phases) > 1 else 0
        if steps <= before:
            raise ValueError(f"--steps is {steps}, the run has {before} updates from its data set before it goes on.")
        self.total = before + round_up(steps - before, last.iteration)
        index = self.phases.index(self.phase)
        self.phases[-1] = dataclasses.replace(last, end=self.total)
        self.phase = self.phases[index]
        name = "then_online" if before else "steps"
        self.settings = dataclasses.replace(self.settings, **{name: steps - before})

    def _note_resumption(self, step: int, command: str) -> None:
        """Let config.json say what was typed to go on from `step`, and what is planned now."""
        described = read_config(self.folder)
        if self.settings.then_online and not described.get("then_online"):
            described["state_bytes"] = self.needed()
        described |= {name: getattr(self.settings, name) for name in ("steps", "then_online", "offline_share")}
        described["resumed"] = [*described.get("resumed", []), {"step": step, "command": command}]
        records.write_json(self.folder / "config.json", described)

    def execute(self) -> Path:
        """Train to the end, or to an interruption; the folder holds everything either way."""
        self.began = time.perf_counter() - self.wall
        interrupted = False
        try:
            if self.complete and not processes.first(self._is_evaluated):  # it was stopped at what is now its end
                self._evaluate()
                self._save()
            with interruption.Interrupt(self.view) as interrupt:
                while not self.complete and not interrupted:
                    if self.step >= self.phase.end:
                        self._next_phase()
                    self._chunk()
                    self._take_turn()
                    interrupted = processes.anywhere(interrupt.requested)
                    if self.step % self.checkpoint_every == 0 or interrupted or self.complete:
                        self._save()
            self.view.finished(processes.first(self._summarise))
        except Diverged:
            processes.first(self._summarise)
            raise
        except FloatingPointError as error:
            raise Diverged(f"{error} {self._how_to_resume()}") from error
        except (OSError, checkpoints.CheckpointError, processes.HostError) as error:
            raise RunError(f"{error} {self._how_to_resume()}") from error
        except jax.errors.JaxRuntimeError as error:
            if not processes.several():
                raise
            cause = str(error).partition("\n")[0]
            raise RunError(
                f"this process has lost the others, or failed itself ({cause}). {self._how_to_resume()}"
            ) from error
        finally:
            self.recorder.close()
            self.close()
        if interrupted and not self.complete:
            self.view.say(f"stopped at {self.step} steps, all saved. To go on: rljax resume {self.folder}")
        return self.folder

    def close(self) -> None:
        """Let go of data, environments and the terminal."""
        for phase in self.phases:
            phase.driver.close()
        if self.evaluator is not None:
            self.evaluator.close()
        self.view.stop()

    def _next_phase(self) -> None:
        learnt = self.driver.learners
        self.driver.close()
        self.phase = self.phases[self.phases.index(self.phase) + 1]
        with self.clock.compiling():
            self.driver.start(self.settings.seeds, learnt)

    def _chunk(self) -> None:
        until = min(self.phase.end, self.step + self.log_every - self.step % self.log_every)
        began, compiled = time.perf_counter(), self.clock.compile_seconds
        with self.clock.compiling():
            if len(self.members) > 1:
                self.frozen.remember(self.driver.agent_state)
            try:
                self.driver.advance((until - self.step) // self.phase.iteration)
            except FloatingPointError:
                self._freeze_diverged(self.driver.report(), until)  # the cause, where it is a loss
                raise
            report = self.driver.report()
        seconds, taken = time.perf_counter() - began, until - self.step
        self.step = until
        self._freeze_diverged(report, self.step)
        speed = taken * len(self.settings.seeds) / seconds
        if self.clock.compile_seconds == compiled:  # a chunk that compiled says nothing of the loop's speed
            self.loop_seconds, self.loop_steps = self.loop_seconds + seconds, self.loop_steps + taken
        self.wall = time.perf_counter() - self.began
        line = {"step": self.step, "update": report.updates, "wall_seconds": self.wall, "steps_per_second": speed}
        metrics = {name: np.where(self.frozen.mask, np.nan, value) for name, value in report.metrics.items()}
        self.recorder.metrics(line | {name: value.tolist() for name, value in metrics.items()})
        if np.isfinite(metrics["episode/return"]).any():
            self.latest = float(np.nanmean(metrics["episode/return"]))
        self.view.update(self.step, speed / len(self.settings.seeds), self.latest)
        if self.evaluator is not None and (self.step % self.eval_every == 0 or self.step >= self.phase.end):
            self._evaluate()

    def _take_turn(self) -> None:
        """Change settings, and go on with other learners' agents, where the course says so."""
        if self.course is None or self.complete:
            return
        scores = np.where(self.frozen.mask, -np.inf, self.last_return)
        turn = self.course.turn(self.step, scores, configuration.varied(self.config))
        if turn is None:
            return
        self.driver.agent_state = population.take(self.driver.agent_state, turn.parents)
        self.set(turn.values)
        for learner in np.flatnonzero(turn.parents != np.arange(len(self.members))):
            self.frozen.found.pop(int(learner), None)
        self.recorder.turn({"step": self.step, "parents": turn.parents, "values": turn.values, "scores": scores})

    def set(self, values: Mapping[str, Sequence[float]]) -> None:
        """Let the learners have these settings, one value each, from here on."""
        self.config = dataclasses.replace(self.config, **{name: tuple(x) for name, x in values.items()})
        self.stacked = configuration.stack(self.config, len(self.members))
        for phase in self.phases:
            phase.driver.reconfigure(self.stacked)

    def _freeze_diverged(self, report: Report, step: int) -> None:
        """Freeze learners with a metric that is not finite; raise `Diverged` where no other one is left."""
        for learner in np.flatnonzero(~self.frozen.mask):
            bad = [(int(found[learner]), name) for name, found in report.first_bad.items() if found[learner] >= 0]
            if bad:
                update, name = min(bad)
                cause, remedy = self._explain(int(learner), name, update, step)
                self.frozen.found[int(learner)] = {"learner": int(learner), "step": step, "cause": cause}
                if self.frozen.mask.all():
                    all_of = "No other learner is left. " if len(self.members) > 1 else ""
                    raise Diverged(
                        f"{cause}. Training has stopped and nothing was saved after it. {all_of}"
                        f"{self._how_to_resume()} {remedy}"
                    )
                self.view.warn(f"{cause}: it is kept as it was before, the others go on. {remedy}")
        self.driver.agent_state = self.frozen.put_back(self.driver.agent_state)

    def _explain(self, learner: int, name: str, update: int, step: int) -> tuple[str, str]:
        """What is not finite, and what can be done."""
        member = self.members[learner]
        of = f"of learner {learner} (seed {member.seed}"
        of += f", {population.label(member.settings)})" if member.settings else ")"
        if name == TRANSITION:
            cause = f"an observation or reward {of} is not finite in its step {update + 1}"
            return cause, "Mend the environment, or choose another."
        cause = f"metric '{name}' {of} is not finite from update {update} on, before step {step}"
        return cause, "If it happens again, lower the learning rates or scale the rewards."

    def _how_to_resume(self) -> str:
        saved = checkpoints.steps(self.folder / "checkpoints")
        if not saved:
            return "There is no checkpoint yet."
        return f"The last good checkpoint is of step {saved[-1]}: rljax resume {self.folder}"

    def _evaluate(self) -> None:
        self.view.status("evaluating")
        with self.clock.compiling():
            episodes = evaluate_now(self.evaluator, self.driver.agent_state, self.settings, self.step, self.stacked)
        self.wall = time.perf_counter() - self.began
        for learner, seed in enumerate(self.settings.seeds):
            line = {"step": self.step, "learner": learner, "seed": seed, "returns": episodes.returns[learner].tolist()}
            line |= {"lengths": episodes.lengths[learner].tolist(), "wall_seconds": self.wall}
            if episodes.success is not None:
                line["success"] = episodes.success[learner].tolist()
            if self.dataset is not None and self.dataset.reference is not None:
                line["scores"] = self.dataset.score(episodes.returns[learner]).tolist()
            if learner in self.frozen.found:
                line["diverged"] = True
            self.recorder.evaluation(line)
        means = self.last_return = episodes.returns.mean(axis=1)
        improved = means > self.best_return
        self.best_return = np.where(improved, means, self.best_return)
        self.best = population.choose(improved, self.driver.agent_state, self.best)
        self.latest = float(means.mean())
        self.view.evaluated(self.step, means)

    def _save(self) -> None:
        self.view.status("saving")
        self.recorder.sync()
        blobs = {}
        environments = self.driver.environments()
        if environments is not None:
            blobs["environments"] = environments
        best = self.best
        if best is None:
            best = population.choose(self.best_return < 0, self.driver.agent_state, None)
        notes = {
            "step": self.step,
            "wall_seconds": time.perf_counter() - self.began,
            "compile_seconds": self.clock.compile_seconds,
            "loop_seconds": self.loop_seconds,
            "loop_steps": self.loop_steps,
            "phase": self.phases.index(self.phase),
            "best_return": [None if np.isinf(x) else x for x in self.best_return.tolist()],
            "diverged": list(self.frozen.found.values()),
            "values": None if self.course is None else configuration.varied(self.config),
            "structure": self.structure(),
            "environments": "saved" if environments is not None else self.driver.without_environments,
            "reason": self.driver.save_failure,
        }
        blobs["run.json"] = json.dumps(notes).encode()
        items = self.driver.arrays() | {"best": best}
        keep = self.settings.keep_checkpoints
        checkpoints.save(self.folder / "checkpoints", self.step, items, blobs, keep=keep)

    @property
    def complete(self) -> bool:
        """Whether there is nothing left to do."""
        return self.step >= self.total

    def _summarise(self) -> dict[str, Any]:
        summary = {
            "agent": self.settings.agent,
            "environment": self.settings.env,
            "data": self.settings.data,
            "seeds": list(self.settings.seeds),
            **results(records.read(self.folder, "evaluations"), self.members, self.dataset is not None),
            "diverged": list(self.frozen.found.values()),
            "steps": self.step,
            "complete": self.complete,
            "wall_seconds": time.perf_counter() - self.began,
            "compile_seconds": self.clock.compile_seconds,
            "steps_per_second": self._speed(),
            "devices_used": self.driver.spread.num_devices,
            "processes": processes.number(),
            "peak_memory_bytes": hardware.peak_memory(),
        }
        self.recorder.summary(summary)
        return summary

    def _speed(self) -> float | None:
        """Environment steps of all learners per second of the training loop alone."""
        return self.loop_steps * len(self.settings.seeds) / self.loop_seconds if self.loop_seconds else None

    def _record(self) -> records.Recorder | records.Nowhere:
        if not processes.is_first():
            return records.Nowhere()
        return records.Recorder(self.folder, tensorboard=self.settings.tensorboard, wandb=self.settings.wandb)


def evaluate_now(evaluator: Any, state: Any, settings: Settings, step: int, config: Any) -> evaluation.Episodes:
    """Play `eval_episodes` episodes of each learner, on seeds that depend on its seed and the step."""
    number = settings.eval_episodes
    seeds = [s for seed in settings.seeds for s in environment_seeds(seed, EVALUATE, step, number=number)]
    return evaluator(state, seeds, config)


def results(evaluations: list[dict[str, Any]], members: Sequence[population.Member], offline: bool) -> dict[str, Any]:
    """What evaluations say: of all learners, or of each setting where they differ in settings."""

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
    """The best return and score to expect after so many online evaluations, for whoever picks a policy by them."""
    found = {name: statistics.expected_best(evaluations, field) for name, field in statistics.FIELDS.items()}
    return {"expected_best": {name: {str(n): x for n, x in values.items()} for name, values in found.items() if values}}


def _described(dataset: datasets.Dataset) -> dict[str, Any]:
    """What identifies a data set, as JSON holds it."""
    returns = dataset.returns()
    mean = float(returns.mean()) if len(returns) else None
    return json.loads(json.dumps({"transitions": dataset.num, "mean_return": mean, **dataset.provenance}))


def _require_mixing(settings: Settings, module: Any) -> None:
    """Raise `ValueError` for a share of batches where nothing is mixed."""
    mixes = settings.then_online if module.storage == "dataset" else settings.data is not None
    if not mixes and settings.offline_share != Settings.offline_share:
        remedy = "--then-online N" if module.storage == "dataset" else "--data DATA"
        raise ValueError(
            f"--offline-share {settings.offline_share} is of batches from a data set and new experience, which are "
            f"mixed with {remedy}."
        )


def _check_course(course: schedules.PopulationBased, config: Any) -> None:
    if course.every < 1:
        raise ValueError(f"settings are to change every {course.every} steps, it must be at least 1.")
    for name in course.ranges:
        if name not in configuration.varied(config):
            raise ValueError(f"population-based training changes '{name}', of which each learner needs its own value.")


def _check_sizes(config: Any) -> None:
    for name in ("num_envs", "num_steps", "num_updates", "batch_size"):
        if getattr(config, name, 1) < 1:
            raise ValueError(f"--config.{name.replace('_', '-')} is {getattr(config, name)}, it must be at least 1.")
    for name in [field.name for field in dataclasses.fields(config) if field.name.endswith("hidden")]:
        if min(getattr(config, name), default=1) < 1:
            raise ValueError(
                f"--config.{name.replace('_', '-')} is {getattr(config, name)}: each layer has at least 1 unit."
            )


def _check_memory(needed: int, dataset: datasets.Dataset | None) -> None:
    limit = hardware.available_memory()
    if limit is not None and needed > limit:
        kind = jax.local_devices()[0].device_kind
        raise ValueError(
            f"the run needs {needed / 1e9:.1f} GB on {kind}, {limit / 1e9:.1f} GB are there. "
            + ("Lower --config.replay-size or --seeds." if dataset is None else _smaller(dataset))
        )


def _smaller(dataset: datasets.Dataset) -> str:
    return (
        f"The data set takes {dataset.nbytes / 1e9:.1f} GB of them: keep it on the host with --data-on-host, "
        "which is slower, or lower --seeds."
    )
