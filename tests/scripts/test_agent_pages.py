"""The agents' pages are as the code says, and what they point to is there."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from scripts.results import agent_pages

ROOT = Path(__file__).parents[2]
PAGES = sorted((ROOT / "docs" / "agents").glob("*.md"))
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
        if not path.exists() or (re.fullmatch(r"\w+", text) and path.suffix == ".py" and text not in defined(path)):
            links.append(f"{text}: {target}")
    return links


def defined(path: Path) -> set[str]:
    """The functions and classes of a Python file."""
    return {node.name for node in ast.parse(path.read_text()).body if isinstance(node, ast.FunctionDef | ast.ClassDef)}


def section(text: str, heading: str) -> str:
    """A page's text under a heading."""
    return text.split(f"\n## {heading}\n")[1].split("\n## ")[0]


def rows(table: str) -> dict[str, list[str]]:
    """The cells of a table's rows by the name that comes first in backticks."""
    lines = [(match[1], line) for line in table.splitlines() if (match := re.match(r"\| `([^`]+)`", line))]
    return {name: [cell.strip() for cell in re.split(r"(?<!\\)\|", line)[2:-1]] for name, line in lines}


@pages
def test_page_is_up_to_date_and_complete(page: Path) -> None:
    text = page.read_text()
    assert agent_pages.documented(text, source(page)) == text, "mend by: python scripts/results/agent_pages.py"
    assert re.findall(r"^## (.+)$", text, re.MULTILINE) == SECTIONS
    assert broken(page) == [], "links"
    metrics = set(re.findall(r'"([a-z_]+/[a-z_]+)": ', source(page)))
    assert metrics - rows(section(text, "Metrics")).keys() == set(), "each metric is explained"
    losses = set(re.findall(r"^def (\w+_loss)\(", source(page), re.MULTILINE))
    assert losses - {name for name, _ in LINK.findall(section(text, "Equations"))} == set(), "each loss is linked"


def test_broken_links_are_found(tmp_path: Path) -> None:
    (tmp_path / "code.py").write_text("def f(): ...\n")
    page = tmp_path / "page.md"
    page.write_text("[`f`](code.py) [`g`](code.py) [the code](code.py) [`f`](other.md) [x](https://arxiv.org/abs/1)")
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


def test_only_what_stands_between_the_markers_changes() -> None:
    page = "# A\n<!-- config -->\nold\n<!-- /config -->\nend\n"
    new = agent_pages.documented(page, SOURCE)
    assert new == f"# A\n<!-- config -->\n{TABLE}\n<!-- /config -->\nend\n"
    assert agent_pages.documented(new, SOURCE) == new


@pytest.mark.parametrize("page", ["", "<!-- config -->", "<!-- /config --> <!-- config -->"])
def test_page_without_markers_is_refused(page: str) -> None:
    with pytest.raises(ValueError, match=r"^the page needs the lines <!-- config --> and <!-- /config -->, in this"):
        agent_pages.documented(page, SOURCE)


def test_field_without_a_comment_is_refused() -> None:
    with pytest.raises(
        ValueError, match=r"^'b: int = 2' must be one line with a default and a comment on it\. Write: "
    ):
        agent_pages.config_table("class Config:\n    a: int = 1  # one\n    b: int = 2\n")


def test_source_without_config_is_refused() -> None:
    with pytest.raises(ValueError, match=r"^the source has no class 'Config'\. An agent's hyperparameters are its"):
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
    with pytest.raises(SystemExit, match=r"out of date; mend by: python scripts/results/agent_pages\.py"):
        agent_pages.main()
    assert "actor_lr" not in page.read_text()
    monkeypatch.setattr("sys.argv", ["agent_pages.py"])
    agent_pages.main()
    assert "actor_lr" in page.read_text()
    assert capsys.readouterr().out == "docs/agents/a.md\n" * 2
