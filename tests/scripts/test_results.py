"""The pages of results/: their tables are what the files beside them say,
and their links lead somewhere.
"""

from __future__ import annotations

import csv
import gzip
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from rljax.runs import run as runs
from rljax.runs.statistics import estimators
from scripts.results import (
    default_runs,
    offline,
    online,
    pages,
    published,
    shared,
    spaces,
    terminal_values,
)
from tests.helpers import run_folders

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "results"
PAGES = [
    *sorted(RESULTS.rglob("README.md")),
    *(
        RESULTS / name
        for name in (
            "online/streaming.md",
            "offline/generative.md",
            "speed/sweeps.md",
            "revisions.md",
        )
    ),
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
        assert f"<!-- {name} -->\n\n{lines}\n\n<!-- /{name} -->" in text, (
            f"{page}: run scripts/results/pages.py"
        )
    marks = {
        (page, name)
        for page in PAGES
        for name in re.findall(r"<!-- ([^/ ]\S*) -->", page.read_text())
    }
    assert marks == {(shared.file_of(page), name) for page, name in tables}, (
        "every mark has its table"
    )


def test_every_file_of_runs_belongs_to_a_table():
    folders = {path.parent.name for path in (RESULTS / "offline").glob("**/*.json")}
    assert folders == set(offline.PAGES)


def test_runs_of_a_table_have_one_protocol():
    for name in set(offline.TABLES) - {"ogbench"}:
        runs = offline.runs_of(name)
        stopped = name == "million"  # one of its runs, before its end
        number = min(len(run["steps_evaluated"]) for run in runs) if stopped else None
        assert (
            len(
                {
                    (tuple(run["steps_evaluated"][:number]), run["episodes_per_evaluation"])
                    for run in runs
                }
            )
            == 1
        ), name
        for data in {run["data"] for run in runs}:
            hashes = {run["dataset"]["files"][0]["sha256"] for run in runs if run["data"] == data}
            assert len(hashes) == 1, f"{name}: {data} is more than one recording"


def test_the_first_page_fits_on_a_screen():
    assert len((RESULTS / "README.md").read_text().splitlines()) <= 60


def cells(line: str) -> list[str]:
    """The cells of a row of a table in Markdown."""
    return [cell.strip() for cell in line.strip()[1:-1].split("|")]


def few_seeds_with_interval(lines: list[str]) -> list[str]:
    """The rows of a page that have a 95 % interval of fewer than five seeds."""
    rows, header = [], []
    for line in lines:
        number = re.search(r"mean over (\d+) seeds and its 95 % interval", line)
        if number and int(number[1]) < estimators.FEWEST:
            rows.append(line)
        if not line.startswith("|"):
            header = []
        elif not header:
            header = cells(line)
        elif "seeds" in header and not line.startswith("|---"):
            row = dict(zip(header, cells(line), strict=True))
            if row["seeds"].isdigit() and int(row["seeds"]) < estimators.FEWEST:
                rows += [line for name, cell in row.items() if "95 %" in name and "[" in cell]
    return rows


def test_an_interval_of_few_seeds_is_found():
    head = ["| agent | seeds | 95 % interval |", "|---|---|---|"]
    good, bad = "| a | 5 | [1, 2] |", "| b | 3 | [1, 2] |"
    assert few_seeds_with_interval([*head, good, bad, "| c | 3 | - |"]) == [bad]
    heading = "### cube: success in %, mean over 3 seeds and its 95 % interval"
    assert few_seeds_with_interval([heading]) == [heading]


def test_tables_have_no_interval_of_fewer_than_five_seeds_and_nothing_in_bold():
    for (page, name), lines in pages.tables().items():
        if name != "velocity":
            assert few_seeds_with_interval(lines.split("\n")) == [], page
        assert "**" not in lines.replace(": **short**", ""), f"{page}: {name}"
    for path in sorted(RESULTS.rglob("*.md")):
        if path.parent.name != "constraints":
            assert few_seeds_with_interval(path.read_text().split("\n")) == [], path


NOT_OURS = "### Published, not ours"
# Data sets on which nothing was trained here, as the first cell of a row.
PUBLISHERS = re.compile(
    r"\| (halfcheetah|hopper|walker2d|antmaze|humanoidmaze|antsoccer|pen|door|kitchen)-\w"
)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "agents").glob("*.md")), ids=str)
def test_published_tables_of_an_agent_are_headed_as_not_ours(page):
    heading, section = "", ""
    for line in page.read_text().split("\n"):
        if line.startswith("#"):
            heading = line
            section = line if line.startswith("## ") else section
            assert "Published" not in line or line == NOT_OURS
        elif section == "## Results":
            assert not line.startswith("Published"), "it has a heading of its own"
            assert not PUBLISHERS.match(line) or heading == NOT_OURS, line


def test_revisions_that_were_not_committed_are_listed():
    listed = (RESULTS / "revisions.md").read_text()
    for path in sorted(RESULTS.rglob("*.json")):
        if '-dirty"' in path.read_text():
            assert path.stem in listed, f"{path}: run scripts/results/pages.py"


def leads_somewhere(page: Path, link: str) -> bool:
    """Whether a link's file has its anchor; true of links between pages that are not of
    results/.
    """
    target, _, anchor = link.partition("#")
    path = (page.parent / target).resolve() if target else page
    if page not in PAGES and ROOT / "results" not in path.parents:
        return True
    return path.exists() and (not anchor or path.suffix != ".md" or anchor in anchors(path))


def test_links_to_results_lead_somewhere():
    links = [(page, link) for page in LINKING for link in LINK.findall(page.read_text())]
    assert [f"{page}: {link}" for page, link in links if not leads_somewhere(page, link)] == []


# The scripts themselves, on a copy of the pages and on runs that nobody trained.


@pytest.fixture
def results(monkeypatch, tmp_path):
    """A copy of results/, into which scripts write."""
    copy = tmp_path / "results"
    shutil.copytree(RESULTS, copy, ignore=shutil.ignore_patterns("*.png"))
    monkeypatch.setattr(shared, "RESULTS", copy)
    monkeypatch.setattr(online, "RESULTS", copy)
    monkeypatch.setattr(offline, "FOLDER", copy / "offline")
    monkeypatch.setattr(terminal_values, "FOLDER", copy / "studies" / "terminal_values")
    return copy


def test_all_pages_are_written(results, command):
    command(pages)
    for page in PAGES:
        assert (results / page.relative_to(RESULTS)).read_text() == page.read_text()


@pytest.mark.learn
def test_an_online_run_is_collected(results, command, tmp_path):
    run = run_folders.write(tmp_path / "sac-Hopper-v5-new", seeds=(0, 1))
    command(online, run)
    assert json.loads((results / "online" / "runs" / "sac-Hopper-v5-new.json").read_text())[
        "seeds"
    ] == [0, 1]
    assert (results / "online" / "replay.png").exists()
    assert "hidden [256, 256]" not in (results / "online" / "README.md").read_text(), (
        "the agent's own"
    )


def test_runs_from_data_are_collected(results, command, data, untrained, tmp_path):
    out = tmp_path / "bc-new"
    for seed in (0, 1):
        sizes: dict[str, Any] = {"data": str(data), "seeds": [seed], "eval_every": 4}
        runs.train("bc", None, 20, out=out / str(seed), quiet=True, **sizes)
    command(offline, "--table", "pendulum", out)
    collected = json.loads((results / "offline" / "pendulum" / "bc-new.json").read_text())
    assert collected["seeds"] == [0, 1]
    assert collected["score"] == 1.0


def test_values_of_ends_are_collected(results, command, data, untrained, tmp_path):
    out = tmp_path / "iql"
    sizes: dict[str, Any] = {"data": str(data), "seeds": 2, "eval_every": 10}
    runs.train("iql", None, 20, out=out, quiet=True, **sizes)
    values = {"terminal/value": [1.0, 2.0], "critic/q": [3.0, 4.0], "terminal/reward": [5.0, 5.0]}
    lines = [json.loads(line) | values for line in (out / "metrics.jsonl").read_text().splitlines()]
    (out / "metrics.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    command(terminal_values, out)
    collected = json.loads((results / "studies" / "terminal_values" / "iql.json").read_text())
    assert collected["terminal_value"] == [[1.0, 1.0], [2.0, 2.0]]
    assert collected["data"] == "recorded.hdf5"


def test_a_run_has_the_defaults_of_its_file(monkeypatch, untrained, command, tmp_path):
    monkeypatch.chdir(tmp_path)
    command(default_runs, "dqn", "gymnax/CartPole-v1", 100, "--seeds", 1, "--eval-every", 50)
    (run,) = Path("runs", "results").iterdir()
    assert run.name == "dqn-gymnax-CartPole-v1-defaults"
    assert json.loads((run / "config.json").read_text())["config"]["batch_size"] == 128


def test_published_numbers_are_read(monkeypatch, command, tmp_path):
    curve = {
        "algo": "TD3",
        "repo": "sfujim/TD3",
        "env": "Hopper-v1",
        "commit": "0123456789",
        "metric": "return",
    }
    rows = [
        curve | {"step": step, "value": value}
        for step in (100_000, 300_000)
        for value in (1.0, 3.0)
    ]
    with gzip.open(tmp_path / "online_curves.csv.gz", "wt", newline="") as file:
        write_csv(file, rows)
    place = {"repo": "corl-team/CORL", "commit": "0123456789", "path": "README.md", "table": "1"}
    with (tmp_path / "readme_tables.csv").open("w", newline="") as file:
        write_csv(
            file, [place | {"row": "hopper-medium-v2", "column": "IQL", "cell": "67.5 ± 3.8"}]
        )
    neorl2 = {
        "repo": "polixir/NeoRL2",
        "commit": "0123456789",
        "metric": "score_0_100",
        "algo": "bc",
    }
    with (tmp_path / "offline_final.csv").open("w", newline="") as file:
        write_csv(file, [neorl2 | {"dataset": "NeoRL2-Pipeline", "mean": 1.0, "std": 0.5, "n": 3}])
    for name, (*_, path) in published.CHECKOUTS.items():
        file = tmp_path / "authors" / name / path
        file.parent.mkdir(parents=True)
        row = {"exp_name": name, "env_name": "Ant-v4", "metric": "avg_return", "env_step": 1e6}
        with file.open("w", newline="") as open_file:
            write_csv(open_file, [row | {"value": value} for value in (4.0, 6.0)])
    monkeypatch.setattr(published.published, "FILE", tmp_path / "published.csv")
    command(published, tmp_path, "--checkouts", tmp_path / "authors")
    points = list(csv.DictReader((tmp_path / "published.csv").read_text().splitlines()))
    assert [(point["agent"], point["task"], point["mean"]) for point in points] == [
        ("flashsac", "Ant", "5.0"),
        ("xqc", "Ant", "5.0"),
        ("td3", "Hopper", "2.0"),
        ("td3", "Hopper", "2.0"),
        ("bc", "Pipeline-v0", "1.0"),
        ("iql", "hopper-medium-v2", "67.5"),
    ]


def write_csv(file: Any, rows: list[dict[str, Any]]) -> None:
    """The rows with a header."""
    writer = csv.DictWriter(file, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)


def test_the_table_of_spaces_is_written(monkeypatch, command, tmp_path):
    monkeypatch.setattr(spaces.registry, "names", lambda: ["sac", "bc"])
    monkeypatch.setattr(spaces, "PAGE", tmp_path / "spaces.md")
    spaces.PAGE.write_text(f"# Spaces\n{spaces.BEGIN}old\n{spaces.END}the end\n")
    command(spaces)
    text = spaces.PAGE.read_text()
    assert "| [bc](agents/bc.md) | yes |" in text
    assert "old" not in text
