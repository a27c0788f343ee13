"""The agents' pages are as the code says, and what they point to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from rljax.learning import registry
from scripts.results import agent_pages

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path for path in (ROOT / "docs" / "agents").glob("*.md") if path.stem != agent_pages.INDEX
)
SECTIONS = [
    "Command",
    "Equations",
    "Implementation details",
    "Departures from the paper",
    "Config",
    "Metrics",
    "Results",
    "Tests that guard it",
    "References",
]
LINK = re.compile(r"\[`?([^\]`]+)`?\]\(([^)#]+)(?:#[^)]*)?\)")

pages = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.stem)


def source(page: Path) -> str:
    """The agent that a page is about."""
    return (ROOT / "agents" / f"{page.stem}.py").read_text()


def broken(page: Path) -> list[str]:
    """Links to files that are not there, or to Python files that define no such name."""
    links = []
    for text, target in LINK.findall(page.read_text()):
        if "://" in target:
            continue
        path = (page.parent / target).resolve()
        if not path.exists() or (
            re.fullmatch(r"\w+", text) and path.suffix == ".py" and text not in defined(path)
        ):
            links.append(f"{text}: {target}")
    return links


def defined(path: Path) -> set[str]:
    """The functions and classes of a Python file."""
    return {
        node.name
        for node in ast.parse(path.read_text()).body
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def section(text: str, heading: str) -> str:
    """A page's text under a heading."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(table: str) -> dict[str, list[str]]:
    """The cells of a table's rows by the name that comes first in backticks."""
    lines = [
        (match[1], line)
        for line in table.splitlines()
        if (match := re.match(r"\| `([^`]+)`", line))
    ]
    return {
        name: [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[2:-1]] for name, line in lines
    }


@pages
def test_page_is_up_to_date_and_complete(page: Path) -> None:
    text = page.read_text()
    assert agent_pages.documented(text, source(page)) == text, (
        "mend by: python scripts/results/agent_pages.py"
    )
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert broken(page) == [], "links"
    metrics = set(re.findall(r'"([a-z_]+/[a-z_]+)": ', source(page)))
    assert metrics - rows(section(text, "Metrics")).keys() == set(), "each metric is explained"
    losses = set(re.findall(r"^def (\w+_loss)\(", source(page), re.MULTILINE))
    assert losses - {name for name, _ in LINK.findall(section(text, "Equations"))} == set(), (
        "each loss is linked"
    )


def test_lists_of_agents_are_up_to_date() -> None:
    for path, text in agent_pages.pages():
        if path.stem == agent_pages.INDEX:
            assert path.read_text() == text, "mend by: python scripts/results/agent_pages.py"
            assert broken(path) == []


def test_lists_of_agents_have_each_agent_once() -> None:
    for index in (agent_pages.index(""), agent_pages.short_index("")):
        assert (
            sorted(target.removesuffix(".md") for _, target in LINK.findall(index))
            == registry.names()
        )


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def f(): ...\n")
    page = tmp_path / "page.md"
    page.write_text(
        "[`f`](code.py) [`g`](code.py) [the code](code.py) [`f`](other.md) [x](https://arxiv.org/abs/1)"
    )
    assert broken(page) == ["g: code.py", "f: other.md"]


SOURCE = '''
class Config:
    """..."""

    # Optimisation
    actor_lr: float = 3e-4  # learning rate; [1]
    # Policy
    form: Literal["a", "b"] = "a"  # a | b
    target: float | None = None  # in nats; own choice
'''
TABLE = """\
| field | kind | default | meaning; source of the default |
|---|---|---|---|
| **Optimisation** | | | |
| `actor_lr` | `float` | `3e-4` | learning rate; [1] |
| **Policy** | | | |
| `form` | `Literal["a", "b"]` | `"a"` | a \\| b |
| `target` | `float \\| None` | `None` | in nats; own choice |"""


def test_table_is_read_from_the_source() -> None:
    assert agent_pages.config_table(SOURCE) == TABLE
    assert rows(TABLE)["actor_lr"] == ["`float`", "`3e-4`", "learning rate; [1]"]


DERIVED = """
from rljax import buffers
from rljax.networks.optimisation import temperatures

class Config(buffers.DatasetSettings, temperatures.WithTemperature):
    batch_size: Count = 64  # rows of a batch; [1]
    rate: Share = 0.5  # of something; [1]
    limit: Positive | None = None  # of something else; [1]
"""


def test_inherited_fields_come_last_under_their_base_class() -> None:
    """Those of a base's own base are among the base's;
    what `Config` says anew is not said twice.
    """
    table = agent_pages.config_table(DERIVED).splitlines()
    first = "| **Settings of agents that learn from data** (`buffers."
    second = "| **Settings of a temperature learnt as in SAC, and of the networks** (`"
    places = [i for i, line in enumerate(table) if line.startswith((first, second))]
    assert table[2:5] == [
        "| `batch_size` | `int >= 1` | `64` | rows of a batch; [1] |",
        "| `rate` | `float in [0, 1]` | `0.5` | of something; [1] |",
        "| `limit` | `float > 0 \\| None` | `None` | of something else; [1] |",
    ]
    assert places[0] == 5
    inherited = [set(rows("\n".join(part))) for part in (table[5 : places[1]], table[places[1] :])]
    assert {"reward_transform", "replay_size", "num_updates"} <= inherited[0]
    assert {"temperature_lr", "temperature_loss"} <= inherited[1]
    assert "batch_size" not in inherited[0]
    assert rows("\n".join(table))["temperature_loss"][0] == '`Literal["log_alpha", "alpha"]`'


def test_a_base_that_is_not_imported_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^the base 'other\.Settings' of 'Config' is not imported"
    ):
        agent_pages.config_table("class Config(other.Settings):\n    a: int = 1  # one thing\n")


def test_only_what_stands_between_the_markers_changes() -> None:
    page = "# A\n<!-- config -->\nold\n<!-- /config -->\nend\n"
    new = agent_pages.documented(page, SOURCE)
    assert new == f"# A\n<!-- config -->\n{TABLE}\n<!-- /config -->\nend\n"
    assert agent_pages.documented(new, SOURCE) == new


@pytest.mark.parametrize("page", ["", "<!-- config -->", "<!-- /config --> <!-- config -->"])
def test_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(
        ValueError, match=r"^the page needs the lines <!-- config --> and <!-- /config -->, in this"
    ):
        agent_pages.documented(page, SOURCE)


def test_field_without_a_comment_is_refused() -> None:
    with pytest.raises(
        ValueError,
        match=r"^'b: int = 2' must be one line with a default and a comment on it\. Write: ",
    ):
        agent_pages.config_table("class Config:\n    a: int = 1  # one\n    b: int = 2\n")


def test_source_without_config_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^the source has no class 'Config'\. An agent's hyperparameters are its"
    ):
        agent_pages.config_table("x = 1\n")


def test_check_fails_and_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "docs" / "agents").mkdir(parents=True)
    (tmp_path / "agents").mkdir()
    (tmp_path / "agents" / "a.py").write_text(SOURCE)
    page = tmp_path / "docs" / "agents" / "a.md"
    page.write_text("<!-- config -->\n<!-- /config -->\n")
    monkeypatch.setattr(agent_pages, "ROOT", tmp_path)
    monkeypatch.setattr(agent_pages, "PAGES", page.parent)
    monkeypatch.setattr("sys.argv", ["agent_pages.py", "--check"])
    with pytest.raises(
        SystemExit, match=r"out of date; mend by: python scripts/results/agent_pages\.py"
    ):
        agent_pages.main()
    assert "actor_lr" not in page.read_text()
    monkeypatch.setattr("sys.argv", ["agent_pages.py"])
    agent_pages.main()
    assert "actor_lr" in page.read_text()
    assert capsys.readouterr().out == "docs/agents/a.md\n" * 2


@pages
def test_numbered_references_are_those_of_the_agents_file(page: Path) -> None:
    """Comments of `Config`, which the page repeats, cite by the file's numbers."""
    listed = dict(re.findall(r"^\[(\d+)\] (.+)$", source(page).split('"""')[1], re.MULTILINE))
    entries = re.split(r"^- ", section(page.read_text(), "References"), flags=re.MULTILINE)
    shown = {match[1]: entry for entry in entries if (match := re.match(r"\[(\d+)\]", entry))}
    for number, reference in listed.items():
        assert number in shown, f"[{number}] {reference}"
        kind = r"arXiv:[\d.]+" if "arXiv:" in reference else r"github\.com/\S+?(?=[,)\s]|$)"
        for name in re.findall(kind, reference) or [reference.split()[0]]:
            assert name.removeprefix("github.com/") in shown[number], f"[{number}] {name}"
