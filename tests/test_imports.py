"""Who may import whom, from the ground up, and how little an import brings along."""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]

CORE = {"agent", "networks", "torsos", "distributions", "normalise", "traces", "generative"}
LEARNING = CORE | {"storage", "samplers", "learner", "datasets"}
LOOKING = {"evaluate", "checkpoint", "record", "statistics", "config", "settings"}
DEVICES = {"machine", "hosts", "devices"}
TRAINING = DEVICES | {
    "cost",
    "drivers",
    "envs",
    "courses",
    "population",
    "progress",
    "attendance",
    "film",
    "phases",
    "run",
}
RUNNING = LEARNING | LOOKING | TRAINING | {"policy", "recording", "corrupt"}
SEARCHING = {"cluster", "extract", "grid", "search", "trials", "evolution", "sweep"}
SHOWING = {"comparison", "figures", "published", "results", "plot", "report", "watch"}
FACE = {"cli", "cli_data"} | SEARCHING | SHOWING  # nothing below imports these

# Room of rljax -> the rooms that it may import, from the ground up. A new module is given its place here.
ROOMS: dict[str, set[str]] = {
    "agent": set(),
    "networks": {"agent", "networks"},
    "torsos": {"agent", "networks"},
    "distributions": {"agent", "networks"},
    "normalise": {"agent", "networks"},
    "traces": {"agent", "networks"},
    "generative": {"agent", "networks"},
    "agents": CORE,  # never another agent
    "envs": {"agent", "envs"},
    "storage": {"agent"},
    "samplers": {"agent", "storage"},
    "learner": {"agent", "storage", "samplers"},
    "datasets": {"agent", "datasets"},
    "hosts": set(),
    "statistics": {"agent", "envs"},
    "config": {"agent", "envs"},
    "record": {"agent", "envs"},
    "checkpoint": {"agent", "envs", "hosts"},
    "evaluate": {"agent", "envs", "hosts", "devices"},
    "cost": {"agent"},
    "machine": set(),
    "devices": {"hosts"},
    "courses": set(),
    "settings": set(),
    "population": {"agent", "envs", "config"},
    "progress": {"agent", "envs", "hosts", "population", "settings"},
    "attendance": {"agent", "envs", "hosts", "population", "progress"},
    "film": {"agent", "envs"},
    "drivers": {"agent", "storage", "samplers", "learner", "datasets", "envs", "devices", "drivers"},
    "phases": LEARNING | {"envs", "hosts", "devices", "drivers", "evaluate", "config", "settings"},
    "run": LEARNING | LOOKING | TRAINING,
    "policy": RUNNING - {"recording", "corrupt"},
    "recording": RUNNING - {"corrupt"},
    "corrupt": RUNNING - {"recording"},
    "extract": LEARNING | LOOKING | TRAINING,
    "cluster": set(),
    "grid": LEARNING | LOOKING | TRAINING | {"cluster"},
    "search": {"agent", "config"},
    "trials": LEARNING | LOOKING | TRAINING | {"cluster", "extract", "grid", "search"},
    "evolution": LEARNING | LOOKING | TRAINING | {"grid", "search", "trials"},
    "sweep": LEARNING | LOOKING | TRAINING | {"cluster", "grid", "search", "trials", "evolution"},
    "comparison": {"statistics"},
    "figures": {"agent", "envs", "statistics", "comparison"},
    "published": set(),
    "results": LOOKING | {"comparison", "published"},
    "plot": LOOKING | {"comparison", "figures", "results"},
    "report": LOOKING | {"comparison", "figures", "published", "results"},
    "watch": LOOKING | {"results"},
    "cli_data": RUNNING | {"corrupt"},
    "cli": RUNNING | FACE,
    "__main__": {"cli"},
    "__init__": {"run", "policy"},
}
PACKAGES_OF_AGENTS = {"jax", "flax", "optax", "chex", "distrax", "numpy"}
LAZY_IN_ENVS = {"brax", "mujoco", "gymnax", "mujoco_playground", "envpool", "ale_py"}  # slow to import, or extras


def modules() -> Iterator[tuple[str, Path]]:
    """Every module of the package as (room, file); the links to agents/ and envs/ are followed by hand."""
    for folder in ("rljax", "agents", "envs"):
        for path in sorted((ROOT / folder).rglob("*.py")):
            parts = path.relative_to(ROOT / folder).parts
            if folder != "rljax":
                yield folder, path
            elif parts[0] not in ("agents", "envs"):
                yield parts[0].removesuffix(".py"), path


def is_main(node: ast.AST) -> bool:
    """Whether `node` is the `if __name__ == "__main__":` of a module."""
    return isinstance(node, ast.If) and ast.unparse(node.test) == "__name__ == '__main__'"


def imported(node: ast.AST, *, lazily: bool = True) -> Iterator[str]:
    """Dotted names that the code below `node` imports; without those in functions or for types, if not `lazily`."""
    for child in ast.iter_child_nodes(node):
        late = isinstance(child, ast.FunctionDef) or (
            isinstance(child, ast.If) and "TYPE_CHECKING" in ast.unparse(child.test)
        )
        if is_main(child) or (late and not lazily):
            continue
        if isinstance(child, ast.Import):
            yield from (alias.name for alias in child.names)
        elif isinstance(child, ast.ImportFrom):
            assert child.level == 0, "imports are absolute"
            yield from (f"{child.module}.{alias.name}" for alias in child.names)
        else:
            yield from imported(child, lazily=lazily)


def room_of(name: str) -> str | None:
    """The room of rljax that a dotted name lies in; None for other packages and for rljax's own names."""
    package, _, rest = name.partition(".")
    room = rest.partition(".")[0]
    return room if package == "rljax" and room and room in known_rooms() else None


def known_rooms() -> set[str]:
    """The rooms that are there, and those that the table foresees."""
    return {room for room, _ in modules()} | ROOMS.keys()


def tree(path: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(path.read_text(), str(path))


PARAMETERS = [pytest.param(room, path, id=str(path.relative_to(ROOT))) for room, path in modules()]


@pytest.mark.parametrize(("room", "path"), PARAMETERS)
def test_imports_only_from_rooms_below(room: str, path: Path) -> None:
    assert room in ROOMS, f"'{room}' has no place: say in ROOMS what it may import, and in whose lines it stands."
    rooms = {name: room_of(name) for name in imported(tree(path))}
    forbidden = [name for name, other in rooms.items() if other is not None and other not in ROOMS[room]]
    assert not forbidden, f"'{room}' may import {sorted(ROOMS[room])}."


@pytest.mark.parametrize(("room", "path"), [p for p in PARAMETERS if p.values[0] == "agents"])
def test_agents_import_the_field_and_no_more(room: str, path: Path) -> None:
    del room
    packages = {name.partition(".")[0] for name in imported(tree(path))}
    assert packages - sys.stdlib_module_names <= PACKAGES_OF_AGENTS | {"rljax"}
    (main,) = [node for node in tree(path).body if is_main(node)] or [ast.Module([], [])]
    assert set(imported(main)) <= {"rljax.cli"}


@pytest.mark.parametrize(("room", "path"), [p for p in PARAMETERS if p.values[0] == "envs"])
def test_environments_import_simulators_where_they_need_them(room: str, path: Path) -> None:
    del room
    packages = {name.partition(".")[0] for name in imported(tree(path), lazily=False)}
    assert not packages & LAZY_IN_ENVS, "import it in the function that makes the environment"


def test_one_lower_room_that_imports_the_face_is_found(tmp_path: Path) -> None:
    path = tmp_path / "storage.py"
    path.write_text("def f():\n    from rljax import cli\n")
    with pytest.raises(AssertionError, match="may import"):
        test_imports_only_from_rooms_below("storage", path)


HEAVY = ("jax", "numpy", "flax", "optax", "distrax", "orbax", "gymnasium", "mujoco", "brax", "matplotlib", "rich")


@pytest.mark.parametrize(
    ("statement", "heavy"),
    [
        ("import rljax", HEAVY),
        ("import rljax; rljax.__version__; dir(rljax)", HEAVY),
        ("from rljax import cli; cli.main(['--help'])", HEAVY),
        ("from rljax import cli; cli.main(['--version'])", HEAVY),
        ("import rljax.envs", HEAVY),
    ],
)
def test_imports_nothing_heavy(statement: str, heavy: tuple[str, ...]) -> None:
    code = f"{statement}\nimport sys, json; print(json.dumps([x for x in {heavy!r} if x in sys.modules]))"
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout.splitlines()[-1]) == []


def test_public_names_are_there() -> None:
    import rljax
    from rljax import policy, run

    assert (rljax.train, rljax.resume) == (run.train, run.resume)
    assert (rljax.load, rljax.Policy) == (policy.load, policy.Policy)
    assert set(rljax.__all__) <= set(dir(rljax))
    with pytest.raises(AttributeError, match=r"'rljax' has no attribute 'trian'. Its names: .*train"):
        rljax.trian  # noqa: B018  # pyright: ignore[reportAttributeAccessIssue]
