"""The code that a run's settings name: files of agents and environments, and modules.

`rljax.trust` decides what may run.
"""

from __future__ import annotations

import os
from collections.abc import Sequence

from rljax import envs, trust
from rljax.learning import registry
from rljax.learning.settings import Settings

PARTS = ("agent", "env", "eval_env")  # settings that can name code


def named_code(settings: Settings, parts: Sequence[str] = PARTS) -> dict[str, str]:
    """The code that `parts` of a run's settings name, by setting.

    It is an absolute path, "module NAME", or an environment's argument that
    `rljax.trust.unsafe_argument` refuses.
    """
    names = {part: getattr(settings, part) for part in parts}
    code = {part: _code(part, name) for part, name in names.items() if isinstance(name, str)}
    return {part: name for part, name in code.items() if name is not None}


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
