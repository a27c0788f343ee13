"""Population-based training as a search."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from typing import Any

import numpy as np

from rljax.learning import configuration, schedules
from rljax.runs import failures, records
from rljax.runs.statistics import estimators
from rljax.tuning import grids, search_spaces
from rljax.tuning.trials import SearchResult, SearchTask, require_optuna


class PopulationBasedSearch:
    """One population whose learners take over from each other; see
    `rljax.learning.schedules.PopulationBased`.

    Learners have the tuning seeds in turn. The best one's settings, with its ancestors', are tested
    anew.
    """

    def __init__(self, task: SearchTask) -> None:
        """Raises `ValueError` for a space of other settings than traced numbers."""
        require_optuna()
        for name, entry in task.space.entries.items():
            if "choices" in entry or not task.space.is_traced(name):
                raise ValueError(
                    f"population-based training changes settings within the program, '{name}' "
                    "shapes it or has choices: leave it out of the space, or use --method tpe."
                )
        self.task = task

    def plan(self) -> str:
        """The plan of the search as text for users."""
        protocol = self.task.protocol
        seeds = search_spaces.listed(protocol.tuning_seeds)
        return (
            f"pbt: {protocol.population} learners with seeds {seeds}, settings change "
            f"every {self.every:,} steps"
        )

    @property
    def fewest_steps(self) -> int:
        """The steps of the shortest trials: all are as long."""
        return self.task.experiment.settings.steps

    @property
    def steps(self) -> int:
        """The steps of all learners."""
        return self.task.protocol.population * self.task.experiment.settings.steps

    @property
    def every(self) -> int:
        """Steps between changes, which a run rounds up to an evaluation."""
        every = self.task.protocol.every
        return max(1, self.task.experiment.settings.steps // 20) if every is None else every

    def search(self) -> SearchResult | None:
        """Train or continue the population; None if interrupted.

        Raises `RunError` where all learners have diverged.
        """
        task, place = self.task, self.task.folder / "population"
        if not grids.is_grid(place):
            grids.write(self._launch(), place, task.command)
        if not grids.execute(place, quiet=task.quiet, workers=task.workers):
            return None
        (inside,) = grids.runs(place)
        last = {line["learner"]: line for line in records.read(inside, "evaluations")}
        most = search_spaces.limits(task.protocol)
        scores = {p: _score(line, most) for p, line in last.items() if not line.get("diverged")}
        scores = {p: score for p, score in scores.items() if np.isfinite(score)}
        if grids.state(inside) == "diverged" or not scores:
            raise failures.RunError(
                f"all learners of '{inside}' have diverged: search nearer to the presets."
            )
        best = max(scores, key=lambda p: (scores[p], -p))
        if most and scores[best] <= schedules.BROKEN:
            task.say(
                "no learner kept the limits: the settings found are those that exceed them least."
            )
        initial = {name: records.read_config(inside)["config"][name] for name in task.space.entries}
        schedule = schedules.schedule_of_learner(best, initial, records.read(inside, "changes"))
        counts = {"learners": len(last), "diverged": len(last) - len(scores)}
        return SearchResult(schedule[0][1], scores[best], f"learner {best}", counts, schedule[1:])

    def _launch(self) -> grids.GridPlan:
        import optuna

        task, number = self.task, self.task.protocol.population
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        study = optuna.create_study(
            sampler=search_spaces.sampler("random", task.protocol.search_seed, 0)
        )
        space, distributions = task.space, task.space.distributions()
        points = [space.settings(study.ask(distributions).params) for _ in range(number)]
        values = {name: tuple(point[name] for point in points) for name in space.entries}
        config = configuration.replace(task.experiment.config, values, "space")
        seeds = tuple(itertools.islice(itertools.cycle(task.protocol.tuning_seeds), number))
        schedule = {
            "ranges": {
                name: (entry["low"], entry["high"]) for name, entry in space.entries.items()
            },
            "every": self.every,
            "seed": task.protocol.search_seed,
            "limits": search_spaces.limits(task.protocol),
        }
        settings = dataclasses.replace(task.experiment.settings, seeds=seeds, schedule=schedule)
        experiment = dataclasses.replace(task.experiment, settings=settings)
        return grids.GridPlan(experiment, points, [grids.Launch(config, seeds, {})], None)


def _score(line: Mapping[str, Any], most: Mapping[str, float]) -> float:
    sums = {name: float(estimators.mean(line["signals"][name])) for name in most}
    return schedules.constrained(float(estimators.mean(line["returns"])), sums, most)
