"""Fill in what pages take from the agents' files: tables of settings, and lists of agents.

  python scripts/results/agent_pages.py            rewrite the pages that are out of date
  python scripts/results/agent_pages.py --check    change nothing; fail if a page is out of date

In docs/agents/NAME.md the text between `<!-- config -->` and `<!-- /config -->` is replaced by a
table of the fields of `Config`, with their defaults and the comments on their lines. Comment lines
become headings. The fields that `Config` inherits come after its own, under one heading for each
base class. docs/agents/README.md and the README list the agents by family, between
`<!-- agents -->` and `<!-- /agents -->`.
"""

from __future__ import annotations

import argparse
import ast
import importlib
import inspect
import json
import re
import sys
import textwrap
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

from rljax import requirements
from rljax.learning import registry

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "agents"
INDEX = "README"  # of docs/agents, which is no agent's page
CONFIG = ("<!-- config -->", "<!-- /config -->")
AGENTS = ("<!-- agents -->", "<!-- /agents -->")
FIELD = re.compile(r"\s+(?P<name>\w+): (?P<kind>[^=]+?) = (?P<default>.+?)  # (?P<text>\S.*)")
TYPE = re.compile(r"(?<![.\w])[A-Z][A-Za-z]+(?![.\w\[])")  # a name of a type by itself
ESCAPED = "\\|"  # a bar in a cell
HEADER = ["| field | kind | default | meaning; source of the default |", "|---|---|---|---|"]


def config_table(source: str) -> str:
    """A Markdown table of the fields of `Config` in an agent's source,
    and of those that it inherits.

    Raises `ValueError` for a source without a `Config`, or a field without a default or a comment.
    """
    tree = ast.parse(source)
    configs = [
        node for node in tree.body if isinstance(node, ast.ClassDef) and node.name == "Config"
    ]
    if not configs:
        raise ValueError(
            "the source has no class 'Config'. An agent's hyperparameters are its fields."
        )
    (config,) = configs
    names = set(fields(config))
    rows = [*HEADER, *rows_of(config, source)]
    for base in config.bases:
        cls = imported(tree, ast.unparse(base))
        inherited = list(rows_of_base(cls, names))
        if inherited:
            purpose = (inspect.getdoc(cls) or "").partition(":")[0].replace("\n", " ")
            rows += [f"| **{purpose}** (`{ast.unparse(base)}`) | | | |", *inherited]
    return "\n".join(rows)


def fields(node: ast.ClassDef) -> dict[str, int]:
    """A class's own fields, with the lines that they stand on,
    counted from the one after `class`.
    """
    annotated = [
        x for x in node.body if isinstance(x, ast.AnnAssign) and isinstance(x.target, ast.Name)
    ]
    return {
        ast.unparse(x.target): x.lineno - node.lineno - 1
        for x in annotated
        if "ClassVar" not in ast.unparse(x.annotation)
    }


def rows_of(
    node: ast.ClassDef, source: str, without: set[str] | None = None, module: Any = None
) -> Iterator[str]:
    """The rows of a class's own fields, with headings, or without headings and without some fields.

    `module` is the one that names of types are looked up in; None: they are those of
    `rljax.requirements`.
    """
    lines = source.splitlines()[node.lineno : node.end_lineno]
    numbers = fields(node).values()
    for i, line in enumerate(lines):
        if i in numbers:
            match = FIELD.fullmatch(line)
            if match is None:
                raise ValueError(
                    f"'{line.strip()}' must be one line with a default and a comment on it. "
                    "Write: name: kind = default  # what it means; where the default is from"
                )
            if match["name"] not in (without or ()):
                cells = (
                    f"`{match['name']}`",
                    kind_shown(match["kind"], module),
                    f"`{match['default']}`",
                    match["text"],
                )
                yield f"| {' | '.join(cell.replace('|', ESCAPED) for cell in cells)} |"
        elif line.strip().startswith("# ") and without is None:
            yield f"| **{line.strip()[2:]}** | | | |"


def rows_of_base(cls: Any, names: set[str]) -> Iterator[str]:
    """The rows of a base class and of its own bases.

    The fields called `names` are left out; the others join them.
    """
    for ancestor in cls.__mro__[:-1]:
        source = textwrap.dedent(inspect.getsource(ancestor))
        (node,) = ast.parse(source).body
        assert isinstance(node, ast.ClassDef)
        yield from rows_of(node, source, names, sys.modules[ancestor.__module__])
        names.update(fields(node))


def imported(tree: ast.Module, path: str) -> Any:
    """What an agent calls `path`, such as `buffers.ReplaySettings`, by the imports of its file."""
    first, *rest = path.split(".")
    for node in tree.body:
        names = [x.asname or x.name for x in node.names] if isinstance(node, ast.ImportFrom) else []
        if first in names:
            assert isinstance(node, ast.ImportFrom)
            assert node.module is not None
            name = node.names[names.index(first)].name
            try:
                value = getattr(importlib.import_module(node.module), name)
            except AttributeError:
                value = importlib.import_module(f"{node.module}.{name}")
            for part in rest:
                value = getattr(value, part)
            return value
    raise ValueError(
        f"the base '{path}' of 'Config' is not imported: the table cannot show its fields."
    )


def kind_shown(kind: str, module: Any = None) -> str:
    """A field's kind in words: for a type that says a range, such as `Share`, its range;
    for choices, all of them.
    """

    def described(match: re.Match[str]) -> str:
        named = getattr(requirements, match[0], getattr(module, match[0], None))
        if typing.get_origin(named) is Literal:
            return f"Literal[{', '.join(json.dumps(value) for value in typing.get_args(named))}]"
        metadata = getattr(named, "__metadata__", ())
        if not metadata:
            return match[0]
        plain: Any = getattr(named, "__origin__", None)
        return f"{plain.__name__ if isinstance(plain, type) else plain}{range_shown(*metadata)}"

    return f"`{TYPE.sub(described, kind)}`"


def range_shown(*limits: Any) -> str:
    """The range that a type says, with a space before it;
    "" where it says nothing that a reader needs.
    """
    match limits:
        case (requirements.Between(low=None),):
            return ""
        case (requirements.Between(low=low, high=None),):
            return f" >= {low}"
        case (requirements.Between(low=low, high=high),):
            return f" in [{low}, {high}]"
        case (requirements.Between(low=low), requirements.Below(limit=high)):
            return f" in [{low}, {high})"
        case (requirements.Above(limit=low), requirements.Below(limit=high)):
            return f" in ({low}, {high})"
        case (requirements.Above(limit=low),):
            return f" > {low}"
        case (requirements.AtLeast(limit=low),):
            return f" >= {low}"
    return ""


def index(links: str) -> str:
    """The agents by family, one table for each; `links` is the path from the page to
    docs/agents/.
    """
    parts = []
    for family, names in registry.families().items():
        parts += [f"## {registry.heading(family)}", "", "| agent | what it is |", "|---|---|"]
        parts += [
            f"| [{registry.title(name)}]({links}{name}.md) | {registry.summary(name)} |"
            for name in names
        ]
        parts.append("")
    return "\n".join(parts[:-1])


def short_index(links: str) -> str:
    """The agents by family in one table; `links` is the path from the page to docs/agents/."""
    rows = ["| family | agents |", "|---|---|"]
    for family, names in registry.families().items():
        titles = [f"[{registry.title(name)}]({links}{name}.md)" for name in names]
        rows.append(f"| {registry.heading(family)} | {', '.join(titles)} |")
    return "\n".join(rows)


def filled(page: str, markers: tuple[str, str], text: str) -> str:
    """A page with `text` between its two markers. Raises `ValueError` for a page without them."""
    begin, end = markers
    if page.count(begin) != 1 or page.count(end) != 1 or page.index(begin) > page.index(end):
        raise ValueError(
            f"the page needs the lines {begin} and {end}, in this order and once: the text "
            "goes between."
        )
    before, rest = page.split(begin)
    return f"{before}{begin}\n{text}\n{end}{rest.split(end)[1]}"


def documented(page: str, source: str) -> str:
    """An agent's page with the table from the source.

    Raises `ValueError` for a page without the two markers.
    """
    return filled(page, CONFIG, config_table(source))


def pages() -> Iterator[tuple[Path, str]]:
    """Every page, with its text as it should be."""
    for path in sorted(PAGES.glob("*.md")):
        if path.stem != INDEX:
            yield (
                path,
                documented(path.read_text(), (ROOT / "agents" / f"{path.stem}.py").read_text()),
            )
    for path, text in (
        (PAGES / f"{INDEX}.md", index("")),
        (ROOT / "README.md", short_index("docs/agents/")),
    ):
        if path.exists():
            yield path, filled(path.read_text(), AGENTS, text)


def main() -> None:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument(
        "--check", action="store_true", help="change nothing; fail if a page is out of date"
    )
    check = parser.parse_args().check
    stale = []
    for path, text in pages():
        if text != path.read_text():
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(text)
    print("\n".join(stale))
    if check and stale:
        sys.exit("out of date; mend by: python scripts/results/agent_pages.py")


if __name__ == "__main__":
    main()
