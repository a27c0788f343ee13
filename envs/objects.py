"""Environments that Python hands over: a class, an instance, a function, a vector environment.

They have names, such as "python/Room", in the process that made them alone.
"""

from __future__ import annotations

import copy
import dataclasses
import re
from collections.abc import Callable
from typing import Any, Literal

PREFIX = "python/"


@dataclasses.dataclass(frozen=True)
class PythonEnvironment:
    """An environment by the object that a user gave."""

    source: Any  # the object itself
    make: Callable[..., Any]  # makes one environment; of a vector environment, all
    kind: Literal["gymnasium", "vector", "compiled"]
    limit: int | None = None  # the time limit in steps


_KNOWN: dict[str, PythonEnvironment] = {}


def is_object(name: str) -> bool:
    """Whether `name` is of this kind of environment."""
    return name.startswith(PREFIX)


def known(name: str) -> PythonEnvironment:
    """The environment with this name. Raises `ValueError` where this process has none."""
    if name not in _KNOWN:
        raise ValueError(
            f"'{name}' was made in Python, and this process does not know it: give the "
            "environment again, as in rljax.resume(folder, env=...) or "
            "rljax.Run(folder).evaluate(env=...)."
        )
    return _KNOWN[name]


def register(env: Any, name: str | None = None) -> str:
    """The name of an environment, the given one or a new one.

    Raises `TypeError` for an object that is no environment and makes none, and for an instance that
    cannot be copied.
    """
    if name is None:
        for known_name, known_env in _KNOWN.items():
            if known_env.source is env:
                return known_name
    made = _described(env)
    name = name or _free_name(env)
    _KNOWN[name] = made
    return name


def one_of(name: str) -> str | None:
    """The name of one environment of the vector environment `name`; None where it is out of
    reach.
    """
    vector_env = known(name).source
    first = (getattr(vector_env.unwrapped, "envs", None) or [None])[0]
    return None if first is None else register(first, f"{name}-one")


def compiled(name: str) -> Any:
    """The environment inside the program with this name."""
    return known(name).make()


def _described(env: Any) -> PythonEnvironment:
    import gymnasium

    if isinstance(env, gymnasium.vector.VectorEnv):
        return PythonEnvironment(env, lambda **_: env, "vector")
    if isinstance(env, type) and issubclass(env, gymnasium.Env):
        return PythonEnvironment(env, env, "gymnasium", getattr(env, "max_episode_steps", None))
    if isinstance(env, gymnasium.Env):
        return PythonEnvironment(env, _copies(env), "gymnasium", _limit(env))
    if not isinstance(env, type) and hasattr(env, "reset") and hasattr(env, "step"):
        return PythonEnvironment(env, lambda: env, "compiled")
    if not callable(env):
        raise TypeError(
            f"env is {env!r}, it must be the name of an environment, or a class, an instance, a "
            "function that makes one, or a vector environment of Gymnasium."
        )
    try:
        made = env()
    except Exception as error:
        raise TypeError(f"env is {env!r}, which does not make an environment: {error}.") from error
    if isinstance(made, gymnasium.Env):
        limit = _limit(made)
        made.close()
        return PythonEnvironment(env, env, "gymnasium", limit)
    if isinstance(made, gymnasium.vector.VectorEnv):
        return PythonEnvironment(made, lambda **_: made, "vector")
    if hasattr(made, "reset") and hasattr(made, "step"):
        return PythonEnvironment(env, env, "compiled")
    raise TypeError(f"env is {env!r}, which makes {made!r}, and that is no environment.")


def _limit(env: Any) -> int | None:
    limit = env.spec.max_episode_steps if env.spec is not None else None
    return limit or getattr(env.unwrapped, "max_episode_steps", None)


def _copies(env: Any) -> Callable[..., Any]:
    try:
        first = copy.deepcopy(env)
    except Exception as error:
        raise TypeError(
            f"env is {env!r}, of which training needs copies, and it cannot be copied "
            f"({type(error).__name__}: {error}). Give a function that makes it: env=lambda: ..."
        ) from error

    def make(render_mode: str | None = None) -> Any:
        if render_mode not in (None, first.render_mode):
            raise TypeError(f"it was made with render_mode={first.render_mode!r}")
        return copy.deepcopy(first)

    return make


def _free_name(env: Any) -> str:
    own = getattr(env, "__qualname__", None) or type(getattr(env, "unwrapped", env)).__qualname__
    stem = PREFIX + (re.sub(r"\W+", "-", own.rpartition(".")[2]).strip("-") or "environment")
    number, name = 1, stem
    while name in _KNOWN:
        number += 1
        name = f"{stem}-{number}"
    return name
