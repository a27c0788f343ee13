"""Commands that show the results of runs: rljax plot | report | diagnose | select | watch."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

from rljax.cli import options as shared
from rljax.cli import parsing


@dataclasses.dataclass
class Plot:
    """Draw the evaluation curves of runs, or their metrics: one for learners with the same agent,
    settings and task.
    """

    runs: shared.Folders  # folders of runs
    output: Annotated[Path | None, shared.OUTPUT] = None  # .png or .svg; default FIRST/curve.png
    # draw the sums of this signal over episodes, such as cost, in place of returns
    signal: str | None = None
    # draw this metric of the training, such as actor/kl, in place of returns
    metric: str | None = None


@dataclasses.dataclass
class Paths:
    """The folders of the runs."""

    paths: shared.Folders  # folders of runs, or folders with runs at any depth


@dataclasses.dataclass
class ReportOptions(Paths):
    """Compare runs on one page, with figures and tables in files, and intervals over learners."""

    # the page; figures and tables.md go to a folder of its name beside it
    output: Annotated[Path, shared.OUTPUT] = Path("report.html")
    # compare at this step; default: at the end of the runs' budget, which must be the same
    at: int | None = None


@dataclasses.dataclass
class Diagnose:
    """Say what looks wrong in a run, by its records, with the evidence and what to try."""

    run: shared.Folder  # folder of the run


@dataclasses.dataclass
class Select(Paths, shared.Trust):
    """Choose among runs by criteria that need only data, and compare the choices with the runs'
    returns.
    """

    validation: str | None = None  # a held-out data set: losses on it are criteria too
    discount: float = 0.99  # gamma of the critics' error on it


@dataclasses.dataclass
class Watch(Paths):
    """Follow runs in the terminal: their progress, speed and latest evaluation."""

    once: bool = False  # print once and leave; always so if the output is not a terminal
    every: float = 2.0  # seconds between looks


def plot(arguments: list[str]) -> None:
    """rljax plot"""
    options = parsing.parse(Plot, arguments, "plot")
    from rljax.analysis import learning_curves

    drawn = {"signal": options.signal, "metric": options.metric}
    print(learning_curves.plot(options.runs, options.output, **drawn))


def report(arguments: list[str]) -> None:
    """rljax report"""
    options = parsing.parse(ReportOptions, arguments, "report")
    from rljax.analysis import report

    print(report.write(options.paths, options.output, options.at))


def diagnose(arguments: list[str]) -> None:
    """rljax diagnose"""
    options = parsing.parse(Diagnose, arguments, "diagnose")
    from rljax.analysis import diagnosis

    print(diagnosis.text(options.run))


def select(arguments: list[str]) -> None:
    """rljax select"""
    options = parsing.parse(Select, arguments, "select")
    from rljax.analysis import selection

    names = ("validation", "discount", "trust")
    criteria = {name: getattr(options, name) for name in names}
    print(selection.markdown(options.paths, **criteria))


def watch(arguments: list[str]) -> None:
    """rljax watch"""
    options = parsing.parse(Watch, arguments, "watch")
    from rljax.analysis import watch

    watch.follow(options.paths, once=options.once, every=options.every)
