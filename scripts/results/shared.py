"""Shared parts of the scripts that write tables: runs as small objects,
and tables in Markdown in results' pages.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.learning import configuration, registry, schedules
from rljax.learning.settings import Settings
from rljax.runs import records
from rljax.runs.statistics import estimators

RESULTS = Path(__file__).resolve().parents[2] / "results"
FIELDS = (
    "agent",
    "env",
    "steps",
    "seeds",
    "config",
    "command",
    "versions",
    "devices",
    "processor",
    "git_revision",
)


def collect(run: Path) -> dict[str, Any]:
    """A run as one small object: what it was, and each learner's mean return at each evaluation.

    Where the environment tells of success, `success` is the share of the episodes likewise.
    """
    described = json.loads((run / "config.json").read_text())
    summary = (
        json.loads((run / "summary.json").read_text()) if (run / "summary.json").exists() else {}
    )
    evaluations = records.read(run, "evaluations")
    steps = sorted({line["step"] for line in evaluations})
    shared = min(Counter(line["learner"] for line in evaluations).values())

    def means(name: str, digits: int) -> list[list[float]]:
        learners = range(len(described["seeds"]))
        lines = [[line for line in evaluations if line["learner"] == i][:shared] for i in learners]
        return [
            [round(float(np.mean(line[name])), digits) for line in learner_lines]
            for learner_lines in lines
        ]

    timing = {
        name: summary.get(name) for name in ("wall_seconds", "compile_seconds", "steps_per_second")
    }
    return {
        **{name: described[name] for name in FIELDS},
        "preset": described.get("preset"),
        "environment": described["env"],
        "reached": steps[shared - 1],
        "episodes_per_evaluation": len(evaluations[0]["returns"]),
        **timing,
        "steps_evaluated": steps[:shared],
        "returns": means("returns", 2),
        **({"success": means("success", 4)} if "success" in evaluations[0] else {}),
    }


def changes(run: dict[str, Any]) -> list[str]:
    """The hyperparameters in which a run departs from its agent's defaults and its environment's
    preset.

    Settings that follow the run's length are left out: older runs had a fixed number of steps, as
    the pages say.
    """
    module = registry.load_agent(run["agent"])
    usual = registry.preset(
        run["agent"], module, run["environment"], run.get("data"), variant=run.get("preset")
    )
    settings = Settings(run["agent"], run["environment"], run["steps"])
    preset, in_steps = (
        configuration.as_json(x) for x in (usual, schedules.in_steps(module, usual, settings))
    )
    same = [name for name in preset if preset[name] == in_steps[name]]
    return [
        f"{name} {run['config'][name]}"
        for name in run["config"]
        if name in same and run["config"][name] != preset[name]
    ]


def hardware(run: dict[str, Any]) -> str:
    """What a run was trained on: the processor, or the first accelerator."""
    device = run["devices"][0]
    return run["processor"] if "(cpu:" in device else device.partition(" (")[0]


def over_seeds(values: Sequence[float] | np.ndarray, digits: int = 0) -> str:
    """The mean and the standard deviation over seeds; with fewer than `estimators.FEWEST` the mean
    and each seed.
    """
    mean = f"{np.mean(values):,.{digits}f}"
    if len(values) >= estimators.FEWEST:
        return f"{mean} +- {np.std(values, ddof=1):,.{digits}f}"
    if len(values) == 1:
        return f"{mean} (1 seed)"
    return f"{mean} ({', '.join(f'{value:,.{digits}f}' for value in values)})"


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> list[str]:
    """The lines of a table in Markdown."""
    return [
        f"| {' | '.join(header)} |",
        len(header) * "|---" + "|",
        *(f"| {' | '.join(row)} |" for row in rows),
    ]


def file_of(page: str) -> Path:
    """The file of a page, such as "online/streaming". A folder's page is its README.md."""
    return RESULTS / page / "README.md" if (RESULTS / page).is_dir() else RESULTS / f"{page}.md"


def show(page: str, name: str, lines: str) -> None:
    """Print a table, and put it between the marks called `name` in a page of results/."""
    begin, end = f"<!-- {name} -->", f"<!-- /{name} -->"
    path = file_of(page)
    before, _, rest = path.read_text().partition(begin)
    if end not in rest:
        raise ValueError(f"{path} has no marks '{begin}' and '{end}' for this table.")
    path.write_text(f"{before}{begin}\n\n{lines}\n\n{end}{rest.partition(end)[2]}")
    print(lines)
