"""The page of a report."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from rljax import cli
from rljax.analysis import report
from rljax.runs import records
from scripts.results import screenshot_report
from tests.helpers import run_folders

VOID = {"meta", "br", "line", "use", "path", "rect", "link", "input", "img"}


class Page(HTMLParser):
    """A page's elements, its text, and its tables as rows of cells."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.open: list[str] = []
        self.elements: list[tuple[str, dict[str, str | None]]] = []
        self.tables: list[list[list[str]]] = []
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))
        assert self.open == [], "every element is closed"

    def handle_startendtag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))

    def handle_starttag(self, tag: str, attrs: Any) -> None:
        self.elements.append((tag, dict(attrs)))
        if tag not in VOID:
            self.open.append(tag)
        if tag == "table":
            self.tables.append([])
        elif tag == "tr":
            self.tables[-1].append([])
        elif tag in ("td", "th"):
            self.tables[-1][-1].append("")

    def handle_endtag(self, tag: str) -> None:
        if tag not in VOID:
            assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if "script" in self.open or "style" in self.open:
            return
        self.words.append(data)
        if "td" in self.open or "th" in self.open:
            self.tables[-1][-1][-1] += data

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.words).split())

    def all(self, tag: str) -> list[dict[str, str | None]]:
        return [attributes for name, attributes in self.elements if name == tag]

    def identifiers(self) -> list[str | None]:
        return [attributes["id"] for _, attributes in self.elements if attributes.get("id")]

    def table(self, *columns: str) -> dict[str, dict[str, str]]:
        """The rows of the first table with these columns, by their first cells."""
        head, *rows = next(table for table in self.tables if set(columns) <= set(table[0]))
        return {row[0].split("  ")[0]: dict(zip(head, row, strict=True)) for row in rows}

    def every_row(self, column: str) -> dict[str, dict[str, str]]:
        """The rows of all tables with this column."""
        tables = [table for table in self.tables if column in table[0]]
        return {x[0]: dict(zip(head, x, strict=True)) for head, *rows in tables for x in rows}


def reported(folder: Path) -> Page:
    return Page(report.write([folder], folder / "report.html"))


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two agents on two tasks, with a diverged, an incomplete and a damaged run."""
    folder = tmp_path_factory.mktemp("report")
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        run_folders.write(folder / "runs/sac" / task, "sac", task, seeds=range(5), level=2000)
        run_folders.write(folder / "runs/td3" / task, "td3", task, seeds=range(4), level=1000)
    diverged = {"evaluation": {"diverged": True}, "command": "rljax train ppo '<b>'"}
    run_folders.write(folder / "runs/ppo/a", "ppo", seeds=(0,), **diverged)
    run_folders.write(folder / "runs/dsact/a", "dsact", steps=(10_000, 20_000))
    (folder / "runs/broken").mkdir()
    (folder / "runs/broken/config.json").write_text("{")
    return report.write([folder / "runs"], folder / "out/report.html")


@pytest.fixture(scope="module")
def page(many: Path) -> Page:
    return Page(many)


def test_numbers_have_their_intervals_and_learners(page: Page) -> None:
    row = page.table("agent", "IQM", "diverged", "step")["sac"]
    assert (row["learners"], row["step"]) == ("5", "30,000")
    # 2000, 2010, ..., 2040: the middle three of HalfCheetah-v5, whose table comes first
    for name in ("IQM", "mean", "median"):
        assert re.fullmatch(r"2,020 2,0\d\d to 2,0\d\d", row[name])


def test_published_numbers_at_distant_steps_are_left_out(page: Page) -> None:
    tables = [rows for rows in page.tables if rows[0][-1].startswith("published")]
    assert tables == []


def test_published_numbers_name_step_seeds_environment_and_source(tmp_path: Path) -> None:
    run_folders.write(tmp_path / "a", "td3", steps=(150_000, 300_000), budget=300_000)
    page = reported(tmp_path)
    cell = page.table("published, mean ± std")["td3"]["published, mean ± std"]
    assert "2,410 ± 949 at 300k, 10 seeds, Hopper-v1 [1]" in cell
    assert "[1] sfujim/TD3@34770cc: noise-free evaluation" in page.text
    assert "environment versions that are named with them" in page.text


def test_a_single_learner_has_no_interval_and_diverged_ones_are_counted(page: Page) -> None:
    found = page.every_row("diverged")["ppo"]
    assert (found["IQM"], found["diverged"]) == ("1,000 no interval", "1")
    assert "Diverged: 1 of 1 learner of ppo on Hopper-v5" in page.text


def test_incomplete_and_skipped_runs_are_named(page: Page) -> None:
    assert re.search(
        r"Incomplete: dsact on Hopper-v5, shown as it stands and not compared: .*up to 20,000 "
        r"of 30,000 steps",
        page.text,
    )
    assert re.search(
        r"Skipped: \S*broken: '\S*broken' is not a run: its config.json cannot be read", page.text
    )
    assert page.every_row("diverged")["dsact"]["step"] == "20,000 incomplete: of 30,000"


def test_agents_are_compared_over_tasks(page: Page) -> None:
    row = page.table("agent", "optimality gap")["sac"]
    assert row["learners"] == "10 2 tasks"
    assert page.table("X > Y", "P")["sac > td3"]["P"] == "1.00 no interval"  # td3 has four learners
    assert "1 is the published return of SAC at 1M steps" in page.text
    assert "Left out, because one of these tasks or a reference is missing: dsact, ppo" in page.text
    glance = page.table("task", "highest IQM")["Hopper-v5 30,000 steps"]
    assert glance["highest IQM"].startswith("sac")
    assert glance["next"].startswith("td3")


def test_cost_versions_and_commands(page: Page) -> None:
    row = page.table("agent", "steps/s")["sac"]
    costs = [row[name] for name in ("steps/s", "compiling", "wall", "memory")]
    assert costs == ["321", "7 s", "5 min", "1.5 GB"]
    assert row["processor and devices"] == "a processor cpu (cpu:0)"
    assert "Made with rljax 0.1.0, jax 0.10.2, revision 0123456789ab of rljax." in page.text
    assert "rljax train sac --env Hopper-v5" in page.text
    assert "rljax train ppo '<b>'" in page.text
    assert len(page.all("button")) == len(page.all("pre")) == 6


def test_page_needs_no_other_file(many: Path, page: Page) -> None:
    for _, attributes in page.elements:
        for name in ("src", "href", "xlink:href", "srcset", "data"):
            assert (attributes.get(name) or "#").startswith("#"), attributes
    text = many.read_text()
    assert "@import" not in text
    assert not re.search(r"url\((?!#)", text)
    assert "fetch(" not in text


def test_figures_have_descriptions_unique_names_and_the_colours_of_the_page(
    many: Path, page: Page
) -> None:
    pictures = [attributes for attributes in page.all("svg") if attributes.get("role") == "img"]
    assert len(pictures) == 4 + 2 * 2  # of both tasks, and two of each
    assert all("sac" in (attributes["aria-label"] or "") for attributes in pictures)
    identifiers = page.identifiers()
    assert len(identifiers) == len(set(identifiers))
    targets = {a["xlink:href"] for _, a in page.elements if a.get("xlink:href")}
    targets |= {f"#{name}" for name in re.findall(r"url\(#([^)]+)\)", many.read_text())}
    assert targets <= {f"#{name}" for name in identifiers}
    body = many.read_text().partition("<body>")[2]
    assert "var(--series-1)" in body
    assert "#0072b2" not in body
    assert "#222222" not in body


def test_page_can_be_read_by_machines(page: Page) -> None:
    assert page.all("html")[0]["lang"] == "en"
    assert len(page.all("h1")) == 1
    assert len(page.all("caption")) == len(page.all("table"))
    assert all(attributes.get("scope") in ("col", "row") for attributes in page.all("th"))
    boxes = [attributes for attributes in page.all("div") if attributes.get("class") == "scroll"]
    assert len(boxes) == len(page.all("table"))
    assert all(box["tabindex"] == "0" and box["aria-label"] for box in boxes)
    links = {attributes["href"] for attributes in page.all("a")}
    assert links <= {f"#{name}" for name in page.identifiers()}


def test_figures_and_tables_lie_beside_the_page(many: Path) -> None:
    folder = many.with_suffix("")
    names = {path.name for path in folder.iterdir()}
    for name in ("hopper-v5", "hopper-v5-iqm", "halfcheetah-v5", "over-2-environments-profiles"):
        assert {f"{name}.png", f"{name}.svg"} <= names
    text = (folder / "tables.md").read_text()
    assert "| sac | 2,020 (" in text
    assert "## Over 2 environments" in text
    assert "    rljax train sac --env Hopper-v5" in text
    widths = [
        {line.count("|") for line in block.splitlines() if line.startswith("|")}
        for block in text.split("\n\n")
    ]
    assert all(len(width) <= 1 for width in widths)


def test_the_same_runs_give_the_same_page(tmp_path: Path) -> None:
    run_folders.write(tmp_path / "a")
    first = report.write([tmp_path / "a"], tmp_path / "report.html").read_bytes()
    assert report.write([tmp_path / "a"], tmp_path / "report.html").read_bytes() == first


def test_odd_names_of_environments_are_text_and_their_figures_are_not_hidden(
    tmp_path: Path,
) -> None:
    figures = {
        "my/<i>$x_1$&-v0": "my-i-x-1-v0",
        "my/-i-x-1-v0": "my-i-x-1-v0-2",
        "./robot.py:RobotV": "robot.py-robotv",
        "../..": "section",
    }
    for number, environment in enumerate(figures):
        run_folders.write(tmp_path / str(number), environment=environment)
    assert "my/<i>$x_1$&-v0" in reported(tmp_path).text
    assert {f.stem for f in tmp_path.glob("report/*.svg")} == {*figures.values()}


def test_settings_that_differ_are_listed(tmp_path: Path) -> None:
    run_folders.write(
        tmp_path / "grid", seeds=(0, 1, 0, 1), own={"actor_lr": [1e-3, 1e-3, 3e-4, 3e-4]}
    )
    page = reported(tmp_path)
    assert page.table("agent", "actor_lr")["sac actor-lr=0.001"]["actor_lr"] == "0.001"
    assert page.table("agent", "diverged")["sac actor-lr=0.0003"]["learners"] == "2"


@pytest.mark.slow
def test_a_crowded_panel_leaves_single_learners_and_published_curves_out(tmp_path: Path) -> None:
    long = {"steps": (500_000, 1_000_000), "budget": 1_000_000}
    run_folders.write(tmp_path / "few", "sac", seeds=range(3), **long)
    page = reported(tmp_path)
    assert "thin: single learners" in page.text
    assert "sac by SimbaV2, published" in page.text
    run_folders.write(tmp_path / "many", "td3", seeds=range(30), **long)
    page = reported(tmp_path)
    assert "thin: single learners" not in page.text
    assert "by SimbaV2, published" not in page.text
    assert "2,787 ± 868 at 1M, 10 seeds, Hopper-v4" in page.text


@pytest.mark.slow
def test_an_early_evaluation_that_is_not_finite_spoils_only_its_step(tmp_path: Path) -> None:
    for task in ("Hopper-v5", "HalfCheetah-v5"):
        path = run_folders.write(tmp_path / task, environment=task) / "evaluations.jsonl"
        lines = path.read_text().splitlines()
        lines[3] = '{"step": 20000, "learner": 0, "seed": 0, "returns": [null, 1.0, 1.0, 1.0]}'
        path.write_text("\n".join(lines) + "\n")
    page = reported(tmp_path)
    assert page.table("agent", "diverged")["sac"]["IQM"].startswith("1,010 ")
    assert page.table("agent", "optimality gap")["sac"]["learners"] == "6 2 tasks"
    assert "The IQM at each step" not in page.text


def test_repeated_seeds_are_counted(tmp_path: Path) -> None:
    run_folders.write(tmp_path / "a")
    run_folders.write(tmp_path / "b", seeds=(2, 3))
    page = reported(tmp_path)
    assert page.table("agent", "diverged")["sac"]["learners"] == "5 4 seeds"


# The command


def test_command_writes_the_page(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: Any
) -> None:
    monkeypatch.chdir(tmp_path)
    run_folders.write(tmp_path / "runs/a", steps=(10_000, 20_000, 30_000))
    cli.main(["report", "runs", "--at", "20000"])
    assert capsys.readouterr().out == "report.html\n"
    page = Page(tmp_path / "report.html")
    assert "rljax report runs --at 20000" in page.text
    assert "compared at step 20,000" in page.text


def test_errors_are_one_sentence_and_nothing_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    run_folders.write(tmp_path / "a", steps=(10_000,), budget=10_000)
    run_folders.write(tmp_path / "b")
    with pytest.raises(SystemExit):
        cli.main(["report", str(tmp_path), "--output", str(tmp_path / "out/report.html")])
    assert re.match(
        r"error: runs of 'Hopper-v5' have different budgets: .* --at 10000", capsys.readouterr().err
    )
    assert not (tmp_path / "out").exists()


def test_nothing_to_report_on(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"there is no run to report on in '.*'\.$"):
        report.write([tmp_path])
    run_folders.write(tmp_path / "young", steps=())
    with pytest.raises(
        ValueError,
        match=r"there is no run to report on in .*\n  .*young: it has no evaluations yet",
    ):
        report.write([tmp_path])


def test_an_output_with_another_suffix(tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"output is 'report\.pdf', it must end in \.html: --output report\.html"
    ):
        report.write([run_folders.write(tmp_path / "a")], Path("report.pdf"))


# As a browser shows it


@pytest.mark.parametrize("width", [360, 1440])
def test_page_is_never_wider_than_the_window(many: Path, width: int) -> None:
    if screenshot_report.chromium() is None:
        pytest.skip("Chromium is not installed: apt-get install chromium")
    assert screenshot_report.size(many, width)[0] <= width


def test_signals_stand_beside_the_returns(tmp_path: Path) -> None:
    for agent, cost in (("ppo", 40.0), ("ppo_lagrangian", 20.0)):
        run_folders.write(tmp_path / agent, agent, evaluation={"signals": {"cost": [cost] * 4}})
    page = reported(tmp_path)
    (table,) = [rows for rows in page.tables if rows and "cost" in rows[0]]
    column = table[0].index("cost")
    assert table[0][column - 1 : column + 2] == ["mean", "cost", "learners"]
    assert sorted(row[column].split()[0].partition("[")[0][:4] for row in table[1:]) == [
        "20.0",
        "40.0",
    ]
    assert "interquartile mean of cost per episode" in page.text


# A single run, and runs without an environment


def test_a_single_run_has_findings_metrics_films_and_settings(tmp_path: Path) -> None:
    folder = run_folders.write(tmp_path / "a", evaluation={"random": [1e6] * 4})
    (folder / "play.gif").write_bytes(b"GIF89a")
    page = reported(tmp_path)
    finding = page.table("finding", "try")[f"no-better-than-random {folder}"]
    assert "uniform actions 1e+06" in finding["evidence"]
    assert "Uniform actions return 1e+06." in page.text
    assert {"what-looks-wrong", "metrics", "films", "all-settings"} <= set(page.identifiers())
    (film,) = page.all("img")
    assert str(film["src"]).startswith("data:image/gif;base64,R0lGODlh")
    assert page.table("setting", "value")["actor_lr"]["value"] == "0.0003"
    assert ["env", "Hopper-v5"] in [row for table in page.tables for row in table]
    assert (tmp_path / "report/metrics.svg").exists()


def test_several_runs_have_findings_alone(tmp_path: Path) -> None:
    for name in ("a", "b"):
        run_folders.write(tmp_path / name)
    page = reported(tmp_path)
    assert "Nothing looks wrong in 2 runs." in page.text
    assert not {"metrics", "films", "all-settings"} & set(page.identifiers())


def test_runs_without_an_environment_have_estimates_and_losses(tmp_path: Path) -> None:
    folder = run_folders.write(
        tmp_path / "fqe", "fqe", "none", steps=(), data="d4rl/hopper-medium-v2"
    )
    with records.Recorder(folder) as recorder:
        recorder.metrics({"step": 10, "critic/loss": [0.25] * 3, "critic/q": [2.0] * 3})
        recorder.summary({"complete": True, "estimate": {"mean": -1.24, "learners": [-1.24]}})
    page = reported(tmp_path)
    row = page.table("run", "estimate of the discounted return")["fqe " + str(folder)]
    assert row["estimate of the discounted return"] == "-1.24"
    assert row["losses at the end"] == "critic/loss 0.25"
    assert "Skipped" not in page.text
    assert "1 run without an environment." in page.text
