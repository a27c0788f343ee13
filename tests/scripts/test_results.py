"""The pages of results/: their tables are what the files beside them say, and their links lead somewhere."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from scripts.results import offline, pages, shared

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [
    *sorted(RESULTS.rglob("README.md")),
    *(RESULTS / name for name in ("online/streaming.md", "offline/generative.md", "speed/sweeps.md")),
]
LINKING = [*PAGES, ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
LINK = re.compile(r"\]\(([^)\s:]+)\)")


def anchors(page: Path) -> set[str]:
    """The anchors that GitHub makes of a page's headings."""
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def test_tables_are_what_the_files_say():
    tables = pages.tables()
    for (page, name), lines in tables.items():
        text = shared.file_of(page).read_text()
        assert f"<!-- {name} -->\n\n{lines}\n\n<!-- /{name} -->" in text, f"{page}: run scripts/results/pages.py"
    marks = {(page, name) for page in PAGES for name in re.findall(r"<!-- ([^/ ]\S*) -->", page.read_text())}
    assert marks == {(shared.file_of(page), name) for page, name in tables}, "every mark has its table"


def test_every_file_of_runs_belongs_to_a_table():
    folders = {path.parent.name for path in (RESULTS / "offline").glob("**/*.json")}
    assert folders == set(offline.PAGES)


def test_runs_of_a_table_have_one_protocol():
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
    assert len((RESULTS / "README.md").read_text().splitlines()) <= 60


@pytest.mark.parametrize("page", LINKING, ids=lambda page: str(page.relative_to(ROOT)))
def test_links_to_results_lead_somewhere(page):
    for link in LINK.findall(page.read_text()):
        target, _, anchor = link.partition("#")
        path = (page.parent / target).resolve() if target else page
        if page not in PAGES and RESULTS not in path.parents:
            continue
        assert path.exists(), link
        if anchor and path.suffix == ".md":
            assert anchor in anchors(path), link
