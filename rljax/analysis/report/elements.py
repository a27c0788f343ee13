"""The elements of a report, as HTML and as Markdown for tables.md."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from pathlib import Path

from rljax.analysis import figures, formatting
from rljax.analysis.comparison import Estimate
from rljax.analysis.report.drawings import Drawing
from rljax.trust import printable


@dataclasses.dataclass
class TableCell:
    """Lines of text, each with a detail in small print."""

    lines: Sequence[tuple[str, str]]
    text: bool = False  # words, aligned to the left; other cells hold a number
    points: bool = False  # several numbers, each on one line
    flag: bool = False  # marks something to notice

    @classmethod
    def of(cls, main: str, detail: str = "", text: bool = False, flag: bool = False) -> TableCell:
        """A cell with a single line."""
        return cls([(main, detail)], text=text, flag=flag)

    @classmethod
    def of_estimate(cls, estimate: Estimate, decimals: int) -> TableCell:
        """A number, with its interval in small print."""
        return cls.of(
            formatting.number(estimate.value, decimals), formatting.interval(estimate, decimals)
        )

    def html(self) -> str:
        """The content of its element."""
        kind = ' class="flag"' if self.flag else ""
        lines = [
            f"<span{kind}>{escape(main)}</span>"
            + (f" <small{kind}>{escape(detail)}</small>" if detail else "")
            for main, detail in self.lines
        ]
        return "<br>".join(lines)

    @property
    def css_class(self) -> str:
        """The class attribute of its element, if any."""
        kinds = ["text"] * self.text + ["lines"] * self.points
        return f' class="{" ".join(kinds)}"' if kinds else ""

    def markdown(self) -> str:
        """The cell in one line."""
        lines = (f"{main} ({detail})" if detail else main for main, detail in self.lines)
        return markdown("; ".join(lines))


@dataclasses.dataclass
class CaptionedTable:
    """A table with its caption."""

    caption: str
    columns: Sequence[str]
    rows: list[list[TableCell]]

    def html(self, styles: Mapping[str, figures.LineStyle]) -> str:
        """A table that scrolls, with a swatch for each name in `styles`."""
        words = [any(row[i].text for row in self.rows) for i in range(len(self.columns))]
        head = "".join(
            f'<th scope="col"{" class=text" if words[i] else ""}>{escape(name)}</th>'
            for i, name in enumerate(self.columns)
        )
        body = []
        for first, *others in self.rows:
            style = styles.get(first.lines[0][0])
            swatch = "" if style is None else _swatch(style)
            cells = "".join(f"<td{cell.css_class}>{cell.html()}</td>" for cell in others)
            body.append(f'<tr><th scope="row">{swatch}{first.html()}</th>{cells}</tr>')
        caption = escape(self.caption)
        return (
            '<div class="scroll" tabindex="0" role="region" '
            f'aria-label="{escape(self.columns[0], quote=True)}: table">'
            f"<table><caption><span>{caption}</span></caption><thead><tr>{head}</tr></thead>"
            f"<tbody>{''.join(body)}</tbody></table></div>"
        )

    def markdown(self) -> str:
        """The table below its caption."""
        columns = " | ".join(map(markdown, self.columns))
        lines = [markdown(self.caption), "", f"| {columns} |", "|---" * len(self.columns) + "|"]
        lines += [f"| {' | '.join(cell.markdown() for cell in row)} |" for row in self.rows]
        return "\n".join(lines)


def _swatch(style: figures.LineStyle) -> str:
    patterns = {"-": "", "-.": ' stroke-dasharray="7 3 2 3"', ":": ' stroke-dasharray="2 3"'}
    dashes = patterns[style[0]]
    number = figures.COLOURS.index(style[1]) + 1
    return (
        '<svg class="swatch" viewBox="0 0 28 10" aria-hidden="true"><line x1="0" y1="5" x2="28" '
        f'y2="5" stroke="var(--series-{number})" stroke-width="4"{dashes}/></svg>'
    )


@dataclasses.dataclass
class Section:
    """A titled part of the page: figures, then tables, then a note."""

    title: str
    tables: Sequence[CaptionedTable]
    drawings: Iterable[Drawing] = ()
    note: str = ""

    def html(self, slug: str, pictures: str, styles: Mapping[str, figures.LineStyle]) -> str:
        """The section, identified by `slug`, with its figures as HTML."""
        tables = "".join(table.html(styles) for table in self.tables)
        drawn = f'<div class="figures">{pictures}</div>' if pictures else ""
        note = f'<p class="soft">{escape(self.note)}</p>' if self.note else ""
        return section_html(slug, self.title, f"{drawn}{tables}{note}")

    def markdown(self) -> list[str]:
        """The section without its figures, as paragraphs."""
        note = [markdown(self.note)] if self.note else []
        return [f"## {markdown(self.title)}", *(table.markdown() for table in self.tables), *note]


def section_html(slug: str, title: str, content: str) -> str:
    """A section of the page from HTML."""
    return (
        f'<section aria-labelledby="{slug}"><h2 id="{slug}">{escape(title)}</h2>{content}</section>'
    )


def bullets_html(texts: Iterable[str]) -> str:
    """Texts as a list."""
    return f"<ul>{''.join(f'<li>{escape(text)}</li>' for text in texts)}</ul>"


def bullets_markdown(texts: Iterable[str]) -> str:
    """Texts as a list."""
    return "\n".join(f"- {markdown(text)}" for text in texts)


def markdown(text: str) -> str:
    """Text in one line of Markdown, with marks and HTML escaped."""
    return printable(" ".join(text.splitlines())).replace("|", "\\|").replace("<", "&lt;")


def figure_html(svg: Path, description: str, caption: str) -> str:
    """A figure with its caption."""
    return f"<figure>{inline(svg, description)}<figcaption>{escape(caption)}</figcaption></figure>"


def inline(svg: Path, description: str) -> str:
    """A file of `figures.save` as an element of a page, in the page's colours.

    Identifiers begin with the file's name, which must be unique.
    """
    name, text = svg.stem, svg.read_text(encoding="utf-8")
    text = re.sub(r"<metadata>.*?</metadata>", "", text[text.index("<svg") :], flags=re.DOTALL)
    text = re.sub(r'(\bid="|href="#|url\(#)', rf"\g<1>{name}-", text)
    text = re.sub(
        r"<[^>]*>", lambda tag: re.sub(r"\d+\.\d{3,}", lambda x: f"{float(x[0]):.2f}", tag[0]), text
    )
    view = re.search(r'viewBox="[^"]*"', text)
    assert view is not None
    label = escape(description, quote=True)
    head = f'<svg {view[0]} role="img" aria-label="{label}" '
    text = f'{head}xmlns:xlink="http://www.w3.org/1999/xlink">{text[text.index(">") + 1 :]}'
    variables = {colour: f"--series-{i}" for i, colour in enumerate(figures.COLOURS, 1)}
    variables |= {figures.INK: "--ink", figures.GRID: "--grid", figures.PAPER: "--paper"}
    for colour, variable in variables.items():
        text = text.replace(colour.lower(), f"var({variable})")
    return "\n".join(line.strip() for line in text.splitlines() if line.strip())
