"""What runs came to: learners pooled in rows, rows in tables, tables in suites of tasks.

The unit is the learner. Learners of one agent with the same settings on the same task are pooled, from however many
runs they come; settings that differ make rows of their own.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from rljax.analysis import comparison, published
from rljax.analysis.comparison import Estimate
from rljax.runs import records, statistics
from rljax.training import registry

NEEDED = ("agent", "environment", "steps", "seeds", "config")  # of a run's config.json
PROTOCOL = ("then_online", "offline_share")  # settings of a run that set it apart as hyperparameters do
SWEEP, TESTED = "sweep.json", "test"  # what is in the folder of a sweep: its description, and its test
POINTS = 30  # of a curve over several tasks
T = TypeVar("T")


@dataclasses.dataclass
class Run:
    """One run as its folder has it."""

    folder: Path
    described: dict[str, Any]  # config.json
    summary: dict[str, Any]  # summary.json; empty before the run's first end
    episodes: set[int]  # per evaluation
    learners: list[Learner] = dataclasses.field(default_factory=list)

    @property
    def agent(self) -> str:
        """Its name, or a file."""
        return self.described["agent"]

    @property
    def task(self) -> tuple[str, str | None]:
        """The environment, and the data set where there is one."""
        return self.described["environment"], self.described.get("data")

    @property
    def budget(self) -> int:
        """Steps that were planned, of each learner."""
        return self.described["steps"] + (self.described.get("then_online") or 0)


@dataclasses.dataclass
class Learner:
    """One learner's evaluations, by the mean of each one's episodes."""

    run: Run
    seed: int
    settings: dict[str, Any]  # its hyperparameters, and what else of its run sets it apart
    steps: np.ndarray  # [S] ascending
    returns: np.ndarray  # [S]
    scores: np.ndarray | None  # [S], where its data set has references
    diverged: np.ndarray  # [S] bool
    evaluations: list[dict[str, Any]]  # [S], as its run has them

    def index(self, at: int | None) -> int | None:
        """Which evaluation stands for this learner at its budget, or at a step; None where it has not come so far."""
        if at is None:
            return len(self.steps) - 1 if self.steps[-1] >= self.run.budget else None
        index = int(np.searchsorted(self.steps, at, side="right")) - 1
        gap = max(np.diff(self.steps, prepend=0))
        return index if index >= 0 and at - self.steps[index] < gap else None


@dataclasses.dataclass
class Row:
    """The learners of one agent with one choice of settings, on one task."""

    agent: str
    label: str
    learners: list[Learner]
    chosen: list[tuple[Learner, int]]  # those that came so far, each with its evaluation; all if none did
    complete: bool  # whether those in `chosen` did

    def values(self, metric: str) -> np.ndarray:
        """What the chosen learners have reached: [learners]."""
        return np.array([getattr(learner, metric)[index] for learner, index in self.chosen])

    @property
    def step(self) -> int:
        """At which the chosen learners were evaluated."""
        return int(max(learner.steps[index] for learner, index in self.chosen))

    @property
    def diverged(self) -> int:
        """How many of the chosen learners had diverged by then."""
        return sum(
            bool(learner.diverged[: index + 1].any()) or not np.isfinite(learner.returns[index])
            for learner, index in self.chosen
        )

    @property
    def runs(self) -> list[Run]:
        """Where the learners come from."""
        return list({id(learner.run): learner.run for learner in self.learners}.values())


@dataclasses.dataclass
class Table:
    """All rows of one task."""

    task: str  # as a person calls it
    environment: str
    data: str | None
    metric: str  # "returns", or "scores"
    budget: int
    episodes: int
    rows: list[Row]

    @property
    def published_task(self) -> str:
        """The name that published results go by."""
        return published.task_of(self.environment, self.data)


def load(paths: Sequence[Path]) -> tuple[list[Run], list[tuple[Path, str]]]:
    """The runs in and below `paths`, and the folders that were skipped, each with the reason."""
    runs, skipped, tuning = [], [], {}
    for folder in records.find(paths):
        sweep = _tuned_in(folder, paths)
        if sweep is not None:
            tuning[sweep] = tuning.get(sweep, 0) + 1
            continue
        try:
            runs.append(read(folder))
        except (ValueError, KeyError, TypeError, OSError) as error:
            reason = f"a record lacks {error}" if isinstance(error, KeyError) else str(error)
            skipped.append((folder, reason))
    for sweep, number in tuning.items():
        reason = f"{count(number, 'run')} of its search, whose settings these seeds chose: its test alone counts"
        skipped.append((sweep, f"{reason}. To see them all the same, name folders in it."))
    return runs, skipped


def _tuned_in(folder: Path, paths: Sequence[Path]) -> Path | None:
    """The sweep for whose search a run was trained, unless one of the `paths` is inside of that sweep."""
    for parent in folder.parents:
        if (parent / SWEEP).exists() and folder.relative_to(parent).parts[0] != TESTED:
            named = any(parent.resolve() in Path(path).resolve().parents for path in paths)
            return None if named else parent
    return None


def read(folder: Path) -> Run:
    """The run in `folder`. Raises `ValueError` for one without evaluations, and for records that lack something."""
    described = records.read_config(folder)
    missing = [name for name in NEEDED if name not in described]
    if missing:
        raise ValueError(f"its config.json lacks {listed(missing)}.")
    evaluations = records.read(folder, "evaluations")
    if not evaluations:
        raise ValueError("it has no evaluations yet.")
    try:
        summary = json.loads((folder / "summary.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        summary = {}
    run = Run(folder, described, summary, {len(entry["returns"]) for entry in evaluations})
    by_learner: dict[int, dict[int, dict[str, Any]]] = {}
    for entry in evaluations:
        by_learner.setdefault(entry["learner"], {})[entry["step"]] = entry
    for learner, own in sorted(by_learner.items()):
        entries = [own[step] for step in sorted(own)]
        has_scores = all(entry.get("scores") for entry in entries)
        run.learners.append(
            Learner(
                run,
                entries[0]["seed"],
                _settings(described, learner),
                np.array(sorted(own)),
                _means(entries, "returns"),
                _means(entries, "scores") if has_scores else None,
                np.array([bool(entry.get("diverged")) for entry in entries]),
                entries,
            )
        )
    return run


def _means(entries: Iterable[Mapping[str, Any]], name: str) -> np.ndarray:
    """Of each evaluation the mean over its episodes; None, which JSON has for what is not finite, makes it NaN."""
    return np.array([float(statistics.mean(entry[name])) for entry in entries])


def _settings(described: Mapping[str, Any], learner: int) -> dict[str, Any]:
    """One learner's settings: of those in which the learners differ, its own."""
    settings = {name: described[name] for name in PROTOCOL if described.get("data") and name in described}
    members = described.get("learners", [])
    if members and learner >= len(members):
        raise ValueError(f"its config.json describes {len(members)} learners, and no learner {learner}.")
    return settings | described["config"] | (members[learner]["settings"] if members else {})


def arrange(runs: Sequence[Run], at: int | None = None) -> list[Table]:
    """The runs as tables of rows, one table per task.

    Raises `ValueError` where what stands in one table could not be compared.
    """
    tasks = _grouped(runs, lambda run: run.task)
    titles = task_titles(tasks)
    for task, own in tasks.items():
        _check(titles[task], own, at)
    names = row_names(runs)
    tables = []
    for task, own in sorted(tasks.items(), key=lambda item: titles[item[0]]):
        learners = [learner for run in own for learner in run.learners]
        rows = _grouped(learners, lambda learner: (learner.run.agent, names(learner)))
        tables.append(
            Table(
                titles[task],
                task[0],
                task[1],
                "scores" if all(learner.scores is not None for learner in learners) else "returns",
                min(run.budget for run in own) if at is None else at,
                min(own[0].episodes),
                [_row(agent, label, each, at) for (agent, label), each in sorted(rows.items())],
            )
        )
    return tables


def task_titles(tasks: Iterable[tuple[str, str | None]]) -> dict[tuple[str, str | None], str]:
    """What tasks are called: the environment, or the data set; of a file its name alone, where that is clear."""
    full = {task: task[0] if task[1] is None else f"{task[1]} in {task[0]}" for task in tasks}
    short = {task: title(*task) for task in full}
    names = list(short.values())
    return {task: name if names.count(name) == 1 else full[task] for task, name in short.items()}


def title(environment: str, data: str | None) -> str:
    """What to call a task: its environment, or its data set; of a file the name alone."""
    if data is None:
        return environment
    return Path(data).stem if Path(data).suffix in (".hdf5", ".h5", ".npz") else data


def _check(task: str, runs: Sequence[Run], at: int | None) -> None:
    """Raise `ValueError` where the runs of a task cannot stand in one table."""
    by_budget = _grouped(runs, lambda run: run.budget)
    if at is not None and at < 1:
        raise ValueError(f"--at is {at}, it must be at least 1.")
    if at is not None and at > min(by_budget):
        raise ValueError(
            f"--at is {at}, and not all runs of '{task}' were planned for so many steps: "
            f"{_folders(by_budget[min(by_budget)])} for {min(by_budget)}. The most that they can be compared at: "
            f"--at {min(by_budget)}"
        )
    if at is None and len(by_budget) > 1:
        raise ValueError(
            f"runs of '{task}' have different budgets: "
            + "; ".join(f"{budget} steps in {_folders(own)}" for budget, own in sorted(by_budget.items()))
            + f". To compare all at the same step: rljax report ... --at {min(by_budget)}. Or report them apart."
        )
    by_episodes = _grouped(runs, lambda run: tuple(sorted(run.episodes)))
    if len(by_episodes) > 1 or any(len(numbers) > 1 for numbers in by_episodes):
        raise ValueError(
            f"runs of '{task}' were evaluated in different ways: "
            + "; ".join(
                f"{' or '.join(map(str, numbers))} episodes per evaluation in {_folders(own)}"
                for numbers, own in sorted(by_episodes.items())
            )
            + ". Report them apart: name the folders of one kind only."
        )


def _grouped(members: Iterable[T], key: Callable[[T], Any]) -> dict[Any, list[T]]:
    grouped: dict[Any, list[T]] = {}
    for member in members:
        grouped.setdefault(key(member), []).append(member)
    return grouped


def _folders(runs: Sequence[Run]) -> str:
    names = listed([run.folder for run in runs[:3]])
    return names if len(runs) <= 3 else f"{names} and {len(runs) - 3} more"


def row_names(runs: Sequence[Run]) -> Callable[[Learner], str]:
    """How rows are called: by the agent and, where its settings differ within a task, as few as tell rows apart.

    Those that are left unsaid are "...", and `differences` has them all.
    """
    agents = _grouped([learner for run in runs for learner in run.learners], lambda learner: learner.run.agent)
    stems = [registry.agent_name(agent) for agent in agents]
    told = {}
    for agent, learners in agents.items():
        varying = differences(learners)
        chosen: list[str] = []
        for name in varying:
            if len(_choices(learners, [*chosen, name])) > len(_choices(learners, chosen)):
                chosen.append(name)
        stem = registry.agent_name(agent)
        told[agent] = (stem if stems.count(stem) == 1 else agent, chosen, len(varying) > len(chosen))

    def called(learner: Learner) -> str:
        stem, chosen, more = told[learner.run.agent]
        settings = [f"{name.replace('_', '-')}={written(learner.settings[name])}" for name in chosen]
        return " ".join([stem, *settings, *(["..."] if more else [])])

    return called


def differences(learners: Sequence[Learner]) -> list[str]:
    """The settings that differ between learners of one agent within a task.

    A setting that some of their runs do not have yet, being older, is passed over.
    """
    names = [name for name in learners[0].settings if all(name in each.settings for each in learners)]
    tasks = _grouped(learners, lambda learner: learner.run.task).values()
    return [name for name in names if any(len(_choices(own, [name])) > 1 for own in tasks)]


def _choices(learners: Iterable[Learner], names: Sequence[str]) -> set[tuple[str, ...]]:
    return {tuple(written(learner.settings[name]) for name in names) for learner in learners}


def written(value: Any) -> str:
    """A setting as a row's name has it."""
    if isinstance(value, list):
        return ",".join(map(written, value))
    return f"{value:g}" if isinstance(value, int | float) and not isinstance(value, bool) else str(value).lower()


def _row(agent: str, label: str, learners: list[Learner], at: int | None) -> Row:
    chosen = [(learner, index) for learner in learners if (index := learner.index(at)) is not None]
    if chosen:
        return Row(agent, label, learners, chosen, True)
    common = min(int(learner.steps[-1]) for learner in learners)
    latest = [(each, max(0, int(np.searchsorted(each.steps, common, side="right")) - 1)) for each in learners]
    return Row(agent, label, learners, latest, False)


def estimates(row: Row, metric: str) -> dict[str, Estimate] | None:
    """IQM, median and mean over a row's learners; None where one of them is not finite."""
    values = row.values(metric)
    if not np.isfinite(values).all():
        return None
    measures = {"iqm": comparison.iqm, "median": _median, "mean": comparison.mean}
    return comparison.aggregate({row.label: {"": values}}, measures)[row.label]


def _median(tasks: comparison.Tasks) -> Any:
    """Over the learners of one task, where `comparison.median` is over tasks."""
    return np.median(tasks[0], axis=-1)


def leaders(table: Table) -> list[tuple[Row, Estimate]]:
    """The rows that came to the step of comparison, by their IQM, the highest first."""
    found = [(row, known["iqm"]) for row in table.rows if row.complete and (known := estimates(row, table.metric))]
    return sorted(found, key=lambda entry: -entry[1].value)


@dataclasses.dataclass
class Suite:
    """The rows that share several tasks, with scores that can be compared between these."""

    title: str
    axis: str  # what a score is
    explanation: str
    tables: list[Table]
    rows: dict[str, list[Row]]  # by label, one of each table
    left_out: list[str]  # rows, and tasks without a reference

    def score(self, table: Table, values: np.ndarray) -> np.ndarray:
        """Returns or scores in units in which 1 is the task's reference."""
        if table.metric == "scores":
            return values / 100
        reference = published.reference(table.published_task)
        assert reference is not None
        return values / reference.mean

    def scores(self) -> dict[str, dict[str, np.ndarray]]:
        """By label and task, the score of each learner."""
        return {
            label: {
                table.task: self.score(table, row.values(table.metric))
                for table, row in zip(self.tables, rows, strict=True)
            }
            for label, rows in self.rows.items()
        }

    def over_time(self) -> tuple[np.ndarray, dict[str, dict[str, np.ndarray]]]:
        """Steps [S] that all curves cover, and by label and task the scores [learners, S] there."""
        learners = [learner for rows in self.rows.values() for row in rows for learner, _ in row.chosen]
        first = max(learner.steps[0] for learner in learners)
        last = min(min(learner.steps[-1] for learner in learners), min(table.budget for table in self.tables))
        steps = np.linspace(first, last, POINTS)
        values = {
            label: {
                table.task: self.score(
                    table,
                    np.stack([np.interp(steps, own.steps, getattr(own, table.metric)) for own, _ in row.chosen]),
                )
                for table, row in zip(self.tables, rows, strict=True)
            }
            for label, rows in self.rows.items()
        }
        return steps, values


def suites(tables: Sequence[Table]) -> tuple[list[Suite], list[str]]:
    """What can be compared over several tasks, and sentences on what cannot."""
    found, remarks = [], []
    kinds = {
        "data sets": [table for table in tables if table.metric == "scores"],
        "environments": [table for table in tables if table.metric == "returns"],
    }
    for kind, own in kinds.items():
        known = own
        if kind == "environments":
            known = [table for table in own if table.data is None and published.reference(table.published_task)]
        unknown = [table.task for table in own if table not in known]
        if len(own) < 2:
            continue
        if len(known) < 2:
            remarks.append(
                f"No score over {', '.join(table.task for table in own)} together: returns of different tasks cannot "
                f"be averaged, and to normalise those of {', '.join(unknown)} no published reference is at hand."
            )
            continue
        chosen, labels = _largest(known)
        if len(chosen) < 2:
            remarks.append(f"No score over all {len(own)} {kind}: no two of them have a complete row in common.")
            continue
        others = sorted({row.label for table in known for row in table.rows} - set(labels))
        left_out = [*others, *(table.task for table in known if table not in chosen), *unknown]
        rows = {label: [_complete(table)[label] for table in chosen] for label in labels}
        axis, explanation = "score / 100", "1 is the reference policy of each data set, 0 the random one"
        if kind == "environments":
            axis = "return / published SAC"
            explanation = "1 is the published return of SAC at 1M steps, 0 a return of 0: " + "; ".join(
                f"{table.task} {point.mean:,.0f} ({point.environment}, {count(point.seeds, 'seed')}, {point.source})"
                for table in chosen
                if (point := published.reference(table.published_task))
            )
        found.append(Suite(f"Over {len(chosen)} {kind}", axis, explanation + ".", chosen, rows, left_out))
    return found, remarks


def _complete(table: Table) -> dict[str, Row]:
    """By label the rows of a table that can be compared."""
    return {row.label: row for row in table.rows if row.complete and np.isfinite(row.values(table.metric)).all()}


def _largest(tables: Sequence[Table]) -> tuple[list[Table], list[str]]:
    """Of these tables the choice with the most cells, tasks by labels, in which every label is in every task."""
    having = {
        label: {i for i, table in enumerate(tables) if label in _complete(table)}
        for table in tables
        for label in _complete(table)
    }
    choices = {frozenset(one & other) for one in having.values() for other in having.values()}
    best = max(
        (choice for choice in choices if len(choice) > 1),
        key=lambda choice: (len(choice) * sum(choice <= own for own in having.values()), len(choice)),
        default=frozenset(),
    )
    return [tables[i] for i in sorted(best)], sorted(label for label, own in having.items() if best <= own)


def listed(names: Iterable[Any]) -> str:
    """Names in quotes, with commas."""
    return ", ".join(f"'{name}'" for name in names)


def count(number: int, unit: str) -> str:
    """A number with its unit, in the plural where that is due."""
    return f"{number:,} {unit}" if number == 1 else f"{number:,} {unit}s"


def short(step: int) -> str:
    """A number of steps to three digits, such as 300k."""
    return f"{step / 1e6:.3g}M" if step >= 999_500 else f"{step / 1e3:.3g}k" if step >= 1000 else str(step)


def digits(values: np.ndarray) -> int:
    """How many decimals numbers as large as these are written with."""
    largest = np.max(np.abs(values), initial=0.0, where=np.isfinite(values))
    return 0 if largest >= 100 else 1 if largest >= 10 else 2 if largest >= 1 else 4
