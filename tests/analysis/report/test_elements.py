"""Elements of a report as HTML and Markdown."""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree

import numpy as np

from rljax.analysis import figures
from rljax.analysis.comparison import Estimate
from rljax.analysis.report import elements
from rljax.analysis.report.elements import CaptionedTable, Section, TableCell


def test_an_inline_figure_has_the_pages_colours_and_identifiers_of_its_own(tmp_path):
    steps = np.array([0.0, 100.0])
    lines = {"a": figures.Line("rate=0.0003", steps, steps, steps, steps)}
    file = figures.save(
        figures.curves("$5 & <b>", lines, figures.line_styles("a"), {}), tmp_path / "one.svg"
    )
    text = elements.inline(file, 'a "b" <c>')
    root = ElementTree.fromstring(text.replace("<svg ", '<svg xmlns="http://www.w3.org/2000/svg" '))
    assert (root.get("role"), root.get("aria-label")) == ("img", 'a "b" <c>')
    assert root.get("viewBox")
    assert root.get("width") is None
    words = list(root.itertext())
    assert "rate=0.0003" in words, "numbers in names are not rounded"
    assert "$5 & <b>" in words
    assert all(element.get("id", "one-").startswith("one-") for element in root.iter())
    assert "var(--series-1)" in text
    assert "var(--ink)" in text
    for colour in (figures.COLOURS[0], figures.INK, figures.PAPER):
        assert colour.lower() not in text


def test_a_cell_of_an_estimate_has_its_interval_in_small_print():
    cell = TableCell.of_estimate(Estimate(1234.5, 1000.0, 1500.0, (3, 3), 1), 0)
    assert cell.html() == "<span>1,234</span> <small>1,000 to 1,500</small>"
    assert cell.markdown() == "1,234 (1,000 to 1,500)"
    assert (
        TableCell.of_estimate(Estimate(0.5, np.nan, np.nan, (1, 1), 1), 2).markdown()
        == "0.50 (no interval)"
    )


def test_cells_are_text_whatever_they_hold():
    cell = TableCell([("a|b", "<i>"), ("c", "")], text=True, points=True, flag=True)
    assert cell.markdown() == r"a\|b (&lt;i>); c"
    assert "<i>" not in cell.html()
    assert cell.html().count('class="flag"') == 3
    assert cell.css_class == ' class="text lines"'
    assert TableCell.of("1").css_class == ""


def test_a_table_has_a_swatch_before_names_with_a_curve():
    table = CaptionedTable(
        "A caption",
        ["agent", "IQM"],
        [[TableCell.of("sac"), TableCell.of("1")], [TableCell.of("td3"), TableCell.of("2")]],
    )
    assert table.html({"td3": (":", figures.COLOURS[1])}).count('class="swatch"') == 1
    assert "var(--series-2)" in table.html({"td3": (":", figures.COLOURS[1])})
    assert table.markdown().splitlines() == [
        "A caption",
        "",
        "| agent | IQM |",
        "|---|---|",
        "| sac | 1 |",
        "| td3 | 2 |",
    ]


def test_a_section_has_its_note_last():
    section = Section(
        "A & B", [CaptionedTable("c", ["x"], [[TableCell.of("1")]])], note="Read this."
    )
    html = section.html("a-b", "", {})
    assert html.startswith('<section aria-labelledby="a-b"><h2 id="a-b">A &amp; B</h2>')
    assert html.endswith('<p class="soft">Read this.</p></section>')
    assert section.markdown()[0] == "## A & B"
    assert section.markdown()[-1] == "Read this."
