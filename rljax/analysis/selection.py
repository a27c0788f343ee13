"""Selection among runs by criteria that need only data.

A candidate is a run with evaluations or, where none has any, each run but the judges. A judge is a
run whose base is a candidate. Only a candidate's first learner counts.

Regret and rank correlation: Paine et al., arXiv:2007.09055.
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
from rljax.runs.statistics.summaries import ESTIMATE
from rljax.trust import Folder

OWN_METRICS = ("critic/q",)  # criteria from the candidates' own metrics
LOSSES = (ACTION, ERROR)  # of candidates on held-out data: the smallest is the best


@dataclasses.dataclass(frozen=True)
class Choice:
    """The candidate that a criterion prefers."""

    criterion: str
    candidates: int  # the number of candidates with a value
    run: Path  # the preferred candidate
    value: float  # of the criterion, for this run
    final_return: float  # of this run; NaN without evaluations, and so are the next three
    best_return: float  # the largest of all candidates with a value
    regret: float  # share of the range of returns that it loses; NaN if all are equal
    correlation: float  # of criterion and return


def correlation(one: np.ndarray, other: np.ndarray) -> float:
    """Spearman's rank correlation of values [N]; NaN where one is constant or unknown."""
    from scipy.stats import spearmanr

    if any((x == x[0]).all() or np.isnan(x).any() for x in (one, other)):
        return float("nan")
    result: Any = spearmanr(one, other)
    return float(result.statistic)


def choose(criterion: str, values: Mapping[Path, float], returns: Mapping[Path, float]) -> Choice:
    """The candidate with the largest value of a criterion, the first of equals.

    Of `LOSSES` the smallest counts, and the correlation is that of the negative loss.
    """
    candidates = [path for path in returns if path in values]
    value = np.array([values[path] for path in candidates])
    final_return = np.array([returns[path] for path in candidates])
    worth = -value if criterion in LOSSES else value
    index = int(np.argmax(np.where(np.isfinite(worth), worth, -np.inf)))
    best, worst = float(final_return.max()), float(final_return.min())
    regret = float((best - final_return[index]) / (best - worst)) if best > worst else float("nan")
    return Choice(
        criterion,
        len(candidates),
        candidates[index],
        float(value[index]),
        float(final_return[index]),
        best,
        regret,
        correlation(worth, final_return),
    )


def select(
    paths: Sequence[Path],
    validation: str | None = None,
    discount: float = 0.99,
    *,
    trust: bool = False,
) -> tuple[list[Choice], dict[Path, dict[str, float]]]:
    """The choices among the runs in and below `paths`, and each candidate's return and criteria.
    `validation` names a data set that no candidate has learnt from.

    Raises `ValueError` for fewer than two candidates or no criterion, and the errors of `losses`.
    """
    if not 0.0 <= discount <= 1.0:
        raise ValueError(f"--discount is {discount:g}, it must be in [0, 1].")
    held_out = None if validation is None else datasets.load(validation)
    returns: dict[Path, float] = {}
    others: dict[Path, float] = {}  # of runs that had no environment
    criteria: dict[str, dict[Path, float]] = {}
    judges: dict[Path, float] = {}
    for folder in records.find(paths):
        config, last = records.read_config(folder), _last(folder)
        if config.get("base") and ESTIMATE in last:
            judges[Path(config["base"]).resolve()] = last[ESTIMATE]
            continue
        if records.read(folder, "evaluations"):
            returns[folder] = float(folders.read(folder).learners[0].returns[-1])
        elif config["environment"] == "none":
            others[folder] = float("nan")
        else:
            continue
        for name in OWN_METRICS:
            if name in last:
                criteria.setdefault(name, {})[folder] = last[name]
        if held_out is not None:
            for name, loss in losses(Folder(folder, trust), held_out, discount).items():
                criteria.setdefault(name, {})[folder] = loss
    returns = returns or others
    criteria = {
        ESTIMATE: {path: judges[path.resolve()] for path in returns if path.resolve() in judges},
        **criteria,
    }
    criteria = {name: values for name, values in criteria.items() if len(values) > 1}
    if len(returns) < 2 or not criteria:
        raise ValueError(
            f"{len(returns)} runs to choose from, and {len(judges)} that judge one of them: a "
            "choice needs two runs or more and a criterion. Judge each run by: rljax train fqe "
            "--data DATA --base RUN, and name all folders; or name data that they have not learnt "
            "from: --validation DATA"
        )
    table = {
        path: {name: x[path] for name, x in {"return": returns, **criteria}.items() if path in x}
        for path in returns
    }
    return [choose(name, values, returns) for name, values in criteria.items()], table


def _last(folder: Path) -> dict[str, float]:
    last: dict[str, Any] = {}
    for line in records.read(folder, "metrics"):
        firsts = {name: value[0] for name, value in line.items() if isinstance(value, list)}
        last |= {name: value for name, value in firsts.items() if value is not None}
    return last


def markdown(paths: Sequence[Path], **options: Any) -> str:
    """Tables of choices, and of candidates by return or the first criterion.

    `options` go to `select`.
    """
    choices, table = select(paths, **options)
    lines = [
        "| criterion | runs | chosen | its return | the best | regret | rank correlation |",
        "|---|---|---|---|---|---|---|",
    ]
    for x in choices:
        results = [f"{value:,.1f}" for value in (x.final_return, x.best_return)]
        results += [f"{value:.2f}" for value in (x.regret, x.correlation)]
        cells = ["" if text == "nan" else text for text in results]
        lines.append(f"| {x.criterion} | {x.candidates} | {x.run.name} | {' | '.join(cells)} |")
    names = [x.criterion for x in choices]
    lines += ["", f"| run | return | {' | '.join(names)} |", "|---|---|" + "---|" * len(names)]
    unknown = any(np.isnan(values["return"]) for values in table.values())
    order = names[0] if unknown else "return"
    for path, values in sorted(table.items(), key=lambda item: -item[1].get(order, -np.inf)):
        cells = [f"{values[name]:,.4g}" if name in values else "" for name in names]
        level = "" if np.isnan(values["return"]) else f"{values['return']:,.1f}"
        lines.append(f"| {path.name} | {level} | {' | '.join(cells)} |")
    return "\n".join(lines)
