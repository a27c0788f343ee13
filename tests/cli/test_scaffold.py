"""What `rljax new` writes, outside and inside a checkout."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest

from rljax.cli import scaffold
from rljax.learning import registry

ROOT = Path(__file__).parents[2]


def test_a_file_of_ones_own_has_empty_presets_beside_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    assert scaffold.write("sac", file) == [file, tmp_path / "mine.toml"]
    module = registry.load_agent(str(file))
    assert registry.presets(str(file)) == {}
    assert registry.preset(str(file), module, "Pendulum-v1") == module.Config()
    assert "agents/presets/sac.toml" in (tmp_path / "mine.toml").read_text()
    assert scaffold.command(file) == "rljax train ./mine.py --env Hopper-v5"
    for path in (file, tmp_path / "mine.toml"):
        with pytest.raises(FileExistsError, match=rf"{path.name}' exists"):
            scaffold.write("td3", file)
        path.unlink()
    assert not file.exists()


def test_the_command_has_the_path_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "docs").mkdir()
    for path in ("mine.py", "docs/mine.py"):
        scaffold.write("sac", Path(path))
        assert scaffold.command(Path(path)).endswith(f"{path} --env Hopper-v5")
    assert "train ./mine.py" in (tmp_path / "docs/mine.py").read_text()


def test_no_source_is_renamed(tmp_path: Path) -> None:
    """A setting that is named in a comment is one of the copied agent."""
    scaffold.write("dqn", tmp_path / "mine.py")
    assert registry.variants("dqn")
    assert registry.variants(str(tmp_path / "mine.py")) == []
    old, new = registry.source("dqn").splitlines(), (tmp_path / "mine.py").read_text().splitlines()
    changed = [line for before, line in zip(old, new, strict=True) if before != line]
    assert changed[0].startswith('"""mine [off-policy]: ')
    assert all("rljax train ./mine.py " in line or '"mine"' in line for line in changed[1:])


def test_a_test_begins_with_what_the_contract_needs_and_one_test_to_be_written() -> None:
    text = '''"""SAC against float64 NumPy."""

from __future__ import annotations

import jax
import numpy as np

from rljax.agent import EnvSpec
from rljax.agents import sac, td3
from tests.agents import reference

SIZE = 3
SPEC = EnvSpec("test", (SIZE,), 2)
OTHER = np.zeros(3)
PROBE = {"a": 1}


def batch():
    """A batch."""
    return reference.transitions(SIZE)


def example():
    """An example."""
    return SPEC, sac.Config(), batch()


def test_updates():
    assert jax
'''
    written = scaffold.small_test(text, "sac", "mine")
    begin = (
        '"""mine against float64 NumPy written from the paper."""\n\n'
        "from __future__ import annotations\n\n"
    )
    begin += "import pytest"
    assert not written.startswith(begin)
    written = scaffold.small_test(
        text.replace("import numpy", "import pytest\nimport numpy"), "sac", "mine"
    )
    assert written.startswith(begin)
    names = [line.split("(")[0] for line in written.splitlines() if line.startswith("def ")]
    assert names == ["def batch", "def example", "def test_updates_equal_the_papers"]
    assert "from rljax.agents import mine\n" in written
    assert "mine.Config()" in written
    assert "tests/agents/test_sac.py" in written
    assert "OTHER" not in written
    assert "PROBE" in written
    assert "to be written" in written


@pytest.mark.parametrize("name", ["my-agent.py", "2nd.py", "agent.txt"])
def test_names_that_are_no_modules_are_refused(name: str, tmp_path: Path) -> None:
    with pytest.raises(
        ValueError, match=r"must be the name of a Python module, such as \w+\.py: rljax new "
    ):
        scaffold.write("sac", tmp_path / name)
    assert list(tmp_path.iterdir()) == []


def test_an_agent_that_learns_from_data_is_trained_from_data(tmp_path: Path) -> None:
    scaffold.write("iql", tmp_path / "mine.py")
    assert (
        scaffold.command(tmp_path / "mine.py")
        == "rljax train ./mine.py --data d4rl/hopper-medium-v2"
    )


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of this checkout with new agents."""
    copy = tmp_path_factory.mktemp("checkout") / "rljax"
    copy.mkdir()
    for name in ("agents", "docs", "envs", "rljax", "scripts", "tests"):
        shutil.copytree(
            ROOT / name, copy / name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__")
        )
    for name in ("Makefile", "README.md", "pyproject.toml"):
        shutil.copy(ROOT / name, copy / name)
    for name, source in (("newdata", "td3_bc"), ("newchoice", "dqn")):
        done = inside(copy, "-m", "rljax", "new", f"agents/{name}.py", "--from", source)
        assert f"Train it: rljax train {name} --" in done.stdout, done.stderr
    inside(copy, "scripts/results/agent_pages.py")
    return copy


def inside(checkout: Path, *words: str) -> subprocess.CompletedProcess[str]:
    environment = os.environ | {"PYTHONPATH": str(checkout)}
    return subprocess.run(
        [sys.executable, *words], cwd=checkout, env=environment, capture_output=True, text=True
    )


def test_everything_that_belongs_to_an_agent_is_written_under_its_name(checkout: Path) -> None:
    assert {place.name for place in (checkout / "agents/presets").glob("newchoice.*")} == {
        "newchoice.toml"
    }
    for name, source in (("newdata", "td3_bc"), ("newchoice", "dqn")):
        for place in (
            "agents/{}.py",
            "agents/presets/{}.toml",
            "agents/spaces/{}.toml",
            "tests/agents/test_{}.py",
        ):
            text = (checkout / place.format(name)).read_text()
            assert f"'{source}'" not in text
            assert f'"{source}"' not in text
            assert f"rljax train {source} " not in text
        for place in ("agents/presets/{}.toml", "agents/spaces/{}.toml"):
            assert tomllib.loads((checkout / place.format(name)).read_text()) == {}
        assert len((checkout / f"tests/agents/test_{name}.py").read_text().splitlines()) < 60
        assert f"agents/{name}.py" in (checkout / f"docs/agents/{name}.md").read_text()
    for page in ("README.md", "docs/agents/README.md"):
        assert "newchoice.md" in (checkout / page).read_text()


@pytest.mark.learn
def test_what_is_written_passes_the_tests_of_all_agents(checkout: Path) -> None:
    files = ["tests/test_style.py", "tests/test_imports.py", "tests/scripts/test_agent_pages.py"]
    files += [
        "tests/tuning/test_search_spaces.py",
        "tests/learning/test_registry.py",
        "tests/agents",
    ]
    done = inside(
        checkout, "-m", "pytest", "-q", "-m", "not learn", "-k", "newdata or newchoice", *files
    )
    assert done.returncode == 0, done.stdout[-3000:]
    assert " passed" in done.stdout


@pytest.mark.learn
def test_linters_have_nothing_to_say_of_what_is_written(checkout: Path) -> None:
    done = inside(checkout, "-m", "ruff", "check", "agents", "tests/agents")
    assert done.returncode == 0, done.stdout[-3000:]


@pytest.mark.slow
def test_a_checkout_without_symbolic_links_works(checkout: Path, tmp_path: Path) -> None:
    copy = tmp_path / "rljax"
    shutil.copytree(checkout, copy, symlinks=True)
    for name in ("agents", "envs"):
        link = copy / "rljax" / name
        link.unlink()
        link.write_text(f"../{name}")  # as git writes a link where the system has none
    done = inside(
        copy, "-c", "import rljax.agents.sac, rljax.envs; print(rljax.agents.sac.__file__)"
    )
    assert done.stdout.strip() == str(copy / "agents/sac.py"), done.stderr
    assert "  sac " in inside(copy, "-m", "rljax", "list", "agents").stdout
