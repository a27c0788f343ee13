"""Every script can be imported, answers --help, and is where texts say that it is."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
FILES = sorted((ROOT / "scripts").glob("*/**/*.py"))
SHARED = {"__init__", "goals", "measuring", "shared", "stand_ins"}  # imported by the others
READERS = ROOT / "scripts" / "checks" / "authors"  # of authors' files, no scripts
SCRIPTS = [path for path in FILES if path.stem not in SHARED and path.parent != READERS]
TEXTS = ("agents", "docs", "envs", "results", "rljax", "scripts", "tests")
MOST = 17  # files of a folder
WITHOUT_RLJAX = """
import importlib, sys
sys.modules["rljax"] = None
for name in sys.argv[1:]:
    importlib.import_module(name)
"""


def module_name(path: Path) -> str:
    """The name by which scripts import each other."""
    return ".".join(path.relative_to(ROOT).with_suffix("").parts)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_help_is_printed(path, command, capsys):
    script = importlib.import_module(module_name(path))
    with pytest.raises(SystemExit) as end:
        command(script, "--help")
    assert end.value.code == 0
    assert capsys.readouterr().out.startswith(f"usage: {path.name}")


def test_a_script_runs_as_a_file():
    script = str(Path("scripts", "benchmarks", "online.py"))
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run([sys.executable, script, "--help"], cwd=ROOT, env=environment, check=True)
    assert done.returncode == 0


def test_what_peers_run_needs_no_rljax():
    names = [path for path in SCRIPTS if "benchmarks" in path.parts]
    others = ("compare_hindsight", "run_authors_file", "run_d3rlpy", "run_ogbench")
    others += ("watch_authors_file",)
    names += [ROOT / "scripts" / "checks" / f"{name}.py" for name in others]
    names.append(ROOT / "scripts" / "updates" / "authors_flashsac.py")
    words = [sys.executable, "-c", WITHOUT_RLJAX, *map(module_name, names)]
    subprocess.run(words, cwd=ROOT, env=os.environ | {"PYTHONPATH": str(ROOT)}, check=True)


def test_texts_name_scripts_that_are_there():
    texts = [ROOT / "README.md", ROOT / "Makefile"]
    for folder in TEXTS:
        texts += [
            path for path in (ROOT / folder).rglob("*") if path.suffix in (".md", ".py", ".toml")
        ]
    missing = {
        f"{path.relative_to(ROOT)}: {name}"
        for path in texts
        for name in re.findall(r"(?<![\w/])scripts/[\w/]+\.py", path.read_text())
        if not (ROOT / name).exists()
    }
    assert not missing


def test_folders_stay_small():
    folders = {path: str(path.parent.relative_to(ROOT / "scripts")) for path in FILES}
    counts = dict.fromkeys(folders.values(), 0)
    for path, folder in folders.items():
        counts[folder] += path.stem != "__init__"
    assert set(counts) == {
        "benchmarks",
        "benchmarks/authors",
        "checks",
        "checks/authors",
        "faults",
        "results",
        "site",
        "studies",
        "studies/offline",
        "updates",
        "updates/goals",
        "updates/offline",
    }
    assert max(counts.values()) <= MOST
