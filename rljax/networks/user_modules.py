"""A user's own encoder or torso: a Flax module in a file, by name; docs/networks.md describes it.

    encoder    observations [N, O...] to features [N, m]
    torso      features [N, m] to features [N, k]; its `hidden`, if it has one, are the widths

All numbers are float32. Bytes of pictures are divided by 255 first, and there is no action mask.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import jax
import jax.numpy as jnp
from flax import linen as nn

from rljax.agent import MASK, Array, EnvSpec
from rljax.networks.layers import Module, joined
from rljax.system import user_files

Role = Literal["encoder", "torso"]
ROWS = 3  # of the example that a module is tried with


class UserEncoder(Module):
    """A user's encoder: observations [..., O...] to features [..., m]."""

    spec: EnvSpec
    module: nn.Module

    @nn.compact
    def __call__(self, observation: Any) -> Array:
        one = _without_mask(self.spec.observation)
        parts = _without_mask(observation)
        several, single = jax.tree.leaves(parts)[0], jax.tree.leaves(one)[0]
        leading = several.shape[: several.ndim - single.ndim]
        features = self.module(rows(parts, one))
        return features.reshape(*leading, features.shape[-1])


class UserTorso(Module):
    """A user's torso: inputs [..., I_1], ..., joined, to features [..., k]."""

    module: nn.Module

    @nn.compact
    def __call__(self, *inputs: Array) -> Array:
        x = joined(inputs)
        features = self.module(x.reshape(-1, x.shape[-1]))
        return features.reshape(*x.shape[:-1], features.shape[-1])


def rows(observation: Any, one: Any) -> Any:
    """Observations [..., O...] as a module sees them, [N, O...]; `one` has the shapes O."""

    def seen(x: Array, shape: tuple[int, ...]) -> Array:
        numbers = x.astype(jnp.float32).reshape(-1, *shape)
        return numbers / 255.0 if x.dtype == jnp.uint8 and len(shape) == 3 else numbers

    return jax.tree.map(lambda x, part: seen(x, part.shape), observation, one)


def example(spec: EnvSpec) -> Any:
    """The shapes of `ROWS` observations as a module sees them."""
    one = _without_mask(spec.observation)
    return jax.eval_shape(lambda: rows(_without_mask(spec.example(ROWS)), one))


def made(name: str, role: Role, hidden: Sequence[int] = ()) -> nn.Module:
    """A module of the class `name`. Raises `ValueError` where there is none."""
    module_class = _loaded(name, role)
    fields = {field.name for field in dataclasses.fields(module_class)}
    takes_widths = role == "torso" and "hidden" in fields
    try:
        return module_class(**({"hidden": tuple(hidden)} if takes_widths else {}))
    except Exception as error:
        raise _failure(name, role, "cannot be made", error) from error


def check(name: str, role: Role, inputs: Any, hidden: Sequence[int] = ()) -> None:
    """Raise `ValueError` for a module that does not fit `inputs`, shapes [ROWS, ...], or the
    protocol.
    """
    module, flag = made(name, role, hidden), f"--config.{role} {name}"
    variables = _shapes(name, role, module.init, jax.random.key(0), inputs)
    others = sorted(variables.keys() - {"params"})
    if others:
        raise ValueError(
            f"{flag} has variables '{others[0]}', and only parameters learn: leave them out, "
            "batch normalisation too; layer normalisation works."
        )
    for place, leaf in jax.tree.leaves_with_path(variables):
        if leaf.dtype != jnp.float32:
            where = jax.tree_util.keystr(place[1:], simple=True, separator="/")
            raise ValueError(f"{flag} has a parameter '{where}' of {leaf.dtype}: make it float32.")
    features = _shapes(name, role, module.apply, variables, inputs)
    is_array = isinstance(features, jax.ShapeDtypeStruct)
    is_matrix = is_array and len(features.shape) == 2 and features.shape[0] == ROWS
    if not is_matrix or features.dtype != jnp.float32 or features.shape[1] < 1:
        raise ValueError(
            f"{flag} returns {_shown(features)} for {ROWS} rows, it must return features "
            f"float32[{ROWS}, m], one row for each."
        )


def _loaded(name: str, role: Role) -> type[nn.Module]:
    flag, file = f"--config.{role} {name}", user_files.file_of(name)
    known: Any = user_files.known(name)
    if known is None and file is None:
        class_name = name.removeprefix(user_files.PREFIX)
        raise ValueError(
            f"{flag} was made in Python, and this process does not know it: give the class again, "
            f"as in rljax.resume(folder, config={{'{role}': {class_name}}}); rljax.load takes it "
            "in the same way."
        )
    if known is None:
        known = _class_in(Path(str(file)), name, flag)
    if not isinstance(known, type) or not issubclass(known, nn.Module):
        raise ValueError(f"{flag} is no class that derives from flax.linen.Module.")
    return known


def _class_in(path: Path, name: str, flag: str) -> Any:
    if not path.is_file():
        raise ValueError(f"{flag}: there is no file '{path}'. What goes in it: docs/networks.md")
    try:
        module = user_files.imported(path)
    except (Exception, SystemExit) as error:
        why = user_files.cause(error, path)
        raise ValueError(f"{flag}: '{path}' cannot be imported: {why}") from error
    class_name = name.rpartition(":")[2]
    if not hasattr(module, class_name):
        raise ValueError(f"{flag}: '{path}' has no class '{class_name}'.")
    return getattr(module, class_name)


def _shapes(name: str, role: Role, function: Any, *arguments: Any) -> Any:
    try:
        return jax.eval_shape(function, *arguments)
    except Exception as error:
        raise _failure(name, role, f"fails for {_shown(arguments[-1])}", error) from error


def _failure(name: str, role: Role, what: str, error: Exception) -> ValueError:
    why = user_files.cause(error, Path(user_files.file_of(name) or ""))
    return ValueError(f"--config.{role} {name} {what}: {why.splitlines()[0]}")


def _without_mask(observation: Any) -> Any:
    if not isinstance(observation, dict):
        return observation
    return {name: part for name, part in observation.items() if name != MASK}


def _shown(tree: Any) -> str:
    """The shapes and dtypes of a tree, such as float32[3, 8]."""
    if isinstance(tree, dict):
        return "{" + ", ".join(f"{name}: {_shown(part)}" for name, part in tree.items()) + "}"
    if hasattr(tree, "shape") and hasattr(tree, "dtype"):
        return f"{tree.dtype}{list(tree.shape)}"
    return f"a {type(tree).__name__}"
