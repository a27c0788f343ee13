"""The pages of results/: their tables are what the files beside them say, and their links lead somewhere."""

from __future__ import annotations

import importlib
import re
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "results").glob("*.md"))
LINKING = [*PAGES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s:]+)\)")


@pytest.fixture
def results_pages(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The script that writes the tables; no script is a part of the package."""
    monkeypatch.syspath_prepend(str(ROOT / "scripts"))
    return importlib.import_module("results_pages")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tables_are_what_the_files_say(results_pages):
    tables = results_pages.tables()
    for (page, name), lines in tables.items():
        text = (ROOT / "results" / f"{page}.md").read_text()
        assert f"<!-- {name} -->\n\n{lines}\n\n<!-- /{name} -->" in text, f"{page}.md: run scripts/results_pages.py"
    marks = {(page.stem, name) for page in PAGES for name in re.findall(r"<!-- ([^/ ]\S*) -->", page.read_text())}
    assert marks == set(tables), "every mark has its table"


def test_every_file_of_runs_belongs_to_a_table(results_pages):
    folders = {path.parent.name for path in (ROOT / "results" / "offline").glob("**/*.json")}
    assert folders == set(results_pages.results_offline.PAGES)


def test_runs_of_a_table_have_one_protocol(results_pages):
    offline = results_pages.results_offline
    for name in set(offline.TABLES) - {"ogbench"}:
        runs = offline.kept(name)
        stopped = name == "million"  # one of its runs, before its end
        shared = min(len(run["steps_evaluated"]) for run in runs) if stopped else None
        assert len({(tuple(run["steps_evaluated"][:shared]), run["episodes_per_evaluation"]) for run in runs}) == 1, (
            name
        )
        for data in {run["data"] for run in runs}:
            hashes = {run["dataset"]["files"][0]["sha256"] for run in runs if run["data"] == data}
            assert len(hashes) == 1, f"{name}: {data} is more than one recording"


def test_the_first_page_fits_on_a_screen():
    assert len((ROOT / "results" / "README.md").read_text().splitlines()) <= 60


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a link's file has its anchor; true of links between pages that are not of results/."""
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    if page not in PAGES and ROOT / "results" not in path.parents:
        return True
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


def test_links_to_results_lead_somewhere():
    links = [(page, link) for page in LINKING for link in LINK.findall(page.read_text())]
    assert [f"{page}: {link}" for page, link in links if not leads_somewhere(page, link)] == []
