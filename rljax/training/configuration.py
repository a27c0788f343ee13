"""Settings: agents by name or path, presets per environment, and a Config's way to and from JSON."""

from __future__ import annotations

import dataclasses
import difflib
import fnmatch
import importlib
import importlib.util
import os
import sys
import tomllib
import types
import typing
from collections.abc import Mapping, Sequence
from numbers import Real
from pathlib import Path
from typing import Any

from rljax import agents, envs

AGENTS = Path(agents.__file__).parent
PRESETS = AGENTS / "presets"

# Names that Stable-Baselines3 and CleanRL have for settings, and what each may mean here.
ELSEWHERE = {
    "tau": ("target_rate", "expectile"),
    "gamma": ("discount",),
    "gae_lambda": ("trace_decay",),
    "buffer_size": ("replay_size",),
    "learning_starts": ("warmup_steps",),
    "n_envs": ("num_envs",),
    "n_steps": ("num_steps", "n_step"),
    "n_epochs": ("num_epochs",),
    "update_epochs": ("num_epochs",),
    "clip_range": ("clip_ratio",),
    "clip_coef": ("clip_ratio",),
    "vf_coef": ("value_cost",),
    "ent_coef": ("entropy_cost",),
}


def names() -> list[str]:
    """Names of the agents that ship with rljax."""
    return sorted(path.stem for path in AGENTS.glob("*.py") if not path.stem.startswith("_"))


def load_agent(name: str) -> types.ModuleType:
    """An agent's module, by name ("sac") or by the path of a user's own file ("./mine.py").

    Raises `ValueError` for an unknown name (with the nearest), a missing file, or a file that is not an agent.
    """
    if name.endswith(".py"):
        return _load_file(Path(name))
    if name not in names():
        raise ValueError(
            f"no agent '{name}'. {nearest(name, names())}All of them: rljax list. "
            "A file of your own is given by its path, for example ./mine.py"
        )
    return importlib.import_module(f"rljax.agents.{name}")


def source(name: str) -> str:
    """The text of an agent that ships with rljax. Raises `ValueError` for an unknown name."""
    if name not in names():
        raise ValueError(f"no agent '{name}' to start from. {nearest(name, names())}All of them: rljax list agents")
    return (AGENTS / f"{name}.py").read_text()


def copy(name: str, file: Path) -> list[Path]:
    """Write an agent that ships with rljax to `file`, and its presets beside it; returns what was written.

    Raises `ValueError` for an unknown name, and `FileExistsError` where one of the files exists.
    """
    contents = {file: source(name)}
    if (PRESETS / f"{name}.toml").exists():
        contents[file.with_suffix(".toml")] = (PRESETS / f"{name}.toml").read_text()
    for path in contents:
        if path.exists():
            raise FileExistsError(f"'{path}' exists. Choose another name.")
    for path, text in contents.items():
        path.write_text(text)
    return list(contents)


def summary(name: str) -> str:
    """The first line of an agent's docstring, without importing it."""
    return source(name).split('"""', 2)[1].strip().splitlines()[0].partition(": ")[2]


def agent_name(name: str) -> str:
    """What to call an agent in paths and tables: the name, or its file's stem."""
    return Path(name).stem if name.endswith(".py") else name


def _load_file(path: Path) -> types.ModuleType:
    if not path.is_file():
        raise ValueError(f"no agent file '{path}'. Write one to start from: rljax new {path} --from sac")
    if path.resolve().parent == AGENTS.resolve():
        return importlib.import_module(f"rljax.agents.{path.stem}")
    spec = importlib.util.spec_from_file_location(f"rljax_user_agent_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{path}' cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    missing = [part for part in ("Config", "storage", "check", "init", "act", "update") if not hasattr(module, part)]
    if missing:
        raise ValueError(
            f"'{path}' is not an agent: it lacks {', '.join(missing)}. What an agent has is described in "
            "rljax/agent.py; a file to start from: rljax new mine.py --from sac"
        )
    return module


def persist_compilations() -> None:
    """Keep compiled programs between processes: in JAX_COMPILATION_CACHE_DIR, or else in the user's cache folder.

    JAX_ENABLE_COMPILATION_CACHE=false turns it off.
    """
    import jax

    if jax.config.values["jax_compilation_cache_dir"] is None:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "rljax", "xla")
        jax.config.update("jax_compilation_cache_dir", str(cache))
        jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.1)


def prefer_one_thread() -> None:
    """Let JAX compute with one thread, where it has not begun yet and the user has not set how many it may use.

    A stream's products are too small to share: handing them from core to core takes longer.
    """
    os.environ.setdefault("NPROC", "1")


def nearest(name: str, known: Sequence[str]) -> str:
    """ "Nearest: 'a', 'b'. ", or nothing where nothing is near."""
    close = difflib.get_close_matches(name, known, n=3, cutoff=0.5)
    return f"Nearest: {', '.join(repr(x) for x in close)}. " if close else ""


def presets(agent: str) -> dict[str, dict[str, Any]]:
    """An agent's presets: environment (or a pattern such as "brax/*") to settings and their `source`.

    Those of a user's own file stand beside it, in a .toml file of the same name.
    """
    beside = Path(agent).with_suffix(".toml")
    path = beside if agent.endswith(".py") and beside.exists() else PRESETS / f"{agent_name(agent)}.toml"
    return tomllib.loads(path.read_text()) if path.exists() else {}


def preset(agent: str, module: types.ModuleType, environment: str | None, *data: str | None) -> Any:
    """The agent's Config for an environment or a data set or both: its defaults, then every preset that matches.

    `data` are the names that the data set goes by. Longer patterns come later, the exact name of the environment and
    then that of the data set last.
    """
    config = module.Config()
    sections = presets(agent)
    names = [] if environment is None else [environment, envs.task(environment)]
    names += [name for name in data if name is not None]
    for pattern in sorted(sections, key=lambda pattern: (pattern in data, pattern == environment, len(pattern))):
        if any(fnmatch.fnmatchcase(name, pattern) for name in names):
            values = {name: value for name, value in sections[pattern].items() if name != "source"}
            config = replace(config, values, f"preset '{pattern}' of agent '{agent}'")
    return config


def setting(config: Any, name: str) -> str:
    """The name here of a setting that may bear another suite's: "tau" is `target_rate`, "gamma" is `discount`.

    A name of `config`, one that is not known, and one that could mean two of its settings are returned as they are.
    """
    fields = {field.name for field in dataclasses.fields(config)}
    meant = [other for other in ELSEWHERE.get(name, ()) if other in fields]
    return meant[0] if len(meant) == 1 and name not in fields else name


def replace(config: Any, values: Mapping[str, Any], origin: str) -> Any:
    """`config` with `values`, lists as tuples and whole numbers as floats where the field says so.

    Raises `ValueError` for a name that is no field (with the nearest), `TypeError` for a value of another kind.
    """
    hints = typing.get_type_hints(type(config))
    fields = [field.name for field in dataclasses.fields(config)]
    changes = {}
    for name, value in values.items():
        if name not in fields:
            raise ValueError(f"{origin}: no setting '{name}'. {nearest(name, fields)}All of them: {', '.join(fields)}")
        changes[name] = _convert(name, value, hints[name], origin)
    return dataclasses.replace(config, **changes)


def parse(config: Any, name: str, text: str, origin: str) -> Any:
    """A value of the setting `name` of `config` from the command line's text: "3e-4", "true", "none", "256x256".

    Raises `ValueError` for a name that is no setting and a text that is no value of it.
    """
    hints = typing.get_type_hints(type(config))
    if name not in hints:
        replace(config, {name: text}, origin)  # says what there is
    hint = hints[name]
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if text.lower() == "none" and type(None) in kinds:
        return None
    hint = _given(hint)
    readers: dict[Any, Any] = {float: float, int: int, bool: {"true": True, "false": False}.__getitem__}
    try:
        for kind in kinds:
            if kind in readers:
                return readers[kind](text)
        if typing.get_origin(hint) is tuple and typing.get_args(hint)[0] is int:
            return tuple(int(part) for part in text.split("x"))
    except (ValueError, KeyError):
        raise ValueError(f"{origin}: '{text}' is no value of '{name}', which is {_described(hint)}.") from None
    if typing.get_origin(hint) is tuple:
        raise ValueError(f"{origin}: '{name}' is a list of lists, which cannot be written here.")
    replace(config, {name: text}, origin)
    return text


def _given(hint: Any) -> Any:
    """Of a list of integers that may be None, what it is where it is given."""
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else ()
    return next((kind for kind in kinds if typing.get_origin(kind) is tuple), hint)


def _described(hint: Any) -> str:
    if typing.get_origin(hint) is tuple:
        return "integers such as 256x256"
    return getattr(hint, "__name__", str(hint))


def _convert(name: str, value: Any, hint: Any, origin: str) -> Any:
    kinds = typing.get_args(hint) if isinstance(hint, types.UnionType) else (hint,)
    if value is None and type(None) in kinds:
        return None
    hint = _given(hint)
    if float in kinds:
        several = value if isinstance(value, list | tuple) else (value,)  # one per learner
        if not hasattr(value, "dtype") and any(isinstance(x, bool) or not isinstance(x, Real) for x in several):
            raise TypeError(f"{origin}: '{name}' is {value!r}, it must be a number.")
        return float(value) if isinstance(value, Real) else value
    if typing.get_origin(hint) is typing.Literal:
        choices = typing.get_args(hint)
        if value not in choices:
            raise ValueError(f"{origin}: '{name}' is {value!r}, it must be one of {', '.join(map(str, choices))}.")
        return value
    if typing.get_origin(hint) is tuple:
        inner = typing.get_args(hint)[0]
        length = len(typing.get_args(inner)) or None  # of each in a tuple of tuples
        rows = [value] if length is None else value
        if not isinstance(value, list | tuple) or not all(_are_integers(row, length) for row in rows or ()):
            what = "integers" if length is None else f"lists of {length} integers"
            raise TypeError(f"{origin}: '{name}' is {value!r}, it must be a list of {what}.")
        return tuple(value) if length is None else tuple(map(tuple, value))
    if hint in (int, bool, str) and type(value) is not hint:
        raise TypeError(f"{origin}: '{name}' is {value!r}, it must be {hint.__name__}.")
    return value


def _are_integers(value: Any, length: int | None) -> bool:
    return (
        isinstance(value, list | tuple)
        and all(type(x) is int for x in value)
        and (length is None or len(value) == length)
    )


def environment(name: str, config: Any) -> str:
    """The environment called `name` as the agent observes it: with the time, where `config.time_feature` is set.

    With goals, where the agent conditions on them.
    """
    from rljax.agent import conditions_on_goals

    if name == "none":
        return name
    if conditions_on_goals(config):
        return envs.with_goals(name)
    return envs.with_time(name) if getattr(config, "time_feature", False) else name


def stack(config: Any, num_learners: int) -> Any:
    """`config` with every float as an array [P]: one number for all learners, or one per learner.

    Raises `ValueError` for a sequence of another length.
    """
    import jax.numpy as jnp
    import numpy as np

    from rljax.agent import float_fields

    changes = {}
    for name in float_fields(type(config)):
        value = getattr(config, name)
        if value is None:
            continue
        values = np.asarray(value, np.float32)
        if values.ndim == 1 and values.shape[0] != num_learners:
            raise ValueError(f"config.{name} has {values.shape[0]} values for {num_learners} learners.")
        changes[name] = jnp.asarray(np.broadcast_to(values, (num_learners,)))
    return dataclasses.replace(config, **changes)


def varied(config: Any) -> dict[str, tuple[float, ...]]:
    """The settings that are not one number for all learners: their values, one per learner."""
    from rljax.agent import float_fields

    values = {name: getattr(config, name) for name in float_fields(type(config))}
    return {name: tuple(map(float, value)) for name, value in values.items() if hasattr(value, "__len__")}


def as_json(config: Any) -> dict[str, Any]:
    """A Config's fields, ready for JSON: arrays and tuples as lists."""
    return {field.name: _listed(getattr(config, field.name)) for field in dataclasses.fields(config)}


def _listed(value: Any) -> Any:
    if isinstance(value, tuple):
        return [_listed(x) for x in value]
    return value.tolist() if hasattr(value, "tolist") else value
