"""The code that a run's settings name: files of agents, environments and networks, and modules.

`rljax.trust` decides what may run.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from rljax import envs, trust
from rljax.learning import registry
from rljax.learning.settings import Settings
from rljax.system import user_files

PARTS = ("agent", "env", "eval_env")  # settings that can name code


def named_code(
    settings: Settings, *configs: Mapping[str, Any], parts: Sequence[str] = PARTS
) -> dict[str, str]:
    """The code that `parts` of a run's settings and the agent's settings `configs` name, by what
    it is of.

    It is an absolute path, "module NAME", or an environment's argument that
    `rljax.trust.unsafe_argument` refuses. Functions of --base and networks are always among it.
    """
    names = {part: getattr(settings, part) for part in parts}
    code = {part: _code(part, name) for part, name in names.items() if isinstance(name, str)}
    file = user_files.file_of_function(settings.base)
    code[f"base {settings.base}"] = None if file is None else os.path.abspath(file)
    for name in _class_names([*configs, settings.online, settings.schedule]):
        file = user_files.file_of(name)
        code[f"network {name}"] = None if file is None else os.path.abspath(file)
    return {part: name for part, name in code.items() if name is not None}


def digests(settings: Settings, *configs: Mapping[str, Any]) -> dict[str, str]:
    """SHA-256 of the user's files among the `named_code`, and of a base that is a model, by their
    names.
    """
    code = named_code(settings, *configs).values()
    paths = [Path(path) for name in code for path in name.split(", ") if path.endswith(".py")]
    base = settings.base or ""
    paths += [Path(base)] if base.endswith(".onnx") else []
    return {
        path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in paths if path.is_file()
    }


def _class_names(values: Any) -> Iterator[str]:
    """The names of users' classes at any depth."""
    if user_files.is_class_name(values):
        yield values
    elif isinstance(values, Mapping):
        yield from _class_names(list(values.values()))
    elif isinstance(values, list | tuple):
        for value in values:
            yield from _class_names(value)


def environment_code(env: str) -> dict[str, str]:
    """The code that making the environment `env` runs, as in `named_code`."""
    code = _code("env", env)
    return {} if code is None else {"env": code}


def _code(part: str, name: str) -> str | None:
    sources = [registry.file_of(name)] if part == "agent" else envs.codes_of(name)
    code = [
        os.path.abspath(source) if source.endswith(".py") else f"module {source}"
        for source in sources
        if source is not None
    ]
    argument = None if part == "agent" else trust.unsafe_argument_in(name)
    return ", ".join([*code, *([] if argument is None else [argument])]) or None
