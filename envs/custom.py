"""A user's own environments in JAX, named `path/to/file.py:Name`: a class with the parts of the protocol."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp

from rljax.agent import EnvSpec
from rljax.envs.environment import Environment


def make(name: str) -> Environment:
    """Make the environment: import the file and call the class `Name` without arguments.

    Raises `ValueError` where there is no such file or class, and where the environment breaks the protocol of
    `rljax.envs.environment.Environment`: parts are missing, or shapes differ from its `spec`.
    """
    file, _, wanted = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"no file '{path}' for the environment '{name}'. What goes in it: docs/environments.md")
    spec = importlib.util.spec_from_file_location(f"rljax_user_environment_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ValueError(f"'{path}' cannot be read as Python.")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up by name
    spec.loader.exec_module(module)
    if not hasattr(module, wanted):
        raise ValueError(f"'{path}' has no class '{wanted}'. Name the environment's class: {path}:Name")
    environment = getattr(module, wanted)()
    _check(environment, name)
    return environment


def _check(environment: Any, name: str) -> None:
    missing = [part for part in ("spec", "params", "reset", "step") if not hasattr(environment, part)]
    if missing:
        raise ValueError(f"'{name}' is not an environment: it lacks {', '.join(missing)}. See docs/environments.md")
    spec, params, key = environment.spec, environment.params, jax.random.key(0)
    if not isinstance(spec, EnvSpec):
        raise ValueError(f"the spec of '{name}' is a {type(spec).__name__}, it must be a rljax.agent.EnvSpec.")
    observation, state = _traced(name, "reset", environment.reset, key, params)
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    results = _traced(name, "step", environment.step, key, state, action, params)
    if not isinstance(results, tuple) or len(results) != 6:
        raise ValueError(
            f"step of '{name}' must return six things: observation, state, reward, terminated, truncated, info."
        )
    after, later, *scalars, _ = results
    for origin, found in (("reset", observation), ("step", after)):
        if jnp.shape(found) != spec.observation_shape:
            raise ValueError(
                f"{origin} of '{name}' returns an observation of shape {jnp.shape(found)}, its spec promises "
                f"{spec.observation_shape}."
            )
    for part, found in zip(("reward", "terminated", "truncated"), scalars, strict=True):
        if jnp.shape(found) != ():
            raise ValueError(f"step of '{name}' returns a {part} of shape {jnp.shape(found)}, it must be a scalar.")
    if jax.tree.map(jnp.shape, state) != jax.tree.map(jnp.shape, later):
        raise ValueError(f"step of '{name}' returns a state of another structure or of other shapes than reset.")


def _traced(name: str, part: str, function: Any, *arguments: Any) -> Any:
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        raise ValueError(
            f"{part} of '{name}' cannot be traced by JAX, with {type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
