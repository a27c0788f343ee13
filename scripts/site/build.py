"""Build the site: the pages of docs/ and results/, the API, and the source files that they link to.

  make docs                                  in an environment of its own, into site/
  python scripts/site/build.py               the same, in an environment with requirements-docs.txt
  python scripts/site/build.py --pages-only  only the pages that the site is made of, in build/site

Pages stay as they are in the repository, where their links work on a code host. Here they are
copied to the places that they have in the site, and their links follow them. A linked source file
becomes a page of code, a linked folder a list. The site loads nothing from elsewhere.
"""

from __future__ import annotations

import argparse
import ast
import functools
import posixpath
import re
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
SETTINGS = Path(__file__).parent / "site.yml"
STYLE = Path(__file__).parent / "site.css"
HOME = "docs/index.md"
PROJECT = ("CHANGELOG.md", "CONTRIBUTING.md", "SECURITY.md", "scripts/README.md")
CODE = {
    ".py": "python",
    ".toml": "toml",
    ".css": "css",
    ".yml": "yaml",
    ".sh": "sh",
    ".txt": "text",
}
LINK = re.compile(r"(?<=\])\((?P<markdown>[^)\s]+)\)|(?<=src=)\"(?P<html>[^\"]+)\"")
FENCED = re.compile(r"^(?P<fence>`{3,}|~{3,}).*?^(?P=fence)[ ]*$", re.MULTILINE | re.DOTALL)
HIDDEN = "---\nsearch:\n  exclude: true\n---\n\n"  # a page of code does not flood the search
API = """# API

The public names of `import rljax`, from their docstrings. Everything else may change without a
word: [what is stable](project/CHANGELOG.md).
"""


class BrokenLinkError(ValueError):
    """A page links to a file that is not in the repository."""


@functools.cache
def texts() -> list[str]:
    """The Markdown files that become pages, as paths in the repository."""
    below = [path for folder in ("docs", "results") for path in (ROOT / folder).rglob("*.md")]
    return [*sorted(path.relative_to(ROOT).as_posix() for path in below), *PROJECT]


def place(path: str) -> str:
    """Where a file or folder of the repository stands among the site's pages."""
    if path == "README.md":
        return place(HOME)
    if path.startswith("docs/"):
        return path.removeprefix("docs/")
    if path.startswith("results/") and (ROOT / path).is_file():
        return path
    if path in PROJECT:
        return f"project/{path}"
    if (ROOT / path).is_dir():
        return f"source/{path}/index.md"
    return f"source/{path}.md" if Path(path).suffix in CODE else f"source/{path}"


def links(text: str) -> Iterator[tuple[re.Match[str], str]]:
    """The links of a page outside blocks of code, with what they point to."""
    blocks = [match.span() for match in FENCED.finditer(text)]
    for match in LINK.finditer(text):
        inside = any(begin <= match.start() < end for begin, end in blocks)
        target = match["markdown"] or match["html"]
        if not inside and not re.match(r"[a-z]+:|#", target):
            yield match, target


def resolved(page: str, target: str) -> tuple[str, str]:
    """The file or folder of the repository that a link means, and its anchor, such as "#sizes".

    Raises `BrokenLinkError` where nothing is there. A folder with a README means that README.
    """
    path, _, anchor = target.partition("#")
    path = posixpath.normpath(posixpath.join(posixpath.dirname(page), path))
    if path.startswith("..") or not (ROOT / path).exists():
        raise BrokenLinkError(f"{page}: there is no {target}")
    if (ROOT / path / "README.md").is_file() and f"{path}/README.md" in texts():
        path = f"{path}/README.md"
    return path, f"#{anchor}" * bool(anchor)


def moved(page: str, text: str, visit: Callable[[str], object]) -> str:
    """A page's text whose links fit its place in the site; `visit` gets each linked file."""
    pieces, end = [], 0
    for match, target in links(text):
        path, anchor = resolved(page, target)
        visit(path)
        new = posixpath.relpath(place(path), posixpath.dirname(place(page)) or ".") + anchor
        quoted = f"({new})" if match["markdown"] else f'"{new}"'
        pieces += [text[end : match.start()], quoted]
        end = match.end()
    return "".join([*pieces, text[end:]])


def write_pages(folder: Path) -> None:
    """Write all pages, and the files that they need, below `folder`."""
    waiting, done = [*texts()], set()
    while waiting:
        path = waiting.pop()
        if path in done:
            continue
        done.add(path)
        output = folder / place(path)
        output.parent.mkdir(parents=True, exist_ok=True)
        source = ROOT / path
        if path == "README.md":
            waiting.append(HOME)
        elif path in texts():
            output.write_text(moved(path, source.read_text(), waiting.append))
        elif source.is_dir():
            output.write_text(moved(f"{path}/.", listing(path), waiting.append))
        elif source.suffix in CODE:
            output.write_text(code_page(path))
        else:
            shutil.copyfile(source, output)
    (folder / "api.md").write_text("\n".join([API, *(f"::: rljax.{x}\n" for x in public_names())]))
    shutil.copyfile(STYLE, folder / STYLE.name)


def listing(path: str) -> str:
    """A page with links to the files of a folder."""
    names = [x.name for x in sorted((ROOT / path).iterdir()) if x.is_file() and x.name[0] != "_"]
    return "\n".join([f"{HIDDEN}# {path}/\n", *(f"- [{name}]({name})" for name in names), ""])


def code_page(path: str) -> str:
    """A page with the text of a source file."""
    source = ROOT / path
    return f"{HIDDEN}# {path}\n\n~~~~~~{CODE[source.suffix]}\n{source.read_text()}\n~~~~~~\n"


def public_names() -> list[str]:
    """The names of `rljax.__all__`, without its version."""
    tree = ast.parse((ROOT / "rljax" / "__init__.py").read_text())
    (value,) = [
        node.value
        for node in tree.body
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__"
    ]
    return [name for name in ast.literal_eval(value) if not name.startswith("__")]


def families() -> list[dict[str, list[dict[str, str]]]]:
    """The navigation of the agents' pages, as docs/agents/README.md has them."""
    index = (ROOT / "docs/agents/README.md").read_text()
    groups = re.split(r"^## ", index, flags=re.MULTILINE)[1:]
    return [
        {
            group.partition(":")[0].capitalize(): [
                {title: f"docs/agents/{name}.md"}
                for title, name in re.findall(r"^\| \[(.+?)\]\((\w+)\.md\)", group, re.MULTILINE)
            ]
        }
        for group in groups
    ]


def results() -> list[dict[str, str]]:
    """The navigation of the pages below results/, by their headings."""
    pages = [x for x in texts() if x.startswith("results/") and x != "results/README.md"]
    headings = [re.search(r"^# (.+)$", (ROOT / page).read_text(), re.MULTILINE) for page in pages]
    return [
        {match[1]: page} for match, page in zip(headings, pages, strict=True) if match is not None
    ]


def navigation(entries: list[Any]) -> list[Any]:
    """The navigation of the site, without pages that are not there."""
    generated = {"FAMILIES": families, "RESULTS": results}
    nav: list[Any] = []
    for entry in entries:
        if isinstance(entry, str):
            nav += navigation(generated[entry]())
            continue
        ((title, page),) = entry.items()
        if isinstance(page, list):
            nav.append({title: navigation(page)})
        elif page == "api.md":
            nav.append({title: page})
        elif (ROOT / page).exists():
            nav.append({title: place(page)})
    return nav


def settings() -> tuple[str, list[Any]]:
    """The settings of the site without its navigation, as text, and the navigation."""
    import yaml

    head, begin, entries = SETTINGS.read_text().partition("\nnav:\n")
    return f"{head}\n", navigation(yaml.safe_load(f"{begin}{entries}")["nav"])


def write_settings(path: Path) -> None:
    """Write the configuration of Zensical beside the pages."""
    import yaml

    head, nav = settings()
    path.write_text(head + yaml.safe_dump({"nav": nav}, sort_keys=False))


def main() -> None:
    """Write the pages, and build the site from them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--output", type=Path, default=ROOT / "site", help="folder of the site")
    parser.add_argument(
        "--pages-only", action="store_true", help="write only the pages that it is made of"
    )
    arguments = parser.parse_args()
    work = ROOT / "build" / "site"
    shutil.rmtree(work, ignore_errors=True)
    write_pages(work / "pages")
    if arguments.pages_only:
        return
    write_settings(work / "mkdocs.yml")
    command = [sys.executable, "-m", "zensical", "build", "--clean", "--strict"]
    done = subprocess.run([*command, "--config-file", work / "mkdocs.yml"], cwd=work, check=False)
    if done.returncode:
        sys.exit("the site was not built: see the messages above")
    shutil.rmtree(arguments.output, ignore_errors=True)
    shutil.move(work / "site", arguments.output)
    print(f"{arguments.output}: open it by: python -m http.server --directory {arguments.output}")


if __name__ == "__main__":
    main()
