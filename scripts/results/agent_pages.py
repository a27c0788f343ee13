"""Fill in the parts of the agents' pages that come from the code: the tables of hyperparameters.

  python scripts/results/agent_pages.py            rewrite the pages docs/agents/*.md that are out of date
  python scripts/results/agent_pages.py --check    change nothing; fail if a page is out of date

The text between `<!-- config -->` and `<!-- /config -->` is replaced. The table is read from the source of
agents/NAME.py: every field of `Config` with its default and the comment on its line. Comment lines become headings.
"""

from __future__ import annotations

import argparse
import ast
import re
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "agents"
BEGIN, END = "<!-- config -->", "<!-- /config -->"
FIELD = re.compile(r"\s+(?P<name>\w+): (?P<kind>[^=]+?) = (?P<default>.+?)  # (?P<text>\S.*)")


def config_table(source: str) -> str:
    """A Markdown table of the fields of `Config` in an agent's source.

    Raises `ValueError` for a source without a `Config`, or a field without a default or a comment.
    """
    configs = [node for node in ast.parse(source).body if isinstance(node, ast.ClassDef) and node.name == "Config"]
    if not configs:
        raise ValueError("the source has no class 'Config'. An agent's hyperparameters are its fields.")
    lines = source.splitlines()[configs[0].lineno : configs[0].end_lineno]
    fields = {node.lineno - configs[0].lineno - 1 for node in configs[0].body if isinstance(node, ast.AnnAssign)}
    rows = ["| field | kind | default | meaning; source of the default |", "|---|---|---|---|"]
    for i, line in enumerate(lines):
        if i in fields:
            match = FIELD.fullmatch(line)
            if match is None:
                raise ValueError(
                    f"'{line.strip()}' must be one line with a default and a comment on it. "
                    "Write: name: kind = default  # what it means; where the default is from"
                )
            kind, default = (f"`{match[part]}`".replace("|", "\\|") for part in ("kind", "default"))
            rows.append(f"| `{match['name']}` | {kind} | {default} | {match['text'].replace('|', chr(92) + '|')} |")
        elif line.strip().startswith("# "):
            rows.append(f"| **{line.strip()[2:]}** | | | |")
    return "\n".join(rows)


def documented(page: str, source: str) -> str:
    """An agent's page with the table from the source. Raises `ValueError` for a page without the two markers."""
    if page.count(BEGIN) != 1 or page.count(END) != 1 or page.index(BEGIN) > page.index(END):
        raise ValueError(f"the page needs the lines {BEGIN} and {END}, in this order and once: the table goes between.")
    before, rest = page.split(BEGIN)
    return f"{before}{BEGIN}\n{config_table(source)}\n{END}{rest.split(END)[1]}"


def main() -> None:
    """Rewrite the pages, or check them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--check", action="store_true", help="change nothing; fail if a page is out of date")
    check = parser.parse_args().check
    stale = []
    for path in sorted(PAGES.glob("*.md")):
        page = path.read_text()
        new = documented(page, (ROOT / "agents" / f"{path.stem}.py").read_text())
        if new != page:
            stale.append(str(path.relative_to(ROOT)))
            if not check:
                path.write_text(new)
    print("\n".join(stale))
    if check and stale:
        sys.exit("out of date; mend by: python scripts/results/agent_pages.py")


if __name__ == "__main__":
    main()
