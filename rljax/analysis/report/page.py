"""The report as files."""

from __future__ import annotations

import re
import shlex
import string
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from pathlib import Path

from rljax import __version__
from rljax.analysis import figures, folders, formatting, labels, suites, tables
from rljax.analysis.folders import RunRecord
from rljax.analysis.formatting import count
from rljax.analysis.report import elements, provenance, results, searches, sections, single
from rljax.analysis.report.elements import Section
from rljax.analysis.tables import Table
from rljax.learning import registry
from rljax.trust import printable

TEMPLATE = Path(__file__).with_name("report.html")


def write(paths: Sequence[Path], output: Path = Path("report.html"), at: int | None = None) -> Path:
    """Write a report over the runs in and below `paths` to the page `output`, and return its path.

    The figures and tables.md go to a folder of the same name without suffix. `at` is by default the
    end of each run.

    Raises `ValueError` for paths without runs, runs of one task that cannot be compared, a step
    that not all were planned to reach, or an output that is not .html.
    """
    output = Path(output)
    if output.suffix != ".html":
        raise ValueError(
            f"output is '{output}', it must end in .html: --output {output.with_suffix('.html')}"
        )
    runs, skipped = folders.read_all(paths)
    without = [run for folder, _ in skipped if (run := folders.read_unevaluated(folder))]
    skipped = [each for each in skipped if each[0] not in {run.folder for run in without}]
    searched = [(path, searches.read(path)) for path in map(Path, paths) if searches.is_sweep(path)]
    searched = [(path, trials) for path, trials in searched if trials]
    if not runs and not without and not searched:
        reasons = "".join(
            f"\n  {printable(folder)}: {printable(reason)}" for folder, reason in skipped
        )
        raise ValueError(f"there is no run to report on in {formatting.quoted(paths)}.{reasons}")
    arranged = tables.arrange(runs, at)
    arguments = ["rljax", "report", *map(str, paths), *([] if at is None else ["--at", str(at)])]
    tried = [searches.section(path, trials) for path, trials in searched]
    _write_page(output, arranged, without, tried, skipped, at, shlex.join(arguments))
    return output


def _write_page(
    output: Path,
    arranged: Sequence[Table],
    without: Sequence[RunRecord],
    searched: Sequence[Section],
    skipped: Sequence[tuple[Path, str]],
    at: int | None,
    command: str,
) -> None:
    rows = [row for table in arranged for row in table.rows]
    runs = list({id(run): run for row in rows for run in row.runs}.values())
    suites_of_tables, remarks = suites.find(arranged)
    task_results = [results.task_result(table, at) for table in arranged]
    sources = results.number_sources(task_results)
    styles = figures.line_styles(dict.fromkeys(row.label for row in rows))

    page = _Page(output.with_suffix(""), styles)
    notices = [f"Skipped: {folder}: {reason}" for folder, reason in skipped]
    page.add_notices([*notices, *_changed(runs), *_incomplete(arranged, at), *remarks])
    if (glance := sections.at_a_glance(task_results)) is not None:
        page.add(glance)
    for suite in suites_of_tables:
        page.add(sections.of_suite(results.suite_result(suite), styles))
    for result in task_results:
        page.add(sections.of_task(result, styles, sources))
    for section in [*searched, *_of_runs(runs, without)]:
        page.add(section)
    if (settings := provenance.settings(arranged)) is not None:
        page.add(settings)
    every = [*runs, *without]
    if len(every) == 1:
        page.add_films(every[0])
        page.add(single.of_settings(every[0]))
    if arranged:
        page.add(provenance.cost(arranged, runs))
        page.add_commands(arranged)
        page.add_method(at, sources, command)
    title = _title(arranged, without) if every else searched[0].title
    page.write(output, title, _lead(arranged, every, at))


def _of_runs(runs: Sequence[RunRecord], without: Sequence[RunRecord]) -> Iterator[Section]:
    every = [*runs, *without]
    metrics = single.of_metrics(every[0]) if len(every) == 1 else None
    sections_of_runs = (single.of_unevaluated(without), single.of_findings(every), metrics)
    yield from filter(None, sections_of_runs)


def _title(arranged: Sequence[Table], without: Sequence[RunRecord]) -> str:
    names = [row.agent for table in arranged for row in table.rows]
    agents = dict.fromkeys(map(registry.agent_name, names or [run.agent for run in without]))
    tasks = [table.task for table in arranged]
    data = dict.fromkeys(labels.task_name("none", run.config.get("data")) for run in without)
    named = {"agents": list(agents), "tasks": tasks or list(data)}
    return " on ".join(
        ", ".join(names) if len(names) <= 3 else f"{len(names)} {kind}"
        for kind, names in named.items()
    )


def _lead(arranged: Sequence[Table], runs: Sequence[RunRecord], at: int | None) -> str:
    learners = sum(len(row.learners) for table in arranged for row in table.rows)
    facts = [count(len(runs), "run"), count(learners, "learner"), count(len(arranged), "task")]
    if not runs:
        return "A search whose settings are not tested yet."
    if not arranged:
        return f"{count(len(runs), 'run')} without an environment."
    when = "at the end of their budget" if at is None else f"at step {at:,}"
    return f"{', '.join(facts)}, compared {when}."


def _changed(runs: Sequence[RunRecord]) -> list[str]:
    return [
        f"Changed records: {run.folder}, before it went on from step "
        f"{entry['step']:,}: {'; '.join(changed)}"
        for run in runs
        for entry in run.config.get("resumed") or []
        if (changed := formatting.distinct(entry.get("changed_records") or []))
    ]


def _incomplete(arranged: Sequence[Table], at: int | None) -> Iterator[str]:
    for table in arranged:
        for row in table.rows:
            behind = [
                run for run in row.runs if any(each.index_at(at) is None for each in run.learners)
            ]
            if behind:
                ends = ", ".join(f"{run.folder} ({provenance.progress(run)})" for run in behind[:3])
                ends += f" and {len(behind) - 3} more" if len(behind) > 3 else ""
                counted = "not counted" if row.complete else "shown as it stands and not compared"
                yield f"Incomplete: {row.label} on {table.task}, {counted}: {ends}"
            if row.diverged:
                yield (
                    f"Diverged: {row.diverged} of {count(len(row.counted), 'learner')} of "
                    f"{row.label} on {table.task}; each counts with its last good policy, if there "
                    "was one."
                )
            if row.cut:
                yield (
                    f"Cut: {count(row.cut, 'episode')} of {row.label} on {table.task} had not "
                    "ended at the limit of the evaluation; their returns are of parts of episodes."
                )


class _Page:
    def __init__(self, folder: Path, styles: Mapping[str, figures.LineStyle]) -> None:
        """`styles` are those of rows by label."""
        self._folder, self._styles = folder, styles
        self._html: list[str] = []
        self._markdown: list[str] = []
        self._slugs: dict[str, str] = {}  # by the title of a section, in the order of the page

    def add_notices(self, notices: Sequence[str]) -> None:
        notices = list(map(printable, notices))
        if notices:
            heading = '<aside aria-label="Notices"><h2>Before you read</h2>'
            self._html.append(f"{heading}{elements.bullets_html(notices)}</aside>")
            self._markdown.append(elements.bullets_markdown(notices))

    def add(self, section: Section) -> None:
        slug = self._slug(section.title)
        pictures = []
        for drawing in section.drawings:
            name = f"{slug}-{drawing.name}" if drawing.name else slug
            figures.save(drawing.figure, self._folder / f"{name}.png")
            svg = figures.save(drawing.figure, self._folder / f"{name}.svg")
            pictures.append(elements.figure_html(svg, drawing.description, drawing.caption))
        self._html.append(section.html(slug, "".join(pictures), self._styles))
        self._markdown += section.markdown()

    def add_films(self, run: RunRecord) -> None:
        if html := single.films(run):
            content = f'<div class="figures">{html}</div>'
            self._html.append(elements.section_html(self._slug("Films"), "Films", content))

    def add_commands(self, arranged: Sequence[Table]) -> None:
        content = f"\n{provenance.commands_html(arranged)}"
        self._html.append(elements.section_html(self._slug("Commands"), "Commands", content))
        self._markdown += ["## Commands", *provenance.commands_markdown(arranged)]

    def add_method(self, at: int | None, sources: Mapping[str, int], command: str) -> None:
        points = _method(at, sources)
        section = elements.section_html(
            self._slug("Method"), "Method", elements.bullets_html(points)
        )
        self._html.append(
            f"{section}<footer>rljax {__version__}: <code>{escape(command)}</code>. Figures and "
            f"tables: {escape(self._folder.name)}/</footer>"
        )
        self._markdown.append(f"## Method\n\n{elements.bullets_markdown(points)}")

    def _slug(self, title: str) -> str:
        if title not in self._slugs:
            plain = re.sub(r"[^a-z0-9.]+", "-", title.lower()).strip("-.") or "section"
            pattern = re.compile(rf"{re.escape(plain)}(-\d+)?")
            same = sum(map(bool, map(pattern.fullmatch, self._slugs.values())))
            self._slugs[title] = f"{plain}-{same + 1}" if same else plain
        return self._slugs[title]

    def write(self, output: Path, title: str, lead: str) -> None:
        # Spans stay on one line; longer words must break.
        words = re.sub(r"\S{1,18}(?!\S)", lambda word: f"<span>{word[0]}</span>", escape(title))
        header = f'<header><h1>{words}</h1><p class="lead">{escape(lead)}</p></header>'
        links = "".join(
            f'<li><a href="#{slug}">{escape(name)}</a></li>' for name, slug in self._slugs.items()
        )
        contents = f'<nav aria-label="Contents"><ul>{links}</ul></nav>'
        body = "\n".join([header, contents, *self._html])
        template = string.Template(TEMPLATE.read_text(encoding="utf-8"))
        page = template.substitute(title=escape(title), version=__version__, body=body)
        self._folder.mkdir(parents=True, exist_ok=True)
        output.write_text(page, encoding="utf-8")
        text = "\n\n".join([f"# {elements.markdown(title)}\n\n{lead}", *self._markdown])
        (self._folder / "tables.md").write_text(text + "\n", encoding="utf-8")


def _method(at: int | None, sources: Mapping[str, int]) -> list[str]:
    last = "at its budget" if at is None else f"until step {at:,}"
    points = [
        (
            "The unit is the learner: the episodes of one evaluation share its weights, and are "
            "averaged first. Learners of one agent with the same settings on the same task are "
            "pooled over runs."
        ),
        (
            "IQM is the interquartile mean, the mean of the middle half. Intervals are percentile "
            "bootstrap intervals of 2,000 resamples of learners, within each task. Fewer than five "
            "learners have none, and with fewer than about 10 they are narrower than their level "
            "promises. See Agarwal et al., "
            "arXiv:2108.13264."
        ),
        f"A row's number comes from the last evaluation {last}, not from the best one.",
        (
            "A learner that diverged counts with its last good policy, and is counted as diverged. "
            "Learners that have not come to the step of comparison are not counted. A row with "
            "such learners only is marked as incomplete."
        ),
    ]
    if sources:
        published = "; ".join(f"[{number}] {source}" for source, number in sources.items())
        points.append(f"Published: {published}.")
    return points
