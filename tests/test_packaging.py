"""What a user installs."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import sysconfig
import tarfile
import tomllib
import venv
import zipfile
from pathlib import Path

import pytest

import rljax
from rljax.runs.events import loggers
from rljax.system.packages import DISTRIBUTION, install_command
from tests import test_style

ROOT = Path(__file__).parents[1]


def execute(*command: object, cwd: Path) -> str:
    """What a command prints, outside the checkout's influence."""
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(
        [str(part) for part in command], cwd=cwd, env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, f"{command}:\n{done.stdout}\n{done.stderr}"
    return done.stdout


def build(source: Path, target: str, folder: Path) -> Path:
    execute(sys.executable, "-m", "hatchling", "build", "-t", target, "-d", folder, cwd=source)
    (built,) = folder.glob("*.whl" if target == "wheel" else "*.tar.gz")
    return built


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return build(ROOT, "wheel", tmp_path_factory.mktemp("wheel"))


@pytest.fixture(scope="module")
def installed(wheel: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The `bin` folder of an environment with the wheel, which borrows its dependencies."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, with_pip=False, symlinks=True)
    python = folder / "bin/python"
    install = ("--no-deps", "--no-index", "--quiet", "--disable-pip-version-check", wheel)
    execute(sys.executable, "-m", "pip", "--python", python, "install", *install, cwd=folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    # Searched after the environment's own packages; .pth files in it are not read.
    (packages / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    return folder / "bin"


@pytest.fixture
def elsewhere(tmp_path: Path) -> Path:
    """A user's folder with packages of our top-level folders' names."""
    for name in ("agents", "envs"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "__init__.py").write_text(
            "raise RuntimeError('the package of the user was imported')\n"
        )
    return tmp_path


def files(folder: Path) -> set[str]:
    """Every file below `folder` that belongs to the repository, relative to it."""
    return {
        str(path.relative_to(folder))
        for path in folder.rglob("*")
        if path.is_file() and path.suffix != ".pyc"
    }


def test_every_text_says_the_name_and_extras_of_the_distribution() -> None:
    """`rljax` alone, with extras, is another project's package."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert project["name"] == DISTRIBUTION
    extras = project["optional-dependencies"].keys()
    requirement = re.compile(r"(?<![\w./-])(rljax(?:-[a-z]+)?)\\?\[([a-z0-9,-]+)\\?\]")
    wrong = [
        f"{path.relative_to(ROOT)}: {match.group()}"
        for path in test_style.tracked()
        for match in requirement.finditer(path.read_text(errors="replace"))
        if match[1] != DISTRIBUTION or {*match[2].split(",")} - extras
    ]
    assert wrong == []
    assert {*filter(None, (kind.extra for kind in loggers.Logger.__subclasses__()))} <= extras
    assert install_command("ray", "sweep") == f"pip install '{DISTRIBUTION}[ray,sweep]'"


def test_citation_and_changes_have_the_version() -> None:
    assert f"\nversion: {rljax.__version__}\n" in (ROOT / "CITATION.cff").read_text()
    assert f"\n## {rljax.__version__}" in (ROOT / "CHANGELOG.md").read_text()


def test_wheel_holds_the_package_and_nothing_beside_it(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert len(names) == len(set(names))
    metadata = f"{DISTRIBUTION.replace('-', '_')}-{rljax.__version__}.dist-info/"
    own = {name for name in names if not name.startswith(metadata)}
    linked = {"agents", "envs"}
    expected = {name for name in files(ROOT / "rljax") if name.split("/")[0] not in linked}
    expected |= {f"{folder}/{name}" for folder in linked for name in files(ROOT / folder)}
    assert own == {f"rljax/{name}" for name in expected}
    assert {
        "rljax/agents/sac.py",
        "rljax/agents/presets/sac.toml",
        "rljax/envs/__init__.py",
        "rljax/py.typed",
    } <= own


@pytest.mark.learn
def test_source_distribution_builds_the_same_wheel(wheel: Path, tmp_path: Path) -> None:
    source = build(ROOT, "sdist", tmp_path / "sdist")
    with tarfile.open(source) as archive:
        assert not [member.name for member in archive if not (member.isfile() or member.isdir())]
        archive.extractall(tmp_path, filter="data")
    again = build(tmp_path / source.name.removesuffix(".tar.gz"), "wheel", tmp_path / "wheel")
    with zipfile.ZipFile(wheel) as first, zipfile.ZipFile(again) as second:
        assert {name: first.read(name) for name in first.namelist()} == {
            name: second.read(name) for name in second.namelist()
        }


@pytest.mark.learn
def test_command_line_runs_beside_packages_called_agents_and_envs(
    installed: Path, elsewhere: Path
) -> None:
    assert "train AGENT --env ENV" in execute(installed / "rljax", "--help", cwd=elsewhere)
    assert (
        execute(installed / "rljax", "--version", cwd=elsewhere) == f"rljax {rljax.__version__}\n"
    )
    listed = execute(installed / "rljax", "list", cwd=elsewhere)
    for name in ("sac", "td3", "Hopper-v5", "brax/ant", "rljax/Pendulum"):
        assert name in listed.split()


@pytest.mark.learn
def test_module_runs_from_the_installed_files(installed: Path, elsewhere: Path) -> None:
    # With -m the current folder, and the user's `agents` in it, comes first.
    listed = execute(installed / "python", "-m", "rljax", "list", "presets", cwd=elsewhere)
    assert "Pendulum-v1" in listed
    show = (
        "import rljax.agents.sac, rljax.envs; print(rljax.agents.sac.__file__); "
        "print(rljax.envs.__file__)"
    )
    for line in execute(installed / "python", "-c", show, cwd=elsewhere).splitlines():
        assert Path(line).is_relative_to(installed.parent)
