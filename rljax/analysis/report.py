"""A report over runs: one page that needs nothing beside it, its figures as files, and its tables in Markdown.

Every number has its interval over learners, and says how many learners it rests on.
"""

from __future__ import annotations

import dataclasses
import itertools
import re
import shlex
import string
from collections.abc import Callable, Iterable, Mapping, Sequence
from html import escape
from pathlib import Path
from typing import Any

import numpy as np

from rljax import __version__
from rljax.analysis import comparison, figures, published, tables
from rljax.analysis.comparison import Estimate
from rljax.analysis.tables import Row, Run, Suite, Table, count, listed, short
from rljax.runs import statistics
from rljax.training import registry

CLEAR = 6  # rows up to which a panel shows single learners and published curves too
TEMPLATE = Path(__file__).with_name("report.html")


def write(paths: Sequence[Path], output: Path = Path("report.html"), at: int | None = None) -> Path:
    """Write a report over runs and return the page's path.

    Args:
        paths: folders of runs, or folders with runs at any depth below them.
        output: the page; its figures and tables.md go to a folder of the same name without suffix.
        at: compare all runs at this step instead of at their ends: each at its last evaluation until then.

    Raises:
        ValueError: a path that is no folder, no run that can be read, runs of one task with different budgets or
            numbers of episodes per evaluation, a step that not all of them were planned to reach, or an output whose
            suffix is not .html.
    """
    output = Path(output)
    if output.suffix != ".html":
        raise ValueError(f"output is '{output}', it must end in .html: --output {output.with_suffix('.html')}")
    runs, skipped = tables.load(paths)
    if not runs:
        reasons = "".join(f"\n  {folder}: {reason}" for folder, reason in skipped)
        raise ValueError(f"there is no run to report on in {listed(paths)}.{reasons}")
    arranged = tables.arrange(runs, at)
    given = ["rljax", "report", *map(str, paths), *([] if at is None else ["--at", str(at)])]
    _Page(output, arranged, skipped, at, shlex.join(given)).write()
    return output


def _line(row: Row, metric: str, at: int | None) -> figures.Line:
    """A row's learning curve: the IQM over its learners."""
    curves = []
    for learner, _ in row.chosen:
        until = len(learner.steps) if at is None else int(np.searchsorted(learner.steps, at, side="right"))
        curves.append((learner.steps[:until], getattr(learner, metric)[:until]))
    steps, centre, low, high = statistics.join(curves, statistics.iqm)
    label = figures.wrapped(f"{row.label} ({count(len(curves), 'learner')})")
    return figures.Line(label, steps, centre, low, high, curves if len(curves) > 1 else ())


@dataclasses.dataclass
class Cell:
    """What stands in one place of a table: lines of text, each with what is less important about it."""

    lines: Sequence[tuple[str, str]]
    text: bool = False  # prose, not a number
    points: bool = False  # several numbers, each on one line with what belongs to it
    flag: bool = False  # something to notice

    def html(self) -> str:
        """As the content of an element."""
        kind = ' class="flag"' if self.flag else ""
        lines = [
            f"<span{kind}>{escape(main)}</span>" + (f" <small{kind}>{escape(detail)}</small>" if detail else "")
            for main, detail in self.lines
        ]
        return "<br>".join(lines)

    @property
    def style(self) -> str:
        """Its element's class, as an attribute."""
        kinds = ["text"] * self.text + ["lines"] * self.points
        return f' class="{" ".join(kinds)}"' if kinds else ""

    def markdown(self) -> str:
        """In one line."""
        text = "; ".join(f"{main} ({detail})" if detail else main for main, detail in self.lines)
        return text.replace("|", "\\|")


def _cell(main: str, detail: str = "", **kind: bool) -> Cell:
    return Cell([(main, detail)], **kind)


@dataclasses.dataclass
class Sheet:
    """A table with a caption, for the page and for Markdown."""

    caption: str
    columns: Sequence[str]
    rows: list[list[Cell]]

    def html(self, swatches: Mapping[str, figures.Look] | None = None) -> str:
        """A table in a box of its own that scrolls; `swatches` mark rows as the figures' curves."""
        prose = [any(row[i].text for row in self.rows) for i in range(len(self.columns))]
        head = "".join(
            f'<th scope="col"{" class=text" if prose[i] else ""}>{escape(name)}</th>'
            for i, name in enumerate(self.columns)
        )
        body = []
        for first, *others in self.rows:
            look = (swatches or {}).get(first.lines[0][0])
            swatch = "" if look is None else _swatch(look)
            cells = "".join(f"<td{cell.style}>{cell.html()}</td>" for cell in others)
            body.append(f'<tr><th scope="row">{swatch}{first.html()}</th>{cells}</tr>')
        caption = escape(self.caption)
        return (
            f'<div class="scroll" tabindex="0" role="region" aria-label="{escape(self.columns[0], quote=True)}: table">'
            f"<table><caption><span>{caption}</span></caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def markdown(self) -> str:
        """A table below its caption."""
        lines = [self.caption, "", f"| {' | '.join(self.columns)} |", "|---" * len(self.columns) + "|"]
        lines += [f"| {' | '.join(cell.markdown() for cell in row)} |" for row in self.rows]
        return "\n".join(lines)


def _swatch(look: figures.Look) -> str:
    """A piece of a curve, as it is drawn."""
    dashes = {"-": "", "-.": ' stroke-dasharray="7 3 2 3"', ":": ' stroke-dasharray="2 3"'}[look[0]]
    number = figures.COLOURS.index(look[1]) + 1
    return (
        '<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><line x1="0" y1="5" x2="28" y2="5" '
        f'stroke="var(--series-{number})" stroke-width="4"{dashes}/></svg>'
    )


class _Page:
    """Puts the page together, and the files beside it."""

    def __init__(
        self,
        output: Path,
        tables: Sequence[Table],
        skipped: Sequence[tuple[Path, str]],
        at: int | None,
        command: str,
    ) -> None:
        self.command = command
        self.output, self.folder = output, output.with_suffix("")
        self.tables, self.skipped, self.at = tables, skipped, at
        self.runs = list({id(run): run for table in tables for row in table.rows for run in row.runs}.values())
        self.looks = figures.looks(dict.fromkeys(row.label for table in tables for row in table.rows))
        self.sources: dict[str, int] = {}
        self.html: list[str] = []
        self.markdown: list[str] = []
        self.slugs: dict[str, str] = {}  # of each section, in their order

    def write(self) -> None:
        """Write everything."""
        found, remarks = tables.suites(self.tables)
        self._head()
        self._notices(remarks)
        self._glance()
        for suite in found:
            self._suite(suite)
        for table in self.tables:
            self._task(table)
        self._settings()
        self._cost()
        self._commands()
        self._method()
        template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
        links = "".join(f'<li><a href="#{slug}">{escape(title)}</a></li>' for title, slug in self.slugs.items())
        contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
        body = "\n".join([self.head, contents, *self.html])
        page = template.substitute(title=escape(self._title()), version=__version__, body=body)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.output.write_text(page, encoding="utf-8")
        (self.folder / "tables.md").write_text("\n\n".join(self.markdown) + "\n", encoding="utf-8")

    def _title(self) -> str:
        agents = list(dict.fromkeys(registry.agent_name(row.agent) for table in self.tables for row in table.rows))
        return f"{_few(agents, 'agents')} on {_few([table.task for table in self.tables], 'tasks')}"

    def _head(self) -> None:
        learners = sum(len(row.learners) for table in self.tables for row in table.rows)
        facts = [count(len(self.runs), "run"), count(learners, "learner"), count(len(self.tables), "task")]
        when = "at the end of their budget" if self.at is None else f"at step {self.at:,}"
        lead = f"{', '.join(facts)}, compared {when}."
        whole = re.sub(r"\S{1,18}(?!\S)", lambda word: f"<span>{word[0]}</span>", escape(self._title()))
        self.head = f'<header><h1>{whole}</h1><p class="lead">{escape(lead)}</p></header>'
        self.markdown.append(f"# {self._title()}\n\n{lead}")

    def _notices(self, remarks: Sequence[str]) -> None:
        notices = [f"Skipped: {folder}: {reason}" for folder, reason in self.skipped]
        for table in self.tables:
            for row in table.rows:
                short = [run for run in row.runs if not all(each.index(self.at) is not None for each in run.learners)]
                if short:
                    ends = ", ".join(f"{run.folder} ({_progress(run)})" for run in short[:3])
                    ends += f" and {len(short) - 3} more" if len(short) > 3 else ""
                    counted = "shown where it stands, and not compared" if not row.complete else "without its learners"
                    notices.append(f"Incomplete: {row.label} on {table.task}, {counted}: {ends}")
                if row.diverged:
                    notices.append(
                        f"Diverged: {row.diverged} of {count(len(row.chosen), 'learner')} of {row.label} on "
                        f"{table.task}; each counts with its last good policy, if there was one."
                    )
        notices += remarks
        if notices:
            items = "".join(f"<li>{escape(notice)}</li>" for notice in notices)
            self.html.append(f'<aside aria-label="Notices"><h2>To know before reading</h2><ul>{items}</ul></aside>')
            self.markdown.append("\n".join(f"- {notice}" for notice in notices))

    def _glance(self) -> None:
        """The row with the highest IQM of each task, and how probable it is that the next one is worse."""
        rows = []
        for table in self.tables:
            leaders = tables.leaders(table)
            if len(leaders) < 2:
                continue
            digits = _digits(table)
            (first, estimate), (second, _), *_ = leaders
            pair = comparison.improvement(
                {name: {"": row.values(table.metric)} for name, row in (("x", first), ("y", second))}, [("x", "y")]
            )["x", "y"]
            rows.append(
                [
                    _cell(table.task, f"{table.budget:,} steps"),
                    _cell(first.label, count(len(first.chosen), "learner"), text=True),
                    _estimate_cell(estimate, digits),
                    _cell(second.label, count(len(second.chosen), "learner"), text=True),
                    _estimate_cell(pair, 2),
                ]
            )
        if rows:
            columns = ["task", "highest IQM", "IQM", "next", "P(highest > next)"]
            caption = (
                "The highest interquartile mean of each task and the next one. Below each number its 95 % interval; P "
                "is the probability that a learner of the one is above one of the other, 0.5 where they are equal."
            )
            self._section("At a glance", Sheet(caption, columns, rows))

    def _suite(self, suite: Suite) -> None:
        aggregates = comparison.aggregate(suite.scores())
        order = sorted(aggregates, key=lambda label: -aggregates[label]["iqm"].value)
        scores = {label: suite.scores()[label] for label in order}
        looks = {label: self.looks[label] for label in order}
        high = max(values.max() for tasks in scores.values() for values in tasks.values())
        low = min(values.min() for tasks in scores.values() for values in tasks.values())
        thresholds = np.linspace(min(0.0, low), high, 4 * tables.POINTS)
        steps, values = suite.over_time()
        finite = all(np.isfinite(own).all() for tasks in values.values() for own in tasks.values())
        efficiency = comparison.sample_efficiency(values) if finite and steps[0] < steps[-1] else {}
        pairs = list(itertools.combinations(order, 2))
        if len(pairs) > 10:
            pairs = [(order[0], other) for other in order[1:]]
        improvement = comparison.improvement(scores, pairs)
        drawn = {
            "iqm": figures.intervals(
                {label: aggregates[label]["iqm"] for label in order},
                looks,
                f"IQM of {suite.axis}",
                "Interquartile mean",
            ),
            "profiles": figures.profiles(
                thresholds, comparison.profiles(scores, thresholds), looks, suite.axis, "Performance profiles"
            ),
        }
        if efficiency:
            lines = {}
            for label in order:
                known = efficiency[label]
                lines[label] = figures.Line(label, steps, known.value, known.low, known.high)
            drawn["efficiency"] = figures.curves(
                "Sample efficiency", lines, looks, {}, ("steps", f"IQM of {suite.axis}")
            )
        if pairs:
            named = {f"{x} > {y}": estimate for (x, y), estimate in improvement.items()}
            colours = {f"{x} > {y}": looks[x] for x, y in improvement}
            drawn["improvement"] = figures.intervals(
                named, colours, "P(X > Y), mean over tasks", "Probability of improvement", 0.5
            )
        captions = {
            "iqm": "Dot: estimate; bar: its 95 % interval.",
            "profiles": "How large a share of learners scores above each value, with 95 % bands.",
            "efficiency": "The IQM at each step, with 95 % bands; the steps that all runs cover.",
            "improvement": "How probable it is that a learner of X scores above one of Y. Dashed: no difference.",
        }
        spoken = "; ".join(
            f"{label} {_number(e['iqm'].value, 2)} ({_between(e['iqm'], 2)})" for label, e in aggregates.items()
        )
        parts = [
            self._figure(figure, f"{self._slug(suite.title)}-{name}", f"{captions[name]} IQM: {spoken}", captions[name])
            for name, figure in drawn.items()
        ]
        rows = [
            [
                _cell(label),
                *(_estimate_cell(aggregates[label][name], 2) for name in ("iqm", "median", "mean", "optimality_gap")),
                _cell(str(sum(len(row.chosen) for row in suite.rows[label])), f"{len(suite.tables)} tasks"),
            ]
            for label in order
        ]
        caption = (
            f"Scores over {', '.join(table.task for table in suite.tables)}; {suite.explanation} Below each number "
            "its 95 % interval over learners, drawn within each task. The optimality gap is how far they stay below 1."
        )
        sheets = [Sheet(caption, ["agent", "IQM", "median", "mean", "optimality gap", "learners"], rows)]
        if pairs:
            rows = [
                [_cell(f"{x} > {y}"), _estimate_cell(estimate, 2), _cell(_range(estimate.runs), "in each task")]
                for (x, y), estimate in improvement.items()
            ]
            caption = "Probability that a learner of X scores above one of Y, as the mean over tasks."
            sheets.append(Sheet(caption, ["X > Y", "P", "learners"], rows))
        note = (
            f"Left out, for want of one of these tasks or of a reference: {', '.join(suite.left_out)}."
            if suite.left_out
            else ""
        )
        self._section(suite.title, *sheets, figures="".join(parts), note=note)

    def _task(self, table: Table) -> None:
        digits = _digits(table)
        lines, references = {}, {}
        ranked = {id(row): place for place, (row, _) in enumerate(tables.leaders(table))}
        ordered = sorted(table.rows, key=lambda row: ranked.get(id(row), len(ranked)))
        clear = len(ordered) <= CLEAR and sum(len(row.chosen) for row in ordered) <= 2 * figures.THIN
        for row in ordered:
            lines[row.label] = _line(row, table.metric, self.at)
            if not clear:
                lines[row.label].learners = ()
                continue
            points = published.curve(registry.agent_name(row.agent), table.published_task, table.metric[:-1])
            points = [point for point in points if point.step is not None and point.step <= 1.05 * table.budget]
            if points and not any(label.startswith(f"{points[0].agent} by") for label, *_ in references.values()):
                columns = zip(*[(point.step, point.mean, point.std) for point in points], strict=True)
                references[row.label] = (f"{points[0].agent} by {_repository(points[0])}", *columns)
        axes = ("steps" if table.data else "environment steps", f"evaluation {table.metric[:-1]}")
        figure = figures.curves(table.task, lines, self.looks, references, axes)
        rows, spoken = [], []
        for row in ordered:
            estimates = tables.estimates(row, table.metric)
            shown = "not finite" if estimates is None else _number(estimates["iqm"].value, digits)
            spoken.append(f"{row.label} {shown}")
            seeds = len({learner.seed for learner, _ in row.chosen})
            state = "" if row.complete else f"incomplete: of {table.budget:,}"
            rows.append(
                [
                    _cell(row.label),
                    *(
                        _cell("not finite", flag=True) if estimates is None else _estimate_cell(estimates[name], digits)
                        for name in ("iqm", "median", "mean")
                    ),
                    _cell(str(len(row.chosen)), f"{seeds} seeds" if seeds < len(row.chosen) else ""),
                    _cell(str(row.diverged), flag=row.diverged > 0),
                    _cell(f"{row.step:,}", state, flag=not row.complete),
                    self._published(row, table, digits),
                ]
            )
        columns = ["agent", "IQM", "median", "mean", "learners", "diverged", "step", "published, mean ± std"]
        what = (
            "return" if table.metric == "returns" else "score (100: the data set's reference policy, 0: the random one)"
        )
        where = f", in {table.environment}" if table.data else ""
        caption = (
            f"Evaluation {what} over {count(table.episodes, 'episode')} without exploration{where}. Below each number "
            "its 95 % bootstrap interval over learners; a single learner has none."
        )
        if not any(row[-1].lines[0][0] != "-" for row in rows):
            columns, rows = columns[:-1], [row[:-1] for row in rows]
        sheet = Sheet(caption, columns, rows)
        note = ""
        if len(columns) == 8:
            note = (
                "Published numbers are the points nearest to the row's step, of other seeds and of the versions of the "
                "environment that stand beside them; where these differ from ours, so do returns."
            )
        spoken = f"Interquartile mean at the end: {'; '.join(spoken)}."
        drawn = self._figure(
            figure,
            self._slug(table.task),
            f"Learning curves in {table.task}. {spoken}",
            "Line: interquartile mean over learners; band: its 95 % interval"
            + ("; thin: single learners." if clear else "."),
        )
        known = {row.label: estimate for row, estimate in tables.leaders(table)}
        if len(known) > 1:
            at = f"Interquartile mean at {short(table.budget)} steps"
            drawn += self._figure(
                figures.intervals(known, self.looks, axes[1], at),
                f"{self._slug(table.task)}-iqm",
                f"{at} of {table.task}. {spoken}",
                "Dot: estimate; bar: its 95 % interval.",
            )
        self._section(table.task, sheet, figures=drawn, note=note)

    def _published(self, row: Row, table: Table, digits: int) -> Cell:
        """What is known of the same agent in the same task, with numbers of sources."""
        points = published.points(registry.agent_name(row.agent), table.published_task, table.metric[:-1], row.step)
        lines = []
        for point in points:
            number = self.sources.setdefault(f"{point.source}: {point.note}", len(self.sources) + 1)
            spread = "" if point.std is None else f" ± {_number(point.std, digits)}"
            where = "" if table.data else f", {point.environment}"
            lines.append(
                (
                    f"{_number(point.mean, digits)}{spread}",
                    f"{_when(point.step)}, {count(point.seeds, 'seed')}{where} [{number}]",
                )
            )
        return Cell(lines or [("-", "")], text=True, points=True)

    def _settings(self) -> None:
        """The settings in which rows of one agent differ, all of them."""
        sheets = []
        rows = {row.label: row for table in self.tables for row in table.rows}
        for agent in dict.fromkeys(row.agent for row in rows.values()):
            own = {label: row for label, row in rows.items() if row.agent == agent}
            learners = [
                each for table in self.tables for row in table.rows if row.agent == agent for each in row.learners
            ]
            names = tables.differences(learners)
            if names:
                lines = [
                    [_cell(label), *(_cell(tables.written(row.learners[0].settings[name])) for name in names)]
                    for label, row in own.items()
                ]
                sheets.append(
                    Sheet(f"All settings in which runs of {agent} differ on one task.", ["agent", *names], lines)
                )
        if sheets:
            self._section("Settings", *sheets)

    def _cost(self) -> None:
        rows = []
        for table in self.tables:
            for row in table.rows:
                summaries = [run.summary for run in row.runs]
                rows.append(
                    [
                        _cell(row.label),
                        _cell(table.task, text=True),
                        _cell(str(len(row.runs)), count(len(row.learners), "learner")),
                        _cell(_spread(summaries, "steps_per_second", lambda x: f"{x:,.0f}")),
                        _cell(_spread(summaries, "compile_seconds", _seconds)),
                        _cell(_spread(summaries, "wall_seconds", _seconds)),
                        _cell(_spread(summaries, "peak_memory_bytes", lambda x: f"{x / 1e9:.1f} GB")),
                        _cell(
                            ", ".join(_distinct(run.described.get("processor") for run in row.runs)) or "-",
                            ", ".join(_distinct(d for run in row.runs for d in run.described.get("devices") or ())),
                            text=True,
                        ),
                    ]
                )
        columns = ["agent", "task", "runs", "steps/s", "compiling", "wall", "memory", "processor and devices"]
        caption = (
            "What each run took, as a range where there are several. Steps per second are those of all learners of a "
            "run in its training loop, without compiling, evaluations and checkpoints; wall time is with everything."
        )
        recorded = [run.described.get("versions") or {} for run in self.runs]
        versions = [
            f"{name} {' or '.join(_distinct(own.get(name) for own in recorded))}"
            for name in dict.fromkeys(name for own in recorded for name in own)
        ]
        revisions = _distinct((run.described.get("git_revision") or "")[:12] for run in self.runs)
        if revisions:
            versions.append(f"revision {' or '.join(revisions)} of rljax")
        self._section(
            "Cost", Sheet(caption, columns, rows), note=f"Made with {', '.join(versions)}." if versions else ""
        )

    def _commands(self) -> None:
        slug = self._slug("Commands")
        html = [f'<section aria-labelledby="{slug}"><h2 id="{slug}">Commands</h2>']
        html.append("<p>What was typed for the runs behind each row, and the folders that they are in.</p>")
        self.markdown.append("## Commands")
        for table in self.tables:
            for row in table.rows:
                html.append(
                    f"<details><summary>{escape(row.label)} on {escape(table.task)} "
                    f"<small>{count(len(row.runs), 'run')}</small></summary>"
                )
                listed = []
                for run in row.runs:
                    commands = [str(run.described.get("command") or "not recorded")]
                    resumed = run.described.get("resumed") or []
                    commands += dict.fromkeys(f"{each['command']}  # from step {each['step']:,}" for each in resumed)
                    command = "\n".join(commands)
                    html.append(
                        f'<p class="soft">{escape(str(run.folder))}, {escape(_progress(run))}, '
                        f'seeds {escape(_ranges(run.described["seeds"]))}</p><div class="command">'
                        f'<pre>{escape(command)}</pre><button type="button" data-copy aria-live="polite">copy'
                        "</button></div>"
                    )
                    listed += [f"    {command}" for command in commands]
                html.append("</details>")
                self.markdown.append(f"{row.label} on {table.task}:\n\n" + "\n".join(listed))
        self.html.append("\n".join(html) + "</section>")

    def _method(self) -> None:
        points = [
            "The unit is the learner: the episodes of one evaluation share its weights, and are averaged first. "
            "Learners of one agent with the same settings on the same task are pooled over runs.",
            "IQM is the interquartile mean, the mean of the middle half. Intervals are percentile bootstrap intervals "
            "of 2,000 resamples of learners, within each task. With fewer than about 10 learners they are narrower "
            "than their level promises. See Agarwal et al., arXiv:2108.13264.",
            "A row's number is of the last evaluation at its budget, not of the best one."
            if self.at is None
            else f"A row's number is of the last evaluation until step {self.at:,}, not of the best one.",
            "A learner that diverged counts with its last good policy, and is counted as diverged. Learners that have "
            "not come to the step of comparison are not counted; a row of such learners alone is marked as incomplete.",
        ]
        if self.sources:
            points.append(
                "Published: " + "; ".join(f"[{number}] {source}" for source, number in self.sources.items()) + "."
            )
        slug = self._slug("Method")
        items = "".join(f"<li>{escape(point)}</li>" for point in points)
        self.html.append(
            f'<section aria-labelledby="{slug}"><h2 id="{slug}">Method</h2><ul>{items}</ul></section>'
            f"<footer>rljax {__version__}: <code>{escape(self.command)}</code>. Figures and tables: "
            f"{escape(self.folder.name)}/</footer>"
        )
        self.markdown.append("## Method\n\n" + "\n".join(f"- {point}" for point in points))

    def _section(self, title: str, *sheets: Sheet, figures: str = "", note: str = "") -> None:
        slug = self._slug(title)
        boxes = "".join(sheet.html(self.looks) for sheet in sheets)
        drawn = f'<div class="figures">{figures}</div>' if figures else ""
        said = f'<p class="soft">{escape(note)}</p>' if note else ""
        self.html.append(
            f'<section aria-labelledby="{slug}"><h2 id="{slug}">{escape(title)}</h2>{drawn}{boxes}{said}</section>'
        )
        self.markdown += [f"## {title}", *(sheet.markdown() for sheet in sheets), *([note] if note else [])]

    def _slug(self, title: str) -> str:
        """A section's name for addresses and files, no other's."""
        if title not in self.slugs:
            plain = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-")
            same = sum(re.fullmatch(rf"{re.escape(plain)}(-\d+)?", slug) is not None for slug in self.slugs.values())
            self.slugs[title] = f"{plain}-{same + 1}" if same else plain
        return self.slugs[title]

    def _figure(self, figure: Any, name: str, description: str, caption: str) -> str:
        figures.save(figure, self.folder / f"{name}.png")
        drawn = figures.inline(figures.save(figure, self.folder / f"{name}.svg"), description)
        return f"<figure>{drawn}<figcaption>{escape(caption)}</figcaption></figure>"


# How numbers and names are written.


def _estimate_cell(estimate: Estimate, digits: int) -> Cell:
    return _cell(_number(estimate.value, digits), _between(estimate, digits))


def _between(estimate: Estimate, digits: int) -> str:
    if not np.isfinite(estimate.low):
        return "no interval"
    return f"{_number(estimate.low, digits)} to {_number(estimate.high, digits)}"


def _repository(point: published.Point) -> str:
    return point.source.partition("@")[0].rpartition("/")[2]


def _number(value: float, digits: int) -> str:
    return f"{value:,.{digits}f}"


def _digits(table: Table) -> int:
    """Decimals for all numbers of a table."""
    if table.metric == "scores":
        return 1
    return tables.digits(np.concatenate([row.values(table.metric) for row in table.rows]))


def _when(step: int | None) -> str:
    return "steps not said" if step is None else f"at {short(step)}"


def _seconds(value: float) -> str:
    return f"{value:.0f} s" if value < 100 else f"{value / 60:.0f} min" if value < 6000 else f"{value / 3600:.1f} h"


def _spread(summaries: Iterable[Mapping[str, Any]], name: str, write: Callable[[float], str]) -> str:
    """The range of a number over runs; a dash where none has it."""
    values = [value for summary in summaries if (value := summary.get(name)) is not None]
    if not values:
        return "-"
    low, high = write(min(values)), write(max(values))
    return low if low == high else f"{low} to {high}"


def _progress(run: Run) -> str:
    steps = max(int(learner.steps[-1]) for learner in run.learners)
    if steps >= run.budget:
        return "complete"
    return f"evaluated up to {steps:,} of {run.budget:,} steps"


def _ranges(numbers: Sequence[int]) -> str:
    """Whole numbers as "0 to 4"; as a list where they do not follow each other."""
    first, last = numbers[0], numbers[-1]
    follows = len(numbers) > 2 and list(numbers) == list(range(first, last + 1))
    return f"{first} to {last}" if follows else ", ".join(map(str, numbers))


def _range(numbers: tuple[int, int]) -> str:
    return str(numbers[0]) if numbers[0] == numbers[1] else f"{numbers[0]} to {numbers[1]}"


def _few(names: Sequence[str], kind: str) -> str:
    return ", ".join(names) if len(names) <= 3 else f"{len(names)} {kind}"


def _distinct(values: Iterable[Any]) -> list[str]:
    return [str(value) for value in dict.fromkeys(values) if value]
