"""Short, different names of tasks and rows."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from rljax.analysis import formatting
from rljax.analysis.folders import LearnerRecord, RunRecord, common, group_by
from rljax.learning import registry


def task_name(environment: str, data: str | None) -> str:
    """A task's environment or data set."""
    if data is None:
        return environment
    return Path(data).stem if Path(data).suffix in (".hdf5", ".h5", ".npz") else data


def task_names(tasks: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], str]:
    """The name of each task (environment, data set), longer where two would be equal."""
    full = {task: task[0] if task[1] is None else f"{task[1]} in {task[0]}" for task in tasks}
    short = {task: task_name(*task) for task in full}
    names = list(short.values())
    return {task: name if names.count(name) == 1 else full[task] for task, name in short.items()}


def row_labels(runs: Sequence[RunRecord]) -> Callable[[LearnerRecord], str]:
    """A function of a learner: its agent and the fewest settings that tell rows of a task apart.
    "..." stands for other `differing_settings`.
    """
    learners_of = group_by(
        [learner for run in runs for learner in run.learners], lambda learner: learner.run.agent
    )
    short_names = [registry.agent_name(agent) for agent in learners_of]
    parts = {}
    for agent, learners in learners_of.items():
        differing = differing_settings(learners)
        named = _distinguishing(learners, differing)
        name = registry.agent_name(agent)
        name = name if short_names.count(name) == 1 else agent
        parts[agent] = name, named, ["..."] * (len(differing) > len(named))

    def label(learner: LearnerRecord) -> str:
        name, named, more = parts[learner.run.agent]
        settings = [
            f"{each.replace('_', '-')}={formatting.setting(learner.settings[each])}"
            for each in named
        ]
        return " ".join([name, *settings, *more])

    return label


def differing_settings(learners: Sequence[LearnerRecord]) -> list[str]:
    """The settings of all learners of one agent that differ within a task."""
    tasks = group_by(learners, lambda learner: learner.run.task).values()
    return [
        name
        for name in common([each.settings for each in learners])
        if any(len(_combinations(of_task, [name])) > 1 for of_task in tasks)
    ]


def _distinguishing(learners: Sequence[LearnerRecord], names: Sequence[str]) -> list[str]:
    needed: list[str] = []
    for name in names:
        if len(_combinations(learners, [*needed, name])) > len(_combinations(learners, needed)):
            needed.append(name)
    return needed


def _combinations(learners: Iterable[LearnerRecord], names: Sequence[str]) -> set[tuple[str, ...]]:
    return {
        tuple(formatting.setting(learner.settings[name]) for name in names) for learner in learners
    }
