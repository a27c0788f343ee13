"""Tables: which learners are one row, and at which step?"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np

from rljax.analysis import comparison, formatting, labels, published
from rljax.analysis.comparison import Estimate
from rljax.analysis.folders import LearnerRecord, RunRecord, common, group_by


@dataclasses.dataclass
class Row:
    """Learners of one agent with the same settings on one task."""

    agent: str
    label: str
    learners: list[LearnerRecord]
    counted: list[tuple[LearnerRecord, int]]  # with the index of their evaluation
    complete: bool  # some learners reached the step of comparison: `counted` has these, else all

    def values(self, metric: str) -> np.ndarray:
        """The returns or scores of the counted learners: [learners]."""
        return np.array([getattr(learner, metric)[index] for learner, index in self.counted])

    def sums(self, signal: str) -> np.ndarray:
        """A signal's sums over the counted learners' episodes: [learners]."""
        return np.array([learner.signals[signal][index] for learner, index in self.counted])

    @property
    def step(self) -> int:
        """The step of the counted evaluations."""
        return int(max(learner.steps[index] for learner, index in self.counted))

    @property
    def diverged(self) -> int:
        """Counted learners that had diverged by that step."""
        return sum(
            bool(learner.diverged[: index + 1].any()) or not np.isfinite(learner.returns[index])
            for learner, index in self.counted
        )

    @property
    def cut(self) -> int:
        """Counted episodes that were cut before their end."""
        return sum(learner.evaluations[index].get("cut", 0) for learner, index in self.counted)

    @property
    def runs(self) -> list[RunRecord]:
        """The runs that the learners come from."""
        return list({id(learner.run): learner.run for learner in self.learners}.values())


@dataclasses.dataclass
class Table:
    """All rows of one task."""

    task: str  # its name for readers
    environment: str
    data: str | None
    metric: str  # "returns", or "scores"
    budget: int
    episodes: int  # per evaluation
    rows: list[Row]

    @property
    def signals(self) -> list[str]:
        """The names of the signals that all learners have."""
        return common([learner.signals for row in self.rows for learner, _ in row.counted])

    @property
    def published_task(self) -> str:
        """The task's name among published results."""
        return published.task_of(self.environment, self.data)


def arrange(runs: Sequence[RunRecord], at: int | None = None) -> list[Table]:
    """The runs as one table per task, compared at step `at` or at the end of their budgets.

    Raises `ValueError` for runs of one task that cannot be compared.
    """
    tasks = group_by(runs, lambda run: run.task)
    names = labels.task_names(tasks)
    for task, task_runs in tasks.items():
        _check_budgets(names[task], task_runs, at)
        _check_episodes(names[task], task_runs)
    label = labels.row_labels(runs)
    tables = []
    for task, task_runs in sorted(tasks.items(), key=lambda item: names[item[0]]):
        learners = [learner for run in task_runs for learner in run.learners]
        rows = group_by(learners, lambda learner: (learner.run.agent, label(learner)))
        metric = "scores" if all(each.scores is not None for each in learners) else "returns"
        budget = min(run.budget for run in task_runs) if at is None else at
        arranged = [
            _row(agent, name, members, at) for (agent, name), members in sorted(rows.items())
        ]
        episodes = min(task_runs[0].episodes)
        environment, data = task
        tables.append(Table(names[task], environment, data, metric, budget, episodes, arranged))
    return tables


def _row(agent: str, label: str, learners: list[LearnerRecord], at: int | None) -> Row:
    counted = [
        (learner, index) for learner in learners if (index := learner.index_at(at)) is not None
    ]
    if counted:
        return Row(agent, label, learners, counted, True)
    common = min(int(learner.steps[-1]) for learner in learners)
    latest = [
        (each, max(0, int(np.searchsorted(each.steps, common, side="right")) - 1))
        for each in learners
    ]
    return Row(agent, label, learners, latest, False)


def _check_budgets(task: str, runs: Sequence[RunRecord], at: int | None) -> None:
    by_budget = group_by(runs, lambda run: run.budget)
    if at is not None and at < 1:
        raise ValueError(f"--at is {at}, it must be at least 1.")
    if at is not None and at > min(by_budget):
        raise ValueError(
            f"--at is {at}, and not all runs of '{task}' were planned for so many steps: "
            f"{_folders(by_budget[min(by_budget)])} for {min(by_budget)}. The last step at which "
            f"all can be compared: --at {min(by_budget)}"
        )
    if at is None and len(by_budget) > 1:
        raise ValueError(
            f"runs of '{task}' have different budgets: "
            + "; ".join(
                f"{budget} steps in {_folders(budget_runs)}"
                for budget, budget_runs in sorted(by_budget.items())
            )
            + (
                f". To compare all at the same step: rljax report ... --at {min(by_budget)}. Or "
                "report them separately."
            )
        )


def _check_episodes(task: str, runs: Sequence[RunRecord]) -> None:
    by_episodes = group_by(runs, lambda run: tuple(sorted(run.episodes)))
    if len(by_episodes) > 1 or any(len(numbers) > 1 for numbers in by_episodes):
        raise ValueError(
            f"runs of '{task}' were evaluated in different ways: "
            + "; ".join(
                f"{' or '.join(map(str, numbers))} episodes per evaluation in {_folders(same_runs)}"
                for numbers, same_runs in sorted(by_episodes.items())
            )
            + ". Report them separately: name the folders of one kind only."
        )


def _folders(runs: Sequence[RunRecord]) -> str:
    names = formatting.quoted([run.folder for run in runs[:3]])
    return names if len(runs) <= 3 else f"{names} and {len(runs) - 3} more"


def estimates(row: Row, metric: str) -> dict[str, Estimate] | None:
    """IQM, median and mean over counted learners; None if one is not finite."""
    measures: dict[str, comparison.Measure] = {
        "iqm": comparison.iqm,
        "median": lambda tasks: np.median(tasks[0], axis=-1),  # of runs, not of tasks' means
        "mean": comparison.mean,
    }
    return _aggregated(row.values(metric), measures)


def of_signal(row: Row, signal: str) -> Estimate | None:
    """The IQM of a signal over counted learners; None if not finite."""
    aggregated = _aggregated(row.sums(signal), {"iqm": comparison.iqm})
    return None if aggregated is None else aggregated["iqm"]


def _aggregated(
    values: np.ndarray, measures: dict[str, comparison.Measure]
) -> dict[str, Estimate] | None:
    if not np.isfinite(values).all():
        return None
    return comparison.aggregate({"": {"": values}}, measures)[""]
