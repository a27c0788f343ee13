"""Agents by name or by file, and their presets."""

from __future__ import annotations

import fnmatch
import importlib
import importlib.util
import re
import sys
import tomllib
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rljax import agents, envs
from rljax.learning.configuration import replace
from rljax.system import user_files
from rljax.trust import nearest

AGENTS = Path(agents.__file__).parent
PRESETS = AGENTS / "presets"
FIRST_LINE = re.compile(r"(?P<title>[^:\n\[]+?)(?: \[(?P<family>[\w-]+)\])?: (?P<summary>.+)")
FAMILIES = {  # in the order of lists: what an agent learns from, or for
    "off-policy": "Replayed experience",
    "on-policy": "The last rollout",
    "constrained": "Experience, with a limit on costs",
    "streaming": "Each transition once",
    "offline": "A data set",
    "generative": "A data set, with a generative policy",
    "hybrid": "A data set and an environment",
    "goals": "Goals, from a data set",
    "evaluation": "The value of another policy, from a data set",
}
_WITHOUT_EXPERIENCE = """\
'{path}' does not say what it learns from. In place of the line `storage = ...` \
an agent has a function, such as

    def experience(config):
        return buffers.Replay(replay_size=config.replay_size, batch_size=config.batch_size)

with `from rljax import buffers`. The four declarations are Replay, Rollout, Stream and \
Dataset: docs/new_agent.md."""


def names() -> list[str]:
    """Names of the agents that ship with rljax."""
    return sorted(path.stem for path in AGENTS.glob("*.py") if not path.stem.startswith("_"))


def load_agent(name: str) -> types.ModuleType:
    """An agent's module, by name ("sac") or by a file's path ("./mine.py").

    Raises `ValueError` for an unknown name, a missing file, or a file that is not an agent.
    """
    if name.endswith(".py"):
        return _load_file(Path(name))
    if name not in names():
        raise ValueError(
            f"no agent '{name}'.{nearest(name, names())} All of them: rljax list. "
            "A file of your own is given by its path, for example ./mine.py"
        )
    return importlib.import_module(f"rljax.agents.{name}")


def file_of(name: str) -> str | None:
    """The path of a user's own agent; None for rljax's."""
    is_file = name.endswith(".py") and Path(name).resolve().parent != AGENTS.resolve()
    return name if is_file else None


def source(name: str) -> str:
    """The text of an agent of rljax. Raises `ValueError` for an unknown name."""
    if name not in names():
        raise ValueError(
            f"no agent '{name}' to start from.{nearest(name, names())} All of them: rljax "
            "list agents"
        )
    return (AGENTS / f"{name}.py").read_text()


def summary(name: str) -> str:
    """What an agent is, from its docstring's first line, without importing it."""
    return _first_line(name)["summary"]


def title(name: str) -> str:
    """An agent's name in its paper, from its docstring's first line."""
    return _first_line(name)["title"]


def families() -> dict[str, list[str]]:
    """The agents' names by family, in the order of `FAMILIES`, then others.

    An agent's docstring begins with "TITLE [FAMILY]: what it is".
    """
    agents_of: dict[str, list[str]] = {family: [] for family in FAMILIES}
    for name in names():
        agents_of.setdefault(_first_line(name)["family"] or "others", []).append(name)
    return {family: members for family, members in agents_of.items() if members}


def heading(family: str) -> str:
    """A family's name with what its agents learn from."""
    return f"{family}: {FAMILIES[family]}" if family in FAMILIES else family


def _first_line(name: str) -> re.Match[str]:
    line = source(name).split('"""', 2)[1].strip().splitlines()[0]
    match = FIRST_LINE.fullmatch(line)
    if match is None:
        raise ValueError(
            f"the first line of agent '{name}' is '{line}', it must be 'TITLE [FAMILY]: what "
            "it is'."
        )
    return match


def agent_name(name: str) -> str:
    """The agent's name in paths and tables: the name itself, or the stem of its file."""
    return Path(name).stem if name.endswith(".py") else name


def _load_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise ValueError(
            f"no agent file '{path}'. Write one to start from: rljax new {path} --from sac"
        )
    if path.resolve().parent == AGENTS.resolve():
        return importlib.import_module(f"rljax.agents.{path.stem}")
    spec = importlib.util.spec_from_file_location(f"rljax_user_agent_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{path}' cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look up their module by name
    try:
        spec.loader.exec_module(module)
    except (Exception, SystemExit) as error:
        del sys.modules[spec.name]
        raise ValueError(f"'{path}' cannot be imported: {user_files.cause(error, path)}") from error
    from rljax.agent import PARTS

    missing = [part for part in PARTS if not hasattr(module, part)]
    if missing == ["experience"]:
        raise ValueError(_WITHOUT_EXPERIENCE.format(path=path))
    if missing:
        raise ValueError(
            f"'{path}' is not an agent: it lacks {', '.join(missing)}. What an agent has is "
            "described in rljax/agent.py; a file to start from: rljax new mine.py --from sac"
        )
    return module


def presets(agent: str, variant: str | None = None) -> dict[str, dict[str, Any]]:
    """An agent's presets: a mapping from environments (or patterns such as "brax/*") to settings
    and their `source`. A table `online` holds the changes when a run goes on online.

    A `variant` is in AGENT.VARIANT.toml. Those of a user's file lie beside it.
    """
    ending = ".toml" if variant is None else f".{variant}.toml"
    path = Path(agent).with_suffix(ending)
    if not agent.endswith(".py") or not path.exists():
        path = PRESETS / f"{agent_name(agent)}{ending}"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def variants(agent: str) -> list[str]:
    """The variants of an agent's presets, for `--preset`."""
    folders = {PRESETS, Path(agent).parent} if agent.endswith(".py") else {PRESETS}
    files = (x for folder in folders for x in folder.glob(f"{agent_name(agent)}.*.toml"))
    return sorted({path.name.split(".")[1] for path in files})


def preset(
    agent: str,
    module: types.ModuleType,
    environment: str | None,
    *data: str | None,
    variant: str | None = None,
) -> Any:
    """The agent's Config for an environment or a data set or both: its defaults, then every preset
    that matches.

    `data` are the data set's names. Later ones override: shorter and longer patterns, the
    environment's name, the data set's, a `variant`'s. Raises `ValueError` where a variant does not
    exist or does not match.
    """
    config = module.Config()
    for name in (None, variant) if variant is not None else (None,):
        sections = presets(agent, name)
        matching = _matching(sections, environment, *data)
        if name is not None and not matching:
            raise _no_variant(agent, name, environment, sections)
        for pattern in matching:
            section = sections[pattern]
            values = {key: section[key] for key in section if key not in ("source", "online")}
            config = replace(config, values, f"preset '{pattern}' of agent '{agent}'")
    return config


def _no_variant(
    agent: str, variant: str, environment: str | None, sections: Mapping[str, Any]
) -> ValueError:
    if sections:
        return ValueError(
            f"--preset {variant} of agent '{agent}' is for {', '.join(sections)}, not for "
            f"{environment}. Choose another environment, or leave --preset out."
        )
    known = variants(agent)
    listed = f"It has: {', '.join(known)}." if known else "It has none: leave --preset out."
    return ValueError(f"agent '{agent}' has no --preset {variant}. {listed}")


def preset_online(agent: str, environment: str | None, *data: str | None) -> dict[str, Any]:
    """The changes of the same presets when a run goes on online."""
    sections, changes = presets(agent), {}
    for pattern in _matching(sections, environment, *data):
        changes |= sections[pattern].get("online", {})
    return changes


def _matching(sections: Mapping[str, Any], environment: str | None, *data: str | None) -> list[str]:
    """The matching patterns, the most specific last."""
    environment = None if environment is None else envs.without_arguments(environment)
    names = []
    if environment is not None:
        names = [environment, envs.split(environment).rest, envs.task(environment)]
    names += [name for name in data if name is not None]
    matching = (x for x in sections if any(fnmatch.fnmatchcase(name, x) for name in names))
    return sorted(matching, key=lambda x: (x in data, x == environment, len(x)))
