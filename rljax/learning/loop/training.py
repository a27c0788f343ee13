"""The training of learners, whose files `rljax.runs.run` writes."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import jax
import numpy as np

from rljax import envs
from rljax.distributed import devices
from rljax.envs.environment import EnvironmentFailed
from rljax.learning import configuration, population, schedules
from rljax.learning.drivers.driver import ChunkReport, Driver
from rljax.learning.evaluation import LIMIT, Episodes, evaluate
from rljax.learning.loop import episode_warnings
from rljax.learning.loop.divergence import freeze_diverged
from rljax.learning.loop.observations import drift, snapshots
from rljax.learning.plan import Experiment, memory, plan, refusals, require_same_spaces, round_up
from rljax.learning.settings import Settings, check_settings
from rljax.learning.tally import CYCLE
from rljax.networks import heads
from rljax.system import hardware, runtime


def prefer_devices(experiment: Experiment, num_learners: int) -> None:
    """Choose JAX's threads and devices on a CPU, before JAX starts."""
    parallelism = experiment.experience.parallelism(
        num_learners, envs.is_compiled(experiment.settings.env)
    )
    if parallelism == "one thread":
        runtime.prefer_one_thread()
    elif parallelism == "cores":
        devices.prefer_cores()


@dataclasses.dataclass
class Seconds:
    """Seconds of parts of a training, without compiling."""

    stepping: float = 0.0  # environments on the host, within those of the loop
    evaluating: float = 0.0


class Training:
    """Trains an experiment's learners through its stages."""

    def __init__(
        self, experiment: Experiment, on_compile: Callable[[], None] = lambda: None
    ) -> None:
        """Check everything, without compiling. JAX's compiling calls `on_compile`."""
        settings = experiment.settings
        check_settings(settings)
        configuration.require_integers(experiment.config)
        runtime.persist_compilations()
        prefer_devices(experiment, len(settings.seeds))
        self.experiment, self.settings, self.module = experiment, settings, experiment.module
        self.dataset = experiment.dataset
        self.clock = runtime.CompileClock(on_compile)
        self.schedule = schedules.schedule(settings.schedule)
        self.members = population.members(experiment.config, settings.seeds)
        # The schedule changes the first settings.
        if self.schedule is not None:
            self.members = [population.Member(member.seed, {}) for member in self.members]
        made = plan(experiment)
        self.stages, self.stage = made.stages, made.stages[0]
        self.first_configs = [stage.config for stage in made.stages]  # before any change
        self.changed: dict[str, list[float]] = {}  # settings that have changed, [P] each
        self.environment: dict[str, Any] = {}  # parameters of environments that have changed
        self.spec, self.spaces, self.weights = made.spec, made.spaces, made.weights
        self.base = made.base
        self.evaluator, self.terminal = made.evaluator, made.terminal
        rows = None if self.dataset is None else self.dataset.num
        on_host = not envs.is_compiled(settings.env)
        self.warnings = [
            *made.warnings,
            *refusals.warnings(made.stages, settings, self.spec, rows, on_host),
        ]
        shortest = min(
            settings.log_every,
            settings.eval_every,
            settings.checkpoint_every or memory.LONGEST_CHUNK,
            memory.LONGEST_CHUNK,
        )
        self.log_every = round_up(shortest, made.multiple)
        self.eval_every = self._rounded("eval_every", made.multiple)
        self.checkpoint_every: int | None = None  # by time
        if settings.checkpoint_every is not None:
            self.checkpoint_every = self._rounded("checkpoint_every", made.multiple)
        self.total = made.stages[-1].end
        if isinstance(self.schedule, schedules.PopulationBased):
            self.schedule.check(configuration.varied(experiment.config))
            # It ranks learners by an evaluation at the same step.
            every = round_up(self.schedule.every, self.eval_every)
            self.schedule = dataclasses.replace(self.schedule, every=every)
        self.step, self.updates, self.loop_seconds, self.loop_steps = 0, 0, 0.0, 0
        self.best: Any = None
        self.best_return = np.full(len(settings.seeds), -np.inf)
        self.last_return = np.full(len(settings.seeds), np.nan)
        self.last_signals: dict[str, np.ndarray] = {}  # [P] means over the last evaluation
        self.last_success: np.ndarray | None = None  # [P] likewise, if reported
        # mean return of uniform actions, played beside the first evaluation
        self.random_return: float | None = None
        self.seconds = Seconds()
        self.frozen = population.Frozen(len(settings.seeds))
        self.resumed_at = 0  # the step that this process went on from
        self.latest = float("nan")  # mean return of latest episodes or evaluation
        self._told: set[str] = set()  # warnings that appear once

    def _rounded(self, name: str, multiple: int) -> int:
        """A setting rounded to a multiple of `log_every`, with a warning."""
        steps = getattr(self.settings, name)
        rounded = round_up(steps, self.log_every)
        if rounded > round_up(steps, multiple):
            flag = f"--{name.replace('_', '-')}"
            self.warnings.append(
                f"{flag} {steps:,} is {rounded:,} here, a multiple of "
                f"--log-every {self.log_every:,}."
            )
        return rounded

    @property
    def driver(self) -> Driver:
        """The driver that moves the learners in this stage."""
        return self.stage.driver

    @property
    def config(self) -> Any:
        """The agent's Config in this stage."""
        return self.stage.config

    @property
    def stacked(self) -> Any:
        """The agent's Config in this stage, with floats as arrays [P]."""
        return self._stacked(self.config)

    def _stacked(self, config: Any) -> Any:
        return configuration.stack(
            schedules.in_steps(self.module, config, self.settings), len(self.members)
        )

    @property
    def complete(self) -> bool:
        """Whether all steps are done."""
        return self.step >= self.total

    @property
    def steps_per_second(self) -> float | None:
        """Steps of all learners per second of the loop, without compilation and evaluation."""
        if not self.loop_seconds:
            return None
        return self.loop_steps * len(self.settings.seeds) / self.loop_seconds

    # Memory

    @functools.cached_property
    def templates(self) -> list[dict[str, Any]]:
        """Structure, shapes and dtypes of each stage's arrays; tracing takes time."""
        try:
            return [stage.driver.template(self.settings.seeds) for stage in self.stages]
        except OverflowError as error:
            agent = self.settings.agent
            raise ValueError(
                f"a number in the settings of '{agent}' is too large to compute with: {error}"
            ) from error

    @property
    def shared_bytes(self) -> int:
        """Bytes that all learners share: a data set on the device."""
        return 0 if self.dataset is None or self.settings.data_on_host else self.dataset.nbytes

    @property
    def needed_bytes(self) -> int:
        """Bytes of the largest state and of the data set together."""
        return max(hardware.nbytes(template) for template in self.templates) + self.shared_bytes

    @functools.cached_property
    def _inheritance(self) -> dict[str, Any]:
        if self.experiment.load_start is None:
            return {}
        policies, settings = self.experiment.load_start(), self.settings
        require_same_spaces(policies.spec, f"--from {settings.from_run}", self.spec)
        shapes, source = self.templates[0]["agent"], str(settings.from_run)
        return population.inheritance(shapes, policies.state, settings.from_parts, source)

    @property
    def inherited(self) -> dict[str, str] | None:
        """A hash of each part from another run; None without one."""
        return {name: population.digest(part) for name, part in self._inheritance.items()} or None

    def check_memory(self) -> None:
        """Raise `ValueError` where the device cannot hold this process's part."""
        limit, kind = hardware.device_memory(), jax.local_devices()[0].device_kind
        for stage, template in zip(self.stages, self.templates, strict=True):
            memory.check_stage(stage.driver, template, self.shared_bytes, limit, kind)

    # Going on

    def start(self) -> None:
        """Begin with fresh learners, or what they inherit."""
        with self.clock.counting():
            self.driver.start(self.settings.seeds, self._inheritance or None)

    def chunk(self) -> dict[str, Any]:
        """Train to the next multiple of `log_every` or the stage's end, and return a line of
        metrics.

        Raises `NoLearnerLeft`, and an environment's `FloatingPointError`.
        """
        if self.step >= self.stage.end:
            self._next_stage()
        until = min(self.stage.end, self.step + self.log_every - self.step % self.log_every)
        began, compiled = time.perf_counter(), self.clock.seconds
        stepped = self._environment_seconds
        before = snapshots(self.driver.agent_state.statistics)
        with self.clock.counting():
            if len(self.members) > 1:
                self.frozen.remember(self.driver.agent_state)
            try:
                self.driver.advance((until - self.step) // self.stage.iteration)
            except FloatingPointError:
                # Reports a loss that was not finite.
                self._freeze_diverged(self.driver.report(), until)
                raise
            report = self.driver.report()
        seconds, taken = time.perf_counter() - began, until - self.step
        self.step = until
        self._freeze_diverged(report, self.step)
        self.updates += (report.updates - self.updates) % CYCLE
        speed = taken * len(self.settings.seeds) / seconds
        # Chunks with compilation would mislead.
        if self.clock.seconds == compiled:
            self.loop_seconds += seconds
            self.loop_steps += taken
            self.seconds.stepping += self._environment_seconds - stepped
        metrics = report.metrics | drift(before, snapshots(self.driver.agent_state.statistics))
        if self.terminal is not None:
            with self.clock.counting():
                metrics |= self.terminal(self.driver.policies, self.stacked, self.driver.spread)
        metrics = {name: np.where(self.frozen.mask, np.nan, x) for name, x in metrics.items()}
        if np.isfinite(metrics["episode/return"]).any():
            self.latest = float(np.nanmean(metrics["episode/return"]))
            self._told.add("endless")
        elif self.stage.num_envs:
            self._warn_of_endless_episodes()
        clipping = heads.clipping(metrics)
        if clipping is not None:
            self._warn_once("clipping", clipping)
        line = {
            "step": self.step,
            "update": self.updates,
            "wall_seconds": None,
            "steps_per_second": speed,
        }
        return line | {name: value.tolist() for name, value in metrics.items()}

    def _warn_of_endless_episodes(self) -> None:
        before = max(self.resumed_at, sum(stage.end for stage in self.stages[:-1][-1:]))
        steps, limit = (self.step - before) // self.stage.num_envs, self.spec.max_episode_steps
        if steps > (limit or LIMIT) or (limit is None and self.complete):
            warning = episode_warnings.endless(self.settings.env, limit, steps)
            self._warn_once("endless", warning)

    def _warn_once(self, what: str, warning: str) -> None:
        if what not in self._told:
            self._told.add(what)
            self.warnings.append(warning)

    def _next_stage(self) -> None:
        learnt = self.driver.learners
        self.driver.close()
        self.stage = self.stages[self.stages.index(self.stage) + 1]
        with self.clock.counting():
            self.driver.start(self.settings.seeds, learnt)

    @property
    def evaluation_is_due(self) -> bool:
        """Whether there is an evaluation at this step."""
        due = self.step % self.eval_every == 0 or self.step >= self.stage.end
        return self.evaluator is not None and due

    def evaluate(self) -> list[dict[str, Any]]:
        """Play complete episodes; one record per learner. The first time, also with uniform
        actions.
        """
        began, compiled = time.perf_counter(), self.clock.seconds
        episodes = self._play()
        by_chance = None
        if self.random_return is None:
            by_chance = self._play(random=True)
            self.random_return = float(by_chance.returns.mean())
        seconds = time.perf_counter() - began - (self.clock.seconds - compiled)
        self.seconds.evaluating += max(seconds, 0.0)
        means = self.last_return = episodes.returns.mean(axis=1)
        self.last_signals = {name: sums.mean(axis=1) for name, sums in episodes.signals.items()}
        self.last_success = None if episodes.success is None else episodes.success.mean(axis=1)
        improved = means > self.best_return
        self.best_return = np.where(improved, means, self.best_return)
        self.best = population.choose(improved, self.driver.agent_state, self.best)
        self.latest = float(means.mean())
        if episodes.cut.any():
            limit = self.evaluator.spec.max_episode_steps
            warning = episode_warnings.cut(self.settings.evaluated_in, limit, episodes)
            self._warn_once("cut", warning)
        lines = [
            self._line(episodes, learner, seed) for learner, seed in enumerate(self.settings.seeds)
        ]
        if by_chance is not None:
            for line, returns in zip(lines, by_chance.returns, strict=True):
                line["random"] = returns.tolist()
        return lines

    def _play(self, random: bool = False) -> Episodes:
        with self.clock.counting():
            try:
                return evaluate(
                    self.evaluator,
                    self.driver.policies,
                    self.settings,
                    self.step,
                    self.stacked,
                    random,
                )
            except EnvironmentFailed as error:
                raise error.with_advice("It was an environment of the evaluation.") from error

    @property
    def _environment_seconds(self) -> float:
        """Those of the steps of environments on the host so far, in this process."""
        return 0.0 if self.driver.hosted is None else self.driver.hosted.seconds

    def _line(self, episodes: Episodes, learner: int, seed: int) -> dict[str, Any]:
        line = {
            "step": self.step,
            "learner": learner,
            "seed": seed,
            "returns": episodes.returns[learner].tolist(),
            "lengths": episodes.lengths[learner].tolist(),
            "wall_seconds": None,
            **episodes.details(learner),
            **episodes.extremes(learner),
        }
        if self.dataset is not None and self.dataset.reference is not None:
            line["scores"] = self.dataset.score(episodes.returns[learner]).tolist()
        if learner in self.frozen.records:
            line["diverged"] = True
        return line

    def change_settings(self) -> dict[str, Any] | None:
        """Change settings and copy agents where the schedule says so; return a record of it."""
        if self.schedule is None or self.complete:
            return None
        scores = schedules.scores(self.schedule, self.last_return, self.last_signals)
        scores = np.where(self.frozen.mask, -np.inf, scores)
        change = self.schedule.change(self.step, scores, configuration.varied(self.config))
        if change is None:
            return None
        self.driver.agent_state = population.take(self.driver.agent_state, change.parents)
        self.set(change.values)
        for learner in np.flatnonzero(change.parents != np.arange(len(self.members))):
            self.frozen.records.pop(int(learner), None)
        return {
            "step": self.step,
            "parents": change.parents,
            "values": change.values,
            "scores": scores,
        }

    def set(self, values: Mapping[str, Sequence[float]]) -> None:
        """Give the learners these settings from here on; later stages keep their own changes."""
        self.changed |= {name: list(value) for name, value in values.items()}
        index = self.stages.index(self.stage)
        for number, stage in enumerate(self.stages):
            fixed = self.settings.online or {} if number > index else {}
            changes = {name: tuple(value) for name, value in values.items() if name not in fixed}
            self.stages[number] = dataclasses.replace(
                stage, config=dataclasses.replace(stage.config, **changes)
            )
        self.stage = self.stages[index]
        for stage in self.stages:
            stage.driver.reconfigure(self._stacked(stage.config))

    def change_environment(self, parameters: Mapping[str, Any]) -> None:
        """Change parameters of the environments in which learners learn, from here on.

        Raises `ValueError` for parameters that they lack, and where there is no environment.
        """
        if not any(stage.num_envs for stage in self.stages):
            raise ValueError("this run learns from data alone: it has no environment to change.")
        for stage in self.stages:
            stage.driver.change_environment(parameters)
        self.environment |= parameters

    def _freeze_diverged(self, report: ChunkReport, step: int) -> None:
        freeze_diverged(self.frozen, self.members, report, step, self.warnings.append)
        self.driver.agent_state = self.frozen.put_back(self.driver.agent_state)

    def extend(self, steps: int) -> None:
        """Let the whole run have `steps` steps; shares of the run follow."""
        last, before = self.stages[-1], self.stages[-2].end if len(self.stages) > 1 else 0
        if steps <= before:
            first = ", the updates from its data set" if before else ""
            raise ValueError(f"--steps is {steps}, it must be more than {before}{first}.")
        self.total = before + round_up(steps - before, last.iteration)
        index = self.stages.index(self.stage)
        self.stages[-1] = dataclasses.replace(last, end=self.total)
        self.stage = self.stages[index]
        settings, name = self.settings, "then_online" if before else "steps"
        self.settings = dataclasses.replace(settings, **{name: steps - before})
        self.warn_of_schedule(settings)
        for stage in self.stages:
            stage.driver.reconfigure(self._stacked(stage.config))

    def warn_of_schedule(self, before: Settings) -> None:
        """Warn of settings that follow the run's length, and of learning that ends early."""
        config = self.experiment.config
        changes = schedules.differences(self.module, config, before, self.settings)
        if changes:
            self.warnings.append(
                "settings that follow the run's length have changed from here on "
                f"({', '.join(changes)}): this run will differ from one of the new length."
            )
        early = schedules.early_end(self.module, config, self.settings)
        if early is not None and early not in self.warnings:
            self.warnings.append(early)

    def close(self) -> None:
        """Release data and all environments before an `EnvironmentFailed` is raised."""
        failures = []
        for part in (*(stage.driver for stage in self.stages), self.evaluator):
            try:
                if part is not None:
                    part.close()
            except EnvironmentFailed as error:
                failures.append(error)
        if failures:
            raise failures[0]
