"""A user's own environments in JAX, named `path/to/file.py:Name`."""

from __future__ import annotations

import sys
import traceback
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from rljax.agent import MASK, EnvSpec, Part
from rljax.envs import objects, signals
from rljax.envs.environment import Environment, EnvironmentFailed
from rljax.system import user_files


def make(name: str) -> Environment:
    """Import the file and call the class `Name` without arguments.

    Raises `ValueError` for a missing file, class or part of the protocol, and other shapes than the
    spec's.
    """
    made_by: Any = objects.known(name).make if objects.is_object(name) else load(name)
    try:
        environment = made_by()
    except Exception as error:
        raise _failed(name, "when it was made", error) from error
    _check(environment, name)
    return environment


def is_gymnasium(name: str) -> bool:
    """Whether `name`, such as "./file.py:Name", is a class that derives from `gymnasium.Env`.

    False where there is no such file; else raises what `load` raises.
    """
    if not Path(name.rpartition(":")[0]).is_file():
        return False
    made_by = load(name)
    gymnasium = sys.modules.get("gymnasium")
    return (
        gymnasium is not None and isinstance(made_by, type) and issubclass(made_by, gymnasium.Env)
    )


def load(name: str) -> Any:
    """The object `Name` of the file in "path/to/file.py:Name", imported again only if it has
    changed.

    Raises `ValueError` if there is none.
    """
    file, _, class_name = name.rpartition(":")
    path = Path(file)
    if not path.is_file():
        raise ValueError(
            f"no file '{path}' for the environment '{name}'. What goes in it: docs/environments.md"
        )
    try:
        module = user_files.imported(path)
    except SyntaxError as error:
        raise ValueError(f"'{name}' cannot be imported: {user_files.syntax(error)}") from error
    except (Exception, SystemExit) as error:
        raise _failed(name, "when its file was imported", error) from error
    if not hasattr(module, class_name):
        raise ValueError(
            f"'{path}' has no class '{class_name}'. Name the environment's class: {path}:Name"
        )
    return getattr(module, class_name)


def _failed(name: str, place: str, error: BaseException) -> EnvironmentFailed:
    file, frame = Path(name.rpartition(":")[0]).resolve(), error.__traceback__
    while frame is not None and Path(frame.tb_frame.f_code.co_filename).resolve() != file:
        frame = frame.tb_next
    trace = "".join(traceback.format_exception(type(error), error, frame or error.__traceback__))
    return EnvironmentFailed(f"'{name}' raised {type(error).__name__} {place}: {error}", trace)


def _check(environment: Any, name: str) -> None:
    if hasattr(environment, "observation_space"):
        raise ValueError(
            f"'{name}' makes one of Gymnasium's environments. Name its class, which derives from "
            "gymnasium.Env, or register it and name it with its module: --env my_module:Name-v0"
        )
    parts = ("spec", "params", "reset", "step")
    missing = [part for part in parts if not hasattr(environment, part)]
    if missing:
        raise ValueError(
            f"'{name}' is not an environment: it lacks {', '.join(missing)}. See "
            "docs/environments.md"
        )
    spec, params, key = environment.spec, environment.params, jax.random.key(0)
    if not isinstance(spec, EnvSpec):
        raise ValueError(
            f"the spec of '{name}' is a {type(spec).__name__}, it must be a rljax.agent.EnvSpec."
        )
    _check_spec(spec, name)
    observation, state = _traced(name, "reset", environment.reset, key, params)
    state = jax.tree.map(lambda leaf: jax.ShapeDtypeStruct(leaf.shape, leaf.dtype), state)
    action = jnp.zeros(spec.action_shape, spec.action_dtype)
    results = _traced(name, "step", environment.step, key, state, action, params)
    if not isinstance(results, tuple) or len(results) != 6:
        raise ValueError(
            f"step of '{name}' must return six things: observation, state, reward, terminated, "
            "truncated, info."
        )
    after, later, *scalars, info = results
    expected = _shapes(spec.observation)
    for origin, value in (("reset", observation), ("step", after)):
        if _shapes(value) != expected:
            raise ValueError(
                f"{origin} of '{name}' returns an observation of shape {_shapes(value)}, its spec "
                f"promises {expected}."
            )
        pairs = zip(jax.tree.leaves(value), jax.tree.leaves(spec.observation), strict=True)
        for array, promised in pairs:
            if promised.dtype == np.uint8 and array.dtype not in (np.uint8, np.bool_):
                raise ValueError(
                    f"{origin} of '{name}' returns an observation of {array.dtype}, its spec "
                    "promises uint8: return .astype(jnp.uint8)."
                )
    for part, value in zip(("reward", "terminated", "truncated"), scalars, strict=True):
        if jnp.shape(value) != () or value.dtype.kind == "c":
            raise ValueError(
                f"step of '{name}' returns a {part} of shape {jnp.shape(value)}, it must be a real "
                f"scalar, and is {value.dtype}."
            )
    _check_info(info, name)
    signals.check(spec.signals, name)
    jax.eval_shape(lambda info: signals.of_info(info, spec.signals, name), info)
    if _shapes(state) != _shapes(later):
        raise ValueError(
            f"step of '{name}' returns a state of another structure or of other shapes than reset."
        )
    before = jax.tree.leaves_with_path(state)
    for (path, leaf), new in zip(before, jax.tree.leaves(later), strict=True):
        if not _holds(leaf.dtype, new):
            raise ValueError(
                f"the state{jax.tree_util.keystr(path)} of '{name}' is {leaf.dtype} in reset and "
                f"{new.dtype} in step, which would be cut to {leaf.dtype}: begin with one dtype in "
                "reset, such as jnp.array(0.0)."
            )


def _check_spec(spec: EnvSpec, name: str) -> None:
    limit = spec.max_episode_steps
    if limit is not None and (not isinstance(limit, int) or limit < 1):
        raise ValueError(
            f"max_episode_steps of '{name}' is {limit!r}, it must be 1, 2, ... or None."
        )
    mask = Part(MASK, (spec.action_size,), "bool")
    if spec.masked and (mask not in spec.parts or not (spec.discrete or spec.choices)):
        raise ValueError(
            f"the part {MASK!r} of '{name}' must be the mask of discrete actions, bool "
            f"{mask.shape}. Make it one, or name it otherwise."
        )


def _check_info(info: Any, name: str) -> None:
    if not isinstance(info, Mapping) or jnp.shape(info.get("success", 0)) != ():
        raise ValueError(
            f"step of '{name}' must return a dictionary as info, and 'success' in it as a scalar."
        )
    if MASK in info:
        raise ValueError(f"'{name}' has {MASK!r} in info: make it a part of the observation.")


def _holds(dtype: Any, new: Any) -> bool:
    """Whether `dtype` holds all values of the array `new`; one of a weak type only has its kind."""
    if dtype == new.dtype or not new.weak_type:
        return dtype == new.dtype or jnp.promote_types(dtype, new.dtype) == dtype
    kinds = (np.bool_, np.integer, np.floating, np.complexfloating)
    ours, theirs = (
        next(rank for rank, kind in enumerate(kinds) if jnp.issubdtype(each, kind))
        for each in (dtype, new.dtype)
    )
    return ours >= theirs


def _shapes(tree: Any) -> Any:
    return jax.tree.map(jnp.shape, tree)


def _traced(name: str, part: str, function: Any, *arguments: Any) -> Any:
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        raise ValueError(
            f"{part} of '{name}' cannot be traced by JAX, with "
            f"{type(error).__name__}: {str(error).splitlines()[0]}"
        ) from error
