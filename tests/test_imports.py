"""Who may import whom, and how little an import brings along."""

from __future__ import annotations

import ast
import collections
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from rljax import trust

ROOT = Path(__file__).parents[1]

# From the ground up: each imports those above it in this list, and itself.
PACKAGES = [
    "spec",
    "requirements",
    "agent",
    "system",
    "trust",
    "distributed",
    "networks",
    "buffers",
    "envs",
    "datasets",
    "learning",
    "runs",
    "tuning",
    "analysis",
    "cli",
]
# An agent imports no other agent.
ALONE = {
    "agents": {"agent", "requirements", "networks", "buffers"},
    "envs": {"spec", "agent", "envs", "trust", "system"},
}
FACES = {"__init__", "__main__"}  # the public names, and the program
MODULES = 14  # of one folder, at most
PACKAGES_OF_AGENTS = {"jax", "flax", "optax", "chex", "distrax", "numpy"}
LAZY_IN_ENVS = {
    "brax",
    "mujoco",
    "gymnax",
    "mujoco_playground",
    "craftax",
    "envpool",
    "ale_py",
}  # slow to import, or extras


def modules() -> Iterator[tuple[str, Path]]:
    """Every module as (package, file); the links to agents/ and envs/ are followed by hand."""
    for folder in ("rljax", "agents", "envs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).parts
            if folder != "rljax":
                yield folder, path
            elif parts[0] not in ("agents", "envs"):
                yield parts[0].removesuffix(".py"), path


def allowed(package: str) -> set[str]:
    if package in FACES:
        return {*PACKAGES}
    above = PACKAGES[: PACKAGES.index(package) + 1] if package in PACKAGES else []
    return ALONE.get(package) or {*above, *(["agents"] if "learning" in above else [])}


def is_main(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def imported(node: ast.AST, *, lazily: bool = True) -> Iterator[str]:
    """Dotted names that the code below `node` imports; if not `lazily`, without those in functions
    or for types.
    """
    for child in ast.iter_child_nodes(node):
        late = isinstance(child, ast.FunctionDef) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        if is_main(child) or (late and not lazily):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from imported(child, lazily=lazily)


def package_of(name: str) -> str | None:
    """The package of rljax that a dotted name lies in; None for rljax's own names."""
    first, _, rest = name.partition(".")
    package = rest.partition(".")[0]
    return package if first == "rljax" and package in {*PACKAGES, "agents"} else None


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(), str(path))


def upwards(package: str, path: Path) -> list[str]:
    return [
        name for name in imported(tree(path)) if package_of(name) not in (None, *allowed(package))
    ]


def test_every_folder_is_a_package_of_the_list() -> None:
    assert {package for package, _ in modules()} == {*PACKAGES, "agents", *FACES}


def test_the_architecture_page_has_the_same_order() -> None:
    page = (ROOT / "docs/architecture.md").read_text()
    rows = re.findall(r"^\| \[(\w+)(?:/|\.py)\]\((\S+)\) \|", page, re.MULTILINE)
    assert [name for name, _ in rows] == PACKAGES
    assert all((ROOT / "docs" / link).exists() for _, link in rows)


def test_modules_import_only_packages_above_them_in_the_list() -> None:
    imports = {str(path.relative_to(ROOT)): upwards(package, path) for package, path in modules()}
    assert {path: names for path, names in imports.items() if names} == {}


def test_folders_are_seen_at_a_glance() -> None:
    sizes = collections.Counter(path.parent for _, path in modules() if path.stem != "__init__")
    assert {
        folder: size
        for folder, size in sizes.items()
        if size > MODULES and folder != ROOT / "agents"
    } == {}


def test_agents_import_the_field_and_no_more() -> None:
    for path in (path for package, path in modules() if package == "agents"):
        packages = {name.partition(".")[0] for name in imported(tree(path))}
        assert packages - sys.stdlib_module_names <= PACKAGES_OF_AGENTS | {"rljax"}, path
        (main,) = [node for node in tree(path).body if is_main(node)] or [ast.Module([], [])]
        assert set(imported(main)) <= {"rljax.cli"}, path


def test_trust_is_entered_by_its_names() -> None:
    """Besides them, by the one module there that imports Gymnasium."""
    for package, path in modules():
        names = [name for name in imported(tree(path)) if package_of(name) == "trust"]
        parts = {name.split(".")[2] for name in names if name.count(".") > 1}
        assert package == "trust" or parts <= {*trust.__all__, "plain_state"}, path


def test_environments_import_simulators_where_they_need_them() -> None:
    for path in (path for package, path in modules() if package == "envs"):
        packages = {name.partition(".")[0] for name in imported(tree(path), lazily=False)}
        assert not packages & LAZY_IN_ENVS, (
            f"{path}: import it in the function that makes the environment"
        )


@pytest.mark.parametrize(
    "text", ["def f():\n    from rljax import cli\n", "from rljax.runs import records\n"]
)
def test_an_import_upwards_is_found(text: str, tmp_path: Path) -> None:
    path = tmp_path / "replay.py"
    path.write_text(text)
    assert upwards("buffers", path) != []


HEAVY = (
    "jax",
    "numpy",
    "flax",
    "optax",
    "distrax",
    "orbax",
    "gymnasium",
    "mujoco",
    "brax",
    "matplotlib",
    "rich",
)


QUICK = [
    "import rljax",
    "rljax.__version__; dir(rljax)",
    "from rljax import cli; cli.main(['--version'])",
    "cli.main(['--help'])",
    "import rljax.envs",
]


def test_help_and_imports_load_nothing_heavy() -> None:
    report = (
        f"import sys, json; print(json.dumps([x for x in {HEAVY!r} if x in sys.modules]), "
        "file=sys.stderr)"
    )
    code = "\n".join(line for statement in QUICK for line in (statement, report))
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True
    )
    loaded = [json.loads(line) for line in done.stderr.splitlines()]
    assert dict(zip(QUICK, loaded, strict=True)) == {statement: [] for statement in QUICK}


def test_public_names_are_there() -> None:
    import rljax
    from rljax.runs import run
    from rljax.runs.policies import loading, policy

    assert (rljax.train, rljax.resume) == (run.train, run.resume)
    assert (rljax.load, rljax.Policy) == (loading.load, policy.Policy)
    assert sorted(rljax.__all__) == dir(rljax)
    with pytest.raises(
        AttributeError, match=r"'rljax' has no attribute 'trian'. Its names: .*train"
    ):
        rljax.trian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
