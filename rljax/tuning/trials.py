"""Trials of a search, in generations by Optuna.

A trial's value is the interquartile mean, over seeds, of the last evaluation's return. It ranks
below others if a signal's mean exceeds its limit, and last with a diverged learner.
"""

from __future__ import annotations

import collections
import contextlib
import dataclasses
import itertools
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from rljax.distributed import ray_cluster
from rljax.learning import configuration, population, schedules
from rljax.learning.plan import Experiment, round_up
from rljax.runs import failures, json_files, records
from rljax.runs.display import console
from rljax.runs.extract import extract
from rljax.runs.statistics import estimators
from rljax.system.packages import install_command
from rljax.trust import safe
from rljax.tuning import generations, grids, search_spaces

if TYPE_CHECKING:
    import optuna


@dataclasses.dataclass(frozen=True)
class SearchTask:
    """The task of a search: trials train `experiment` with their settings and the tuning seeds."""

    folder: Path
    experiment: Experiment
    protocol: search_spaces.Protocol
    space: search_spaces.Space
    command: str
    quiet: bool
    workers: ray_cluster.RayCluster | None = None  # that train the launches
    most: int | None = None  # learners in a launch

    def learners(self, inside: Path) -> list[dict[str, Any]]:
        """The searched settings, at the beginning, of each learner of a run."""
        described = records.read_config(inside)
        defaults = self.experiment.module.Config()
        config = configuration.replace(defaults, described["config"], f"'{inside}'")
        configs = [population.of_learners(config, [p]) for p in range(len(described["seeds"]))]
        return [{name: getattr(x, name) for name in self.space.entries} for x in configs]

    def say(self, text: str) -> None:
        """Show a message, unless quiet."""
        if not self.quiet:
            console.create(self.quiet).say(text)


@dataclasses.dataclass(frozen=True)
class SearchResult:
    """The result of a search."""

    settings: Mapping[str, Any]  # at the beginning of training
    value: float  # on the tuning seeds
    origin: str  # the trial or learner that had these settings
    counts: Mapping[str, int]  # of trials by their final state
    schedule: Sequence[tuple[int, Mapping[str, float]]] | None = None  # changes during training


@dataclasses.dataclass(frozen=True)
class Trial:
    """One trial of a generation: its number in the study, and its settings."""

    number: int
    settings: Mapping[str, Any]


class Trials:
    """The trials of a search, in the task's folder and in Optuna's study."""

    def __init__(self, task: SearchTask) -> None:
        require_optuna()
        self.task = task

    def search(self) -> SearchResult | None:
        """Ask, train and tell all trials that are left; None if interrupted.

        Raises `ValueError` for another sweep's study, or one that cannot be opened.
        """
        study = self._study()
        for number, (size, rungs) in enumerate(self.generations()):
            if not self._generation(study, number, size, rungs):
                return None
        return self._best(study)

    def plan(self) -> str:
        """The plan of the search as text for users."""
        protocol, number = self.task.protocol, len(self.generations())
        return (
            f"{protocol.method}: {protocol.trials} trials in {number} "
            f"generation{'s' if number > 1 else ''}, each with tuning seeds "
            f"{search_spaces.listed(protocol.tuning_seeds)}"
        )

    @property
    def steps(self) -> int:
        """The steps of all learners of all trials together."""
        total, protocol = 0, self.task.protocol
        for size, rungs in self.generations():
            for before, steps in itertools.pairwise([0, *rungs]):
                total += size * len(protocol.tuning_seeds) * (steps - before)
                size = max(1, size // protocol.eta)
        return total

    @property
    def fewest_steps(self) -> int:
        """The steps of the shortest trials."""
        return min(rungs[0] for _, rungs in self.generations())

    def generations(self) -> list[tuple[int, list[int]]]:
        """Each generation's number of trials, and steps after which only the better continue."""
        protocol, settings = self.task.protocol, self.task.experiment.settings
        brackets = [(protocol.population, [settings.steps])]
        if protocol.method == "hyperband":
            least = protocol.min_steps or -(-settings.steps // 27)
            brackets = list(search_spaces.brackets(settings.steps, least, protocol.eta))
        generations, left = [], protocol.trials
        while left > 0:
            size, rungs = brackets[len(generations) % len(brackets)]
            # Evaluations rank the trials of each rung; the end always has one.
            steps = [min(round_up(steps, settings.eval_every), settings.steps) for steps in rungs]
            generations.append((min(size, left), steps))
            left -= size
        return generations

    def _generation(
        self, study: optuna.Study, number: int, size: int, rungs: Sequence[int]
    ) -> bool:
        """Ask, train and tell one generation; False if interrupted."""
        folder = self.task.folder / f"generation-{number:03d}"
        if (folder / "told.json").exists():
            return True
        trials = self._ask(study, folder, number, size)
        values: dict[int, dict[int, float]] = {trial.number: {} for trial in trials}
        alive = list(trials)
        for level, steps in enumerate(rungs):
            place = folder / f"rung-{level}"
            if not grids.is_grid(place):
                if level == 0:
                    self._place(trials, place, steps)
                else:
                    self._promote(alive, folder / f"rung-{level - 1}", place)
            if not grids.execute(place, steps, quiet=self.task.quiet, workers=self.task.workers):
                return False
            scores = self._scores(alive, place)
            for trial in alive:
                values[trial.number][steps] = scores[trial.number]
            alive.sort(key=lambda trial: -scores[trial.number])
            if level < len(rungs) - 1:
                del alive[max(1, len(alive) // self.task.protocol.eta) :]
            alive = [trial for trial in alive if np.isfinite(scores[trial.number])]
            if not alive:
                break
        for trial in trials:
            self._tell(study, trial, values[trial.number], trial in alive)
        told = [{"trial": n, "values": value_at} for n, value_at in values.items()]
        records.write_json(folder / "told.json", told)
        if alive:
            best = max(alive, key=lambda trial: (scores[trial.number], trial.number))
            value, label = scores[best.number], population.label(best.settings)
            self.task.say(f"generation {number}: best {value:,.1f} by {label}")
        return True

    def _ask(self, study: optuna.Study, folder: Path, number: int, size: int) -> list[Trial]:
        path, space, protocol = folder / "trials.json", self.task.space, self.task.protocol
        if not path.exists():
            study.sampler = search_spaces.sampler(protocol.method, protocol.search_seed, number)
            trials = [study.ask(space.distributions()) for _ in range(size)]
            folder.mkdir(exist_ok=True)
            records.write_json(path, [{"trial": x.number, "params": x.params} for x in trials])
        return generations.listed(
            path, lambda entry: Trial(entry["trial"], space.settings(entry["params"]))
        )

    def _place(self, trials: Sequence[Trial], place: Path, steps: int) -> None:
        points: list[Mapping[str, Any]] = []
        for trial in trials:
            if trial.settings not in points:
                points.append(trial.settings)
        settings = dataclasses.replace(self.task.experiment.settings, steps=steps)
        experiment = dataclasses.replace(self.task.experiment, settings=settings)
        grids.write(grids.plan(experiment, points, self.task.most), place, self.task.command)

    def _promote(self, alive: Sequence[Trial], before: Path, place: Path) -> None:
        """Extract the learners of the trials `alive` from `before` to `place`, atomically."""
        partial = place.with_name(f".partial-{place.name}")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        entries, points = [], [trial.settings for trial in alive]
        for inside in grids.runs(before):
            learners = self.task.learners(inside)
            numbers = [p for p, settings in enumerate(learners) if settings in points]
            if not numbers:
                continue
            out = partial / inside.name
            if len(numbers) == len(learners):
                shutil.copytree(inside, out)
            else:
                extract(inside, numbers, out)
            described = records.read_config(out)
            entry = {name: described[name] for name in ("seeds", "config")}
            entries.append({"folder": inside.name, **entry})
        records.write_json(partial / grids.PLAN, grids.read(before) | {"launches": entries})
        partial.rename(place)

    def _scores(self, alive: Sequence[Trial], place: Path) -> dict[int, float]:
        """Each trial's value by its last evaluations; -inf where a learner diverged."""
        most, seeds = search_spaces.limits(self.task.protocol), self.task.protocol.tuning_seeds
        # settings; the return, and sums of the signals with limits
        learners: list[tuple[Mapping[str, Any], list[float]]] = []
        for inside in grids.runs(place):
            last = {line["learner"]: line for line in records.read(inside, "evaluations")}
            for entry in records.read_summary(inside).get("diverged", []):
                last.pop(entry["learner"], None)
            for p, settings in enumerate(self.task.learners(inside)):
                if p in last:
                    lists = [last[p]["returns"], *(last[p]["signals"][name] for name in most)]
                    learners.append((settings, [float(estimators.mean(x)) for x in lists]))
        scores = {}
        for trial in alive:
            means = [means for settings, means in learners if settings == trial.settings]
            scores[trial.number] = -math.inf
            if len(means) == len(seeds) and np.isfinite(means).all():
                value, *sums = map(float, estimators.iqm(means, axis=0))
                by_name = dict(zip(most, sums, strict=True))
                scores[trial.number] = schedules.constrained(value, by_name, most)
        return scores

    def _tell(
        self, study: optuna.Study, trial: Trial, values: Mapping[int, float], finished: bool
    ) -> None:
        from optuna.trial import Trial as Reporter
        from optuna.trial import TrialState

        frozen = study.trials[trial.number]
        if frozen.state.is_finished():
            return
        for steps, value in values.items():
            if np.isfinite(value) and steps not in frozen.intermediate_values:
                Reporter(study, frozen._trial_id).report(value, steps)
        # Optuna's samplers rank a trial that is pruned without a report as the worst.
        if finished:
            study.tell(trial.number, values[max(values)])
        else:
            study.tell(trial.number, state=TrialState.PRUNED)

    def _best(self, study: optuna.Study) -> SearchResult:
        from optuna.trial import TrialState

        trials = study.get_trials(deepcopy=False)
        complete = [trial for trial in trials if trial.state == TrialState.COMPLETE]
        if not complete:
            raise failures.RunError(
                f"all trials of the sweep in '{self.task.folder}' have diverged: search nearer "
                "to the presets."
            )
        best = max(complete, key=lambda trial: (trial.value, -trial.number))
        if self.task.protocol.limits and (best.value or 0.0) <= schedules.BROKEN:
            self.task.say(
                "no trial kept the limits: the settings found are those that exceed them least."
            )
        states = sorted(trial.state.name.lower() for trial in trials)
        assert best.value is not None, "complete"
        settings, origin = self.task.space.settings(best.params), f"trial {best.number}"
        return SearchResult(settings, best.value, origin, collections.Counter(states))

    def _study(self) -> optuna.Study:
        optuna, protocol = require_optuna(), self.task.protocol
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        file = self.task.folder / "study.db"
        storage = protocol.storage or f"sqlite:///{_plain(str(safe(file).resolve()))}"
        settings = self.task.experiment.settings
        about = {
            "agent": settings.agent,
            "environment": settings.evaluated_in,
            "data": settings.data,
            "steps": settings.steps,
            "tuning_seeds": list(protocol.tuning_seeds),
            "space": json_files.plain(self.task.space.entries),
        }
        with _of_storage(storage):
            study = optuna.create_study(
                storage=storage,
                study_name=protocol.study,
                direction="maximize",
                load_if_exists=True,
            )
            known = study.user_attrs
        for name, value in about.items():
            if known and known.get(name) != value:
                raise ValueError(
                    f"study '{protocol.study}' in '{storage}' has {name} "
                    f"{known.get(name)!r}, this sweep has {value!r}. Name another with --study."
                )
        if not known:
            for name, value in about.items():
                study.set_user_attr(name, value)
        return study


def require_storage(storage: str | None) -> None:
    """Raise `ValueError` for a study's storage that cannot be used."""
    if storage is not None:
        with _of_storage(storage):
            require_optuna().storages.get_storage(storage)


@contextlib.contextmanager
def _of_storage(storage: str) -> Iterator[None]:
    try:
        yield
    except Exception as error:
        first = str(error).strip().splitlines()[0]
        raise ValueError(
            f"the study's storage '{storage}' cannot be used: {type(error).__name__}: {first}"
        ) from error


def _plain(path: str) -> str:
    """A path in a URL of Optuna, which fills in what stands in braces."""
    return path.replace("{", "{{").replace("}", "}}")


def require_optuna() -> Any:
    """The package Optuna. Raises `ValueError` where it is not installed."""
    try:
        import optuna
    except ImportError:
        raise ValueError(
            "a sweep needs the package 'optuna', which is not installed: "
            f"{install_command('sweep')}"
        ) from None
    return optuna
