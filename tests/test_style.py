"""What readers of the code rely on."""

from __future__ import annotations

import ast
import re
import subprocess
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
AGENTS = sorted(path for path in (ROOT / "agents").glob("*.py") if path.stem != "__init__")
MODULES = sorted(
    path for folder in ("rljax", "agents", "envs") for path in (ROOT / folder).rglob("*.py")
)
LINES = 325  # of an agent's file


def section(node: ast.stmt) -> str | None:
    """Which part of an agent's file a top-level statement is; None for what has no place."""
    if isinstance(node, ast.Import | ast.ImportFrom):
        return "imports"
    if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant):
        return "docstring"
    if isinstance(node, ast.ClassDef):
        return node.name if node.name in ("Config", "State") else None
    if isinstance(node, ast.FunctionDef):
        if node.name.endswith(("_loss", "_gain")):
            return "losses"
        return "act" if node.name in BESIDE_ACT else node.name
    if isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'":
        return "__main__"
    return None


ORDER = [
    "docstring",
    "imports",
    "Config",
    "State",
    "experience",
    "schedule",
    "check",
    "init",
    "act",
    "losses",
    "update",
    "__main__",
]
OPTIONAL = ("schedule", "losses")  # the suite may have all losses of an agent, as for CPO
# Optional functions, which stand beside `act`.
BESIDE_ACT = ("acting", "perceive", "review", "remember", "prepare", "value")
BESIDE_ACT += ("use_base", "decode")


def misplaced(source: str) -> list[str]:
    """The sections of an agent's file, if their order is not the shared one; else []."""
    found = [name for name in map(section, ast.parse(source).body) if name in ORDER]
    expected = sorted(found, key=ORDER.index)
    return [] if found == expected and {*found, *OPTIONAL} == set(ORDER) else found


def test_agents_have_their_sections_in_order() -> None:
    orders = {path.stem: misplaced(path.read_text()) for path in AGENTS}
    assert {name: order for name, order in orders.items() if order} == {}, f"{ORDER} is the order"


def test_sections_out_of_order_are_found() -> None:
    source = (ROOT / "agents/sac.py").read_text()
    assert not misplaced(source)
    for names in (
        ["update(", "improve("],
        ["experience(", "declared("],
        ["experience(", "init(", "init(key", "experience(key"],
        ["value(", "a_loss(", "critic_loss(", "value("],
        ["init(", "update(", "update(state:", "init(state:"],
    ):
        changed = source
        for before, after in zip(names[::2], names[1::2], strict=True):
            changed = changed.replace(f"\ndef {before}", f"\ndef {after}")
        assert misplaced(changed), names


def test_agents_are_short() -> None:
    lengths = {path.stem: len(path.read_text().splitlines()) for path in AGENTS}
    assert {name: lines for name, lines in lengths.items() if lines > LINES} == {}


DECLARED_DATA = {
    "buffers.Dataset",
    "buffers.Dataset.of",
    "buffers.goal_dataset",
    "buffers.row_dataset",
}


def from_data(source: str) -> bool:
    (experience,) = [node for node in ast.parse(source).body if section(node) == "experience"]
    returned = [node.value for node in ast.walk(experience) if isinstance(node, ast.Return)]
    return any(
        isinstance(value, ast.Call) and ast.unparse(value.func) in DECLARED_DATA
        for value in returned
    )


def test_agents_that_learn_from_data_are_found() -> None:
    source = (
        "def experience(config):\n    online = buffers.Replay()\n"
        "    return buffers.Dataset(online=online)\n"
    )
    assert from_data(source)
    assert from_data(source.replace("buffers.Dataset(", "buffers.Dataset.of(config, "))
    assert not from_data(source.replace("buffers.Dataset(", "buffers.Rollout("))


def test_agents_are_introduced() -> None:
    for path in AGENTS:
        docstring = ast.get_docstring(ast.parse(path.read_text())) or ""
        assert re.match(r"[\w-]+[^:\n]*: ", docstring), (
            f"{path}: the first line is 'NAME: what it is'"
        )
        assert re.search(r"Departs from (the paper|\[\d\])", docstring), path
        assert re.search(r"^\[1\] ", docstring, re.MULTILINE), f"{path}: the paper comes as [1]"
        source = "--data" if from_data(path.read_text()) else "--env"
        assert f"rljax train {path.stem} {source} " in docstring, (
            f"{path}: a command that trains it"
        )


def unexplained(source: str) -> list[str]:
    """The fields of an agent's Config that are not one line with a comment, their help."""
    (config,) = [node for node in ast.parse(source).body if section(node) == "Config"]
    assert isinstance(config, ast.ClassDef)
    lines = source.splitlines()
    fields = [field for field in config.body if isinstance(field, ast.AnnAssign)]
    explained = [re.search(r"\S  # \S.{5,}", lines[field.lineno - 1]) for field in fields]
    single = [field.lineno == field.end_lineno for field in fields]
    return [
        ast.unparse(field)
        for field, *good in zip(fields, explained, single, strict=True)
        if not all(good)
    ]


def test_every_hyperparameter_is_explained() -> None:
    fields = {path.stem: unexplained(path.read_text()) for path in AGENTS}
    assert {name: missing for name, missing in fields.items() if missing} == {}


def test_agents_have_their_pages() -> None:
    pages = {page.stem: page for page in (ROOT / "docs/agents").glob("*.md")}
    names = {path.stem for path in AGENTS}
    assert pages.keys() - {"README", "index"} == names
    assert [name for name in names if f"agents/{name}.py" not in pages[name].read_text()] == []


def undocumented(tree: ast.Module, library: Mapping[str, ast.ClassDef]) -> Iterator[str]:
    """Public names without a docstring; a method that overrides a documented one needs none.

    `library` holds the classes of other modules by their names.
    """
    if tree.body and not ast.get_docstring(tree):
        yield "module"
    classes = {**library, **classes_of(tree)}
    for node in tree.body:
        if isinstance(node, ast.FunctionDef | ast.ClassDef) and node.name[0] != "_":
            if not ast.get_docstring(node):
                yield node.name
            if isinstance(node, ast.ClassDef):
                methods = {child.name for child in node.body if isinstance(child, ast.FunctionDef)}
                missing = {name for name in methods if name[0] != "_"} - documented(node, classes)
                yield from (f"{node.name}.{name}" for name in sorted(missing))


def classes_of(tree: ast.Module) -> dict[str, ast.ClassDef]:
    return {node.name: node for node in tree.body if isinstance(node, ast.ClassDef)}


def documented(node: ast.ClassDef, classes: Mapping[str, ast.ClassDef]) -> set[str]:
    """The methods that have a docstring in a class, or in one that it inherits from."""
    methods = {
        child.name
        for child in node.body
        if isinstance(child, ast.FunctionDef) and ast.get_docstring(child)
    }
    for base in node.bases:
        parent = classes.get(ast.unparse(base).rpartition(".")[2])
        if parent is not None and parent is not node:
            methods |= documented(parent, classes)
    return methods


def test_public_names_are_documented() -> None:
    trees = {str(path.relative_to(ROOT)): ast.parse(path.read_text()) for path in MODULES}
    library = {name: node for tree in trees.values() for name, node in classes_of(tree).items()}
    names = {path: [*undocumented(tree, library)] for path, tree in trees.items()}
    assert {path: missing for path, missing in names.items() if missing} == {}


def test_undocumented_names_are_found() -> None:
    source = '"""m"""\nclass A:\n    """a"""\n    def b(self): ...\ndef c(): ...\ndef _d(): ...\n'
    source += (
        'class _E:\n    def f(self):\n        """f"""\nclass G(_E):\n    """g"""\n'
        "    def f(self): ...\n"
    )
    assert list(undocumented(ast.parse(source), {})) == ["A.b", "c"]


def test_methods_of_other_modules_are_inherited() -> None:
    source = '"""m"""\nclass H(m.G):\n    """h"""\n    def f(self): ...\n    def g(self): ...\n'
    library = classes_of(
        ast.parse('class G(F): ...\nclass F:\n    def f(self):\n        """f"""\n')
    )
    assert list(undocumented(ast.parse(source), library)) == ["H.g"]


# Of a package registry, and of one person's machine.
FORBIDDEN = {
    "registry": re.compile(
        r"https?://[\w.-]*(?:pypi|pythonhosted|anaconda|npmjs|artifactory|nexus|devpi)[\w.-]*/",
        re.IGNORECASE,
    ),
    "machine": re.compile(r"(?<![\w.~$}])/(?:home|root|Users|work|workspace|mnt)/[\w.-]+"),
}


def tracked() -> list[Path]:
    listing = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    if listing.returncode:
        pytest.skip("not a git checkout")
    paths = [ROOT / name for name in listing.stdout.split("\0") if name]
    return [
        path
        for path in paths
        if path.is_file() and path.suffix not in (".png", ".mp4", ".npz", ".gz")
    ]


def test_nothing_of_one_machine_is_kept() -> None:
    found = [
        f"{path.relative_to(ROOT)}: {match.group()} ({kind})"
        for path in tracked()
        for kind, pattern in FORBIDDEN.items()
        for match in pattern.finditer(path.read_text(errors="replace"))
    ]
    assert found == []


@pytest.mark.parametrize(
    ("kind", "text"),
    [("registry", "https:" + "//pypi.org/simple/x"),
     ("registry", "https:" + "//files.pythonhosted.org/packages"),
     ("machine", "cd /" + "home/jane/rljax"), ("machine", "'/" + "Users/jane'")],
)  # fmt: skip
def test_forbidden_text_is_found(kind: str, text: str) -> None:
    assert FORBIDDEN[kind].search(text)
    assert not FORBIDDEN[kind].search(
        "see runs/home/x, $HOME/runs, https:" + "//arxiv.org/abs/1812.05905"
    )
