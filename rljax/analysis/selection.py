"""Which of several runs a number from the data alone would have chosen, and what that choice costs: `rljax select`.

A candidate is a run with evaluations. A judge is a run that judges a candidate, its base, by the metric
`value/initial`, as FQE does. What counts of a candidate is its first learner, which is the one that judges see.

Regret and rank correlation: Paine et al., Hyperparameter Selection for Offline Reinforcement Learning,
arXiv:2007.09055.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import folders
from rljax.runs import records

JUDGED = "value/initial"  # the metric of a judge
OWN = ("critic/q",)  # metrics of candidates that may tell something


@dataclasses.dataclass(frozen=True)
class Choice:
    """What one criterion makes of those candidates that it knows."""

    criterion: str
    runs: int  # candidates that it knows
    chosen: Path
    value: float  # of the criterion, for the run that is chosen
    returned: float  # the return of the run that is chosen
    best: float  # the largest return of these candidates
    regret: float  # share, in [0, 1], of the range of their returns that the choice loses; NaN where all are equal
    correlation: float  # Spearman's rank correlation of criterion and return; NaN where one of them is constant


def ranks(values: np.ndarray) -> np.ndarray:
    """Ranks [N] from 1 on; equal values share the mean of their ranks."""
    return np.array([(values < x).sum() + ((values == x).sum() + 1) / 2 for x in values])


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of values [N]; NaN where one of the two is constant."""
    left, right = (ranks(x) - ranks(x).mean() for x in (one, other))
    scale = np.sqrt((left**2).sum() * (right**2).sum())
    return float((left * right).sum() / scale) if scale > 0 else float("nan")


def choose(criterion: str, values: Mapping[Path, float], returns: Mapping[Path, float]) -> Choice:
    """The candidate with the largest value, beside the returns of all that have one. Of equal ones, it is the first."""
    known = [path for path in returns if path in values]
    of, gained = (np.array([x[path] for path in known]) for x in (values, returns))
    chosen = int(np.argmax(np.where(np.isfinite(of), of, -np.inf)))
    spread = gained.max() - gained.min()
    regret = float((gained.max() - gained[chosen]) / spread) if spread > 0 else float("nan")
    numbers = (float(of[chosen]), float(gained[chosen]), float(gained.max()), regret, correlation(of, gained))
    return Choice(criterion, len(known), known[chosen], *numbers)


def select(paths: Sequence[Path]) -> tuple[list[Choice], dict[Path, dict[str, float]]]:
    """The choice of each criterion, and the criteria and returns of each candidate, of runs in and below `paths`.

    Raises `ValueError` where there are fewer than two candidates, or where nothing judges them.
    """
    returns: dict[Path, float] = {}
    found: dict[str, dict[Path, float]] = {}
    judges: dict[Path, float] = {}
    for folder in records.find(paths):
        config, last = records.read_config(folder), _last(folder)
        if config.get("base") and JUDGED in last:
            judges[Path(config["base"]).resolve()] = last[JUDGED]
            continue
        if not records.read(folder, "evaluations"):
            continue
        returns[folder] = float(folders.read(folder).learners[0].returns[-1])
        for name in OWN:
            if name in last:
                found.setdefault(name, {})[folder] = last[name]
    found = {JUDGED: {path: judges[path.resolve()] for path in returns if path.resolve() in judges}, **found}
    found = {name: values for name, values in found.items() if len(values) > 1}
    if len(returns) < 2 or not found:
        raise ValueError(
            f"{len(returns)} evaluated runs, and {len(judges)} that judge one of them: a choice needs two runs or more "
            "and a criterion. Judge each run by: rljax train fqe --data DATA --base RUN, and name all folders."
        )
    table = {
        path: {"return": gained, **{name: values[path] for name, values in found.items() if path in values}}
        for path, gained in returns.items()
    }
    return [choose(name, values, returns) for name, values in found.items()], table


def _last(folder: Path) -> dict[str, float]:
    """The last value of each metric of a run, for its first learner."""
    last: dict[str, Any] = {}
    for line in records.read(folder, "metrics"):
        last |= {name: value[0] for name, value in line.items() if isinstance(value, list) and value[0] is not None}
    return last


def markdown(paths: Sequence[Path]) -> str:
    """Two tables: the choices, and the candidates from the largest return to the smallest."""
    choices, table = select(paths)
    lines = [
        "| criterion | runs | chosen | its return | the best | regret | rank correlation |",
        "|---|---|---|---|---|---|---|",
    ]
    for x in choices:
        numbers = f"{x.returned:,.1f} | {x.best:,.1f} | {x.regret:.2f} | {x.correlation:.2f}"
        lines.append(f"| {x.criterion} | {x.runs} | {x.chosen.name} | {numbers} |")
    names = [x.criterion for x in choices]
    lines += ["", f"| run | return | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    for path, values in sorted(table.items(), key=lambda item: -item[1]["return"]):
        cells = [f"{values[name]:,.1f}" if name in values else "" for name in names]
        lines.append(f"| {path.name} | {values['return']:,.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)
