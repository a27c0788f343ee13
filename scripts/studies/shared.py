"""Shared parts of the studies: runs that continue after an interruption, and files of results."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from rljax.analysis import folders
from rljax.analysis.comparison import mean_interval
from rljax.runs import records, run
from scripts.results.shared import over_seeds


def trained(
    out: Path,
    steps: int,
    begin: Callable[[], object],
    data: str | None = None,
    config: Mapping[str, Any] | None = None,
) -> Path:
    """The folder of a complete run of `steps`.

    A complete run is left as it is. An incomplete run continues from its newest checkpoint, or
    begins anew in its folder if it has none. If there is no run, `begin` starts it. The program
    exits if training is interrupted, or if an existing run has other data or settings than `data`
    and `config`.
    """
    if (out / "config.json").exists():
        _require_same(out, data, config or {})
    if not complete(out, steps):
        if (out / "config.json").exists():
            run.resume(out, steps, quiet=False)
        else:
            begin()
    if not complete(out, steps):
        raise SystemExit(f"stopped in '{out}', all saved: the same command goes on.")
    return out


def _require_same(out: Path, data: str | None, config: Mapping[str, Any]) -> None:
    described = json.loads((out / "config.json").read_text())
    expected = json.loads(json.dumps({"data": data, **config}))
    there = {"data": described.get("data"), **described["config"]}
    other = {name: there.get(name) for name, value in expected.items() if there.get(name) != value}
    if data is not None and other:
        raise SystemExit(
            f"'{out}' has {other}, and not {expected}: name another folder for these runs, --runs."
        )


def complete(out: Path, steps: int) -> bool:
    """Whether a run is complete and has at least `steps` steps."""
    file = out / "summary.json"
    summary = json.loads(file.read_text()) if file.exists() else {"complete": False}
    return summary["complete"] and summary["steps"] >= steps


def last(out: Path, steps: int, name: str, number: int) -> np.ndarray:
    """For each learner [learner], the mean "returns" or "scores" (`name`) of its last evaluations
    until `steps`.
    """
    evaluations = [line for line in records.read(out, "evaluations") if line["step"] <= steps]
    recent = sorted({line["step"] for line in evaluations})[-number:]
    learners = range(1 + max(line["learner"] for line in evaluations))
    return np.array(
        [
            np.mean(
                [
                    np.mean(line[name])
                    for line in evaluations
                    if line["learner"] == i and line["step"] in recent
                ]
            )
            for i in learners
        ]
    )


def curves(out: Path, places: int) -> dict[str, Any]:
    """The steps of a run's evaluations, and for each learner its mean returns,
    rounded to so many places.
    """
    learners = folders.read(out).learners
    return {
        "steps": learners[0].steps.tolist(),
        "returns": [x.returns.round(places).tolist() for x in learners],
    }


def steps_per_second(out: Path, first: int = 0) -> float:
    """Each learner's steps per second of a run's loop: the median of its chunks after `first`
    steps.
    """
    lines = [line for line in records.read(out, "metrics") if line["step"] > first]
    rate = float(np.median([line["steps_per_second"] for line in lines]))
    return rate / len(records.read_config(out)["learners"])


def with_interval(interval: Sequence[float], places: int = 0, sign: str = "") -> str:
    """A mean with its interval as text, "value [low, high]", with so many decimals;
    `sign` "+" shows the value's. `interval` has the mean alone where seeds are too few.
    """
    value, *bounds = interval
    text = f"{value:{sign},.{places}f}"
    return f"{text} [{', '.join(f'{x:,.{places}f}' for x in bounds)}]" if bounds else text


def seeds_with_interval(values: Sequence[float]) -> str:
    """`over_seeds`, and the interval of the mean if there are enough seeds."""
    _, *bounds = mean_interval(values)
    return over_seeds(values) + (f" [{', '.join(f'{x:,.0f}' for x in bounds)}]" if bounds else "")


def write(
    study: Mapping[str, Any],
    path: Path,
    table: Callable[[Mapping[str, Any]], str],
    draw: Callable[[Mapping[str, Any], Path], None],
) -> None:
    """Print the results, and write them beside `path` as JSON, Markdown and PNG."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.with_suffix(".json").write_text(json.dumps(study, indent=1) + "\n")
    path.with_suffix(".md").write_text(table(study))
    draw(study, path.with_suffix(".png"))
    print(table(study))


def draw_scores(
    study: Mapping[str, Any],
    path: Path,
    agents: Mapping[str, str],
    variants: Mapping[str, str],
    colours: Mapping[str, str],
    levels: Mapping[str, float] | None = None,
) -> None:
    """Draw scores by agent and variant: a bar for the mean, a dot for each learner,
    and `levels` as lines.

    `agents` and `variants` are the names that are shown, by those in `study["scores"]`.
    """
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, 3.4), layout="constrained")
    axes = figure.subplots()
    for i, (variant, name) in enumerate(variants.items()):
        places = np.arange(len(agents)) + 0.25 * (i - 1)
        values = [study["scores"][agent][variant] for agent in agents]
        axes.bar(
            places,
            [np.mean(x) for x in values],
            0.22,
            color=colours[variant],
            alpha=0.7,
            label=name,
        )
        for place, of in zip(places, values, strict=True):
            axes.plot([place] * len(of), of, "k.", markersize=4)
    for name, level in (levels or {}).items():
        axes.axhline(level, color="k", linewidth=0.8, linestyle="--", label=name)
    axes.set_xticks(np.arange(len(agents)), list(agents.values()))
    axes.set(ylabel="normalised score", title=f"{study['env']}, {study['steps']:,} updates")
    figure.legend(*axes.get_legend_handles_labels(), loc="outside right upper")
    figure.savefig(path, dpi=130)
