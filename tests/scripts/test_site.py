"""The pages: their links, commands and code, and the site that is made of them."""

from __future__ import annotations

import importlib.util
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from gymnasium.utils.env_checker import check_env

import rljax
from rljax import buffers, cli
from rljax.cli import parsing
from rljax.learning import configuration, registry
from scripts.site import build, decision
from tests.helpers import small_runs

ROOT = Path(__file__).parents[2]
PAGES = [*build.texts(), "README.md"]
BLOCK = re.compile(
    r"^(?P<reason><!-- not run: .+ -->\n+)?(?P<fence>`{3,})(?P<language>\w*)\n"
    r"(?P<code>.*?)^(?P=fence)",
    re.MULTILINE | re.DOTALL,
)
COMMAND = re.compile(r"(?:[A-Z_]+=\S+ )*(?P<command>rljax .+)")


def blocks(page: str, language: str) -> list[re.Match[str]]:
    """The blocks of code of a page in one language."""
    matches = BLOCK.finditer((ROOT / page).read_text())
    return [match for match in matches if match["language"] == language]


def commands(page: str) -> Iterator[list[str]]:
    """The commands of rljax in the blocks of a page, as words without comments."""
    for block in [*blocks(page, "sh"), *blocks(page, "")]:
        code = block["code"].replace("\\\n", " ")
        for variable, value in re.findall(r"^(\w+)='([^']*)'$", code, re.MULTILINE):
            code = code.replace(f"${variable}", value.replace("\n", " "))
        for line in code.splitlines():
            match = COMMAND.match(line.strip())
            if match is not None and "COMMAND" not in line and "  rljax/" not in line:
                words = shlex.split(match["command"], comments=True)
                yield [word for word in words[1:] if word != "&"]


def anchors(page: str) -> set[str]:
    """The anchors of a page's headings, as code hosts and the site name them."""
    text = build.FENCED.sub("", (ROOT / page).read_text())
    found: dict[str, int] = {}
    names = set()
    for heading in re.findall(r"^#+ (.+?)\s*$", text, re.MULTILINE):
        words = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        name = re.sub(r"[^\w\- ]", "", words.lower()).replace(" ", "-")
        found[name] = found.get(name, 0) + 1
        names.add(name if found[name] == 1 else f"{name}-{found[name] - 1}")
    return names


def broken_links(page: str) -> list[str]:
    """The links of a page to files or headings that are not there."""
    broken = []
    text = build.FENCED.sub("", (ROOT / page).read_text())
    for anchor in re.findall(r"\]\(#([^)]+)\)", text):
        broken += [f"#{anchor}"] * (anchor not in anchors(page))
    for _, target in build.links(text):
        try:
            path, anchor = build.resolved(page, target)
        except build.BrokenLinkError:
            broken.append(target)
            continue
        if anchor and path.endswith(".md") and anchor[1:] not in anchors(path):
            broken.append(target)
    return broken


def test_links_and_anchors_lead_somewhere() -> None:
    broken = {page: broken_links(page) for page in PAGES}
    assert {page: links for page, links in broken.items() if links} == {}


def test_links_follow_their_pages_into_the_site(tmp_path: Path) -> None:
    build.write_pages(tmp_path)
    pages = list(tmp_path.rglob("*.md"))
    assert len(pages) > len(PAGES)
    missing = [
        f"{page.relative_to(tmp_path)}: {target}"
        for page in pages
        if "source" not in page.relative_to(tmp_path).parts
        for _, target in build.links(page.read_text())
        if not (page.parent / target.partition("#")[0]).exists()
    ]
    assert missing == []
    api = (tmp_path / "api.md").read_text()
    assert all(f"::: rljax.{name}\n" in api for name in ("train", "load", "resume", "Policy"))


def test_the_navigation_has_every_page_and_lacks_absent_ones() -> None:
    pytest.importorskip("yaml")
    _, nav = build.settings()
    listed = set(re.findall(r"'([\w/.-]+\.md)'", str(nav)))
    titled = {page for page in build.texts() if (ROOT / page).read_text().startswith("# ")}
    assert listed == {build.place(page) for page in titled} | {"api.md"}


def test_every_agent_is_reached_by_the_choice() -> None:
    assert set(decision.agents()) == set(registry.names())
    assert decision.PICTURE.read_text() == decision.svg(), (
        "mend by: python scripts/site/decision.py"
    )
    page = (ROOT / "docs/which_algorithm.md").read_text()
    assert {*re.findall(r"\(agents/(\w+)\.md[#)]", page)} == set(registry.names())


def test_agents_with_hindsight_are_named() -> None:
    page = (ROOT / "docs/environments.md").read_text()
    (listed,) = re.findall(r"Agents with `--config.hindsight`.*?: (.*?)\.", page, re.DOTALL)
    configs = {name: registry.load_agent(name).Config for name in registry.names()}
    have = [name for name, config in configs.items() if hasattr(config, "hindsight")]
    have.sort(key=lambda name: (issubclass(configs[name], buffers.RowSettings), name))
    assert re.findall(r"`(\w+)`", listed) == have


def settings_table() -> list[tuple[list[str], list[str], list[str]]]:
    """Names of other libraries, agents, and settings, row by row."""
    page = (ROOT / "docs/coming_from.md").read_text()
    (table,) = re.findall(r"<!-- settings -->\n(.*?)<!-- /settings -->", page, re.DOTALL)
    cells = [line.split("|")[1:4] for line in table.splitlines() if "`" in line]
    rows = [[re.findall(r"`(\w+)`", cell) for cell in row] for row in cells]
    return [(theirs, agents, here) for theirs, agents, here in rows]


def test_settings_of_the_table_are_fields_that_messages_name_too() -> None:
    rows = settings_table()
    assert len(rows) > 40
    names = configuration.elsewhere()
    for theirs, agents, here in rows:
        for agent in agents:
            config = registry.load_agent(agent).Config()
            fields = configuration.as_json(config).keys()
            assert {*here} <= fields | {"shared"}, (theirs, agent)
            for name in theirs if here else ():
                known = configuration.setting(config, name) in here or name in fields
                hint = configuration.hint(config, name)
                said = any(configuration.flag(setting) in hint for setting in here)
                listed = name in names["same"] or name in names["near"]
                assert known or said or not listed, (name, agent, hint)


class Parsed(Exception):
    """A command line that was read to its end."""


@pytest.fixture
def only_parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A user's folder in which commands end once their words are parsed."""
    parse = parsing.parse

    def stop(*arguments: Any) -> Any:
        parse(*arguments)
        raise Parsed

    monkeypatch.setattr(parsing, "parse", stop)
    monkeypatch.setenv("RLJAX_TRACEBACK", "1")
    monkeypatch.chdir(tmp_path)
    for name in ("mine.py", "agents/foo.py"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        shutil.copyfile(ROOT / "agents/sac.py", tmp_path / name)
    return tmp_path


WITH_COMMANDS = [page for page in PAGES if [*commands(page)]]
FIRST = ["README.md", build.HOME, "CONTRIBUTING.md", "docs/agents/ppo.md"]


@pytest.mark.slow_after(len(FIRST))
@pytest.mark.parametrize("page", [*FIRST, *sorted({*WITH_COMMANDS} - {*FIRST})])
def test_commands_are_commands(page: str, only_parsed: Path) -> None:
    for words in commands(page):
        with pytest.raises(SystemExit if "--help" in words else Parsed):
            cli.main(words)


LOGS = "x,v,force,reward,fell,episode\n" + "".join(
    f"{i / 9},0.5,{i % 10},1.0,{int(i == 20)},{int(i > 20)}\n" for i in range(40)
)
WITH_PYTHON = [page for page in PAGES if blocks(page, "python")]


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:the class of 'encoder'")
@pytest.mark.parametrize("page", WITH_PYTHON)
def test_python_of_pages_runs(page: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In one namespace, from the first block to the last, with small networks and few steps."""
    train = rljax.train

    def briefly(agent: str, env: str, steps: int, **others: Any) -> Path:
        if "config" in others and steps <= 1_000:  # of a page whose runs are small
            return train(agent, env, steps, **others)
        small = small_runs.small(agent) | others.pop("config", {})
        return train(agent, env, min(steps, 100), **others | small_runs.EVERY, config=small)

    monkeypatch.setattr(rljax, "train", briefly, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "logs.csv").write_text(LOGS)
    namespace: dict[str, Any] = {}
    for block in blocks(page, "python"):
        if block["reason"] is None:
            exec(compile(block["code"], page, "exec"), namespace)
    if "Room" in namespace:
        check_env(namespace["Room"](), skip_render_check=True)


@pytest.mark.learn
def test_the_site_is_built(tmp_path: Path) -> None:
    if importlib.util.find_spec("zensical") is None:
        pytest.skip("`make docs` has the environment that builds the site")
    command = [sys.executable, "scripts/site/build.py", "--output", tmp_path / "site"]
    subprocess.run(command, cwd=ROOT, check=True)
    assert (tmp_path / "site" / "index.html").is_file()
