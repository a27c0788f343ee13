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

from rljax import datasets
from rljax.analysis import folders
from rljax.analysis.validation import ACTION, ERROR, losses
from rljax.runs import records

JUDGED = "value/initial"  # the metric of a judge
OWN = ("critic/q",)  # metrics of candidates that may tell something
LOSSES = (ACTION, ERROR)  # of candidates on data that they have not learnt from: the smallest is the best


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


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of values [N]; NaN where one of the two is constant."""
    from scipy.stats import spearmanr  # takes long to import

    if any((x == x[0]).all() for x in (one, other)):
        return float("nan")
    found: Any = spearmanr(one, other)
    return float(found.statistic)


def choose(criterion: str, values: Mapping[Path, float], returns: Mapping[Path, float]) -> Choice:
    """The candidate with the largest value, beside the returns of all that have one. Of equal ones, it is the first.

    Of the criteria in `LOSSES`, the smallest value is chosen, and their correlation is that of the negative loss.
    """
    known = [path for path in returns if path in values]
    of, gained = (np.array([x[path] for path in known]) for x in (values, returns))
    worth = -of if criterion in LOSSES else of
    chosen = int(np.argmax(np.where(np.isfinite(worth), worth, -np.inf)))
    spread = gained.max() - gained.min()
    regret = float((gained.max() - gained[chosen]) / spread) if spread > 0 else float("nan")
    numbers = (float(of[chosen]), float(gained[chosen]), float(gained.max()), regret, correlation(worth, gained))
    return Choice(criterion, len(known), known[chosen], *numbers)


def select(
    paths: Sequence[Path], validation: str | None = None, discount: float = 0.99, *, trust: bool = False
) -> tuple[list[Choice], dict[Path, dict[str, float]]]:
    """The choice of each criterion, and the criteria and returns of each candidate, of runs in and below `paths`.

    `validation` is the name or the file of a data set that no candidate has learnt from: see `losses`, also for
    `discount` and `trust`. Raises `ValueError` where there are fewer than two candidates, where nothing judges them,
    and all errors of `losses`.
    """
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"--discount is {discount:g}, it must be in [0, 1].")
    held_out = None if validation is None else datasets.load(validation)
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
        if held_out is not None:
            for name, loss in losses(folder, held_out, discount, trust=trust).items():
                found.setdefault(name, {})[folder] = loss
    found = {JUDGED: {path: judges[path.resolve()] for path in returns if path.resolve() in judges}, **found}
    found = {name: values for name, values in found.items() if len(values) > 1}
    if len(returns) < 2 or not found:
        raise ValueError(
            f"{len(returns)} evaluated runs, and {len(judges)} that judge one of them: a choice needs two runs or more "
            "and a criterion. Judge each run by: rljax train fqe --data DATA --base RUN, and name all folders; or name "
            "data that they have not learnt from: --validation DATA"
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


def markdown(paths: Sequence[Path], **options: Any) -> str:
    """Two tables: the choices, and the candidates by falling return. `options` are those of `select`."""
    choices, table = select(paths, **options)
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
        cells = [f"{values[name]:,.4g}" if name in values else "" for name in names]
        lines.append(f"| {path.name} | {values['return']:,.1f} | {' | '.join(cells)} |")
    return "\n".join(lines)
